//! How the control plane speaks to a worker: by messages, looked for once per round.

use crate::capture::Tap;
use crate::meters::Meters;
use mem::{RxQueue, TxQueue};
use model::{Question, Unasked, VifId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// With so many messages waiting for a worker, it gets only those that somebody needs.
const FULL: usize = 4096;

/// What a worker is told.
pub(crate) enum Message {
    /// Own this receiving queue of an interface, its `index`th.
    Receive { vif: VifId, queue: Box<dyn RxQueue> },
    /// Send to an interface by these queues, beginning with the one of the worker's number.
    Send { vif: VifId, queues: Arc<[Arc<dyn TxQueue>]> },
    /// Drop all queues of an interface.
    Detach(VifId),
    /// Police by these meters.
    Meters(Arc<Meters>),
    /// Show packets to these captures.
    Taps(Vec<Arc<Tap>>),
    /// Ask for a neighbour's MAC.
    Solicit(Question),
    /// Send a frame of this host's own.
    Tell(Unasked),
    /// Empty the flow cache.
    Forget,
    /// Nothing: the answer shows that the worker runs.
    Answer,
    /// End.
    Stop,
}

/// Proof that a message was dealt with: dropped with it.
pub(crate) struct Receipt {
    _sender: Option<Sender<()>>,
}

/// The other end of a receipt.
#[derive(Debug)]
pub(crate) struct Pending(Receiver<()>);

impl Receipt {
    /// A receipt, and what tells when it is gone.
    pub fn new() -> (Self, Pending) {
        let (sender, receiver) = channel();
        (Self { _sender: Some(sender) }, Pending(receiver))
    }
}

impl Pending {
    /// Waits until the message was dealt with, at most until `deadline`; false where it was not.
    pub fn wait(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        // Ends, with an error, when the sender is gone.
        self.0.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

/// A worker's mailbox.
pub(crate) struct Mailbox {
    messages: Mutex<VecDeque<(Message, Receipt)>>,
    waiting: AtomicBool,
    event: OwnedFd,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// No event descriptor could be had.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { messages: Mutex::default(), waiting: AtomicBool::new(false), event })
    }

    /// Posts a message nobody waits for.
    pub fn post(&self, message: Message) {
        self.post_with(message, Receipt { _sender: None });
    }

    /// Posts a message.
    pub fn post_with(&self, message: Message, receipt: Receipt) {
        self.lock().push_back((message, receipt));
        self.waiting.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the worker, if it sleeps.
    pub fn wake(&self) {
        // It can only fail by being full, and then the worker is woken already.
        let _ = io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// The next message.
    #[inline(always)]
    pub fn next(&self) -> Option<(Message, Receipt)> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        self.take()
    }

    #[cold]
    fn take(&self) -> Option<(Message, Receipt)> {
        let mut messages = self.lock();
        let message = messages.pop_front();
        if messages.is_empty() {
            self.waiting.store(false, Ordering::Release);
        }
        message
    }

    /// Whether so many messages wait that only those are added that somebody needs.
    pub fn is_full(&self) -> bool {
        self.lock().len() >= FULL
    }

    /// Whether there is a message.
    pub fn has_mail(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Readable when the worker should wake.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Takes back the wake-ups so far.
    pub fn drain(&self) {
        let mut count = [0; 8];
        let _ = io::read(&self.event, &mut count);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Message, Receipt)>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
