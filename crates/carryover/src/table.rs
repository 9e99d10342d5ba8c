//! The table's memory: pages of the file, shared with it.

use crate::slots;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// A mapped table. Other processes and the next daemon see every store in the file at once. Pages that nobody
/// wrote take no memory.
#[derive(Debug)]
pub struct Table {
    start: *mut AtomicU64,
    words: usize,
}

// SAFETY: the mapping belongs to this value, and is of atomics.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    pub(crate) fn map(file: &File, bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes).map_err(io::Error::other)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, slots::END)? };
        Ok(Self { start: start.cast(), words: len / size_of::<AtomicU64>() })
    }

    /// Returns the table's words, zero at first.
    #[must_use]
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds that many words until this is dropped, is aligned to pages, and any bits are valid.
        // Others change them by atomics, if at all: no process maps the file but a daemon of this run-dir.
        unsafe { std::slice::from_raw_parts(self.start, self.words) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; `words` borrows from this.
        let _ = unsafe { munmap(self.start.cast(), self.words * size_of::<AtomicU64>()) };
    }
}
