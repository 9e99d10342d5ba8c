//! The path to a directory, protected against entries that others put there.
//!
//! Everybody who can write a directory decides what its names mean. So the path is walked name by name; each
//! directory is held open by a descriptor and checked before its names are used.

use crate::Error;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links on one path, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

const STICKY: u32 = 0o1000;
const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// An open directory, and a name in it.
pub(crate) struct Directory {
    pub(crate) dir: OwnedFd,
    pub(crate) name: OsString,
}

/// The users who may write directories on the path.
struct Trusted {
    /// This process's user.
    uid: u32,
    gid: u32,
    /// The socket's user, who only harms himself by replacing his own socket.
    owner: Option<u32>,
    /// The number that the kernel shows for users that are not mapped into this user namespace. They are the
    /// host's, who control it anyway.
    unmapped: Option<u32>,
}

impl Trusted {
    fn new(owner: Option<u32>) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { uid, gid, owner, unmapped: unmapped() }
    }

    /// Returns whether a user is root or us. Links of these users may be followed.
    fn is_ours(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid || Some(uid) == self.unmapped
    }

    /// Returns who else can write the directory, in words.
    fn stranger(&self, stat: &Stat) -> Option<String> {
        let shared = |bit| stat.st_mode & bit != 0 && stat.st_mode & STICKY == 0;
        if !self.is_ours(stat.st_uid) && Some(stat.st_uid) != self.owner {
            Some(format!("user {}", stat.st_uid))
        } else if shared(OTHERS_WRITE) {
            Some("everybody".to_owned())
        } else if shared(GROUP_WRITE) && ![0, self.gid].contains(&stat.st_gid) {
            Some(format!("group {}", stat.st_gid))
        } else {
            None
        }
    }
}

/// Returns the value for [`Trusted::unmapped`].
fn unmapped() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let mut words = map.split_whitespace();
    let whole = words.nth(2).is_some_and(|count| count == "4294967295");
    let shown = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    if whole { None } else { shown.trim().parse().ok() }
}

/// Finds the directory of `path`, in which a socket for the user `owner` will be created.
pub(crate) fn find(path: &Path, owner: Option<u32>) -> Result<Directory, Error> {
    walk(path, owner, false)
}

/// Finds the directory of `path`, even if others can write it: the file there is theirs. But their links are
/// not followed, because they could lead to places that these users can't reach themselves.
pub(crate) fn find_of_others(path: &Path) -> Result<Directory, Error> {
    walk(path, None, true)
}

fn walk(path: &Path, owner: Option<u32>, is_others: bool) -> Result<Directory, Error> {
    let failed = |source: std::io::Error| Error::Os { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(failed)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(failed(Errno::INVAL.into()));
    };
    let mut way = Way::new(Trusted::new(owner)).map_err(|e| failed(e.into()))?;
    let mut left = names(parent);
    while let Some(next) = left.pop() {
        match way.step(&next) {
            Ok(Some(target)) => left.extend(names(&target)),
            Ok(None) => {}
            Err(Stop::Os(e)) => return Err(failed(e.into())),
            Err(Stop::Link) => return Err(Error::Link(way.path.join(next))),
        }
        if let Some(who) = way.stranger.take().filter(|_| !is_others) {
            return Err(Error::Writable { dir: way.path, who });
        }
    }
    Ok(Directory { dir: way.at, name: name.to_owned() })
}

/// Returns whether users other than root and us can make names in a directory.
pub(crate) fn others_write(stat: &Stat) -> bool {
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    !is_ours || stat.st_mode & (GROUP_WRITE | OTHERS_WRITE) != 0
}

fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|c| *c != Component::CurDir);
    names.rev().map(|c| c.as_os_str().to_owned()).collect()
}

/// The reason why a step is refused.
enum Stop {
    Os(Errno),
    Link,
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Self {
        Self::Os(e)
    }
}

/// The state of a walk.
struct Way {
    trusted: Trusted,
    at: OwnedFd,
    /// The path for display, without the links on it.
    path: PathBuf,
    /// Whether only we decide what names mean here.
    ours: bool,
    stranger: Option<String>,
    links: usize,
}

impl Way {
    fn new(trusted: Trusted) -> rustix::io::Result<Self> {
        let at = open_at(rustix::fs::CWD, OsStr::new("/"))?;
        Ok(Self { trusted, at, path: PathBuf::from("/"), ours: true, stranger: None, links: 0 })
    }

    /// Steps to `name`. If that is a link, the caller goes on with the link's target.
    fn step(&mut self, name: &OsStr) -> Result<Option<PathBuf>, Stop> {
        let next = open_at(&self.at, name)?;
        let stat = rustix::fs::fstat(&next)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                if !self.ours || !self.trusted.is_ours(stat.st_uid) {
                    return Err(Stop::Link);
                }
                self.links += 1;
                if self.links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
                Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes()))))
            }
            FileType::Directory => {
                match name.as_encoded_bytes() {
                    b".." => drop(self.path.pop()),
                    _ => self.path.push(name),
                }
                self.stranger = self.trusted.stranger(&stat);
                let shared = stat.st_mode & (GROUP_WRITE | OTHERS_WRITE) != 0 && stat.st_mode & STICKY == 0;
                self.ours = self.trusted.is_ours(stat.st_uid) && !shared;
                self.at = next;
                Ok(None)
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }
}

fn open_at(dir: impl std::os::fd::AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
