//! Memory that is registered: whole pages of their own.

use crate::error::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages. The peer may write to them at any time; what it writes is bytes, of which any are valid.
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
    /// Maps as many bytes, and more to whole pages; they are zero. Pages around them keep them away from others: memory
    /// of threads does not move to a virtual machine's window.
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

    /// The address of a byte.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        self.at.as_ptr().wrapping_add(offset)
    }

    /// How many bytes it has.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Reads bytes.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.len);
        // SAFETY: it has these bytes.
        unsafe { ptr::copy_nonoverlapping(self.address(offset), to.as_mut_ptr(), to.len()) };
    }

    /// Writes bytes.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.len);
        // SAFETY: it has these bytes.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.address(offset), from.len()) };
    }

    /// Eight aligned bytes, as a number.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: it has these bytes, which are aligned, because pages are.
        unsafe { AtomicU64::from_ptr(self.address(offset).cast()) }
    }

    /// Takes two words, the second of which is written last; `None` while it is zero. Afterwards it is.
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
