//! Counters of flows, in memory that drivers read: OVS asks for the counter of each flow many times a second.

use executor::Counters;
use model::ovs::MAX_COUNTERS;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uverbs::{Memory, MemoryError};

/// Bytes of a counter: packets and bytes.
const SLOT: usize = 16;
/// How long the index of a removed flow rests before a new flow gets it: workers count a little late.
const REST: Duration = Duration::from_secs(10);

/// Users for whom room is kept beside the one who asks, and places of flows kept for each.
pub const OTHERS: usize = 4;
const KEPT: usize = MAX_COUNTERS as usize / 64;

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
    /// Indexes of removed flows, the oldest first, and whose flows these were.
    resting: VecDeque<(Instant, u32, u32)>,
    /// Those that have rested.
    rested: VecDeque<u32>,
    /// How many each user has, resting ones counted in.
    by_user: HashMap<u32, usize>,
    /// A bit for each index: whether a flow has it.
    taken: Vec<u64>,
}

impl Indexes {
    /// Takes an index for a new flow of a user; `None` if all are in use, or the rest is kept for others.
    pub fn take(&mut self, user: u32, now: Instant) -> Option<u32> {
        while let Some(&(since, index, of)) = self.resting.front()
            && now.saturating_duration_since(since) >= REST
        {
            self.resting.pop_front();
            self.rested.push_back(index);
            self.leave(of);
        }
        if self.room(user) == 0 {
            return None;
        }
        let index = self.rested.pop_front().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        *self.by_user.entry(user).or_default() += 1;
        let word = index as usize / 64;
        self.taken.resize(self.taken.len().max(word + 1), 0);
        self.taken[word] |= 1 << (index % 64);
        Some(index)
    }

    fn leave(&mut self, user: u32) {
        if let Some(count) = self.by_user.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&user);
            }
        }
    }

    /// Returns how many more flows a user may have now.
    pub fn room(&self, user: u32) -> usize {
        let free = (MAX_COUNTERS - self.next) as usize + self.rested.len();
        share(free, KEPT, user, self.by_user.iter().map(|(user, count)| (*user, *count)))
    }

    /// Charges the index of a flow to a different user.
    pub fn move_to(&mut self, user: u32, before: u32) {
        self.leave(before);
        *self.by_user.entry(user).or_default() += 1;
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

    /// Takes back the index of a removed flow of this user.
    pub fn give_back(&mut self, index: u32, user: u32, now: Instant) {
        if let Some(word) = self.taken.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
        self.resting.push_back((now, index, user));
    }
}

/// Returns how much of `free` one user may take: `kept` is kept for each of [`OTHERS`] others, less what they have.
pub fn share(free: usize, kept: usize, user: u32, all: impl Iterator<Item = (u32, usize)>) -> usize {
    let (mut own, mut others) = (0, OTHERS * kept);
    for (of, has) in all {
        match of == user {
            true => own = has,
            false => others = others.saturating_sub(has.min(kept)),
        }
    }
    free.saturating_sub(others).max(free.min(kept.saturating_sub(own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_rests_before_it_is_used_again() {
        let (mut indexes, start) = (Indexes::default(), Instant::now());
        let taken = |indexes: &Indexes| indexes.taken().collect::<Vec<_>>();
        assert_eq!([indexes.take(0, start), indexes.take(0, start)], [Some(0), Some(1)]);
        indexes.give_back(0, 0, start);
        assert_eq!(taken(&indexes), [1]);
        assert_eq!(indexes.take(0, start + REST / 2), Some(2));
        assert_eq!(indexes.take(0, start + REST), Some(0));
        (3..=64).for_each(|next| assert_eq!(indexes.take(0, start), Some(next)));
        assert_eq!(taken(&indexes), (0..=64).collect::<Vec<_>>());
        indexes.next = MAX_COUNTERS;
        indexes.give_back(1, 0, start + REST);
        assert_eq!(indexes.take(0, start + REST), None);
    }

    #[test]
    fn one_user_leaves_places_for_others() {
        let (mut indexes, start) = (Indexes::default(), Instant::now());
        let take_all =
            |indexes: &mut Indexes, user| (0..).take_while(|_| indexes.take(user, start).is_some()).count();
        let all = MAX_COUNTERS as usize;
        assert_eq!(take_all(&mut indexes, 1000), all - OTHERS * KEPT);
        // Removed flows still count for who had them.
        (0..KEPT as u32).for_each(|index| indexes.give_back(index, 1000, start));
        assert_eq!(take_all(&mut indexes, 1000), 0);
        for user in 0..OTHERS as u32 {
            assert_eq!(take_all(&mut indexes, user), KEPT);
        }
        assert_eq!(indexes.room(2000), 0, "five users have all");
        // Who has less than is kept finds room first.
        let mut indexes = Indexes { next: MAX_COUNTERS - 10, ..Indexes::default() };
        indexes.by_user.insert(1, KEPT);
        assert_eq!((indexes.room(1), indexes.room(2)), (0, 10));
    }
}
