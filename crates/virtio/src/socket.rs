//! The port's unix socket: listening (server role) or connecting (client role).

use crate::GuestPort;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sockets::{Place, SocketFile};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Connections that may wait while another VMM is served.
const BACKLOG: i32 = 8;

/// A listening socket.
pub(crate) struct Listener(UnixListener);

impl Listener {
    /// Listens where `port` says; with it the socket's file, which goes when it is dropped.
    pub(crate) fn new(port: &GuestPort) -> Result<(Self, SocketFile), sockets::Error> {
        let place = Place { path: port.socket.clone(), owner: port.owner, mode: port.mode };
        let (socket, file) = sockets::listen(&place, SocketType::STREAM, BACKLOG)?;
        Ok((Self(UnixListener::from(socket)), file))
    }

    /// A waiting connection, if any.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.0.accept() {
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
        self.0.as_fd()
    }
}

/// Connects to the VMM's socket, without waiting.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
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
