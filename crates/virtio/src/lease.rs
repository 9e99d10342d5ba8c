//! Who may access a ring: one worker for a burst, or the control thread.
//!
//! A worker takes the lease and then checks whether it is closed; the control thread closes it and then checks whether
//! a worker has it. All four steps have one total order (Dekker), so at least one side sees the other. Therefore
//! returning the lease is a plain store: a locked operation there would wait for everything that was written to the
//! guest.

use std::sync::atomic::{AtomicBool, Ordering};

/// Attempts to get a ring that a different worker holds, before giving up.
const SPINS: u32 = 1000;

/// A lease of one ring. Workers take it with one exchange. While it is closed no worker can take it, and once
/// [`Lease::close`] returns, the closer has the ring to itself.
#[derive(Debug)]
pub(crate) struct Lease {
    held: AtomicBool,
    closed: AtomicBool,
}

/// The result of an attempt to take a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is ours until returned.
    Yes,
    /// A different worker has it.
    Busy,
    /// The control thread has it, or the ring is not running.
    Closed,
}

impl Lease {
    /// Creates a closed lease.
    pub(crate) const fn new() -> Self {
        Self { held: AtomicBool::new(false), closed: AtomicBool::new(true) }
    }

    /// Attempts once to take it.
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

    /// Stops workers from taking it, and waits until the worker that has it (for a burst at most) has returned it.
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
