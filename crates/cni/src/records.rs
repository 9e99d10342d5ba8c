//! Records of attachments, one file each. They show what an interrupted call left behind, and which taps a
//! restarted daemon must get back into their containers.

use crate::attachment::Attachment;
use crate::error::{Context, Error};
use crate::interface::Interface;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The default directory of records.
pub(crate) const DATA_DIR: &str = "/var/lib/viaduct-containers";

/// Separates the names of container and interface. Neither may contain it.
const BETWEEN: char = ':';

/// The tap of an attachment and its place.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Path of the container's network namespace.
    pub netns: PathBuf,
    /// The namespace's inode number: a different namespace may come to be at that path.
    pub inode: u64,
    pub interface: Interface,
}

pub(crate) struct Records(PathBuf);

impl Records {
    pub(crate) const fn new(data_dir: PathBuf) -> Self {
        Self(data_dir)
    }

    /// Records that parts of an attachment may exist from now on.
    pub(crate) fn begin(&self, it: &Attachment) -> Result<(), Error> {
        let path = self.path(it);
        let directory = self.0.join(&it.network);
        loop {
            // Meanwhile another call may remove the network's last record, and the directory with it. It may
            // do so after mkdir(2) said that the directory exists, and before the check that it is one.
            match fs::create_dir_all(&directory) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists && is_gone_or_directory(&directory) => {
                    continue;
                }
                made => made.context(|| format!("creating {}", directory.display()))?,
            }
            match fs::write(&path, "") {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                written => return written.context(|| format!("writing {}", path.display())),
            }
        }
    }

    /// Records the tap and its place.
    pub(crate) fn complete(&self, it: &Attachment, record: &Record) -> Result<(), Error> {
        let (path, draft) = (self.path(it), self.draft(it));
        let text = serde_json::to_vec(record).map_err(|e| Error::Decode("the record", e))?;
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, &path));
        written.context(|| format!("writing {}", path.display()))
    }

    pub(crate) fn has(&self, it: &Attachment) -> bool {
        self.path(it).exists()
    }

    /// Returns the tap and its place; `None` if they are not known.
    pub(crate) fn read(&self, it: &Attachment) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.path(it)).ok()?).ok()
    }

    /// Forgets an attachment. Removes the network's directory with its last one.
    pub(crate) fn remove(&self, it: &Attachment) -> Result<(), Error> {
        for path in [self.draft(it), self.path(it)] {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(Error::Io(format!("removing {}", path.display()), e));
                }
                _ => {}
            }
        }
        // The directory has records of other attachments, or is gone.
        let _ = fs::remove_dir(self.0.join(&it.network));
        Ok(())
    }

    /// Returns the attachments of a network.
    pub(crate) fn of(&self, network: &str) -> Result<Vec<Attachment>, Error> {
        let found = names(&self.0.join(network))?;
        // Names of drafts begin with a dot; names of containers do not.
        let parse = |name: &String| {
            let (container, ifname) = name.split_once(BETWEEN)?;
            Attachment::new(network, container, ifname).ok()
        };
        Ok(found.iter().filter_map(parse).collect())
    }

    pub(crate) fn all(&self) -> Result<Vec<Attachment>, Error> {
        let mut found = Vec::new();
        for network in names(&self.0)? {
            found.extend(self.of(&network)?);
        }
        Ok(found)
    }

    fn path(&self, it: &Attachment) -> PathBuf {
        self.0.join(&it.network).join(format!("{}{BETWEEN}{}", it.container, it.ifname))
    }

    fn draft(&self, it: &Attachment) -> PathBuf {
        self.0.join(&it.network).join(format!(".{}{BETWEEN}{}", it.container, it.ifname))
    }
}

/// Returns whether the path does not exist, or is a directory now.
fn is_gone_or_directory(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(found) => found.is_dir(),
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}

/// Returns the names in a directory; none if there is no directory.
fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.context(|| format!("listing {}", directory.display()))?,
    };
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_of_their_network() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().join("deep"));
        let [a, b] = ["blue", "red"].map(|network| Attachment::new(network, "c.1", "eth0").unwrap());
        assert!(records.all().unwrap().is_empty());
        records.begin(&a).unwrap();
        records.begin(&b).unwrap();
        assert!(records.read(&a).is_none());
        let interface = Interface { name: "eth0".to_owned(), addresses: vec![], routes: vec![] };
        records.complete(&a, &Record { netns: "/run/netns/x".into(), inode: 7, interface }).unwrap();
        assert_eq!(records.read(&a).unwrap().inode, 7);
        assert_eq!(records.of("blue").unwrap(), std::slice::from_ref(&a));
        assert_eq!(records.all().unwrap().len(), 2);
        records.remove(&a).unwrap();
        records.remove(&a).unwrap();
        assert!(!records.has(&a) && records.has(&b));
        assert_eq!(names(&dir.path().join("deep")).unwrap(), ["red"]);
    }

    #[test]
    fn a_directory_that_goes_meanwhile_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let calls = |container: usize| {
            let records = Records::new(dir.path().to_owned());
            let it = Attachment::new("blue", &format!("c{container}"), "eth0").unwrap();
            for _ in 0..2000 {
                records.begin(&it).unwrap();
                records.remove(&it).unwrap();
            }
        };
        std::thread::scope(|scope| (0..2).for_each(|i| drop(scope.spawn(move || calls(i)))));
        assert_eq!(names(dir.path()).unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_no_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("blue")).unwrap();
        let it = Attachment::new("blue", "c1", "eth0").unwrap();
        assert!(matches!(Records::new(dir.path().to_owned()).begin(&it), Err(Error::Io(..))));
    }
}
