//! The connection for control messages.

use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::{Connection, Given, Lent, Point, Refusal, Reply, Request, SocketError, point};

/// An answer of the device.
pub type Answer = (Result<Reply, Refusal>, Vec<Given>);

/// A connection that threads use one after the other.
#[derive(Debug)]
pub struct Control {
    connection: Mutex<Connection>,
    has_failed: AtomicBool,
}

impl Control {
    pub const fn new(connection: Connection) -> Self {
        Self { connection: Mutex::new(connection), has_failed: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn exchange(&self, request: &Request, along: &[Lent<'_>]) -> Result<Answer, SocketError> {
        let answer = exchange(&mut self.lock(), request, along);
        if answer.is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
        answer
    }

    /// Whether the device was found to be gone.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Number of its descriptor.
    pub fn number(&self) -> i32 {
        self.lock().as_fd().as_raw_fd()
    }

    /// Whether messages come over a stream, from a virtual machine's host.
    pub fn is_remote(&self) -> bool {
        matches!(*self.lock(), Connection::Stream(_))
    }
}

fn exchange(
    connection: &mut Connection,
    request: &Request,
    along: &[Lent<'_>],
) -> Result<Answer, SocketError> {
    connection.send(request, along)?;
    point(Point::Asked);
    connection.receive()
}
