//! Who may touch a ring now: one worker for a burst, or the control thread.

use std::sync::atomic::{AtomicU32, Ordering};

const HELD: u32 = 1;
const CLOSED: u32 = 2;

/// Tries to get hold of a ring that another worker holds, before giving up.
const SPINS: u32 = 1000;

/// A lease of one ring. Workers take it by one compare-and-swap; while it is closed none can, and the one who
/// closed it, once [`Lease::close`] returns, has the ring to itself.
#[derive(Debug)]
pub(crate) struct Lease(AtomicU32);

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
        Self(AtomicU32::new(CLOSED))
    }

    /// One attempt to take it.
    #[inline]
    pub(crate) fn try_take(&self) -> Taken {
        match self.0.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Taken::Yes,
            Err(state) if state & CLOSED != 0 => Taken::Closed,
            Err(_) => Taken::Busy,
        }
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
        self.0.fetch_and(!HELD, Ordering::Release);
    }

    /// Lets no worker take it any more, and waits until the one that has it (a burst at most) gave it back.
    pub(crate) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::Acquire);
        while self.0.load(Ordering::Acquire) & HELD != 0 {
            std::thread::yield_now();
        }
    }

    /// Lets workers take it.
    pub(crate) fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::Release);
    }
}
