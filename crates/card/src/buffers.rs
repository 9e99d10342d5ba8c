//! Reusable buffers of frames, for a card that carries packets in this process.

/// Bytes of a new buffer: most frames fit.
const ROOM: usize = 2048;
/// Most bytes of free buffers to keep.
const KEPT: usize = 8 << 20;

/// Free buffers for frames.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Vec<Vec<u8>>,
    /// Capacity of all free buffers, in bytes.
    bytes: usize,
}

impl Buffers {
    /// Returns an empty buffer.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        let Some(buffer) = self.free.pop() else { return Vec::with_capacity(ROOM) };
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps a buffer, unless there are enough.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        let room = buffer.capacity();
        if room > 0 && self.bytes + room <= KEPT {
            buffer.clear();
            self.bytes += room;
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty_and_in_bounds() {
        let mut buffers = Buffers::default();
        let mut buffer = buffers.take();
        buffer.resize(9600, 7);
        let place = buffer.as_ptr();
        buffers.give_back(buffer);
        buffers.give_back(Vec::new());
        let again = buffers.take();
        assert!(again.is_empty() && again.capacity() >= 9600 && std::ptr::eq(again.as_ptr(), place));
        for _ in 0..9 {
            buffers.give_back(Vec::with_capacity(KEPT / 8));
        }
        assert_eq!((buffers.free.len(), buffers.bytes), (8, KEPT));
        for _ in 0..9 {
            let _ = buffers.take();
        }
        assert_eq!(buffers.bytes, 0);
    }
}
