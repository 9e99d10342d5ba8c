//! The port's unix socket: listening (server role) or connecting (client role).

use crate::GuestPort;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};
use sockets::{ListeningFile, Place, Sockets};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

/// Connections that may wait while another VMM is served.
const BACKLOG: i32 = 8;

pub(crate) struct Listener(sockets::Listener);

impl Listener {
    /// Listens as `port` specifies. Also returns the socket's file, which is removed when dropped.
    pub(crate) fn new(
        port: &GuestPort,
        sockets: &dyn Sockets,
    ) -> Result<(Self, Arc<dyn ListeningFile>), sockets::Error> {
        let place = Place { path: port.socket.clone(), owner: port.owner, mode: port.mode };
        let (socket, file) = sockets.listen(&place, SocketType::STREAM, BACKLOG)?;
        Ok((Self(socket.into()), file))
    }

    /// Accepts a waiting connection, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match accept_with(&self.0, SocketFlags::CLOEXEC) {
            Ok(stream) => Ok(Some(stream.into())),
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Connects to the VMM's socket, without waiting.
pub(crate) fn connect(path: &Path, sockets: &dyn Sockets) -> Result<UnixStream, sockets::Error> {
    let stream = UnixStream::from(sockets.connect(path)?);
    stream.set_nonblocking(false).map_err(|source| sockets::Error::Os { path: path.to_owned(), source })?;
    Ok(stream)
}
