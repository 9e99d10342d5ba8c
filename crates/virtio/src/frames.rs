//! Frames in our own memory, on their way between a worker and whoever touches the guest's memory in its stead.

use crate::rx::MAX_FRAME;
use arrayvec::ArrayVec;
use mem::{BURST, Burst, Offload, Segment, copy};

/// Bytes of all frames: two of the longest.
const ROOM: usize = 2 * MAX_FRAME;
/// Each frame begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// At most a burst of frames.
#[derive(Default)]
pub(crate) struct Frames {
    /// Memory of [`ROOM`] bytes, or none before the first frame.
    memory: Box<[u8]>,
    list: ArrayVec<(u32, u32, Offload), BURST>,
    used: usize,
}

impl Frames {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(|(_, len, _)| *len as usize).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.used = 0;
    }

    /// Adds a frame that the caller fills; `None` if there is no room. The segment may be used while these frames are
    /// not cleared.
    pub(crate) fn add(&mut self, len: usize, offload: &Offload) -> Option<Segment> {
        if self.list.is_full() || self.used + len > ROOM {
            return None;
        }
        if self.memory.is_empty() {
            self.memory = vec![0; ROOM].into();
        }
        let at = self.used;
        self.list.push((at as u32, len as u32, *offload));
        self.used = (at + len).next_multiple_of(ALIGNMENT).min(ROOM);
        Some(segment(&mut self.memory, at, len))
    }

    /// Adds the frames of a burst for which there is room: all, since a burst that is to be taken is short.
    pub(crate) fn copy_from(&mut self, burst: &Burst) {
        for packet in burst.packets() {
            let len = packet.len as usize;
            if let Some(room) = self.add(len, &packet.offload) {
                copy(burst.segments(packet), 0, &[room], 0, len);
            }
        }
    }

    /// Passes on each frame.
    pub(crate) fn for_each(&mut self, mut act: impl FnMut(Segment, &Offload)) {
        for (at, len, offload) in &self.list {
            act(segment(&mut self.memory, *at as usize, *len as usize), offload);
        }
    }
}

/// Returns a frame's memory.
fn segment(memory: &mut [u8], at: usize, len: usize) -> Segment {
    let bytes = &mut memory[at..at + len];
    // SAFETY: the memory is neither moved nor freed while frames are in it, except with its owner, who has no burst out
    // then.
    unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len() as u32) }
}
