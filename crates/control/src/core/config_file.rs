//! The file with which the daemon was started. It is read again for a reload, and to see whether it is in
//! force.

use super::{View, begin_anew, check_host};
use crate::owner::{Objects, Owner};
use config::{Host, Item, Key, Texts};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Most differing objects to name in a message.
const NAMED: usize = 3;

type Open = Box<dyn Fn() -> io::Result<File> + Send + Sync>;
/// Opens the files that match patterns, by name.
type OpenIncluded = Box<dyn Fn(&[String]) -> io::Result<Vec<(String, File)>> + Send + Sync>;

pub struct ConfigFile {
    path: PathBuf,
    open: Open,
    included: OpenIncluded,
    compared: Mutex<Option<Compared>>,
}

struct Compared {
    file: Identity,
    /// The patterns of what it includes, and the files that they match, or the reason why these can't be opened.
    patterns: Vec<String>,
    included: Result<Vec<(String, Identity)>, String>,
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
    /// Remembers the file at `path`, which `open` opens for reading, and `included` those that it includes.
    pub fn new(
        path: &Path,
        open: impl Fn() -> io::Result<File> + Send + Sync + 'static,
        included: impl Fn(&[String]) -> io::Result<Vec<(String, File)>> + Send + Sync + 'static,
    ) -> Self {
        let (open, included) = (Box::new(open), Box::new(included));
        Self { path: path.to_owned(), open, included, compared: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn opened(&self) -> io::Result<(File, Identity)> {
        let file = (self.open)()?;
        let identity = identity(&file)?;
        Ok((file, identity))
    }

    pub(super) fn read(&self) -> io::Result<Texts> {
        Texts::read(self.opened()?.0, &self.included)
    }

    fn matching(&self, patterns: &[String]) -> io::Result<Vec<(String, File, Identity)>> {
        let opened = (self.included)(patterns)?.into_iter();
        opened.map(|(name, file)| identity(&file).map(|identity| (name, file, identity))).collect()
    }

    /// Reads the file, and those that it includes.
    fn compare(&self, main: File, file: Identity, view: &View) -> Compared {
        let (mut patterns, mut included) = (Vec::new(), Ok(Vec::new()));
        let read = Texts::read(main, |wanted| {
            patterns = wanted.to_vec();
            let found = self.matching(wanted);
            included = identities(&found);
            Ok(found?.into_iter().map(|(name, file, _)| (name, file)).collect())
        });
        let read = read.map_err(|e| format!("it can't be read: {e}"));
        Compared { file, patterns, included, text: read.and_then(|texts| Parsed::of(&texts, view)) }
    }

    /// Is true if neither the file nor any that it includes has changed.
    fn is_same(&self, known: &Compared, file: &Identity) -> bool {
        let is_same =
            || known.patterns.is_empty() || identities(&self.matching(&known.patterns)) == known.included;
        known.file == *file && is_same()
    }

    /// Describes how the running configuration differs from the file; `None` if it does not. The file is read again
    /// only when it changes, and only what changed in the configuration is compared again.
    pub(crate) fn difference(&self, view: &View) -> Option<String> {
        let (file, identity) = match self.opened() {
            Ok(opened) => opened,
            Err(e) => return Some(format!("it can't be read: {e}")),
        };
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        if !compared.as_ref().is_some_and(|known| self.is_same(known, &identity)) {
            *compared = Some(self.compare(file, identity, view));
        }
        match &mut compared.as_mut()?.text {
            Ok(parsed) => parsed.difference(view),
            Err(why) => Some(why.clone()),
        }
    }
}

fn identity(file: &File) -> io::Result<Identity> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let numbers = [metadata.dev(), metadata.ino(), metadata.size()].map(i128::from);
    let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let times =
        [time(metadata.mtime(), metadata.mtime_nsec()), time(metadata.ctime(), metadata.ctime_nsec())];
    Ok([numbers[0], numbers[1], numbers[2], times[0], times[1]])
}

/// Returns what tells whether files are others later.
fn identities(found: &io::Result<Vec<(String, File, Identity)>>) -> Result<Vec<(String, Identity)>, String> {
    let files = found.as_ref().map_err(ToString::to_string)?;
    Ok(files.iter().map(|(name, _, identity)| (name.clone(), *identity)).collect())
}

/// Returns a digest of a file's objects, independent of comments and formatting. It tells different files
/// apart, unless somebody makes them collide on purpose.
pub(super) fn digest(objects: &[Item]) -> String {
    let text: String = objects.iter().map(|item| item.object.to_concise_toml()).collect();
    format!("{:08x}-{}", crc32fast::hash(text.as_bytes()), text.len())
}

impl Parsed {
    /// Reads a file. What is in force as well has no memory of its own.
    fn of(texts: &Texts, view: &View) -> Result<Self, String> {
        let wrong = |problems| format!("it is wrong, and was not taken: {problems}");
        let file = config::parse_all(texts).map_err(wrong)?;
        let mut objects = Objects::default();
        let mut differing = BTreeSet::new();
        for item in file.objects {
            if view.objects.namesake(&item.object).is_none() {
                differing.insert(item.object.key());
            }
            objects.put_like(&view.objects, Owner::File, item.object);
        }
        Ok(Self { host: file.host, objects, seen: Objects::default(), differing })
    }

    /// Follows the changes since the last view, and describes how this one differs.
    fn difference(&mut self, view: &View) -> Option<String> {
        for changed in self.seen.changes_to(&view.objects) {
            let is_of_file = || changed.new_owner().is_some_and(|(owner, _)| *owner == Owner::File);
            let differs = match (changed.new_route(), changed.now()) {
                (Some(is), _) => {
                    let wanted = self.objects.routes().get(is.network, is.prefix);
                    wanted.map_or_else(is_of_file, |wanted| *wanted.to() != *is.to())
                }
                (_, Some(is)) => {
                    let wanted = self.objects.other(&changed.key());
                    wanted.map_or_else(is_of_file, |wanted| wanted.object != is.object)
                }
                (None, None) => self.objects.get(&changed.key()).is_some(),
            };
            if differs {
                self.differing.insert(changed.key().into_owned());
            } else if !self.differing.is_empty() {
                self.differing.remove(&*changed.key());
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
