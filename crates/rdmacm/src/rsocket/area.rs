//! Registered memory: whole pages that hold nothing else.

use crate::error::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages to which the peer may write at any time. Any bytes that it writes are valid.
#[derive(Debug)]
pub struct Area {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: it is nothing but memory, which all threads have.
unsafe impl Send for Area {}
// SAFETY: `&self` reads bytes of any value, and writes them; who uses the same ones is ordered by the stream's lock.
unsafe impl Sync for Area {}

impl Area {
    /// Maps at least `len` bytes, in whole pages; they are zero. Unused pages around them keep other mappings
    /// away: memory of threads does not move to a virtual machine's window.
    pub fn new(len: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let len = len.next_multiple_of(page);
        let (nothing, flags) = (ProtFlags::empty(), MapFlags::PRIVATE);
        // SAFETY: the kernel chooses where.
        let around = unsafe { mmap_anonymous(ptr::null_mut(), len + 2 * page, nothing, flags) }?;
        let at = around.wrapping_byte_add(page).cast();
        let this = Self { at: NonNull::new(at).ok_or(Errno(libc::ENOMEM))?, len };
        // SAFETY: these pages were just mapped.
        unsafe { mprotect(at.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        Ok(this)
    }

    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        self.at.as_ptr().wrapping_add(offset)
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    pub fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.len);
        // SAFETY: it has these bytes.
        unsafe { ptr::copy_nonoverlapping(self.address(offset), to.as_mut_ptr(), to.len()) };
    }

    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.len);
        // SAFETY: it has these bytes.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.address(offset), from.len()) };
    }

    /// Returns eight aligned bytes, as a number.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: it has these bytes, which are aligned, because pages are.
        unsafe { AtomicU64::from_ptr(self.address(offset).cast()) }
    }

    /// Takes two words, of which the peer writes the second last, and makes the second zero. Returns `None` while it is
    /// zero.
    pub fn take_pair(&self, offset: usize) -> Option<(u64, u64)> {
        let second = self.word(offset + 8).swap(0, Ordering::AcqRel);
        (second != 0).then(|| (self.word(offset).load(Ordering::Acquire), second))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let page = rustix::param::page_size();
        let around = self.at.as_ptr().wrapping_sub(page);
        // SAFETY: it was mapped so, and its users are gone.
        let _ = unsafe { munmap(around.cast(), self.len + 2 * page) };
    }
}
