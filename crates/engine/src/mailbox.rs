//! Messages to a busy thread, which checks for them once per round.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// If this many messages wait for a thread, only messages whose sender relies on them are added.
pub(crate) const FULL: usize = 4096;

/// Proof that a message was processed: it is dropped with the message.
#[derive(Debug)]
pub struct Receipt {
    _sender: Option<Sender<()>>,
}

/// The other end of a receipt.
#[derive(Debug)]
pub struct Pending(Receiver<()>);

impl Receipt {
    /// Creates a receipt, and the end that notices when the receipt is dropped.
    #[must_use]
    pub fn new() -> (Self, Pending) {
        let (sender, receiver) = channel();
        (Self { _sender: Some(sender) }, Pending(receiver))
    }
}

impl Pending {
    /// Waits until the message was processed, at most until `deadline`; false if it was not.
    #[must_use]
    pub fn wait(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        // Receiving ends, with an error, when the sender is gone.
        self.0.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

#[derive(Debug)]
pub struct Mailbox<M> {
    messages: Mutex<VecDeque<(M, Receipt)>>,
    waiting: AtomicBool,
    event: OwnedFd,
}

impl<M> Mailbox<M> {
    /// Creates an empty mailbox.
    ///
    /// # Errors
    /// If no event descriptor can be created.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { messages: Mutex::new(VecDeque::new()), waiting: AtomicBool::new(false), event })
    }

    /// Posts a message for which nobody waits.
    pub fn post(&self, message: M) {
        self.post_with(message, Receipt { _sender: None });
    }

    pub fn post_with(&self, message: M, receipt: Receipt) {
        self.lock().push_back((message, receipt));
        self.waiting.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the thread if it sleeps.
    pub fn wake(&self) {
        // Writing can fail only if the counter is full, and then the thread is awake already.
        let _ = io::write(&self.event, &1_u64.to_ne_bytes());
    }

    #[inline(always)]
    pub fn next(&self) -> Option<(M, Receipt)> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        self.take()
    }

    #[cold]
    fn take(&self) -> Option<(M, Receipt)> {
        let mut messages = self.lock();
        let message = messages.pop_front();
        if messages.is_empty() {
            self.waiting.store(false, Ordering::Release);
        }
        message
    }

    /// Returns whether so many messages wait that only those are added whose sender relies on them.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.lock().len() >= FULL
    }

    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Returns the descriptor that becomes readable when the thread should wake.
    #[must_use]
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Clears the wake-ups so far.
    pub fn drain(&self) {
        let mut count = [0; 8];
        let _ = io::read(&self.event, &mut count);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(M, Receipt)>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
