//! A bounded ring of frames, with two ends and slots that are allocated once.
//!
//! There is one [`Filler`] and one [`Taker`], and both need `&mut`. So one thread at a time fills slots at the tail
//! and publishes them, and one takes them from the head and returns them. A slot belongs to the filler from its return
//! until it is published, and to the taker otherwise.

use mem::{Accepts, Offload, Segment, vnet};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Flag in the length of a frame with unfinished offloads.
const UNFINISHED: u32 = 1 << 31;
/// Everything a sender may leave unfinished.
const ALL: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };

/// Two cache lines, because the CPU fetches them in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// The parts that both ends share.
#[derive(Debug)]
struct Ring {
    memory: NonNull<u8>,
    layout: Layout,
    /// Length of the frame in each slot, with the flag [`UNFINISHED`].
    lens: Box<[AtomicU32]>,
    /// The offloads of those frames, as a `virtio_net_hdr`.
    headers: Box<[[AtomicU64; 2]]>,
    /// Distance between slots, bytes.
    stride: usize,
    /// The longest frame.
    frame: usize,
    /// Number of slots published so far; wraps around.
    tail: Line<AtomicU32>,
    /// Number of slots returned so far; wraps around.
    head: Line<AtomicU32>,
}

// SAFETY: the ring owns the memory, and each byte is accessed only through pointers, by the side to which it belongs.
unsafe impl Send for Ring {}
// SAFETY: as above; the rest are atomics and fields that never change.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(slots: u32, frame: usize) -> Self {
        // An odd number of cache lines, so that the heads of frames spread over the cache's sets.
        let stride = frame.next_multiple_of(128) + 64;
        let slots = slots.clamp(2, 1 << 16).next_power_of_two();
        #[allow(clippy::expect_used, reason = "frames and slots are few")]
        let layout = Layout::from_size_align(slots as usize * stride, 64).expect("a ring fits memory");
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        Self {
            memory,
            layout,
            lens: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            headers: (0..slots).map(|_| Default::default()).collect(),
            stride,
            frame,
            tail: Line::default(),
            head: Line::default(),
        }
    }

    fn index(&self, number: u32) -> usize {
        number as usize & (self.lens.len() - 1)
    }

    /// Records the offloads of the frame in a slot, before it is published.
    fn leave(&self, number: u32, offload: &Offload) {
        let (mut words, header) = ([0; 16], vnet::build(offload));
        words[..header.len()].copy_from_slice(&header);
        let word = |bits: u128| bits as u64;
        let bits = u128::from_le_bytes(words);
        let at = self.index(number);
        self.headers[at][0].store(word(bits), Ordering::Relaxed);
        self.headers[at][1].store(word(bits >> 64), Ordering::Relaxed);
        self.lens[at].fetch_or(UNFINISHED, Ordering::Relaxed);
    }

    /// Returns the offloads of the frame of `len` bytes in a slot.
    #[cold]
    fn left(&self, number: u32, len: usize) -> Offload {
        let [low, high] = &self.headers[self.index(number)];
        let word = |word: &AtomicU64| u128::from(word.load(Ordering::Relaxed));
        let words = (word(low) | word(high) << 64).to_le_bytes();
        let mut header = [0; vnet::VNET_HEADER_SHORT];
        header.copy_from_slice(&words[..vnet::VNET_HEADER_SHORT]);
        // This succeeds, because `build` made the header.
        vnet::parse(&header, len, ALL, vnet::DataValid::Trust).unwrap_or_default()
    }

    /// Returns the first `len` bytes of a slot, or as many as it has.
    fn slot(&self, number: u32, len: usize) -> Segment {
        let len = len.min(self.frame);
        // SAFETY: the index is below the number of slots.
        let at = unsafe { self.memory.as_ptr().add(self.index(number) * self.stride) };
        // SAFETY: `len` bytes from there belong to the slot, and are mapped as long as the ring, which both ends hold.
        // The ends live as long as the queues, and so longer than a burst.
        unsafe { Segment::new(at, len as u32) }
    }
}

pub(crate) fn ring(slots: u32, frame: usize) -> (Filler, Taker) {
    let ring = Arc::new(Ring::new(slots, frame));
    (Filler { ring: ring.clone(), next: 0 }, Taker { ring, next: 0 })
}

/// The end that puts frames in.
#[derive(Debug)]
pub(crate) struct Filler {
    ring: Arc<Ring>,
    /// The slot to fill next; wraps around. Earlier ones that are not yet published still belong to this end.
    next: u32,
}

impl Filler {
    /// Returns the length of the longest frame, bytes.
    pub fn frame(&self) -> usize {
        self.ring.frame
    }

    #[inline]
    pub fn free(&self) -> u32 {
        self.ring.lens.len() as u32 - self.next.wrapping_sub(self.ring.head.0.load(Ordering::Acquire))
    }

    /// Reserves a slot for a frame of `len` bytes; `None` if none is free. The caller fills it before it is
    /// published.
    #[inline]
    pub fn slot(&mut self, len: usize) -> Option<Segment> {
        if self.free() == 0 {
            return None;
        }
        let slot = self.ring.slot(self.next, len);
        self.ring.lens[self.ring.index(self.next)].store(slot.len() as u32, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
        Some(slot)
    }

    /// Lets `fill` write a frame of `len` bytes with these unfinished offloads, and publishes it. False, with `fill`
    /// not run, if no slot is free or the frame is too long.
    pub fn fill(&mut self, len: usize, offload: &Offload, fill: impl FnOnce(&mut [u8])) -> bool {
        if len > self.frame() {
            return false;
        }
        let next = self.next;
        let Some(slot) = self.slot(len) else { return false };
        // If `fill` panics, its frame is not published; the slot is filled again.
        self.next = next;
        // SAFETY: the slot is mapped and initialised, and belongs only to this end until it is published.
        fill(unsafe { std::slice::from_raw_parts_mut(slot.as_ptr(), slot.len()) });
        if *offload != Offload::default() {
            self.ring.leave(next, offload);
        }
        self.next = next.wrapping_add(1);
        self.publish();
        true
    }

    /// Publishes the filled slots.
    #[inline]
    pub fn publish(&mut self) {
        self.ring.tail.0.store(self.next, Ordering::Release);
    }
}

/// The end that takes frames out.
#[derive(Debug)]
pub(crate) struct Taker {
    ring: Arc<Ring>,
    /// The slot to take next; wraps around. Earlier ones that were not returned still belong to this end.
    next: u32,
}

impl Taker {
    pub fn is_ready(&self) -> bool {
        self.ring.tail.0.load(Ordering::Acquire) != self.next
    }

    /// Takes the next frame and its offloads. The frame's slot belongs to this end until it is returned.
    #[inline]
    pub fn take(&mut self) -> Option<(Segment, Offload)> {
        if !self.is_ready() {
            return None;
        }
        let len = self.ring.lens[self.ring.index(self.next)].load(Ordering::Relaxed);
        let slot = self.ring.slot(self.next, (len & !UNFINISHED) as usize);
        let finished = len & UNFINISHED == 0;
        let left = if finished { Offload::default() } else { self.ring.left(self.next, slot.len()) };
        self.next = self.next.wrapping_add(1);
        Some((slot, left))
    }

    /// Lets `look` read the next frame, and returns its slot; `None` if there is none.
    pub fn look<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (slot, _) = self.take()?;
        // SAFETY: the slot is mapped and initialised, and belongs only to this end until it is returned: segments of
        // it that the filler handed out were no longer used when it was published.
        let seen = look(unsafe { std::slice::from_raw_parts(slot.as_ptr(), slot.len()) });
        self.give_back();
        Some(seen)
    }

    /// Returns the slots that were taken.
    #[inline]
    pub fn give_back(&mut self) {
        self.ring.head.0.store(self.next, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and nobody else has the ring.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
