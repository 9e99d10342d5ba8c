//! Messages that are too long for their completion, but too short to be worth a system call: a peer that shares memory
//! stores them in the memory of the receiver's queue pair, and the receiver's library copies them to their
//! destination.

use crate::Memory;
use crate::point::{Point, point};
use crate::work::Corrupt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Each side writes to its own cache line. Positions count bytes since the start.
#[repr(C, align(64))]
struct Header {
    /// The position at which the sender continues.
    filled: AtomicU32,
    _sender: [u32; 15],
    /// The receiver has taken everything before this position.
    consumed: AtomicU32,
    _receiver: [u32; 15],
}

/// Bytes of room for messages, a power of two.
const ROOM: u32 = 32 << 10;

/// A part of a queue pair's memory. Both ends use this type.
#[derive(Debug)]
pub struct MessageRing {
    memory: Arc<Memory>,
    header: NonNull<Header>,
    offset: usize,
    /// The sender's last reading of `consumed`.
    seen: u32,
}

// SAFETY: the pointer is into `memory`, which can be used from any thread; the header is only used through atomics.
unsafe impl Send for MessageRing {}
// SAFETY: as above; everything that changes without a lock is atomic.
unsafe impl Sync for MessageRing {}

impl MessageRing {
    /// Bytes that they take in the memory.
    pub const BYTES: usize = size_of::<Header>() + ROOM as usize;
    /// Bytes of the longest message.
    pub const LONGEST: usize = 4096;

    /// Returns the message ring in this memory, at this offset, a multiple of 64.
    ///
    /// # Errors
    /// If they are not all inside the memory.
    pub fn new(memory: Arc<Memory>, offset: u32) -> Result<Self, Corrupt> {
        let offset = offset as usize;
        if !offset.is_multiple_of(64) || offset + Self::BYTES > memory.len() {
            return Err(Corrupt);
        }
        let header = memory.at(offset);
        let offset = offset + size_of::<Header>();
        let mut this = Self { memory, header, offset, seen: 0 };
        this.seen = this.header().consumed.load(Ordering::Acquire);
        Ok(this)
    }

    fn header(&self) -> &Header {
        // SAFETY: it was checked to lie in the memory, which `self` keeps mapped; it consists of atomics.
        unsafe { self.header.as_ref() }
    }

    /// Stores a message of `len` bytes, for the sender. Returns its position; `None` if there is no room.
    ///
    /// # Safety
    /// Parts must be readable: pointers and lengths, which add up to the message's length.
    pub unsafe fn put(&mut self, parts: impl Iterator<Item = (*const u8, usize)>, len: usize) -> Option<u32> {
        let filled = self.header().filled.load(Ordering::Relaxed);
        let size = room_for(len).filter(|_| len <= Self::LONGEST)?;
        // Messages are not split.
        let used = filled % ROOM;
        let start = if used + size > ROOM { filled.wrapping_add(ROOM - used) } else { filled };
        let end = start.wrapping_add(size);
        if end.wrapping_sub(self.seen) > ROOM {
            self.seen = self.header().consumed.load(Ordering::Acquire);
            if end.wrapping_sub(self.seen) > ROOM {
                return None;
            }
        }
        let mut at = self.offset + (start % ROOM) as usize;
        for (part, part_len) in parts {
            // SAFETY: the caller's promise; there is room for the message.
            unsafe { std::ptr::copy_nonoverlapping(part, self.memory.at::<u8>(at).as_ptr(), part_len) };
            at += part_len;
        }
        point(Point::RingMessageWritten);
        // Only senders read this. A completion notifies the receiver, and is released after it.
        self.header().filled.store(end, Ordering::Relaxed);
        point(Point::RingMessagePut);
        Some(start)
    }

    /// Returns, for the receiver, the address of a message of `len` bytes; `None` if it can't be one.
    #[must_use]
    pub fn get(&self, position: u32, len: usize) -> Option<NonNull<u8>> {
        let at = (position % ROOM) as usize;
        (at + len <= ROOM as usize).then(|| self.memory.at(self.offset + at))
    }

    /// Returns the room of that message, and of those before it, to the sender.
    pub fn give_back(&self, position: u32, len: usize) {
        let end = position.wrapping_add(room_for(len).unwrap_or(ROOM));
        // Release: the message was read before others are stored there.
        self.header().consumed.store(end, Ordering::Release);
    }

    /// Begins anew.
    pub fn reset(&self) {
        self.header().filled.store(0, Ordering::Relaxed);
        self.header().consumed.store(0, Ordering::Relaxed);
    }
}

/// Returns the bytes of room that a message takes.
fn room_for(len: usize) -> Option<u32> {
    u32::try_from(len).ok()?.checked_next_multiple_of(64)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn ends() -> (MessageRing, MessageRing) {
        let (memory, _) = Memory::create("test", 64 + MessageRing::BYTES).unwrap();
        let memory = Arc::new(memory);
        (MessageRing::new(memory.clone(), 64).unwrap(), MessageRing::new(memory, 64).unwrap())
    }

    fn put(to: &mut MessageRing, message: &[u8]) -> Option<u32> {
        let (one, other) = message.split_at(message.len() / 3);
        // SAFETY: the parts are slices, and make up the message.
        unsafe { to.put([one, other].into_iter().map(|part| (part.as_ptr(), part.len())), message.len()) }
    }

    #[test]
    fn messages_arrive_whole_and_in_their_order() {
        let (mut sender, receiver) = ends();
        // This is close to the point at which positions wrap around.
        sender.header().filled.store(u32::MAX - 63, Ordering::Relaxed);
        receiver.give_back(u32::MAX - 63, 0);
        let mut waiting = std::collections::VecDeque::new();
        for round in 0..1000_usize {
            let message: Vec<_> = (0..round * 37 % 4097).map(|at| (at + round) as u8).collect();
            let at = loop {
                if let Some(at) = put(&mut sender, &message) {
                    break at;
                }
                let (at, message): (u32, Vec<u8>) = waiting.pop_front().unwrap();
                let place = receiver.get(at, message.len()).unwrap();
                // SAFETY: that many bytes are there, and stay until they are returned.
                assert_eq!(unsafe { std::slice::from_raw_parts(place.as_ptr(), message.len()) }, message);
                receiver.give_back(at, message.len());
            };
            waiting.push_back((at, message));
        }
        assert!(waiting.len() > 4);
    }

    #[test]
    fn what_is_not_there_is_not_looked_for() {
        let (mut sender, receiver) = ends();
        assert_eq!(put(&mut sender, &[0; 4097]), None);
        assert!(receiver.get(ROOM - 64, 65).is_none() && receiver.get(u32::MAX, usize::MAX / 2).is_none());
        let (memory, _) = Memory::create("test", MessageRing::BYTES).unwrap();
        let memory = Arc::new(memory);
        assert!(
            MessageRing::new(memory.clone(), 64).is_err()
                && MessageRing::new(memory.clone(), u32::MAX).is_err()
        );
        assert!(MessageRing::new(memory, 0).is_ok());
    }

    /// A peer may write anything into the header.
    #[test]
    fn a_hostile_peer_is_not_followed() {
        let (mut sender, receiver) = ends();
        for wrong in [u32::MAX, ROOM + 1, 77, 1 << 31] {
            receiver.give_back(wrong, 3);
            receiver.header().filled.store(wrong.rotate_left(3), Ordering::Relaxed);
            if let Some(at) = put(&mut sender, &[1; 100]) {
                assert!(receiver.get(at, 100).is_some());
            }
        }
    }
}
