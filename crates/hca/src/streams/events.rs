//! Events that the device sends to applications: notifications of completion channels, and asynchronous events.

use crate::inbox::Inbox;
use crate::inbox::message::Message;
use crate::streams::tickets::{Attached, Origin, Purpose, TicketHold, Tickets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use uverbs::Given;

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

/// Makes the sockets or streams, with their tickets, that carry events to an application.
#[derive(Debug)]
pub(crate) struct Notifiers(Option<(Arc<Tickets>, Origin)>);

impl Notifiers {
    /// Uses local sockets, or streams if the application itself comes by a stream from this origin.
    pub const fn new(streams: Option<(Arc<Tickets>, Origin)>) -> Self {
        Self(streams)
    }

    /// Makes the device's end and the application's end.
    pub fn create(&self) -> rustix::io::Result<(Notifier, Given)> {
        let (end, theirs) = match &self.0 {
            None => {
                let (ours, theirs) =
                    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
                // Nobody reads it, so nothing is to wait there that takes long to close.
                shutdown(&ours, Shutdown::Read)?;
                (End::Socket(ours), Given::Descriptor(theirs))
            }
            Some((tickets, origin)) => {
                let attached = Arc::new(Attached::default());
                let hold = tickets.issue(*origin, Purpose::Events(attached.clone()));
                let theirs = Given::Stream(hold.ticket);
                (End::Stream { attached, rest: Vec::new(), _hold: hold }, theirs)
            }
        };
        Ok((Notifier { end, waiting: VecDeque::new() }, theirs))
    }

    /// Issues a ticket for a stream that wakes a thread; `None`: an event descriptor does that.
    pub fn wake(&self, inbox: &Arc<Inbox<Message>>) -> Option<TicketHold> {
        let (tickets, origin) = self.0.as_ref()?;
        Some(tickets.issue(*origin, Purpose::Wake(inbox.clone())))
    }

    /// Issues a ticket for a stream that carries messages of the connection manager; `None`: the application makes
    /// a socket.
    pub fn messages(&self) -> Option<(Arc<Attached>, TicketHold)> {
        let (tickets, origin) = self.0.as_ref()?;
        let attached = Arc::new(Attached::default());
        let hold = tickets.issue(*origin, Purpose::Events(attached.clone()));
        Some((attached, hold))
    }
}

/// The device's end of what carries events.
#[derive(Debug)]
enum End {
    Socket(OwnedFd),
    Stream {
        attached: Arc<Attached>,
        /// The bytes of the last message that are not sent yet.
        rest: Vec<u8>,
        _hold: TicketHold,
    },
}

impl End {
    /// Is true if a part of the last message is not sent yet.
    const fn has_rest(&self) -> bool {
        matches!(self, Self::Stream { rest, .. } if !rest.is_empty())
    }

    /// Sends a message without waiting. False if there is no room for it. True also if the application has closed its
    /// end.
    fn send(&mut self, message: &[u8]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match self {
            Self::Socket(socket) => send(socket, message, flags) != Err(Errno::AGAIN),
            Self::Stream { attached, rest, .. } => {
                let Some(socket) = attached.socket() else { return false };
                while !rest.is_empty() {
                    match send(socket, rest, flags) {
                        Ok(sent) => drop(rest.drain(..sent)),
                        Err(Errno::AGAIN) => return false,
                        Err(_) => rest.clear(),
                    }
                }
                match send(socket, message, flags) {
                    Ok(sent) => rest.extend_from_slice(&message[sent..]),
                    Err(errno) => return errno != Errno::AGAIN,
                }
                true
            }
        }
    }
}

/// The device's end of what carries events to an application. Sending never blocks.
#[derive(Debug)]
pub(crate) struct Notifier {
    end: End,
    waiting: VecDeque<Vec<u8>>,
}

impl Notifier {
    /// Duplicates the device's end, for a peer that shares memory. `Ok(None)`: only the device sends events there.
    pub fn share(&self) -> rustix::io::Result<Option<OwnedFd>> {
        match &self.end {
            End::Socket(socket) => rustix::io::fcntl_dupfd_cloexec(socket, 0).map(Some),
            End::Stream { .. } => Ok(None),
        }
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
        !self.flush() && self.end.send(message)
    }

    /// Is true if messages wait.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty() || self.end.has_rest()
    }

    /// Is true if the application has closed its end, or has not attached one.
    pub fn is_closed(&self) -> bool {
        let poll_end = |end: BorrowedFd<'_>| {
            let mut wanted = [PollFd::from_borrowed_fd(end, PollFlags::RDHUP)];
            poll(&mut wanted, Some(&Timespec::default())).is_ok() && !wanted[0].revents().is_empty()
        };
        match &self.end {
            End::Socket(socket) => poll_end(socket.as_fd()),
            End::Stream { attached, .. } => attached.socket().is_none_or(|socket| poll_end(socket.as_fd())),
        }
    }

    /// Sends waiting messages. Returns whether some still wait.
    pub fn flush(&mut self) -> bool {
        while let Some(message) = self.waiting.front() {
            if !self.end.send(message) {
                return true;
            }
            self.waiting.pop_front();
        }
        self.end.has_rest() && !self.end.send(&[])
    }
}
