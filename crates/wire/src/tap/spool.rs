//! Frames on their way to the thread that writes them, because writes to this tap cost too much ([`mem::Account`]).

use super::Shared;
use crate::buffers::{MAX_FRAME, Memory};
use mem::vnet::VNET_HEADER;
use mem::{Account, Aside, NoRoom, Segment, copy, serve_aside, wake_aside};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Frames that may wait, and the memory of each. The kernel provides only pages that are used.
const FRAMES: usize = 64;
const STRIDE: usize = (VNET_HEADER + MAX_FRAME).next_multiple_of(64);

/// A queue from whoever leases the sender to the thread.
pub(super) struct Spool {
    shared: Arc<Shared>,
    index: usize,
    memory: Memory,
    /// Lengths of the frames with their headers.
    lengths: [AtomicU32; FRAMES],
    /// How many frames were written by the thread, and how many came.
    head: AtomicUsize,
    tail: AtomicUsize,
}

impl Spool {
    pub fn new(shared: Arc<Shared>, index: usize) -> io::Result<Arc<Self>> {
        let memory = Memory::new(FRAMES * STRIDE)?;
        let lengths = [const { AtomicU32::new(0) }; FRAMES];
        let (head, tail) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let spool = Arc::new(Self { shared, index, memory, lengths, head, tail });
        let part: std::sync::Weak<Self> = Arc::downgrade(&spool);
        serve_aside(part, &spool.shared.account)?;
        Ok(spool)
    }

    pub fn is_empty(&self) -> bool {
        self.head.load(Acquire) == self.tail.load(Acquire)
    }

    /// Leaves a frame to the thread. Only one caller at a time.
    ///
    /// # Errors
    /// [`NoRoom::Full`].
    pub fn push(&self, message: Segment) -> Result<(), NoRoom> {
        let (head, tail) = (self.head.load(Acquire), self.tail.load(Relaxed));
        if tail.wrapping_sub(head) == FRAMES {
            self.shared.state.refused.add(1);
            return Err(NoRoom::Full);
        }
        copy(&[message], 0, &[self.slot(tail, message.len())], 0, message.len());
        self.lengths[tail % FRAMES].store(message.len() as u32, Relaxed);
        self.tail.store(tail.wrapping_add(1), Release);
        wake_aside(&self.shared.account);
        Ok(())
    }

    fn slot(&self, number: usize, len: usize) -> Segment {
        self.memory.segment(number % FRAMES * STRIDE, len)
    }
}

impl Aside for Spool {
    fn account(&self) -> &Account {
        &self.shared.account
    }

    fn waits(&self) -> bool {
        !self.is_empty()
    }

    fn serve(&self) -> usize {
        let head = self.head.load(Relaxed);
        if head == self.tail.load(Acquire) {
            return 0;
        }
        let len = self.lengths[head % FRAMES].load(Relaxed) as usize;
        // The write counts what the kernel refuses.
        let _ = self.shared.write(self.index, self.slot(head, len));
        self.head.store(head.wrapping_add(1), Release);
        len
    }
}
