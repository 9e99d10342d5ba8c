//! The state of a packed ring that outlives this process, so that the next process goes on where this one was
//! killed.
//!
//! A driver's memory does not tell where the device of its packed ring is, nor what a descriptor said before
//! a used one overwrote it. So the device keeps both in memory that may belong to a file: which batch it
//! published last, and the batch itself. It would keep the batch anyhow, until it publishes it; the journal
//! adds one store for each batch:
//!
//! 1. Chains are completed: the batch grows. The ring is as the last batch left it.
//! 2. One store says where the batch begins and ends, and how long it is ([`Journal::announce`]).
//! 3. The batch is written into the ring, its first descriptor last: that one shows the batch to the driver.
//!
//! If a device died, the next one looks at the first descriptor. If it is still available, the next device
//! writes the batch again, from the beginning; otherwise the batch was shown, and all is done. Either way it
//! goes on behind the batch ([`Journal::last`]). Chains that were taken and not announced are available as
//! before, and are taken again.
//!
//! Only the process dies, not the machine: if one of its stores is there, all stores before it are there,
//! too, on every processor. Only the compiler must leave the stores in their order.
//!
//! A VMM may keep a copy beyond this process's end (vhost-user, "Inflight I/O tracking"), in case the file is
//! lost. The batch goes there as a whole when it is announced. Others may write the copy at any time: so it
//! is only written, and read once, when a ring begins of which the journal knows nothing
//! ([`Journal::learn`]).

use super::Addresses;
use super::death::step;
use super::packed::Position;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// A completed chain: bytes written and id, placed as in a used descriptor, and the number of its slots,
/// including those of the chains that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done(u64);

impl Done {
    #[inline(always)]
    pub(super) fn new(id: u16, slots: u16, written: u32) -> Self {
        Self(u64::from(written) | u64::from(id) << 32 | u64::from(slots) << 48)
    }

    #[inline(always)]
    pub(super) fn slots(self) -> u16 {
        (self.0 >> 48) as u16
    }

    #[inline(always)]
    pub(super) fn written(self) -> u32 {
        self.0 as u32
    }

    /// Returns the second word of its used descriptor.
    #[inline(always)]
    pub(super) fn used(self, flags: u16) -> u64 {
        self.0 & 0xffff_ffff_ffff | u64::from(flags) << 48
    }
}

/// A position, and how many slots the used descriptor before it stands for; 0 if that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) position: Position,
    pub(super) behind: u16,
}

impl Place {
    fn word(self) -> u64 {
        u64::from(self.position.encoded()) | u64::from(self.behind) << 16
    }

    fn of_word(word: u64) -> Self {
        Self { position: Position::decoded(word as u16), behind: (word >> 16) as u16 }
    }
}

/// The batch that was announced last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// Place of its first used descriptor.
    pub(super) from: Place,
    /// Place of the first used descriptor of the next batch.
    pub(super) to: Place,
}

impl Batch {
    fn word(self) -> u64 {
        self.from.word() | self.to.word() << 32
    }

    fn of_word(word: u64) -> Self {
        Self { from: Place::of_word(word), to: Place::of_word(word >> 32) }
    }

    /// Returns the number of slots from one position to the other, if they can be in a ring of this size.
    fn slots(&self, size: u16) -> Option<u16> {
        let (from, to) = (self.from.position, self.to.position);
        let slots = from.until(to, size)?;
        (from.index < size && to.index < size && slots <= size).then_some(slots)
    }
}

/// A ring, as its VMM describes it. The addresses are the VMM's own, so a different VMM has different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) at: Addresses,
    /// Number of slots.
    pub(crate) size: u16,
    /// The position at which the VMM says that the ring starts: SET_VRING_BASE, without the upper half. With
    /// a different position, it is still the same ring: a VMM may move the position while there is no device.
    pub(crate) base: u16,
}

impl Identity {
    /// Returns the words, with a bit that says that the ring runs: zeroes are no ring.
    fn words(&self) -> [u64; 4] {
        let Addresses { desc, driver, device } = self.at;
        [desc, driver, device, u64::from(self.size) | u64::from(self.base) << BASE | 1 << 32]
    }
}

// Indexes of words: the last batch and the ring share a cache line; the batch that grows comes behind it.
const BATCH: usize = 0;
const IDENTITY: usize = 1;
/// The word of the identity that says whether the ring runs, and, from bit [`BASE`] on, where the VMM says
/// that the ring starts.
const RUNS: usize = IDENTITY + 3;
const BASE: u32 = 16;
const ENTRIES: usize = 8;

/// The memory of a journal.
struct Words {
    at: NonNull<AtomicU64>,
    /// Most entries.
    capacity: usize,
    /// Keeps the memory of the words alive.
    _memory: Box<dyn Send>,
}

// SAFETY: the words are accessed by atomic operations, and belong to `_memory`, which may move between threads.
unsafe impl Send for Words {}

impl Words {
    /// Uses the memory from `at` on as words for a ring of this size.
    ///
    /// # Safety
    /// As [`Journal::over`].
    unsafe fn new(at: *mut u8, size: u16, memory: Box<dyn Send>) -> Self {
        // SAFETY: the caller's promise.
        let at = unsafe { NonNull::new_unchecked(at.cast()) };
        Self { at, capacity: size.into(), _memory: memory }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < ENTRIES + self.capacity);
        // SAFETY: callers stay below the capacity; see `Journal::over`.
        unsafe { self.at.add(index).as_ref() }
    }

    #[inline(always)]
    fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, index: usize, word: u64) {
        step();
        self.word(index).store(word, Ordering::Relaxed);
    }

    /// Sets a word after all words that were set before it, and before all that are set after it.
    #[inline(always)]
    fn set_in_order(&self, index: usize, word: u64) {
        compiler_fence(Ordering::SeqCst);
        self.set(index, word);
        compiler_fence(Ordering::SeqCst);
    }

    /// Returns the position at which this ring started, if the words belong to this ring.
    fn base_of(&self, ring: &Identity) -> Option<u16> {
        let base = (self.get(RUNS) >> BASE) as u16;
        let words = Identity { base, ..*ring }.words();
        words.iter().zip(IDENTITY..).all(|(word, at)| self.get(at) == *word).then_some(base)
    }

    fn end(&self) {
        self.set_in_order(RUNS, 0);
    }

    /// Notes that this ring runs, and its last batch.
    fn begin(&self, ring: &Identity, batch: Batch) {
        if self.base_of(ring).is_none() {
            self.end();
        }
        self.set_in_order(BATCH, batch.word());
        // The last word says that the ring runs, and where it started.
        ring.words().iter().zip(IDENTITY..).for_each(|(word, at)| self.set_in_order(at, *word));
    }
}

/// The journal of a packed ring, as the module says.
pub(crate) struct Journal {
    words: Words,
    /// The VMM's copy.
    copy: Option<Box<Words>>,
    /// Number of entries of the batch that grows.
    len: usize,
    /// Number of slots of the last entry of the batch before it.
    behind: u16,
}

impl Journal {
    /// Returns how many bytes the journal of a ring of this size takes.
    pub(crate) fn bytes(size: u16) -> usize {
        8 * (ENTRIES + usize::from(size))
    }

    /// Creates a journal that ends with this process.
    pub(crate) fn mortal(size: u16) -> Self {
        let mut words = vec![0_u64; ENTRIES + usize::from(size)];
        let at = words.as_mut_ptr();
        // SAFETY: the vector is never empty, and is kept; nobody else uses it.
        unsafe { Self::over(at.cast(), size, Box::new(words)) }
    }

    /// Creates a journal in the [`Journal::bytes`] from `at`.
    ///
    /// # Safety
    /// The bytes must be aligned to 8, not null, and mapped for writing while `memory` lives.
    pub(crate) unsafe fn over(at: *mut u8, size: u16, memory: Box<dyn Send>) -> Self {
        // SAFETY: the caller's promise.
        Self { words: unsafe { Words::new(at, size, memory) }, copy: None, len: 0, behind: 0 }
    }

    /// Keeps a copy in the [`Journal::bytes`] from `at`, from when the ring begins.
    ///
    /// # Safety
    /// As [`Journal::over`]; others may write there.
    pub(crate) unsafe fn copy_to(&mut self, at: *mut u8, memory: Box<dyn Send>) {
        // SAFETY: the caller's promise; the capacity is that of a ring's size.
        self.copy = Some(Box::new(unsafe { Words::new(at, self.words.capacity as u16, memory) }));
    }

    /// Stops keeping a copy.
    pub(crate) fn forget_copy(&mut self) {
        self.copy = None;
    }

    /// Returns whether it has room for a ring of exactly this size.
    pub(crate) fn is_for(&self, size: u16) -> bool {
        self.words.capacity == usize::from(size)
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> Done {
        Done(self.words.get(ENTRIES + index))
    }

    /// Returns the entries of the batch that grows.
    #[inline(always)]
    pub(super) fn entries(&self) -> impl Iterator<Item = Done> {
        (0..self.len).map(|index| self.entry(index))
    }

    /// Appends to the batch that grows. Each entry has a slot of the ring, so there is room.
    #[inline(always)]
    pub(super) fn push(&mut self, done: Done) {
        debug_assert!(self.len < self.words.capacity);
        if self.len < self.words.capacity {
            self.words.set(ENTRIES + self.len, done.0);
            self.len += 1;
        }
    }

    /// Makes the last entry stand for this chain, too, if neither of them wrote anything; returns whether it
    /// does.
    #[inline(always)]
    pub(super) fn extend_newest(&mut self, chain: Done) -> bool {
        let Some(newest) = self.len.checked_sub(1) else { return false };
        let last = self.entry(newest);
        if last.written() > 0 {
            return false;
        }
        // The id of the chain, the slots of both.
        self.words.set(ENTRIES + newest, chain.0 + (last.0 >> 48 << 48));
        true
    }

    /// Makes the last entry stand for slots behind it, too.
    pub(super) fn widen_newest(&mut self, slots: u16) {
        if let Some(newest) = self.len.checked_sub(1) {
            self.words.set(ENTRIES + newest, self.entry(newest).0 + (u64::from(slots) << 48));
        }
    }

    /// Announces that the batch is now written into the ring, from one position to the other.
    #[inline(always)]
    pub(super) fn announce(&mut self, from: Position, to: Position) {
        let from = Place { position: from, behind: self.behind };
        self.behind = self.len.checked_sub(1).map_or(self.behind, |newest| self.entry(newest).slots());
        let batch = Batch { from, to: Place { position: to, behind: self.behind } };
        self.words.set_in_order(BATCH, batch.word());
    }

    #[inline(always)]
    pub(super) fn is_copied(&self) -> bool {
        self.copy.is_some()
    }

    /// Announces the same in the copy. The batch before this one is in the ring, so its entries in the copy
    /// no longer count.
    pub(super) fn announce_in_copy(&self) {
        let Some(copy) = &self.copy else { return };
        self.entries().zip(ENTRIES..).for_each(|(done, at)| copy.set(at, done.0));
        copy.set_in_order(BATCH, self.words.get(BATCH));
    }

    /// Begins the next batch. The announced one is in the ring, and its entries are overwritten from here on.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.len = 0;
    }

    /// Returns the batch that was announced last, and the position at which the ring started, if this is the
    /// ring's journal and its content is possible.
    pub(super) fn last(&self, ring: &Identity) -> Option<(Batch, Position)> {
        let batch = Batch::of_word(self.words.get(BATCH));
        batch.slots(ring.size)?;
        Some((batch, Position::decoded(self.words.base_of(ring)?)))
    }

    /// Takes over the content of the copy, if that belongs to this ring and the journal knows nothing of the
    /// ring.
    pub(super) fn learn(&mut self, ring: &Identity) {
        let Some(copy) = self.copy.as_ref().filter(|_| self.last(ring).is_none()) else { return };
        let Some(base) = copy.base_of(ring) else { return };
        self.words.end();
        (ENTRIES..ENTRIES + copy.capacity).for_each(|at| self.words.set(at, copy.get(at)));
        self.words.begin(&Identity { base, ..*ring }, Batch::of_word(copy.get(BATCH)));
    }

    /// Makes the entries of this batch, which was not written to its end, the batch that grows. There are
    /// none if its content is impossible.
    pub(super) fn recall(&mut self, batch: Batch, size: u16) {
        let mut missing = batch.slots(size).unwrap_or(0);
        let entries = (0..self.words.capacity).map_while(|index| {
            let slots = self.entry(index).slots();
            let is_one = (1..=missing).contains(&slots);
            missing = missing.checked_sub(slots)?;
            is_one.then_some(())
        });
        let count = entries.count();
        self.len = if missing == 0 { count } else { 0 };
    }

    /// Notes that this ring runs, from this place on.
    pub(super) fn begin(&mut self, ring: &Identity, place: Place) {
        (self.len, self.behind) = (0, place.behind);
        for words in self.all() {
            words.begin(ring, Batch { from: place, to: place });
        }
    }

    /// Returns the words of the journal and of its copy.
    fn all(&self) -> impl Iterator<Item = &Words> {
        std::iter::once(&self.words).chain(self.copy.as_deref())
    }

    /// Returns the word of the last batch; a test may replace it with `mark`.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn probe(&self, mark: Option<u64>) -> u64 {
        let word = self.words.get(BATCH);
        mark.into_iter().for_each(|mark| self.words.set(BATCH, mark));
        word
    }

    /// Returns the number of slots of the last entry of the last batch.
    pub(super) fn behind(&self) -> u16 {
        self.behind
    }

    /// Notes that the VMM stopped the ring, and itself knows the position.
    pub(crate) fn end(&self) {
        self.all().for_each(Words::end);
    }

    /// Notes that the copy says nothing yet.
    pub(crate) fn end_copy(&self) {
        self.copy.iter().for_each(|copy| copy.end());
    }
}
