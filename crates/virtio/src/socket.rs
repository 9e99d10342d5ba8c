//! The port's unix socket: listening (server role) or connecting (client role).

use crate::{Error, GuestPort};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Connections that may wait while another VMM is served.
const BACKLOG: i32 = 8;

/// A listening socket. Dropping it removes its file, if it is still the one that was made.
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    file: (u64, u64),
}

impl Listener {
    /// Listens where `port` says. A socket file that nobody listens on any more is replaced, any other refused.
    pub(crate) fn new(port: &GuestPort) -> Result<Self, Error> {
        let path = &port.socket;
        let failed = |source: io::Error| Error::Socket { path: path.clone(), source };
        remove_stale(path)?;
        let fd = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
        let addr = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
        rustix::net::bind(&fd, &addr).map_err(|e| failed(e.into()))?;
        let meta = path.symlink_metadata().map_err(failed)?;
        // From here on, dropping it cleans up.
        let this =
            Self { listener: UnixListener::from(fd), path: path.clone(), file: (meta.dev(), meta.ino()) };
        rustix::fs::chmod(path, Mode::from_raw_mode(port.mode)).map_err(|e| failed(e.into()))?;
        if let Some((uid, gid)) = port.owner {
            rustix::fs::chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(|e| failed(e.into()))?;
        }
        // Nobody can connect before this, so nobody can before owner and mode are set.
        rustix::net::listen(&this.listener, BACKLOG).map_err(|e| failed(e.into()))?;
        Ok(this)
    }

    /// A waiting connection, if any.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = self.path.symlink_metadata().is_ok_and(|m| (m.dev(), m.ino()) == self.file);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn new_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the socket file of a back end that is gone.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Socket { path: path.to_owned(), source };
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(failed(e)),
        Ok(meta) if !meta.file_type().is_socket() => Err(Error::NotSocket(path.to_owned())),
        Ok(_) => match connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)
            }
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(failed(e)),
            _ => Err(Error::InUse(path.to_owned())),
        },
    }
}

/// Connects to the VMM's socket, without waiting.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let fd = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let addr = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&fd, &addr) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    }
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
