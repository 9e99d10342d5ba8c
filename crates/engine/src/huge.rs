//! A large table of cache lines in huge pages: with small pages, most random accesses would miss the TLB first.
#![allow(unsafe_code)] // No allocator provides aligned memory that is zero without being touched.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::{Deref, DerefMut};

/// A cache line.
pub(crate) type Line = [u64; 8];

/// A row of a table.
///
/// # Safety
/// The type is a cache line of plain numbers: all-zero bytes are valid, and any thread may have it.
pub(crate) unsafe trait Row {}

// SAFETY: 64 bytes of numbers.
unsafe impl Row for Line {}
// SAFETY: 64 bytes of numbers.
unsafe impl Row for [u32; 16] {}

/// Lines, zero at first. The kernel provides memory as they are written, in huge pages if there are some.
#[derive(Debug)]
pub(crate) struct Table<T: Row> {
    lines: *mut T,
    len: usize,
}

// SAFETY: the table owns its memory; nothing in it depends on the thread.
unsafe impl<T: Row> Send for Table<T> {}

impl<T: Row> Table<T> {
    /// Creates a table of `len` lines.
    ///
    /// # Panics
    /// If there is no address space for it, as `Vec` does.
    pub fn new(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
        let Ok(start) = mapped else { panic!("no memory for {bytes} bytes of flow cache") };
        // SAFETY: advice about the mapping just made that does not change its contents.
        if let Err(error) = unsafe { madvise(start, bytes, Advice::LinuxHugepage) } {
            tracing::debug!(%error, "no huge pages for the flow cache");
        }
        Self { lines: start.cast(), len }
    }
}

impl<T: Row> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds that many lines, is aligned to pages, and all-zero lines are valid.
        unsafe { std::slice::from_raw_parts(self.lines, self.len) }
    }
}

impl<T: Row> DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the table is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines, self.len) }
    }
}

impl<T: Row> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nobody can refer to it any more.
        let _ = unsafe { munmap(self.lines.cast(), self.len * size_of::<T>()) };
    }
}
