//! Doorbells: how the library tells the device which queues have work, and whether the device must be woken.

use crate::Memory;
use crate::point::{Point, point};
use crate::sync::fence_after_exchange;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The header before the bits, which only the device writes.
#[repr(C, align(64))]
struct Header {
    /// Whether the device sleeps, so that it must be woken through its event descriptor.
    asleep: AtomicU32,
}

/// One bit for each queue with work; both ends.
#[derive(Debug)]
pub struct Doorbells {
    memory: Memory,
    words: u32,
}

/// What came of ringing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The device is awake and sees it.
    Seen,
    /// The device must be woken, by a write to its event descriptor.
    Asleep,
}

impl Doorbells {
    /// Bytes of memory for this many doorbells.
    #[must_use]
    pub const fn bytes(count: u32) -> usize {
        size_of::<Header>() + count.div_ceil(64) as usize * size_of::<AtomicU64>()
    }

    /// Doorbells in memory of [`Self::bytes`] for their number.
    ///
    /// # Panics
    /// Where it is shorter.
    #[must_use]
    pub fn new(memory: Memory, count: u32) -> Self {
        assert!(memory.len() >= Self::bytes(count), "no room for doorbells");
        Self { memory, words: count.div_ceil(64) }
    }

    fn header(&self) -> &Header {
        // SAFETY: at the start of memory that `self` keeps mapped; it consists of atomics.
        unsafe { self.memory.at::<Header>(0).as_ref() }
    }

    fn word(&self, index: u32) -> &AtomicU64 {
        let at = size_of::<Header>() + index as usize * size_of::<AtomicU64>();
        // SAFETY: within the mapping (`at`); it is an atomic.
        unsafe { self.memory.at::<AtomicU64>(at).as_ref() }
    }

    /// For the library: announces that a queue has work.
    ///
    /// # Panics
    /// If there is no such doorbell.
    #[must_use]
    pub fn ring(&self, doorbell: u32) -> Rung {
        assert!(doorbell / 64 < self.words, "no such doorbell");
        // Release: whoever sees it sees the queue as it is now.
        self.word(doorbell / 64).fetch_or(1 << (doorbell % 64), Ordering::Release);
        // Pairs with `set_asleep`: a device that sleeps without having seen it is seen to sleep.
        fence_after_exchange();
        point(Point::Rung);
        if self.header().asleep.load(Ordering::Relaxed) == 0 { Rung::Seen } else { Rung::Asleep }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.words * 64
    }

    /// For the device: calls `each` for every doorbell of the first `used` that was rung since the last call, and
    /// perhaps for some after those. Returns whether there were any.
    pub fn answer(&self, used: u32, mut each: impl FnMut(u32)) -> bool {
        let mut any = false;
        for index in 0..self.words.min(used.div_ceil(64)) {
            let word = self.word(index);
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            any = true;
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        any
    }

    /// For the device: sets whether it sleeps. It must check the doorbells once more before it sleeps.
    pub fn set_asleep(&self, asleep: bool) {
        self.header().asleep.store(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn every_bell_is_heard_once() {
        let (memory, _) = Memory::create("test", Doorbells::bytes(130)).unwrap();
        let bells = Doorbells::new(memory, 130);
        assert_eq!(bells.ring(0), Rung::Seen);
        bells.set_asleep(true);
        for bell in [129, 64, 63, 64] {
            assert_eq!(bells.ring(bell), Rung::Asleep);
        }
        let mut heard = Vec::new();
        assert!(bells.answer(130, |bell| heard.push(bell)));
        assert_eq!(heard, [0, 63, 64, 129]);
        assert!(!bells.answer(130, |_| unreachable!()));
        assert_eq!((bells.ring(128), bells.count()), (Rung::Asleep, 192));
        assert!(!bells.answer(128, |_| unreachable!()) && bells.answer(129, |bell| assert_eq!(bell, 128)));
    }
}
