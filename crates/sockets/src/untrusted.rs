//! Our ends of connections with somebody who may send what takes long to close.
//!
//! A descriptor may take as long to close as whoever made it likes (`SO_LINGER`, FUSE). It comes with a message, whether
//! we have room for it or not, and waits in the socket if nobody reads that. Who closes it last waits.

use rustix::io::{Errno, IoSliceMut};
use rustix::net::sockopt::{set_socket_oobinline, socket_type};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, SocketType, recv, recvmsg, shutdown,
};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of control data for as many descriptors as a message can have (`SCM_MAX_FD`).
const ANY_FILES: usize = rustix::cmsg_space!(ScmRights(253));

/// Counts what is being closed, for a bound of it.
pub struct Closing {
    now: AtomicUsize,
    tell: Option<Box<dyn Fn() + Send + Sync>>,
    /// Who makes one of these links threads. Libraries for programs have the same types, and no threads.
    elsewhere: fn(Box<dyn Send>),
}

impl Default for Closing {
    fn default() -> Self {
        Self { now: AtomicUsize::new(0), tell: None, elsewhere: drop_elsewhere }
    }
}

impl Closing {
    /// With what is called each time that something was closed.
    pub fn telling(tell: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { tell: Some(Box::new(tell)), ..Self::default() })
    }

    /// How many sockets have a thread now that closes them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.now.load(Ordering::Acquire)
    }

    /// Has another thread drop this.
    fn close(self: Arc<Self>, what: impl Send + 'static) {
        self.now.fetch_add(1, Ordering::AcqRel);
        let elsewhere = self.elsewhere;
        elsewhere(Box::new(Closed { what: Some(what), closing: self }));
    }
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Closing({})", self.count())
    }
}

/// Drops one, then tells of it.
struct Closed<T> {
    what: Option<T>,
    closing: Arc<Closing>,
}

impl<T> Drop for Closed<T> {
    fn drop(&mut self) {
        drop(self.what.take());
        self.closing.now.fetch_sub(1, Ordering::AcqRel);
        self.closing.tell.iter().for_each(|tell| tell());
    }
}

/// A connected socket, by which no descriptors are wanted. Whoever drops it shuts it down, and does not wait: if there
/// may be something that takes long to close, another thread does it.
#[derive(Debug)]
pub struct Untrusted {
    /// Taken when it is dropped.
    socket: Option<OwnedFd>,
    /// Descriptors that came. Nothing is received any more then.
    files: Mutex<Vec<OwnedFd>>,
    closing: Arc<Closing>,
}

impl Untrusted {
    /// A socket of any kind, which counts while another thread closes it.
    ///
    /// # Errors
    /// It is no socket.
    pub fn new(socket: OwnedFd, closing: &Arc<Closing>) -> rustix::io::Result<Self> {
        let own = Self { socket: Some(socket), files: Mutex::default(), closing: closing.clone() };
        // The kernel would pass over a byte out of band, and close what comes with it here and now.
        set_socket_oobinline(&own, true)?;
        Ok(own)
    }

    /// Receives bytes without waiting.
    ///
    /// # Errors
    /// The kernel's; `EBADMSG` once a descriptor came.
    pub fn receive(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let mut files = self.files();
        if !files.is_empty() {
            return Err(Errno::BADMSG);
        }
        // The kernel would close those without room here and now.
        let mut space = [MaybeUninit::uninit(); ANY_FILES];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(self, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        if files.is_empty() { Ok(got?.bytes) } else { Err(Errno::BADMSG) }
    }

    fn files(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Untrusted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("it is taken when nobody has it any more").as_fd()
    }
}

impl Drop for Untrusted {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        // Nothing comes any more afterwards.
        let _ = shutdown(&socket, Shutdown::Both);
        let files = std::mem::take(&mut *self.files());
        if !files.is_empty() || has_unread(&socket) {
            self.closing.clone().close((files, socket));
        }
    }
}

/// Whether something may wait in a socket that was shut down.
fn has_unread(socket: &OwnedFd) -> bool {
    // Of other types, an empty message looks like the end.
    socket_type(socket) != Ok(SocketType::STREAM)
        || recv(socket, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0)
}

/// Drops this on a thread of its own: it may take long.
fn drop_elsewhere(what: Box<dyn Send>) {
    // Without another thread, this one does it.
    if let Err(error) = std::thread::Builder::new().name("close".into()).spawn(move || drop(what)) {
        tracing::warn!("no thread closes what another process sent: {error}");
    }
}

/// A listening socket. Connections that nobody accepted are closed with it, and what was sent there: on another thread.
#[derive(Debug)]
pub struct Listener(Option<OwnedFd>);

impl From<OwnedFd> for Listener {
    fn from(socket: OwnedFd) -> Self {
        Self(Some(socket))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is taken when nobody has it any more").as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop_elsewhere(Box::new(self.0.take()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
