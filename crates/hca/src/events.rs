//! Events that the device sends to applications: notifications of completion channels, and asynchronous events.

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// How many events may wait for the application to read others. Later ones are lost.
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

/// The device's end of a socket that carries events to an application. Sending never blocks.
#[derive(Debug)]
pub(crate) struct Notifier {
    socket: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
}

impl Notifier {
    /// The device's end and the application's end.
    pub fn new() -> rustix::io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: ours, waiting: VecDeque::new() }, theirs))
    }

    /// A duplicate of the device's end, for a peer that shares memory.
    pub fn share(&self) -> rustix::io::Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)
    }

    pub fn tell(&mut self, message: &[u8]) {
        if !self.tell_now(message) && self.waiting.len() < WAITING {
            self.waiting.push_back(message.to_vec());
        }
    }

    /// Sends a notification. While it waits it is not queued again, and it is never lost.
    pub fn tell_once(&mut self, message: &[u8]) {
        if !self.tell_now(message) && self.waiting.iter().all(|other| other != message) {
            self.waiting.push_back(message.to_vec());
        }
    }

    /// Drops a waiting notification.
    pub fn forget(&mut self, message: &[u8]) {
        self.waiting.retain(|other| other != message);
    }

    /// Sends a message at once. False if the socket has no room, or other messages wait.
    fn tell_now(&mut self, message: &[u8]) -> bool {
        !self.flush() && self.has_room_for(message)
    }

    /// Sends a message. True also if the application has closed its end.
    fn has_room_for(&self, message: &[u8]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(&self.socket, message, flags) != Err(rustix::io::Errno::AGAIN)
    }

    /// Sends waiting messages. Returns whether some still wait.
    pub fn flush(&mut self) -> bool {
        while let Some(message) = self.waiting.front() {
            if !self.has_room_for(message) {
                return true;
            }
            self.waiting.pop_front();
        }
        false
    }
}
