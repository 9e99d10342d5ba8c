//! How the executor speaks to the carrier: by messages that it waits for.

use crate::ports::Line;
use model::{Change, VifId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

/// What the carrier is told.
pub enum Message {
    /// Carry the packets of an interface.
    Attach(VifId, Line),
    /// Let go of an interface.
    Detach(VifId),
    /// Another interface is the engine's alone, or no more.
    Beside(VifId, bool),
    /// The tables changed.
    Apply(Vec<Change>),
    /// Connections were forgotten.
    Flushed,
    /// Leave all packets to the engine while it captures.
    Capture,
    /// End.
    Stop,
}

/// The mailbox. A message's sender is dropped once it was obeyed, or with the carrier.
pub struct Mailbox {
    messages: Mutex<VecDeque<(Message, Sender<()>)>>,
    event: OwnedFd,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// No event descriptors are left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { messages: Mutex::default(), event })
    }

    /// Posts a message. The receiver's end tells when it was obeyed.
    pub fn post(&self, message: Message) -> Receiver<()> {
        let (sender, done) = channel();
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back((message, sender));
        // It can only fail by being full, and then the carrier is woken already.
        let _ = io::write(&self.event, &1_u64.to_ne_bytes());
        done
    }

    /// Posts a message and waits until it was obeyed.
    pub fn tell(&self, message: Message) {
        // Ends, with an error, when the sender is gone.
        let _ = self.post(message).recv();
    }

    /// The next message.
    pub fn next(&self) -> Option<(Message, Sender<()>)> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Readable when there is a message.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Takes back the wake-ups so far.
    pub fn drain(&self) {
        let _ = io::read(&self.event, &mut [0; 8]);
    }
}
