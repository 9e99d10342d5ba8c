//! How the executor speaks to the carrier: by messages that it waits for.

use crate::line::Line;
use model::{Change, VifId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the carrier may take to obey: a simulated card takes its time. After that nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(60);

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
    /// How long a message is waited for.
    patience: Duration,
    /// The last message that was not obeyed in time.
    late: Mutex<Option<Receiver<()>>>,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// No event descriptors are left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { messages: Mutex::default(), event, patience: PATIENCE, late: Mutex::default() })
    }

    /// Posts a message. The receiver's end tells when it was obeyed.
    pub fn post(&self, message: Message) -> Receiver<()> {
        let (sender, done) = channel();
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back((message, sender));
        // It can only fail by being full, and then the carrier is woken already.
        let _ = io::write(&self.event, &1_u64.to_ne_bytes());
        done
    }

    /// Posts a message and waits until it was obeyed, but not for a carrier that is stalled.
    pub fn tell(&self, message: Message) {
        let done = self.post(message);
        let patience = if self.is_stalled() { Duration::ZERO } else { self.patience };
        // Ends, with another error, when the sender is gone.
        if done.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        }
    }

    /// Whether the carrier has not done yet what it was given time for.
    pub fn is_stalled(&self) -> bool {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if late.as_ref().is_some_and(|done| done.try_recv() == Err(TryRecvError::Disconnected)) {
            *late = None;
        }
        late.is_some()
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use model::VifId;

    /// There is no carrier: nothing is obeyed until the test does.
    #[test]
    fn a_carrier_that_does_not_obey_is_not_waited_for_for_ever() {
        let mailbox = Mailbox { patience: Duration::from_millis(1), ..Mailbox::new().unwrap() };
        assert!(!mailbox.is_stalled());
        for _ in 0..3 {
            mailbox.tell(Message::Beside(VifId(1), true));
        }
        assert!(mailbox.is_stalled());
        while let Some((_, done)) = mailbox.next() {
            assert!(mailbox.is_stalled(), "all of it counts");
            drop(done);
        }
        assert!(!mailbox.is_stalled());
    }
}
