//! The file with which the daemon was started. It is read again for a reload, and to see whether it is in
//! force.

use super::{View, begin_anew, check_host};
use crate::owner::{Objects, Owner};
use config::{Host, Item, Key};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

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
    text: Result<Parsed, String>,
}

/// The file's contents, and where a view of the host differs from them.
struct Parsed {
    host: Host,
    objects: Objects,
    /// The objects of the view that was compared last.
    seen: Objects,
    differing: BTreeSet<Key>,
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

    /// Describes how the running configuration differs from the file; `None` if it does not. The file is read again
    /// only when it changes, and only what changed in the configuration is compared again.
    pub(crate) fn difference(&self, view: &View) -> Option<String> {
        let (file, identity) = match self.opened() {
            Ok(opened) => opened,
            Err(e) => return Some(format!("it can't be read: {e}")),
        };
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        if compared.as_ref().is_none_or(|known| known.file != identity) {
            let read = text(file).map_err(|e| format!("it can't be read: {e}"));
            *compared =
                Some(Compared { file: identity, text: read.and_then(|text| Parsed::of(&text, view)) });
        }
        match &mut compared.as_mut()?.text {
            Ok(parsed) => parsed.difference(view),
            Err(why) => Some(why.clone()),
        }
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

impl Parsed {
    /// Reads a file. What is in force as well has no memory of its own.
    fn of(text: &str, view: &View) -> Result<Self, String> {
        let wrong = |problems| format!("it is wrong, and was not taken: {problems}");
        let file = config::parse(text).map_err(wrong)?;
        let mut objects = Objects::default();
        let mut differing = BTreeSet::new();
        for item in file.objects {
            let key = item.object.key();
            objects.put_like(&view.objects, Owner::File, item.object);
            differing.insert(key);
        }
        Ok(Self { host: file.host, objects, seen: Objects::default(), differing })
    }

    /// Follows the changes since the last view, and describes how this one differs.
    fn difference(&mut self, view: &View) -> Option<String> {
        for changed in self.seen.changes_to(&view.objects) {
            let differs = match (self.objects.get(changed.key), changed.new) {
                (Some(wanted), Some(is)) => wanted.object != is.object,
                (Some(_), None) => true,
                (None, is) => is.is_some_and(|is| is.owner == Owner::File),
            };
            if differs {
                self.differing.insert(changed.key.clone());
            } else {
                self.differing.remove(changed.key);
            }
        }
        self.seen = view.objects.clone();
        let host = (self.host != *view.host).then(|| "[host]".to_owned());
        let many = self.differing.len() + usize::from(host.is_some());
        let named = host.into_iter().chain(self.differing.iter().map(Key::to_string)).take(NAMED);
        let more = many.checked_sub(NAMED).filter(|more| *more > 0).map(|more| format!("{more} more"));
        let names: Vec<_> = named.chain(more).collect();
        let what = match check_host(&view.host, &self.host) {
            Ok(()) => "`viaduct diff` shows how",
            Err(_) => begin_anew(&view.host, &self.host),
        };
        (many > 0).then(|| format!("differs from the running configuration in: {}; {what}", names.join(", ")))
    }
}
