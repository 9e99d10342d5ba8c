//! Our ends of connections with peers who may send descriptors that take long to close.
//!
//! The peer that makes a descriptor determines how long its closing takes (`SO_LINGER`, FUSE). The descriptor
//! comes with a message, whether we have room for it or not, and waits in the socket if nobody reads that.
//! Whoever closes it last waits.

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

/// Counts the sockets that are being closed, so that their number can be bounded.
pub struct Closing {
    now: AtomicUsize,
    tell: Option<Box<dyn Fn() + Send + Sync>>,
    /// Starts the thread that closes. It is a pointer, so that only programs which make a `Closing` link
    /// threads: libraries for programs have the same types, and no threads.
    elsewhere: fn(Box<dyn Send>),
}

impl Default for Closing {
    fn default() -> Self {
        Self { now: AtomicUsize::new(0), tell: None, elsewhere: drop_elsewhere }
    }
}

impl Closing {
    /// Returns a counter that calls `tell` each time that something was closed.
    pub fn telling(tell: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { tell: Some(Box::new(tell)), ..Self::default() })
    }

    /// Returns how many sockets have a thread now that closes them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.now.load(Ordering::Acquire)
    }

    /// Has another thread drop a value.
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

/// Drops a value, then tells of it.
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

/// A connected socket that accepts no descriptors. Dropping it shuts it down, and does not wait: if there may
/// be something that takes long to close, another thread closes it.
#[derive(Debug)]
pub struct Untrusted {
    /// `None` only during drop.
    socket: Option<OwnedFd>,
    /// Descriptors that came. After that, nothing is received any more.
    files: Mutex<Vec<OwnedFd>>,
    closing: Arc<Closing>,
}

impl Untrusted {
    /// Wraps a socket of any kind. It counts in `closing` while another thread closes it.
    ///
    /// # Errors
    /// It is no socket.
    pub fn new(socket: OwnedFd, closing: &Arc<Closing>) -> rustix::io::Result<Self> {
        let own = Self { socket: Some(socket), files: Mutex::default(), closing: closing.clone() };
        // The kernel would skip an out-of-band byte, and close the descriptors that come with it here and
        // now.
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
        // The kernel would close descriptors without room here and now.
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
        // No more data comes after this.
        let _ = shutdown(&socket, Shutdown::Both);
        let files = std::mem::take(&mut *self.files());
        if !files.is_empty() || has_unread(&socket) {
            self.closing.clone().close((files, socket));
        }
    }
}

/// Returns whether unread data may wait in a socket that was shut down.
fn has_unread(socket: &OwnedFd) -> bool {
    // With other types, an empty message looks like the end.
    socket_type(socket) != Ok(SocketType::STREAM)
        || recv(socket, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0)
}

/// Drops a value on a thread of its own, because that may take long.
fn drop_elsewhere(what: Box<dyn Send>) {
    // If no thread can be started, this one drops the value.
    if let Err(error) = std::thread::Builder::new().name("close".into()).spawn(move || drop(what)) {
        tracing::warn!("no thread closes what another process sent: {error}");
    }
}

/// A listening socket. Closing it also closes connections that nobody accepted and their unread data: on
/// another thread.
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
