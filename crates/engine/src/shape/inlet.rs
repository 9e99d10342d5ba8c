//! The end of a shaped guest's queue that takes packets from all workers. To them it is the guest's own sending queue.

use crate::clock::Clock;
use crate::mailbox::Mailbox;
use crate::message::Message;
use mem::{Accepts, Filler, Lease, NoRoom, Offload, Room, Segment, TxQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes the worker that takes the packets out.
pub(crate) struct Waker {
    mailbox: Arc<Mailbox<Message>>,
    /// Whether it sleeps until there is a packet.
    sleeps: AtomicBool,
    /// Whether the guest was not connected when the last packet was sent.
    is_down: AtomicBool,
}

impl Waker {
    pub fn new(mailbox: Arc<Mailbox<Message>>) -> Arc<Self> {
        Arc::new(Self { mailbox, sleeps: AtomicBool::new(false), is_down: AtomicBool::new(false) })
    }

    /// Has the next packet wake the worker. Whether there is one must be looked at after this.
    pub fn arm(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub fn disarm(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    pub fn note_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Wakes the worker if it sleeps. Called after a packet was published.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            self.mailbox.wake();
        }
    }
}

pub(crate) struct Inlet {
    filler: Lease<Filler>,
    waker: Arc<Waker>,
    clock: Clock,
    /// The guest's own queue.
    queue: Arc<dyn TxQueue>,
}

impl Inlet {
    pub fn new(filler: Filler, waker: Arc<Waker>, clock: Clock, queue: Arc<dyn TxQueue>) -> Self {
        Self { filler: Lease::new(filler), waker, clock, queue }
    }
}

impl TxQueue for Inlet {
    fn accepts(&self) -> Accepts {
        self.queue.accepts()
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        let is_down = self.waker.is_down.load(Ordering::Relaxed);
        let now_ns = self.clock.now().ns;
        let leased = self.filler.with(|filler| {
            fill(&mut Place { filler, now_ns, is_down });
            filler.publish();
        });
        self.waker.wake();
        leased.is_some()
    }

    fn suspect(&self) {
        self.queue.suspect();
    }
}

struct Place<'a> {
    filler: &'a mut Filler,
    now_ns: u64,
    is_down: bool,
}

impl Room for Place<'_> {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        // Packets to a guest that is off do not wait, but for one that finds out whether it still is.
        if self.is_down && !self.filler.is_empty() {
            return Err(NoRoom::Down);
        }
        self.filler.reserve(len, offload, self.now_ns).ok_or(NoRoom::Waiting)
    }
}
