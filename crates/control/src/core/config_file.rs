//! The file with which the daemon was started. It is read again for a reload, and to see whether it is in
//! force.

use super::{View, begin_anew, check_host};
use crate::owner::Owner;
use config::{Item, Object};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Most differing objects to name in a message.
const NAMED: usize = 3;

type Open = Box<dyn Fn() -> io::Result<File> + Send + Sync>;

pub struct ConfigFile {
    path: PathBuf,
    open: Open,
    compared: Mutex<Option<Compared>>,
}

struct Compared {
    file: Identity,
    view: Weak<View>,
    difference: Option<String>,
}

/// Metadata that changes when somebody writes a file or replaces it.
type Identity = [i128; 5];

impl ConfigFile {
    /// Remembers the file at `path`, which `open` opens for reading.
    pub fn new(path: &Path, open: impl Fn() -> io::Result<File> + Send + Sync + 'static) -> Self {
        Self { path: path.to_owned(), open: Box::new(open), compared: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn opened(&self) -> io::Result<(File, Identity)> {
        let file = (self.open)()?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        let numbers = [metadata.dev(), metadata.ino(), metadata.size()].map(i128::from);
        let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let times =
            [time(metadata.mtime(), metadata.mtime_nsec()), time(metadata.ctime(), metadata.ctime_nsec())];
        Ok((file, [numbers[0], numbers[1], numbers[2], times[0], times[1]]))
    }

    pub(super) fn read(&self) -> io::Result<String> {
        text(self.opened()?.0)
    }

    /// Describes how the running configuration differs from the file; `None` if it does not.
    pub(crate) fn difference(&self, view: &Arc<View>) -> Option<String> {
        let (file, identity) = match self.opened() {
            Ok(opened) => opened,
            Err(e) => return Some(format!("it can't be read: {e}")),
        };
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        let known = compared.as_ref().filter(|known| known.file == identity);
        if let Some(known) = known.filter(|known| std::ptr::eq(known.view.as_ptr(), Arc::as_ptr(view))) {
            return known.difference.clone();
        }
        let difference = match text(file) {
            Ok(text) => compare(&text, view),
            Err(e) => Some(format!("it can't be read: {e}")),
        };
        *compared =
            Some(Compared { file: identity, view: Arc::downgrade(view), difference: difference.clone() });
        difference
    }
}

fn text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(config::MOST_BYTES + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns a digest of a file's objects, independent of comments and formatting. It tells different files
/// apart, unless somebody makes them collide on purpose.
pub(super) fn digest(objects: &[Item]) -> String {
    let text: String = objects.iter().map(|item| item.object.to_concise_toml()).collect();
    format!("{:08x}-{}", crc32fast::hash(text.as_bytes()), text.len())
}

/// Describes how the configuration in force differs from the text of a file.
fn compare(text: &str, view: &View) -> Option<String> {
    let file = match config::parse(text) {
        Ok(file) => file,
        Err(problems) => return Some(format!("it is wrong, and was not taken: {problems}")),
    };
    let mut names: Vec<String> = Vec::new();
    if file.host != *view.host {
        names.push("[host]".to_owned());
    }
    let is_in_force =
        |object: &Object| view.objects.get(&object.key()).is_some_and(|it| it.object == *object);
    names.extend(
        file.objects
            .iter()
            .filter(|item| !is_in_force(&item.object))
            .map(|item| item.object.key().to_string()),
    );
    let keys: BTreeSet<_> = file.objects.iter().map(|item| item.object.key()).collect();
    let others = view.objects.in_order().into_iter().filter(|owned| owned.owner == Owner::File);
    names.extend(
        others.map(|owned| owned.object.key()).filter(|key| !keys.contains(key)).map(|key| key.to_string()),
    );
    match names.len() {
        0 => return None,
        1..=NAMED => {}
        many => {
            names.truncate(NAMED);
            names.push(format!("{} more", many - NAMED));
        }
    }
    let what = match check_host(&view.host, &file.host) {
        Ok(()) => "`viaduct diff` shows how",
        Err(_) => begin_anew(&view.host, &file.host),
    };
    Some(format!("differs from the running configuration in: {}; {what}", names.join(", ")))
}
