//! Large arrays of atomics that take no memory until they are written.
#![allow(unsafe_code)] // Standard Rust can't yet allocate zeroed atomics directly, nor prefetch.

use carryover::Table;
use rustix::io::Errno;

#[cfg(not(miri))]
use rustix::mm::{Advice, madvise};
use std::sync::atomic::AtomicU64;

const LINE: usize = 8;
#[cfg(not(miri))]
const PAGE: usize = 4096;

/// Records of `N` words, zero at first, aligned to cache lines if `N` is a multiple of a line. A large array comes
/// from the kernel as untouched pages, so only records that are written take memory.
pub(super) struct Zeroed<const N: usize> {
    /// Points into `memory`.
    records: *const [[AtomicU64; N]],
    memory: Memory,
}

/// The memory that holds the records.
enum Memory {
    /// Not a box: a move of a box would end the validity of pointers into it.
    Own(Vec<AtomicU64>),
    Kept(Table),
}

impl Memory {
    fn words(&self) -> &[AtomicU64] {
        match self {
            Self::Own(words) => words,
            Self::Kept(table) => table.words(),
        }
    }
}

// SAFETY: the records are of atomics, in memory that this value owns.
unsafe impl<const N: usize> Send for Zeroed<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Zeroed<N> {}

impl<const N: usize> Zeroed<N> {
    pub fn new(records: usize) -> Self {
        let words = vec![0u64; records * N + LINE].into_boxed_slice();
        // SAFETY: `AtomicU64` has the size, bit validity and, on the 64-bit hosts this runs on, the alignment of
        // `u64` (asserted below); the box is the only owner.
        let words = unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) };
        const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
        let skip = words.as_ptr().align_offset(LINE * size_of::<u64>());
        Self::lying_in(Memory::Own(words.into_vec()), if skip < LINE { skip } else { 0 })
    }

    /// Places the records in this table, which must be new: as many as it has room for.
    pub fn kept_in(table: Table) -> Self {
        Self::lying_in(Memory::Kept(table), 0)
    }

    /// Places the records in this memory, after `skip` words.
    fn lying_in(memory: Memory, skip: usize) -> Self {
        let (records, _) = memory.words()[skip..].as_chunks();
        Self { records: std::ptr::from_ref(records), memory }
    }

    /// Moves the records to huge pages, if there are some: for data that is read at random. They then take
    /// memory in units of huge pages.
    pub fn in_huge_pages(self) -> Self {
        #[cfg(not(miri))]
        {
            let words = self.memory.words();
            let start = words.as_ptr();
            let skip = start.cast::<u8>().align_offset(PAGE);
            let len = size_of_val(words).saturating_sub(skip) / PAGE * PAGE;
            let pages = start.wrapping_byte_add(skip).cast_mut().cast();
            // SAFETY: this advice does not change the content of our own memory. It does not matter whether the kernel
            // follows it.
            let _ = unsafe { madvise(pages, len, Advice::LinuxHugepage) };
        }
        self
    }

    /// Makes sure that there is memory for a record that nobody has accessed yet. Records are used in order, beginning
    /// with the first or with a multiple of [`Table::CHUNK`] bytes.
    ///
    /// # Errors
    /// The file system's: the record must not be accessed.
    pub fn reserve(&self, record: usize) -> Result<(), Errno> {
        let at = record * size_of::<[AtomicU64; N]>();
        match &self.memory {
            Memory::Kept(table) if at.is_multiple_of(Table::CHUNK) => table.reserve(at / Table::CHUNK),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    pub fn records(&self) -> &[[AtomicU64; N]] {
        // SAFETY: they lie in `memory`, which neither moves nor changes its length until this is dropped.
        unsafe { &*self.records }
    }

    pub fn prefetch(&self, record: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(record) = self.records().get(record) {
            // SAFETY: a prefetch never faults, and SSE is part of x86_64.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(record.as_ptr().cast());
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = record;
    }
}
