//! What makes sockets and connects to them.

use crate::{Error, Place, SocketFile, listen};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// A socket that is listened on, and its file.
pub type Listening = (OwnedFd, Box<dyn ListeningFile>);

/// Makes sockets and connects to them: this process ([`Here`]), or another one that has the rights.
pub trait Sockets: Send + Sync {
    /// As [`listen`].
    ///
    /// # Errors
    /// As [`listen`].
    fn listen(&self, place: &Place, kind: SocketType, backlog: i32) -> Result<Listening, Error>;

    /// Connects to a stream socket, without waiting until there is room for the connection.
    ///
    /// # Errors
    /// [`Error::Os`].
    fn connect(&self, path: &Path) -> Result<OwnedFd, Error>;
}

/// The file of a socket. Dropping it removes the file, if it is still the one that was made.
pub trait ListeningFile: Debug + Send + Sync {
    /// Gives it to another user and group, and sets its mode.
    ///
    /// # Errors
    /// It is another file now; no permission (CAP_CHOWN).
    fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), Error>;
}

impl ListeningFile for SocketFile {
    fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), Error> {
        Self::give_to(self, owner, mode)
    }
}

/// This process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

/// A maker that is this process.
#[must_use]
pub fn here() -> Arc<dyn Sockets> {
    Arc::new(Here)
}

impl Sockets for Here {
    fn listen(&self, place: &Place, kind: SocketType, backlog: i32) -> Result<Listening, Error> {
        let (socket, file) = listen(place, kind, backlog)?;
        Ok((socket, Box::new(file)))
    }

    fn connect(&self, path: &Path) -> Result<OwnedFd, Error> {
        connect(path).map_err(|source| Error::Os { path: path.to_owned(), source: source.into() })
    }
}

fn connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    }
    Ok(socket)
}
