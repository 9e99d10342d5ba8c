//! Memory of our own for frames, for sockets that copy.

use mem::Segment;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr;

/// Bytes of the longest frame a socket gives or takes: an IPv6 packet of 40 + 65535 bytes behind an Ethernet
/// header and two tags.
pub(crate) const MAX_FRAME: usize = 14 + 8 + 40 + 65535;

/// Anonymous memory, of which the kernel provides the pages that get written to.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached through checked segments.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        Ok(Self { base: base.cast(), len })
    }

    /// The bytes `offset..offset + len`. Valid as long as the memory is.
    ///
    /// # Panics
    /// Where they lie outside.
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
