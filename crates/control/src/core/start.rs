//! Chooses the configuration with which the host starts, from the store and its file.

use super::config_file::digest;
use super::with_file::WithFile;
use super::{Error, Next};
use crate::owner::{Listed, Objects, Owner};
use crate::store::Store;
use config::{Document, Item, Key};
use std::sync::Arc;

pub(super) struct Beginning {
    pub(super) next: Next,
    /// The digest of the file, if its objects were taken.
    pub(super) taken: Option<String>,
}

/// Chooses the configuration. If the file differs from the one taken last, it is the stored objects with
/// those of the file. If that does not fit together, or the file is the same, it is the stored objects. If
/// those don't fit either, it is the file with as many stored objects as fit. Other objects stay in the
/// store.
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
    // If the store does not say which file was taken, an older version wrote it, and an upgrade changes
    // nothing.
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

/// Joins the stored objects and those of the file. A stored object wins over one of the file with the same
/// name.
fn with_file(stored: &Objects, file: &[Item]) -> Objects {
    let WithFile { objects, left, .. } = WithFile::new(stored, file);
    for (key, owner) in left {
        tracing::warn!("{key} of the file is not taken: there is another one (owner {})", owner.name());
    }
    objects
}

/// Joins the file's objects and the stored ones that fit.
fn what_fits(host: Arc<config::Host>, file: &Document, store: &Store) -> Result<Next, Error> {
    loop {
        let stored = store.load().map(|loaded| loaded.objects).unwrap_or_default();
        let problems = match Next::checked(host.clone(), with_file(&stored, &file.objects), &[]) {
            Err(Error::Invalid(problems)) => problems,
            other => return other,
        };
        let others = stored.in_order().into_iter().filter(|listed| *listed.owner() != Owner::File);
        let others: Vec<_> = others.map(Listed::key).collect();
        let is_named = |key: &&Key| problems.iter().any(|problem| problem.at == key.to_string());
        let named: Vec<_> = others.iter().filter(is_named).cloned().collect();
        match (others.is_empty(), named.is_empty()) {
            (true, _) => return Err(Error::Invalid(problems)),
            (false, true) => store.put_aside(&others),
            (false, false) => store.put_aside(&named),
        }
    }
}
