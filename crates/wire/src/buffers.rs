//! Memory for frames, our own or shared with the kernel.

use mem::Segment;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

/// Bytes of the longest frame that a socket delivers or accepts: an IPv6 packet of 40 + 65535 bytes after an Ethernet
/// header and two tags.
pub(crate) const MAX_FRAME: usize = 14 + 8 + 40 + 65535;

/// A memory mapping, private or shared. Of a private one, the kernel provides only pages that are written to.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs only to this value and is accessed through checked segments.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        Ok(Self { base: base.cast(), len })
    }

    /// Maps `len` bytes from `offset` of a socket's rings, or of a file.
    pub(crate) fn shared(socket: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, socket, offset)? };
        Ok(Self { base: base.cast(), len })
    }

    /// Returns the address of `count` values at `offset`, valid as long as the memory is.
    ///
    /// # Panics
    /// If they are outside the memory or not aligned.
    pub(crate) fn at<T>(&self, offset: usize, count: usize) -> NonNull<T> {
        let pointer = self.segment(offset, count * size_of::<T>()).as_ptr().cast::<T>();
        assert!(pointer.is_aligned(), "not aligned");
        NonNull::new(pointer).expect("a mapping is not at address 0")
    }

    /// Returns the bytes `offset..offset + len`, valid as long as the memory is.
    ///
    /// # Panics
    /// If they are outside the memory.
    pub(crate) fn segment(&self, offset: usize, len: usize) -> Segment {
        assert!(offset <= self.len && len <= self.len - offset, "outside the frame memory");
        // SAFETY: inside the mapping. Queues keep their memory from poll to release and through a burst.
        unsafe { Segment::new(self.base.add(offset), len as u32) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; no segment outlives its burst.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}
