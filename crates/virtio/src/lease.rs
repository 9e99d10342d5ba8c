//! Who may touch a ring now: one worker for a burst, or the control thread.
//!
//! A worker takes the lease and then looks whether it is closed; who closes it does so and then looks whether a
//! worker has it. Both in one total order (Dekker): one of them sees the other. So giving it back is a plain store: a
//! locked operation there would wait for all that was written to the guest.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tries to get hold of a ring that another worker holds, before giving up.
const SPINS: u32 = 1000;

/// A lease of one ring. Workers take it by one exchange; while it is closed none can, and the one who
/// closed it, once [`Lease::close`] returns, has the ring to itself.
#[derive(Debug)]
pub(crate) struct Lease {
    held: AtomicBool,
    closed: AtomicBool,
}

/// What an attempt to take a lease came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is ours until given back.
    Yes,
    /// Another worker has it.
    Busy,
    /// The control thread has it, or the ring is not running.
    Closed,
}

impl Lease {
    /// A closed one.
    pub(crate) const fn new() -> Self {
        Self { held: AtomicBool::new(false), closed: AtomicBool::new(true) }
    }

    /// One attempt to take it.
    #[inline]
    pub(crate) fn try_take(&self) -> Taken {
        if self.held.swap(true, Ordering::SeqCst) {
            return if self.closed.load(Ordering::SeqCst) { Taken::Closed } else { Taken::Busy };
        }
        if self.closed.load(Ordering::SeqCst) {
            self.give();
            return Taken::Closed;
        }
        Taken::Yes
    }

    /// Attempts to take it for a bounded time.
    #[inline]
    pub(crate) fn take(&self) -> Taken {
        for _ in 0..SPINS {
            match self.try_take() {
                Taken::Busy => std::hint::spin_loop(),
                taken => return taken,
            }
        }
        Taken::Busy
    }

    /// Gives it back.
    #[inline]
    pub(crate) fn give(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// Lets no worker take it any more, and waits until the one that has it (a burst at most) gave it back.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        while self.held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Lets workers take it.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }
}
