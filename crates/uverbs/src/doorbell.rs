//! Doorbells: the library tells the device which queues have work, and learns whether it must wake the device.

use crate::Memory;
use crate::point::{Point, point};
use crate::sync::fence_after_exchange;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The header before the bits, which only the device writes.
#[repr(C, align(64))]
struct Header {
    /// Whether the device sleeps, and must be woken through its event descriptor.
    asleep: AtomicU32,
}

/// One bit for each queue with work. Both ends use this type.
#[derive(Debug)]
pub struct Doorbells {
    memory: Memory,
    words: u32,
}

/// The result of ringing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The device is awake and sees the doorbell.
    Seen,
    /// The device must be woken with a write to its event descriptor.
    Asleep,
}

impl Doorbells {
    /// Returns the bytes of memory for this many doorbells.
    #[must_use]
    pub const fn bytes(count: u32) -> usize {
        size_of::<Header>() + count.div_ceil(64) as usize * size_of::<AtomicU64>()
    }

    /// Returns the doorbells in memory of [`Self::bytes`] for their number.
    ///
    /// # Panics
    /// If the memory is shorter.
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

    /// Announces, for the library, that a queue has work.
    ///
    /// # Panics
    /// If there is no such doorbell.
    #[must_use]
    pub fn ring(&self, doorbell: u32) -> Rung {
        assert!(doorbell / 64 < self.words, "no such doorbell");
        // Release: a device that sees the bit sees the queue as it is now.
        self.word(doorbell / 64).fetch_or(1 << (doorbell % 64), Ordering::Release);
        // Pairs with `set_asleep`: if the device sleeps without having seen the bit, we see that it sleeps.
        fence_after_exchange();
        point(Point::Rung);
        if self.header().asleep.load(Ordering::Relaxed) == 0 { Rung::Seen } else { Rung::Asleep }
    }

    #[must_use]
    pub const fn count(&self) -> u32 {
        self.words * 64
    }

    /// Calls `each`, for the device, for every doorbell of the first `used` that was rung since the last call, and
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

    /// Sets whether the device sleeps. The device must check the doorbells once more before it sleeps.
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
