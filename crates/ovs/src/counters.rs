//! Counters of flows, in a page that drivers read: OVS asks for each flow's, many times a second.

use executor::Counters;
use model::ovs::MAX_COUNTERS;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uverbs::{Memory, MemoryError};

/// Bytes of a counter: packets and bytes.
const SLOT: usize = 16;
/// How long the index of a removed flow is not given to another: workers count a little late.
const REST: Duration = Duration::from_secs(10);

/// The page, which only the daemon can write.
#[derive(Debug)]
pub struct Page {
    memory: Memory,
    file: OwnedFd,
}

impl Page {
    /// A page for all counters that there can be. Memory is taken once they are used.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> Result<Self, MemoryError> {
        let (memory, file) =
            Memory::create_for_readers("viaduct-ovs-counters", MAX_COUNTERS as usize * SLOT)?;
        Ok(Self { memory, file })
    }

    /// The file for drivers.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes a counter.
    pub fn set(&self, index: u32, counters: Counters) {
        for (at, value) in [(0, counters.packets), (8, counters.bytes)] {
            let Some(place) = self.memory.part(index as usize * SLOT + at, 8) else { return };
            // SAFETY: inside the mapping, which lives as long as `self`, and aligned, because the mapping begins at a
            // page; readers access it as an atomic.
            let word: &AtomicU64 = unsafe { place.cast().as_ref() };
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// Which indexes are free.
#[derive(Debug, Default)]
pub struct Indexes {
    /// The lowest one that was never used.
    next: u32,
    /// Those of removed flows, the oldest first.
    resting: VecDeque<(Instant, u32)>,
}

impl Indexes {
    /// An index for a new flow; `None` if all are in use.
    pub fn take(&mut self, now: Instant) -> Option<u32> {
        let rested = self.resting.front().filter(|(since, _)| now.saturating_duration_since(*since) >= REST);
        if let Some(&(_, index)) = rested {
            self.resting.pop_front();
            return Some(index);
        }
        let index = self.next;
        (index < MAX_COUNTERS).then(|| {
            self.next += 1;
            index
        })
    }

    /// The flow with this index is removed.
    pub fn give_back(&mut self, index: u32, now: Instant) {
        self.resting.push_back((now, index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_rests_before_it_is_used_again() {
        let (mut indexes, start) = (Indexes::default(), Instant::now());
        assert_eq!([indexes.take(start), indexes.take(start)], [Some(0), Some(1)]);
        indexes.give_back(0, start);
        assert_eq!(indexes.take(start + REST / 2), Some(2));
        assert_eq!(indexes.take(start + REST), Some(0));
        indexes.next = MAX_COUNTERS;
        indexes.give_back(1, start + REST);
        assert_eq!(indexes.take(start + REST), None);
    }
}
