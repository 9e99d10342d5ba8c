//! The rings between us and the kernel, with free-running 32-bit indexes and sizes that are powers of two.

use crate::buffers::Memory;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// An entry of a ring: an address or a descriptor. Any bit pattern is a valid value.
pub(crate) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

/// A ring's memory, shared with the kernel.
struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    _memory: Memory,
}

// SAFETY: the pointers lead into `_memory`; Producer and Consumer let one thread at a time use them.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Makes a ring of `size` entries that `offsets` lay out in `memory`.
    ///
    /// # Panics
    /// If it does not fit, is not aligned, or `size` is not a power of two.
    fn new(memory: Memory, offsets: &libc::xdp_ring_offset, size: u32) -> Self {
        assert!(size.is_power_of_two());
        Self {
            producer: memory.at(offsets.producer as usize, 1),
            consumer: memory.at(offsets.consumer as usize, 1),
            flags: memory.at(offsets.flags as usize, 1),
            entries: memory.at(offsets.desc as usize, size as usize),
            mask: size - 1,
            _memory: memory,
        }
    }

    fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> std::io::Result<Self> {
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        Ok(Self::new(Memory::shared(socket, page_offset, len)?, offsets, size))
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the ring's memory, which lives as long as self.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }.load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    const fn size(&self) -> u32 {
        self.mask + 1
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the ring's size.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }
}

/// Our end of a ring from which the kernel takes entries.
pub(crate) struct Producer<T> {
    ring: Ring<T>,
    next: u32,
}

impl<T: Entry> Producer<T> {
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> std::io::Result<Self> {
        let ring = Ring::map(socket, page_offset, offsets, size)?;
        // A new ring begins with 0; a different process may have used this one before.
        let next = ring.producer().load(Acquire);
        Ok(Self { ring, next })
    }

    /// Writes an entry without publishing it. Returns false, and does nothing, if the ring is full.
    pub(crate) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.ring.consumer().load(Acquire)) >= self.ring.size() {
            return false;
        }
        // SAFETY: the kernel is past this entry, as just checked, and does not reach it before `publish`.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the kernel all written entries.
    pub(crate) fn publish(&mut self) {
        self.ring.producer().store(self.next, Release);
    }

    /// Returns whether the kernel sleeps until it is told of new entries.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }

    /// Returns whether the kernel has taken everything that was published.
    pub(crate) fn is_drained(&self) -> bool {
        self.ring.consumer().load(Relaxed) == self.ring.producer().load(Relaxed)
    }
}

/// Our end of a ring into which the kernel puts entries.
pub(crate) struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
}

impl<T: Entry> Consumer<T> {
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> std::io::Result<Self> {
        let ring = Ring::map(socket, page_offset, offsets, size)?;
        let next = ring.consumer().load(Acquire);
        Ok(Self { ring, next })
    }

    /// Returns how many entries [`Consumer::peek`] can read.
    pub(crate) fn available(&self) -> u32 {
        self.ring.producer().load(Acquire).wrapping_sub(self.next).min(self.ring.size())
    }

    /// Reads the entry that is `ahead` entries after the next one. `ahead` must be less than the number that
    /// [`Consumer::available`] returned.
    pub(crate) fn peek(&self, ahead: u32) -> T {
        // SAFETY: inside the ring's memory, and a value whatever its bits; the kernel has published it.
        unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() }
    }

    /// Returns the next `count` entries of the ring to the kernel.
    pub(crate) fn advance(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        self.ring.consumer().store(self.next, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };

    /// Makes both ends of a ring whose indexes start at `start`.
    fn ends(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        let memory = Memory::new(4096).unwrap();
        let ring = Ring::<u64>::new(memory, &OFFSETS, size);
        ring.producer().store(start, Relaxed);
        ring.consumer().store(start, Relaxed);
        let twin = Ring {
            producer: ring.producer,
            consumer: ring.consumer,
            flags: ring.flags,
            entries: ring.entries,
            mask: ring.mask,
            _memory: Memory::new(4096).unwrap(),
        };
        (Producer { ring, next: start }, Consumer { ring: twin, next: start })
    }

    #[test]
    fn nothing_is_seen_before_it_is_published() {
        let (mut producer, consumer) = ends(4, 0);
        assert!(producer.push(7));
        assert_eq!(consumer.available(), 0);
        producer.publish();
        assert_eq!((consumer.available(), consumer.peek(0)), (1, 7));
    }

    #[test]
    fn a_full_ring_takes_no_more_until_it_is_consumed() {
        let (mut producer, mut consumer) = ends(4, 0);
        assert!((0..4).all(|i| producer.push(i)));
        assert!(!producer.push(4));
        producer.publish();
        assert_eq!(consumer.available(), 4);
        consumer.advance(1);
        assert!(producer.push(4) && !producer.push(5));
    }

    #[test]
    fn order_is_kept_while_indexes_wrap() {
        let (mut producer, mut consumer) = ends(8, u32::MAX - 20);
        for round in 0..10u64 {
            assert!((0..5).all(|i| producer.push(round * 5 + i)));
            producer.publish();
            assert!(!producer.is_drained());
            assert_eq!(consumer.available(), 5);
            assert!((0..5).all(|i| consumer.peek(i) == round * 5 + u64::from(i)));
            consumer.advance(5);
            assert!(producer.is_drained());
        }
    }

    #[test]
    fn a_wakeup_is_needed_where_the_kernel_says_so() {
        let (producer, _consumer) = ends(4, 0);
        assert!(!producer.needs_wakeup());
        // SAFETY: inside the ring's memory.
        unsafe { producer.ring.flags.as_ref() }.store(libc::XDP_RING_NEED_WAKEUP, Relaxed);
        assert!(producer.needs_wakeup());
    }
}
