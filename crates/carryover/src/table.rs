//! The table's memory: pages of the file, shared with it.

use crate::slots;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// A mapped table. Other processes and the next daemon see every store in the file at once. Pages that nobody
/// wrote take no memory. If the file system has no page for an access, the process ends, so [`Table::reserve`] comes
/// first.
#[derive(Debug)]
pub struct Table {
    file: File,
    start: *mut AtomicU64,
    words: usize,
}

// SAFETY: the mapping belongs to this value, and is of atomics.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Bytes that are reserved at a time.
    pub const CHUNK: usize = 1 << 16;

    pub(crate) fn map(file: &File, bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes).map_err(io::Error::other)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, slots::END)? };
        Ok(Self { file: file.try_clone()?, start: start.cast(), words: len / size_of::<AtomicU64>() })
    }

    /// Makes the file system keep memory for the chunk of this number.
    ///
    /// # Errors
    /// The kernel's: mostly that there is no room.
    pub fn reserve(&self, chunk: usize) -> Result<(), Errno> {
        reserve(&self.file, chunk)
    }

    /// Returns the table's words, zero at first.
    #[must_use]
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds that many words until this is dropped, is aligned to pages, and any bits are valid.
        // Others change them by atomics, if at all: no process maps the file but a daemon of this run-dir.
        unsafe { std::slice::from_raw_parts(self.start, self.words) }
    }
}

/// Does the same as [`Table::reserve`], before the table is mapped.
pub(crate) fn reserve(file: &File, chunk: usize) -> Result<(), Errno> {
    let at = slots::END + (chunk * Table::CHUNK) as u64;
    retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, at, Table::CHUNK as u64))
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; `words` borrows from this.
        let _ = unsafe { munmap(self.start.cast(), self.words * size_of::<AtomicU64>()) };
    }
}
