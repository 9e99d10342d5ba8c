//! The bond between two queue pairs whose libraries share memory: one does what the other's device would do.
//!
//! The device can end it at any time. Memory that is taken away is taken away once nobody is at work with it.

use crate::Memory;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// Both sides write to a cache line of their own.
#[repr(C, align(64))]
struct Page {
    /// The devices': it is over.
    closed: AtomicU32,
    _device: [u32; 15],
    /// The library's: odd while it is at work.
    turns: AtomicU32,
    /// A receive of a shared queue that the library claimed and did not complete yet, if this is one.
    claims: AtomicU32,
    messages: AtomicU64,
    bytes: AtomicU64,
    claimed: AtomicU64,
    _library: [u64; 4],
}

/// A bond, any end.
#[derive(Debug)]
pub struct Bond(Memory);

impl Bond {
    /// Bytes of its memory.
    pub const BYTES: usize = size_of::<Page>();

    /// A bond in memory of that size.
    ///
    /// # Panics
    /// Where it is shorter.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        assert!(memory.len() >= Self::BYTES, "no room for a bond");
        Self(memory)
    }

    fn page(&self) -> &Page {
        // SAFETY: at the beginning of memory that `self` keeps mapped, and within (`at`); it consists of atomics.
        unsafe { self.0.at::<Page>(0).as_ref() }
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.page().closed.load(Ordering::Relaxed) != 0
    }

    /// The library's: begins to work. False where it may not; else [`Self::leave`] follows.
    #[must_use]
    pub fn enter(&self) -> bool {
        let page = self.page();
        let turn = page.turns.load(Ordering::Relaxed);
        page.turns.swap(turn | 1, Ordering::SeqCst);
        if page.closed.load(Ordering::SeqCst) == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// The library's: its work is done.
    pub fn leave(&self) {
        let page = self.page();
        let turn = page.turns.load(Ordering::Relaxed);
        page.turns.store((turn | 1).wrapping_add(1), Ordering::Release);
    }

    /// The library's: counts a message.
    pub fn count(&self, bytes: u64) {
        let page = self.page();
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&page.messages, 1);
        add(&page.bytes, bytes);
    }

    /// The library's: it claimed the receive of a shared queue with this identifier.
    pub fn hold(&self, id: u64) {
        self.page().claimed.store(id, Ordering::Relaxed);
        self.page().claims.store(1, Ordering::Release);
    }

    /// The receive that is held, for the one who asks first to complete it: the library, or the device after the library was
    /// seen to be gone, or to stand still.
    #[must_use]
    pub fn release(&self) -> Option<u64> {
        let page = self.page();
        (page.claims.swap(0, Ordering::AcqRel) == 1).then(|| page.claimed.load(Ordering::Relaxed))
    }

    /// Messages and bytes that were counted.
    #[must_use]
    pub fn counted(&self) -> (u64, u64) {
        (self.page().messages.load(Ordering::Relaxed), self.page().bytes.load(Ordering::Relaxed))
    }

    /// A device's: ends it.
    pub fn close(&self) {
        self.page().closed.store(1, Ordering::SeqCst);
    }

    /// A device's: waits until the library has seen what was changed before, at most so long: it may be stopped.
    pub fn settle(&self, patience: Duration) {
        fence(Ordering::SeqCst);
        let turns = &self.page().turns;
        let turn = turns.load(Ordering::Acquire);
        let start = Instant::now();
        while turn % 2 == 1 && turns.load(Ordering::Acquire) == turn && start.elapsed() < patience {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nobody_is_at_work_once_it_is_settled() {
        let (memory, file) = Memory::create("test", Bond::BYTES).unwrap();
        let (device, library) = (Bond::new(memory), Bond::new(Memory::open(&file, Bond::BYTES).unwrap()));
        let gone = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while library.enter() {
                    assert!(!gone.load(Ordering::Relaxed));
                    library.count(3);
                    library.leave();
                }
            });
            while device.counted().0 < 1000 {
                std::thread::yield_now();
            }
            device.close();
            device.settle(Duration::from_secs(20));
            gone.store(true, Ordering::Relaxed);
        });
        let (messages, bytes) = device.counted();
        assert_eq!(bytes, messages * 3);
        assert!(device.is_closed() && !library.enter());
    }

    #[test]
    fn what_is_held_is_completed_once() {
        let (memory, file) = Memory::create("test", Bond::BYTES).unwrap();
        let (device, library) = (Bond::new(memory), Bond::new(Memory::open(&file, Bond::BYTES).unwrap()));
        assert_eq!(device.release(), None);
        library.hold(0);
        assert_eq!((device.release(), library.release()), (Some(0), None));
        library.hold(7);
        assert_eq!((library.release(), device.release()), (Some(7), None));
    }
}
