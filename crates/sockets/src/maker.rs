//! Creating sockets and files, and connecting to sockets.

use crate::directory::{self, Directory};
use crate::{Error, Place, SocketFile, adopt, listen, new_socket, open_memory, remove_memory};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SocketAddrUnix, SocketType};
use std::fmt::Debug;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

pub type Listening = (OwnedFd, Arc<dyn ListeningFile>);

/// Creates sockets and files of memory, and connects to sockets: in this process ([`Here`]), or through
/// another process that has the rights.
pub trait Sockets: Send + Sync {
    /// Does the work of [`listen`].
    ///
    /// # Errors
    /// As [`listen`].
    fn listen(&self, place: &Place, kind: SocketType, backlog: i32) -> Result<Listening, Error>;

    /// Does the work of [`adopt`].
    ///
    /// # Errors
    /// As [`adopt`].
    fn adopt(&self, path: &Path, owner: Option<(u32, u32)>) -> Result<Arc<dyn ListeningFile>, Error>;

    /// Does the work of [`open_memory`].
    ///
    /// # Errors
    /// As [`open_memory`].
    fn memory(&self, place: &Place, keeps: bool) -> Result<OwnedFd, Error>;

    /// Does the work of [`remove_memory`].
    ///
    /// # Errors
    /// As [`remove_memory`].
    fn remove_memory(&self, path: &Path) -> Result<(), Error>;

    /// Connects to a stream socket, without waiting for room in its backlog. Does not follow links of others,
    /// which could lead to a socket that is not theirs.
    ///
    /// # Errors
    /// [`Error`].
    fn connect(&self, path: &Path) -> Result<OwnedFd, Error>;
}

/// The file of a socket. Dropping it removes the file, if the same file is still there.
pub trait ListeningFile: Debug + Send + Sync {
    /// Gives the file to another user and group, and sets its mode.
    ///
    /// # Errors
    /// If the path now has a different file, or permission is missing (CAP_CHOWN).
    fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), Error>;
}

impl ListeningFile for SocketFile {
    fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), Error> {
        Self::give_to(self, owner, mode)
    }
}

/// Creates sockets and files in this process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

/// Returns [`Here`].
#[must_use]
pub fn here() -> Arc<dyn Sockets> {
    Arc::new(Here)
}

impl Sockets for Here {
    fn listen(&self, place: &Place, kind: SocketType, backlog: i32) -> Result<Listening, Error> {
        let (socket, file) = listen(place, kind, backlog)?;
        Ok((socket, Arc::new(file)))
    }

    fn adopt(&self, path: &Path, owner: Option<(u32, u32)>) -> Result<Arc<dyn ListeningFile>, Error> {
        Ok(Arc::new(adopt(path, owner)?))
    }

    fn memory(&self, place: &Place, keeps: bool) -> Result<OwnedFd, Error> {
        open_memory(place, keeps)
    }

    fn remove_memory(&self, path: &Path) -> Result<(), Error> {
        remove_memory(path)
    }

    fn connect(&self, path: &Path) -> Result<OwnedFd, Error> {
        connect(path)
    }
}

fn connect(path: &Path) -> Result<OwnedFd, Error> {
    let failed = |source: Errno| Error::Os { path: path.to_owned(), source: source.into() };
    let Directory { dir, name } = directory::find_of_others(path)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = rustix::fs::openat(&dir, &name, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&entry).map_err(failed)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => {}
        FileType::Symlink => return Err(Error::Link(path.to_owned())),
        _ => return Err(Error::NotSocket(path.to_owned())),
    }
    // Connects to exactly this file, whatever is at its path now.
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", entry.as_raw_fd())).map_err(failed)?;
    let socket = new_socket(SocketType::STREAM).map_err(failed)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(failed)?;
    Ok(socket)
}
