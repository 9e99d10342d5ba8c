//! The file with which the daemon was started. It is read again for a reload, and to see whether it is in
//! force.

use super::{View, begin_anew, check_host};
use crate::owner::{Objects, Owner};
use config::{Host, Item, Key, Object, Route, Texts};
use std::collections::BTreeSet;
use std::fmt::Write;
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
    stamp: Stamp,
    text: Result<Parsed, String>,
}

/// By which it shows whether the file, or one that it includes, is another one.
pub(super) struct Stamp {
    file: Identity,
    /// The patterns of what it includes, and the files that they match, or the reason why these can't be opened.
    patterns: Vec<String>,
    included: Result<Vec<(String, Identity)>, String>,
}

/// The file's contents, and where a view of the host differs from them.
struct Parsed {
    host: Host,
    objects: Objects,
    /// Whether these are those that were in force: what others own is not the file's.
    with_others: bool,
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

    /// Reads the file, and those that it includes.
    pub(super) fn read(&self) -> io::Result<(Texts, Stamp)> {
        let (main, file) = self.opened()?;
        let (texts, stamp) = self.read_stamped(main, file);
        Ok((texts?, stamp))
    }

    /// Remembers that the file is in force: its objects are those of its owner. So nobody who asks waits until it is
    /// read again.
    pub(super) fn is_in_force(&self, stamp: Stamp, host: &Host, objects: &Objects) {
        let (host, objects, seen) = (host.clone(), objects.clone(), objects.clone());
        let text = Ok(Parsed { host, objects, with_others: true, seen, differing: BTreeSet::new() });
        *self.compared.lock().unwrap_or_else(PoisonError::into_inner) = Some(Compared { stamp, text });
    }

    fn matching(&self, patterns: &[String]) -> io::Result<Vec<(String, File, Identity)>> {
        let opened = (self.included)(patterns)?.into_iter();
        opened.map(|(name, file)| identity(&file).map(|identity| (name, file, identity))).collect()
    }

    fn read_stamped(&self, main: File, file: Identity) -> (io::Result<Texts>, Stamp) {
        let (mut patterns, mut included) = (Vec::new(), Ok(Vec::new()));
        let read = Texts::read(main, |wanted| {
            patterns = wanted.to_vec();
            let found = self.matching(wanted);
            included = identities(&found);
            Ok(found?.into_iter().map(|(name, file, _)| (name, file)).collect())
        });
        (read, Stamp { file, patterns, included })
    }

    fn compare(&self, main: File, file: Identity, view: &View) -> Compared {
        let (read, stamp) = self.read_stamped(main, file);
        let read = read.map_err(|e| format!("it can't be read: {e}"));
        Compared { stamp, text: read.and_then(|texts| Parsed::of(&texts, view)) }
    }

    /// Is true if neither the file nor any that it includes has changed.
    fn is_same(&self, known: &Stamp, file: &Identity) -> bool {
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
        if !compared.as_ref().is_some_and(|known| self.is_same(&known.stamp, &identity)) {
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
    let mut text = String::new();
    // Most routes differ from the one before in their prefix alone.
    let mut last: Option<(&Route, [String; 2])> = None;
    for item in objects {
        let Object::Route(route) = &item.object else {
            text += &item.object.to_concise_toml();
            continue;
        };
        let known =
            last.take().filter(|(other, _)| (&other.network, &other.to) == (&route.network, &route.to));
        let (_, [before, behind]) = last.insert(known.unwrap_or_else(|| (route, route.around_prefix())));
        let _ = write!(text, "{before}{}{behind}", route.prefix);
    }
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
        Ok(Self { host: file.host, objects, with_others: false, seen: Objects::default(), differing })
    }

    /// Follows the changes since the last view, and describes how this one differs.
    fn difference(&mut self, view: &View) -> Option<String> {
        let with_others = self.with_others;
        let is_wanted = |owner: &Owner| !with_others || *owner == Owner::File;
        for changed in self.seen.changes_to(&view.objects) {
            let is_of_file = || changed.new_owner().is_some_and(|(owner, _)| *owner == Owner::File);
            let differs = match (changed.new_route(), changed.now()) {
                (Some(is), _) => {
                    let wanted = self.objects.routes().get(is.network, is.prefix);
                    let wanted = wanted.filter(|wanted| is_wanted(wanted.owner()));
                    wanted.map_or_else(is_of_file, |wanted| *wanted.to() != *is.to())
                }
                (_, Some(is)) => {
                    let wanted = self.objects.other(&changed.key());
                    let wanted = wanted.filter(|wanted| is_wanted(&wanted.owner));
                    wanted.map_or_else(is_of_file, |wanted| wanted.object != is.object)
                }
                (None, None) => {
                    let wanted = self.objects.get(&changed.key());
                    wanted.is_some_and(|wanted| is_wanted(wanted.owner()))
                }
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

#[cfg(test)]
mod tests {
    use super::{Item, digest};

    #[test]
    fn the_digest_is_that_of_the_text_of_all_objects() {
        let [blue, red] = ["blue", "red"].map(|network| {
            move |prefix: &str, to: &str| {
                format!("[[route]]\nnetwork = \"{network}\"\nprefix = \"{prefix}\"\nto = {to}\n")
            }
        });
        let tunnel = "[{ label = 100, remote = \"192.0.2.9\", tunnel = \"mpls-over-udp\" }, { via = \"10.1.1.1\", weight = 2 }]";
        let digest_of = |text: &str| {
            let items: Vec<Item> = config::parse_objects(text).unwrap().into_iter().map(Item::from).collect();
            let whole: String = items.iter().map(|item| item.object.to_concise_toml()).collect();
            assert_eq!(whole, text);
            let digest = digest(&items);
            assert_eq!(digest, format!("{:08x}-{}", crc32fast::hash(whole.as_bytes()), whole.len()));
            digest
        };
        let text = [
            blue("10.9.0.0/16", "[\"drop\"]"),
            blue("fd00:9::/64", "[\"drop\"]"),
            blue("10.8.0.0/16", tunnel),
        ]
        .concat();
        // Version 0.2.0 has it in its store.
        assert_eq!(digest_of(&text), "ae310f27-283");
        let others = "[[network]]\nname = \"red\"\nvrf = 2\n".to_owned()
            + &red("10.8.0.0/16", tunnel)
            + &blue("10.8.0.0/16", tunnel);
        assert_ne!(digest_of(&others), digest_of(&others.replace("100", "101")));
    }
}
