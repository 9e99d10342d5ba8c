//! The connection for control messages.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::{Connection, Given, Lent, Point, Refusal, Reply, Request, SocketError, point};

pub type Answer = (Result<Reply, Refusal>, Vec<Given>);

/// A connection that threads use one at a time.
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

    /// Has the connection end together with this socket of the device.
    pub fn end_with(&self, life: OwnedFd) {
        self.lock().end_with(life);
    }

    /// Sends a request and waits for its answer.
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

    /// Is true once an exchange found that the device is gone.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the number of the connection's descriptor.
    pub fn number(&self) -> i32 {
        self.lock().as_fd().as_raw_fd()
    }

    /// Is true if messages come over a stream, from a virtual machine's host.
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
