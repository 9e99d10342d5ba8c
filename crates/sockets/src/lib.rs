//! Unix sockets to listen on, and files of memory to share, for guests and programs; files for the daemon
//! alone.
//!
//! Owns: the way to the directory of such a file, past everything that others could have put there; its owner
//! and mode, from its creation to its removal; the closing of sockets if somebody else determines how long
//! that takes; how many connections each user may have.
//!
//! Must not know: what is spoken over a socket, what is in a file.

#![deny(unsafe_code)]

mod directory;
mod maker;
mod memory;
mod own_file;
mod places;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "a test fails by panicking")]
pub mod testing;
mod untrusted;

use directory::Directory;
pub use maker::{Here, Listening, ListeningFile, Sockets, here};
pub use memory::{open_memory, remove_memory};
pub use own_file::{OwnFileError, open_own_file};
pub use places::Places;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
pub use untrusted::{Closing, Listener, Untrusted};

/// Path, owner and mode of a socket, or of a file of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    /// User and group of the file; ours if `None`.
    pub owner: Option<(u32, u32)>,
    /// Mode of the file, whatever the umask.
    pub mode: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else could put a different socket in its place, and talk to the programs that connect.
    #[error(
        "{} can be written by {who}, who could put another socket in its place: \
         take that right away, {}choose another directory",
        dir.display(),
        if who.starts_with("user") { "give the socket to that user (`owner`), or " } else { "or " }
    )]
    Writable {
        /// The directory, or one above it.
        dir: PathBuf,
        /// The user or group that can write it, in words.
        who: String,
    },
    #[error("{} is a symbolic link that others can change: give the path that it leads to", .0.display())]
    Link(PathBuf),
    #[error("{} exists and is not a socket: remove it", .0.display())]
    NotSocket(PathBuf),
    #[error("{} exists and is not a file of its own: remove it", .0.display())]
    NotFile(PathBuf),
    #[error(
        "{} is not in memory: mount a tmpfs that has room for its windows, or a hugetlbfs, as in \
         `mount -t tmpfs -o mode=755,size=16G windows {}`",
        .0.display(),
        .0.display()
    )]
    NotMemory(PathBuf),
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    #[error("{} was replaced, or has another name as well", .0.display())]
    Replaced(PathBuf),
    /// The error of another process that was asked to create the socket.
    #[error("{text}")]
    Asked {
        text: String,
        /// The value for [`Error::is_of_place`].
        is_of_place: bool,
    },
    #[error("{}: {source}", path.display())]
    Os { path: PathBuf, source: io::Error },
}

impl Error {
    /// Returns whether the error is about the file or directory at the path, which the users who may write
    /// there determine.
    #[must_use]
    pub fn is_of_place(&self) -> bool {
        match self {
            Self::Link(_) | Self::NotSocket(_) | Self::Replaced(_) => true,
            // A directory that another user can write fits a different `owner`.
            Self::Writable { who, .. } => !who.starts_with("user"),
            Self::NotFile(_) | Self::NotMemory(_) | Self::InUse(_) => false,
            Self::Asked { is_of_place, .. } => *is_of_place,
            Self::Os { source, .. } => matches!(
                Errno::from_io_error(source),
                Some(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP)
            ),
        }
    }
}

/// The file of a socket. Dropping it removes the file, if the same file is still there.
#[derive(Debug)]
pub struct SocketFile {
    dir: OwnedFd,
    name: OsString,
    id: (u64, u64),
}

impl SocketFile {
    /// Returns whether this is the file. File systems reuse the inode numbers of removed files.
    fn is(&self, stat: &Stat) -> bool {
        (stat.st_dev, stat.st_ino) == self.id && is_socket(stat.st_mode)
    }

    /// Gives the file to another user and group, and sets its mode.
    ///
    /// # Errors
    /// [`Error::Replaced`], or the kernel's error.
    pub fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), Error> {
        let path = PathBuf::from(&self.name);
        let failed = |source: Errno| Error::Os { path: path.clone(), source: source.into() };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&entry).map_err(failed)?;
        if !self.is(&stat) {
            return Err(Error::Replaced(path));
        }
        give_away(&entry, owner, mode).map_err(failed)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let there = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|stat| self.is(&stat)) {
            let _ = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// Creates a socket at `place` and listens there, with up to `backlog` waiting connections. Accepting from it
/// never waits. Replaces a socket file on which nobody listens any more.
///
/// # Errors
/// [`Error`]; no file remains.
pub fn listen(place: &Place, kind: SocketType, backlog: i32) -> Result<(OwnedFd, SocketFile), Error> {
    let Directory { dir, name } = directory::find(&place.path, place.owner.map(|(uid, _)| uid))?;
    remove_stale(&dir, &name, &place.path, kind)?;
    let failed = |source: Errno| Error::Os { path: place.path.clone(), source: source.into() };
    let socket = new_socket(kind).map_err(failed)?;
    rustix::net::bind(&socket, &address(dir.as_fd(), &name).map_err(failed)?).map_err(failed)?;
    let entry =
        rustix::fs::openat(&dir, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
    let stat = rustix::fs::fstat(&entry).map_err(failed)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
    if !ours || !is_socket(stat.st_mode) {
        return Err(Error::Replaced(place.path.clone()));
    }
    // From here on, an error removes the file.
    let file = SocketFile { dir, name, id: (stat.st_dev, stat.st_ino) };
    give_away(&entry, place.owner, place.mode).map_err(failed)?;
    // Nobody can connect before this call, so owner and mode are set in time.
    rustix::net::listen(&socket, backlog).map_err(failed)?;
    Ok((socket, file))
}

/// Takes over the file of a socket on which another process listened until now. Owner and mode stay as they
/// are; `owner` is the user and group that the file gets later.
///
/// # Errors
/// [`Error`]: there is no such socket, the socket may be a different one, or somebody else could put another
/// one in its place.
pub fn adopt(path: &Path, owner: Option<(u32, u32)>) -> Result<SocketFile, Error> {
    let Directory { dir, name } = directory::find(path, owner.map(|(uid, _)| uid))?;
    let failed = |source: Errno| Error::Os { path: path.to_owned(), source: source.into() };
    let stat = rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    if !is_socket(stat.st_mode) {
        return Err(Error::NotSocket(path.to_owned()));
    }
    // Others may have given a name here to a socket that is not for them.
    let others = directory::others_write(&rustix::fs::fstat(&dir).map_err(failed)?);
    if others && stat.st_nlink != 1 {
        return Err(Error::Replaced(path.to_owned()));
    }
    Ok(SocketFile { dir, name, id: (stat.st_dev, stat.st_ino) })
}

/// Sets owner and mode of exactly the file that `entry` refers to, whatever is at its path now. In between,
/// and after a failure, nobody may do what either the old or the new mode forbids.
fn give_away(entry: &OwnedFd, owner: Option<(u32, u32)>, mode: u32) -> rustix::io::Result<()> {
    // A descriptor without access to the contents (O_PATH) does not allow fchmod.
    let path = format!("/proc/self/fd/{}", entry.as_raw_fd());
    let mode = Mode::from_raw_mode(mode);
    if let Some((uid, gid)) = owner {
        let both = Mode::from_raw_mode(rustix::fs::fstat(entry)?.st_mode) & mode;
        rustix::fs::chmod(&path, both)?;
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(entry, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    rustix::fs::chmod(&path, mode)
}

fn is_socket(mode: u32) -> bool {
    rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Socket
}

fn new_socket(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
}

/// Returns the address of `name` in `dir`, however long the path to it is.
fn address(dir: BorrowedFd<'_>, name: &OsString) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
}

/// Removes the socket file of a process that no longer exists.
fn remove_stale(dir: &OwnedFd, name: &OsString, path: &Path, kind: SocketType) -> Result<(), Error> {
    let failed = |source: Errno| Error::Os { path: path.to_owned(), source: source.into() };
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(failed(e)),
        Ok(stat) if !is_socket(stat.st_mode) => return Err(Error::NotSocket(path.to_owned())),
        Ok(_) => {}
    }
    let probe = new_socket(kind).map_err(failed)?;
    match rustix::net::connect(&probe, &address(dir.as_fd(), name).map_err(failed)?) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlinkat(dir, name, AtFlags::empty()).map_err(failed),
        // The queue is full, or the socket is of a different kind.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Error::InUse(path.to_owned())),
        Err(e) => Err(failed(e)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
