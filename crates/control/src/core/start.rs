//! What the host starts with: what is stored, and what its file says.

use super::config_file::digest;
use super::with_file::WithFile;
use super::{Error, Next};
use crate::owner::{Objects, Owner};
use crate::store::Store;
use config::{Document, Item, Key};
use std::sync::Arc;

/// What to start with.
pub(super) struct Beginning {
    pub(super) next: Next,
    /// The digest of the file where its objects were taken.
    pub(super) taken: Option<String>,
}

/// Chooses it: the stored objects with those of the file, where the file is another than the one that was taken last;
/// or else what is stored; or else what of the stored objects fits the file. What does not fit stays in the store.
///
/// # Errors
/// The file alone does not fit together.
pub(super) fn choose(file: &Document, store: &Store) -> Result<Beginning, Error> {
    let host = Arc::new(file.host.clone());
    let now = digest(&file.objects);
    let Some(stored) = store.load() else {
        let next = Next::checked(host, with_file(&Objects::default(), &file.objects), &[])?;
        return Ok(Beginning { next, taken: Some(now) });
    };
    let is_new = stored.is_damaged || stored.taken.as_ref().is_some_and(|taken| *taken != now);
    // A store that does not say which file was taken is an older version's: an upgrade changes nothing.
    let taken = stored.taken.is_none().then(|| now.clone());
    if is_new {
        match Next::checked(host.clone(), with_file(&stored.objects, &file.objects), &[]) {
            Ok(next) => return Ok(Beginning { next, taken: Some(now) }),
            Err(e) => tracing::error!("the file does not fit what the API added, and is not taken: {e}"),
        }
    }
    match Next::checked(host.clone(), stored.objects.clone(), &[]) {
        Ok(next) => Ok(Beginning { next, taken }),
        Err(e) => {
            tracing::error!("what is stored does not fit together any more: {e}");
            Ok(Beginning { next: what_fits(host, file, store)?, taken: Some(now) })
        }
    }
}

/// The stored objects with those of the file, as far as no others have their names.
fn with_file(stored: &Objects, file: &[Item]) -> Objects {
    let WithFile { objects, left, .. } = WithFile::new(stored, file);
    for (key, owner) in left {
        tracing::warn!("{key} of the file is not taken: there is another one (owner {})", owner.name());
    }
    objects
}

/// The file's objects, and of the stored ones those that fit.
fn what_fits(host: Arc<config::Host>, file: &Document, store: &Store) -> Result<Next, Error> {
    loop {
        let stored = store.load().map(|loaded| loaded.objects).unwrap_or_default();
        let problems = match Next::checked(host.clone(), with_file(&stored, &file.objects), &[]) {
            Err(Error::Invalid(problems)) => problems,
            other => return other,
        };
        let others = stored.in_order().into_iter().filter(|owned| owned.owner != Owner::File);
        let others: Vec<_> = others.map(|owned| owned.object.key()).collect();
        let is_named = |key: &&Key| problems.iter().any(|problem| problem.at == key.to_string());
        let named: Vec<_> = others.iter().filter(is_named).cloned().collect();
        match (others.is_empty(), named.is_empty()) {
            (true, _) => return Err(Error::Invalid(problems)),
            (false, true) => store.put_aside(&others),
            (false, false) => store.put_aside(&named),
        }
    }
}
