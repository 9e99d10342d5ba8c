//! Counters of flows, in memory that drivers read: OVS asks for the counter of each flow many times a second.

use executor::Counters;
use model::ovs::MAX_COUNTERS;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uverbs::{Memory, MemoryError};

/// Bytes of a counter: packets and bytes.
const SLOT: usize = 16;
/// How long the index of a removed flow rests before a new flow gets it: workers count a little late.
const REST: Duration = Duration::from_secs(10);

/// The counters' memory, which only the daemon can write.
#[derive(Debug)]
pub struct Page {
    memory: Memory,
    file: OwnedFd,
}

impl Page {
    /// Makes room for all counters that there can be. Their memory is allocated on first use.
    ///
    /// # Errors
    /// The kernel has no memory or descriptors.
    pub fn new() -> Result<Self, MemoryError> {
        let (memory, file) =
            Memory::create_for_readers("viaduct-ovs-counters", MAX_COUNTERS as usize * SLOT)?;
        Ok(Self { memory, file })
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

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

/// The indexes of counters, free and taken.
#[derive(Debug, Default)]
pub struct Indexes {
    /// The lowest index that was never used.
    next: u32,
    /// Indexes of removed flows, the oldest first.
    resting: VecDeque<(Instant, u32)>,
    /// A bit for each index: whether a flow has it.
    taken: Vec<u64>,
}

impl Indexes {
    /// Takes an index for a new flow; `None` if all are in use.
    pub fn take(&mut self, now: Instant) -> Option<u32> {
        let rested = self.resting.front().filter(|(since, _)| now.saturating_duration_since(*since) >= REST);
        let index = if let Some(&(_, index)) = rested {
            self.resting.pop_front();
            index
        } else if self.next < MAX_COUNTERS {
            self.next += 1;
            self.next - 1
        } else {
            return None;
        };
        let word = index as usize / 64;
        self.taken.resize(self.taken.len().max(word + 1), 0);
        self.taken[word] |= 1 << (index % 64);
        Some(index)
    }

    /// Returns the taken indexes in order, so that counters are read in the order of memory.
    pub fn taken(&self) -> impl Iterator<Item = u32> {
        let bits = |(word, bits): (usize, &u64)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(word as u32 * 64 + bit)
            })
        };
        self.taken.iter().enumerate().flat_map(bits)
    }

    /// Returns how many indexes were never used.
    pub fn left(&self) -> usize {
        (MAX_COUNTERS - self.next) as usize
    }

    /// Takes back the index of a removed flow.
    pub fn give_back(&mut self, index: u32, now: Instant) {
        if let Some(word) = self.taken.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
        self.resting.push_back((now, index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_rests_before_it_is_used_again() {
        let (mut indexes, start) = (Indexes::default(), Instant::now());
        let taken = |indexes: &Indexes| indexes.taken().collect::<Vec<_>>();
        assert_eq!([indexes.take(start), indexes.take(start)], [Some(0), Some(1)]);
        indexes.give_back(0, start);
        assert_eq!(taken(&indexes), [1]);
        assert_eq!(indexes.take(start + REST / 2), Some(2));
        assert_eq!(indexes.take(start + REST), Some(0));
        (3..=64).for_each(|next| assert_eq!(indexes.take(start), Some(next)));
        assert_eq!(taken(&indexes), (0..=64).collect::<Vec<_>>());
        indexes.next = MAX_COUNTERS;
        indexes.give_back(1, start + REST);
        assert_eq!(indexes.take(start + REST), None);
    }
}
