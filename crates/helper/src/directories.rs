//! The directories in which the daemon may create sockets, and connect to others' sockets.

use crate::request::Refusal;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

/// The directory of windows, in the run-dir.
pub const WINDOWS: &str = "rdma/vm";
/// Last component of an entry that also allows everything below its directory.
const BELOW: &str = "**";
/// Most entries that a refusal names.
const MOST_NAMED: usize = 16;

/// The run-dir with all below it, and other directories without their subdirectories; `DIR/**` is `DIR` with
/// all below it.
///
/// Paths are compared as they are written, because links on the path belong to root or to us ([`sockets`]).
/// `/var/run` is `/run`.
#[derive(Clone, Debug)]
pub struct Directories {
    run_dir: PathBuf,
    others: Vec<PathBuf>,
}

impl Directories {
    /// Returns the directories for the daemon with this run-dir, an absolute path.
    pub fn new(run_dir: &Path, others: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut others: Vec<_> = others.into_iter().map(|dir| plain(&dir)).collect();
        others.sort();
        others.dedup();
        Self { run_dir: plain(run_dir), others }
    }

    /// Returns the helper's command line after its first argument. The first word is the run-dir.
    pub(crate) fn words(&self) -> impl Iterator<Item = &OsStr> {
        std::iter::once(&self.run_dir).chain(&self.others).map(|dir| dir.as_os_str())
    }

    /// Parses `words`; `None` if there is no run-dir.
    #[must_use]
    pub fn of_words(words: &[OsString]) -> Option<Self> {
        let (run_dir, others) = words.split_first()?;
        Some(Self::new(Path::new(run_dir), others.iter().map(PathBuf::from)))
    }

    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Returns whether a path is in or below the run-dir.
    pub(crate) fn is_in_run_dir(&self, path: &Path) -> bool {
        plain(path).starts_with(&self.run_dir)
    }

    /// Checks that a window may be at `path`: directly in the windows' directory.
    ///
    /// # Errors
    /// If it may not.
    pub(crate) fn check_window(&self, path: &Path) -> Result<(), Refusal> {
        let dir = self.run_dir.join(WINDOWS);
        if plain(path).parent() == Some(&*dir) {
            return Ok(());
        }
        Err(Refusal::new(format!("{}: windows are in {}", path.display(), dir.display())))
    }

    /// Checks that a socket may be at `path`.
    ///
    /// # Errors
    /// If it may not; the error says how to allow it.
    pub(crate) fn check(&self, path: &Path) -> Result<(), Refusal> {
        let path = plain(path);
        let dir = path.parent().unwrap_or(&path);
        if dir.starts_with(&self.run_dir) || self.others.iter().any(|entry| allows(entry, dir)) {
            return Ok(());
        }
        Err(Refusal::new(format!(
            "{}: sockets may be in {self} only; add \"{}\" to `socket_dirs` of [host] in host.toml, and restart the daemon",
            path.display(),
            dir.display()
        )))
    }
}

impl fmt::Display for Directories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{BELOW}", self.run_dir.display())?;
        for dir in self.others.iter().take(MOST_NAMED) {
            write!(f, ", {}", dir.display())?;
        }
        match self.others.len().saturating_sub(MOST_NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn allows(entry: &Path, dir: &Path) -> bool {
    match entry.parent() {
        Some(above) if entry.ends_with(BELOW) => dir.starts_with(above),
        _ => dir == entry,
    }
}

/// Returns the path with `/run` for `/var/run`, its old name (file-hierarchy(7)).
fn plain(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn directories(others: &[&str]) -> Directories {
        Directories::new(Path::new("/var/run/viaduct"), others.iter().map(PathBuf::from))
    }

    #[test]
    fn sockets_are_in_the_run_dir_and_where_the_list_says() {
        let directories = directories(&["/run/openvswitch", "/data/vms/**"]);
        for path in [
            "/run/viaduct/vm1.sock",
            "/var/run/viaduct/rdma/vm1",
            "/run/openvswitch/vm1",
            "/var/run/openvswitch/vm1",
            "/data/vms/vm1",
            "/data/vms/a/b/vm1",
        ] {
            directories.check(Path::new(path)).unwrap();
        }
        for path in
            ["/vm1", "/run/vm1", "/run/viaduct2/vm1", "/run/openvswitch/a/vm1", "/data/vm1", "/data/vms2/x"]
        {
            directories.check(Path::new(path)).unwrap_err();
        }
        assert!(directories.is_in_run_dir(Path::new("/run/viaduct/a/b")));
        assert!(!directories.is_in_run_dir(Path::new("/run/openvswitch/a")));
    }

    #[test]
    fn windows_are_in_their_directory_alone() {
        let directories = directories(&["/**"]);
        directories.check_window(Path::new("/run/viaduct/rdma/vm/c1")).unwrap();
        for path in
            ["/run/viaduct/rdma/vm/a/c1", "/run/viaduct/rdma/c1", "/run/viaduct/rdma/vm", "/srv/rdma/vm/c1"]
        {
            directories.check_window(Path::new(path)).unwrap_err();
        }
    }

    #[test]
    fn everywhere_is_an_entry_too() {
        directories(&["/**"]).check(Path::new("/a/b/vm1")).unwrap();
        directories(&["/"]).check(Path::new("/vm1")).unwrap();
        directories(&["/"]).check(Path::new("/a/vm1")).unwrap_err();
    }

    #[test]
    fn a_refusal_names_the_path_the_list_and_the_key() {
        let said =
            directories(&["/srv/b", "/srv/a", "/srv/a"]).check(Path::new("/etc/x.sock")).unwrap_err().text;
        let wanted = "/etc/x.sock: sockets may be in /run/viaduct/**, /srv/a, /srv/b only; add \"/etc\" to `socket_dirs`";
        assert!(said.starts_with(wanted), "{said}");
        let many = (0..20).map(|number| PathBuf::from(format!("/srv/{number:02}")));
        let said = Directories::new(Path::new("/run/v"), many).to_string();
        assert!(said.ends_with("/srv/15 and 4 more"), "{said}");
    }

    #[test]
    fn it_comes_back_from_a_command_line() {
        let directories = directories(&["/srv/a", "/srv/b/**"]);
        let words: Vec<_> = directories.words().map(OsStr::to_owned).collect();
        assert_eq!(Directories::of_words(&words).unwrap().to_string(), directories.to_string());
        assert!(Directories::of_words(&[]).is_none());
    }
}
