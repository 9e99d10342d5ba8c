//! The memory of a call: one piece or many.

use libc::iovec;

/// A place in the pieces of a call.
#[derive(Clone, Copy)]
pub struct Cursor {
    parts: *const iovec,
    count: usize,
    /// The part that is being used, and how much of it was.
    part: usize,
    offset: usize,
}

impl Cursor {
    /// Starts at the first of some pieces.
    ///
    /// # Safety
    /// There are `count` parts at `parts`, with memory as they say, for as long as the cursor is used.
    pub unsafe fn new(parts: *const iovec, count: usize) -> Self {
        Self { parts, count, part: 0, offset: 0 }
    }

    /// Returns what comes next: a pointer and a length that isn't 0.
    pub fn next(&mut self) -> Option<(*mut u8, usize)> {
        while self.part < self.count {
            // SAFETY: `new` promises as many parts.
            let part = unsafe { *self.parts.add(self.part) };
            if self.offset < part.iov_len {
                // SAFETY: the offset is within the part.
                return Some((
                    unsafe { part.iov_base.cast::<u8>().add(self.offset) },
                    part.iov_len - self.offset,
                ));
            }
            self.part += 1;
            self.offset = 0;
        }
        None
    }

    /// Returns how many bytes are left.
    pub fn left(&self) -> u64 {
        // SAFETY: `new` promises as many parts.
        let parts = (self.part..self.count).map(|part| unsafe { *self.parts.add(part) }.iov_len as u64);
        parts.fold(0_u64, u64::saturating_add).saturating_sub(self.offset as u64)
    }

    pub fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
    }

    pub fn is_done(&mut self) -> bool {
        self.next().is_none()
    }
}
