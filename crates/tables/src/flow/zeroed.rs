//! Large arrays of atomics that take no memory until they are written.
#![allow(unsafe_code)] // Standard Rust has no way yet to get zeroed atomics straight from the allocator, nor to prefetch.

use std::sync::atomic::AtomicU64;

/// Words of a cache line.
const LINE: usize = 8;

/// Records of `N` words, zero at first, on cache line boundaries where `N` is a multiple of one. A large array
/// comes from the kernel as untouched pages, so only records that are written take memory.
pub(super) struct Zeroed<const N: usize> {
    words: Box<[AtomicU64]>,
    /// Words before the first record.
    skip: usize,
}

impl<const N: usize> Zeroed<N> {
    pub fn new(records: usize) -> Self {
        let words = vec![0u64; records * N + LINE].into_boxed_slice();
        // SAFETY: `AtomicU64` has the size, bit validity and, on the 64-bit hosts this runs on, the alignment of
        // `u64` (asserted below); the box is the only owner.
        let words = unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) };
        const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
        let skip = words.as_ptr().align_offset(LINE * size_of::<u64>());
        Self { words, skip: if skip < LINE { skip } else { 0 } }
    }

    pub fn records(&self) -> &[[AtomicU64; N]] {
        let (records, _) = self.words[self.skip..].as_chunks();
        records
    }

    /// Brings the start of a record near.
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
