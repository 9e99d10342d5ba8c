//! What applications are told without asking: completion channels and asynchronous events.

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Events that may wait for the application to read others; what comes then is lost.
const WAITING: usize = 4096;

/// Numbers of `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    CqError = 0,
    QpFatal = 1,
    QpRequestError = 2,
    QpAccessError = 3,
    CommunicationEstablished = 4,
    SendQueueDrained = 5,
    SrqLimitReached = 15,
    SrqError = 14,
    LastWqeReached = 16,
    GidChange = 18,
}

/// Our end of a socket on which an application hears of things. It never blocks us.
#[derive(Debug)]
pub(crate) struct Notifier {
    socket: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
}

impl Notifier {
    /// It, and the application's end.
    pub fn new() -> rustix::io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: ours, waiting: VecDeque::new() }, theirs))
    }

    /// Our end, for a peer that shares memory.
    pub fn share(&self) -> rustix::io::Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)
    }

    pub fn tell(&mut self, message: &[u8]) {
        if self.waiting.len() < WAITING {
            self.waiting.push_back(message.to_vec());
        }
        self.flush();
    }

    /// Sends what waits. Returns whether something still does.
    pub fn flush(&mut self) -> bool {
        while let Some(message) = self.waiting.front() {
            match send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::AGAIN) => return true,
                // Told, or the application has closed its end.
                _ => self.waiting.pop_front(),
            };
        }
        false
    }
}
