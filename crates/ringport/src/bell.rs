//! Wakes a side that sleeps.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The owner does not sleep.
const IDLE: u32 = 0;
/// The owner sleeps, or is about to.
const ARMED: u32 = 1;
/// The owner was woken: the descriptor is written, or about to be.
const RUNG: u32 = 2;

/// An event descriptor that is written only while its owner sleeps, and read only after it was written.
///
/// The sleeper arms it and then checks the ring once more; the other side publishes and then checks whether it is
/// armed. Fences order each pair, so at least one side sees the other.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
    state: AtomicU32,
}

impl Bell {
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, state: AtomicU32::new(IDLE) })
    }

    /// Wakes the sleeper, if there is one. Call it after publishing.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        let armed = self.state.load(Ordering::Relaxed) == ARMED;
        if armed && self.state.compare_exchange(ARMED, RUNG, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // This fails only if the descriptor already polls readable.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Asks to be woken. The sleeper calls this, and must check the ring after it, before it sleeps. False,
    /// with nothing asked, if the previous wake-up is not complete: then the sleeper must not sleep.
    #[must_use]
    pub fn arm(&self) -> bool {
        if self.state.load(Ordering::Relaxed) == RUNG {
            return false;
        }
        self.state.store(ARMED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }

    /// Withdraws the request to be woken, and resets a wake-up. The sleeper calls this.
    pub fn disarm(&self) {
        let rung = match self.state.compare_exchange(ARMED, IDLE, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(state) => state == RUNG,
        };
        // The other side may not have written yet. The bell stays rung until it has.
        if rung && rustix::io::read(&self.event, &mut [0; 8]).is_ok() {
            self.state.store(IDLE, Ordering::Relaxed);
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
