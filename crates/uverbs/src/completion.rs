//! Completion queues: rings of completions, written by the device, read by the library.

use crate::Memory;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// What precedes the completions. Each side writes to a cache line of its own.
#[repr(C, align(64))]
struct Header {
    /// Completions taken since the beginning: the library's.
    head: AtomicU32,
    _library: [u32; 15],
    /// What the completion channel is to be told ([`Arm`]); the library sets it, the device clears it.
    armed: AtomicU32,
    _shared: [u32; 15],
}

/// A completion. Numbers are `libibverbs`': `ibv_wc_status`, `ibv_wc_opcode`, `ibv_wc_flags`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // `ibv_wc`'s names
pub struct Completion {
    pub opcode: u32,
    pub id: u64,
    pub byte_len: u32,
    /// Immediate data in the order of the wire, or the key that is invalid now.
    pub immediate: u32,
    pub qpn: u32,
    pub source_qpn: u32,
    /// Nanoseconds of the monotonic clock.
    pub timestamp: u64,
    pub flags: u16,
    pub status: u8,
    pub vendor_error: u8,
    /// The receive was of an SRQ, or its send queue's.
    pub reserved: u32,
}

/// A completion with its number since the beginning, counted from 1: where that is right, the completion is there.
#[repr(C, align(64))]
struct Entry {
    completion: Completion,
    number: AtomicU32,
}

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Header>() == 128);

/// When a completion channel is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Of the next completion.
    Any = 2,
    /// Of the next that is solicited, or failed.
    Solicited = 1,
}

/// More completions than the queue has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overran")]
pub struct Overrun;

/// Bytes of the memory of a queue of so many completions.
#[must_use]
pub const fn bytes(entries: u32) -> usize {
    size_of::<Header>() + entries as usize * size_of::<Entry>()
}

#[derive(Debug)]
struct Ring {
    memory: Memory,
    /// A power of two.
    entries: u32,
}

impl Ring {
    fn header(&self) -> &Header {
        // SAFETY: at the beginning of memory that `self` keeps mapped, longer than that; it consists of atomics.
        unsafe { self.memory.at::<Header>(0).as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<Entry> {
        let at = (index & (self.entries - 1)) as usize;
        self.memory.at(size_of::<Header>() + at * size_of::<Entry>())
    }

    fn number(&self, index: u32) -> &AtomicU32 {
        // SAFETY: within the mapping (`entry`); it is an atomic.
        unsafe { &(*self.entry(index).as_ptr()).number }
    }
}

/// The device's end of a completion queue.
#[derive(Debug)]
pub struct CompletionSink {
    ring: Arc<Ring>,
    tail: u32,
}

impl CompletionSink {
    /// A queue of so many completions, a power of two, in memory of [`bytes`] of that.
    ///
    /// # Panics
    /// Where it is not.
    #[must_use]
    pub fn new(memory: Memory, entries: u32) -> Self {
        assert!(entries.is_power_of_two() && memory.len() >= bytes(entries), "no completion queue");
        Self { ring: Arc::new(Ring { memory, entries }), tail: 0 }
    }

    /// Completions that were not taken yet: those that the library says it took are believed where that can be.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.tail.wrapping_sub(self.ring.header().head.load(Ordering::Acquire)).min(self.ring.entries)
    }

    /// Puts a completion there. Returns whether the completion channel is to be told.
    ///
    /// # Errors
    /// Where there is no room.
    pub fn push(&mut self, completion: &Completion, solicited: bool) -> Result<bool, Overrun> {
        if self.waiting() >= self.ring.entries {
            return Err(Overrun);
        }
        let entry = self.ring.entry(self.tail);
        // SAFETY: within the mapping; the library reads it once its number is right, which it is not yet.
        unsafe { (&raw mut (*entry.as_ptr()).completion).write_volatile(*completion) };
        self.tail = self.tail.wrapping_add(1);
        self.ring.number(self.tail.wrapping_sub(1)).store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let armed = &self.ring.header().armed;
        let wanted = armed.load(Ordering::Relaxed);
        let tells = wanted == Arm::Any as u32 || wanted == Arm::Solicited as u32 && solicited;
        Ok(tells && armed.swap(0, Ordering::Relaxed) != 0)
    }

    /// Moves what was not taken to another queue, which continues this one. False, where it has no room for that.
    #[must_use]
    pub fn move_to(&self, other: &mut Self) -> bool {
        let waiting = self.waiting();
        if waiting > other.ring.entries {
            return false;
        }
        let first = self.tail.wrapping_sub(waiting);
        other.tail = first;
        other.ring.header().head.store(first, Ordering::Relaxed);
        for index in 0..waiting {
            // SAFETY: within the mapping; the application may have overwritten it, to its own loss.
            let completion = unsafe {
                (&raw const (*self.ring.entry(first.wrapping_add(index)).as_ptr()).completion).read_volatile()
            };
            let _ = other.push(&completion, false);
        }
        let armed = self.ring.header().armed.load(Ordering::Relaxed);
        other.ring.header().armed.store(armed, Ordering::Relaxed);
        true
    }
}

/// The library's end of a completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: Ring,
    head: u32,
}

impl CompletionQueue {
    /// A queue of so many completions, a power of two, in memory of [`bytes`] of that.
    ///
    /// # Panics
    /// Where it is not.
    #[must_use]
    pub fn new(memory: Memory, entries: u32) -> Self {
        assert!(entries.is_power_of_two() && memory.len() >= bytes(entries), "no completion queue");
        let ring = Ring { memory, entries };
        let head = ring.header().head.load(Ordering::Relaxed);
        Self { ring, head }
    }

    /// Takes a completion, if there is one.
    pub fn poll(&mut self) -> Option<Completion> {
        let next = self.head.wrapping_add(1);
        if self.ring.number(self.head).load(Ordering::Acquire) != next {
            return None;
        }
        // SAFETY: within the mapping; the device wrote it before the number.
        let completion =
            unsafe { (&raw const (*self.ring.entry(self.head).as_ptr()).completion).read_volatile() };
        self.head = next;
        self.ring.header().head.store(next, Ordering::Release);
        Some(completion)
    }

    /// Has the completion channel told.
    pub fn arm(&self, arm: Arm) {
        let armed = &self.ring.header().armed;
        // Who asks for any gets any, whoever else asks for less.
        armed.fetch_max(arm as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn ends(entries: u32) -> (CompletionSink, CompletionQueue) {
        let (memory, file) = Memory::create("test", bytes(entries)).unwrap();
        let same = Memory::open(&file, bytes(entries)).unwrap();
        (CompletionSink::new(memory, entries), CompletionQueue::new(same, entries))
    }

    fn completion(id: u64) -> Completion {
        Completion { id, ..Completion::default() }
    }

    #[test]
    fn completions_come_in_order_and_go_round() {
        let (mut sink, mut queue) = ends(4);
        for round in 0..5 {
            for id in 0..4 {
                assert_eq!(sink.push(&completion(round * 4 + id), false), Ok(false));
            }
            assert_eq!(sink.push(&completion(99), false), Err(Overrun));
            for id in 0..4 {
                assert_eq!(queue.poll(), Some(completion(round * 4 + id)));
            }
            assert_eq!(queue.poll(), None);
        }
    }

    #[test]
    fn a_channel_is_told_once_and_of_what_was_asked() {
        let (mut sink, queue) = ends(8);
        queue.arm(Arm::Solicited);
        assert_eq!(sink.push(&completion(1), false), Ok(false));
        assert_eq!(sink.push(&completion(2), true), Ok(true));
        assert_eq!(sink.push(&completion(3), true), Ok(false));
        queue.arm(Arm::Any);
        queue.arm(Arm::Solicited);
        assert_eq!(sink.push(&completion(4), false), Ok(true));
    }

    #[test]
    fn a_resized_queue_goes_on() {
        let (mut sink, mut queue) = ends(4);
        for id in 0..3 {
            sink.push(&completion(id), false).unwrap();
        }
        assert_eq!(queue.poll(), Some(completion(0)));
        let (small, _) = Memory::create("test", bytes(1)).unwrap();
        assert!(!sink.move_to(&mut CompletionSink::new(small, 1)));
        let (memory, file) = Memory::create("test", bytes(16)).unwrap();
        let mut bigger = CompletionSink::new(memory, 16);
        assert!(sink.move_to(&mut bigger));
        bigger.push(&completion(3), false).unwrap();
        let mut queue = CompletionQueue::new(Memory::open(&file, bytes(16)).unwrap(), 16);
        for id in 1..4 {
            assert_eq!(queue.poll(), Some(completion(id)));
        }
        assert_eq!(queue.poll(), None);
    }

    #[test]
    fn a_library_that_lies_harms_nobody_else() {
        let (mut sink, queue) = ends(4);
        for head in [u32::MAX, 77, 5] {
            queue.ring.header().head.store(head, Ordering::Relaxed);
            let before = sink.tail;
            let pushed = (0..10).filter(|id| sink.push(&completion(*id), false).is_ok()).count();
            assert!(pushed <= 10 && sink.tail.wrapping_sub(before) as usize == pushed);
        }
    }
}
