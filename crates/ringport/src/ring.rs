//! A bounded ring of frames in slots allocated once, with two ends.
//!
//! There is one [`Filler`] and one [`Taker`], and what they do needs `&mut`: so one thread at a time fills slots at
//! the tail and publishes them, and one takes them from the head and gives them back. A slot belongs to the filler
//! from when it was given back until it is published, and to the taker the rest of the time.

use mem::{Accepts, Offload, Segment, vnet};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Added to the length of a frame that has something left to do.
const UNFINISHED: u32 = 1 << 31;
/// Whatever a sender may leave to be done.
const ALL: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };

/// Bytes of a cache line, twice: the CPU fetches them in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// What both ends share.
#[derive(Debug)]
struct Ring {
    memory: NonNull<u8>,
    layout: Layout,
    /// Length of the frame in each slot, and [`UNFINISHED`].
    lens: Box<[AtomicU32]>,
    /// What is left to do of those, as a `virtio_net_hdr`.
    headers: Box<[[AtomicU64; 2]]>,
    /// Bytes from slot to slot.
    stride: usize,
    /// The longest frame.
    frame: usize,
    /// Slots published so far; wraps around.
    tail: Line<AtomicU32>,
    /// Slots given back so far; wraps around.
    head: Line<AtomicU32>,
}

// SAFETY: the memory is owned by the ring, and its bytes are reached through pointers alone, by the side they belong
// to.
unsafe impl Send for Ring {}
// SAFETY: as above; the rest consists of atomics and of what never changes.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(slots: u32, frame: usize) -> Self {
        // An odd number of lines, so that the heads of frames do not meet in few sets of the cache.
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

    /// Notes what is left to do of the frame in a slot. Before it is published.
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

    /// What is left to do of the frame of `len` bytes in a slot.
    #[cold]
    fn left(&self, number: u32, len: usize) -> Offload {
        let [low, high] = &self.headers[self.index(number)];
        let word = |word: &AtomicU64| u128::from(word.load(Ordering::Relaxed));
        let words = (word(low) | word(high) << 64).to_le_bytes();
        let mut header = [0; vnet::VNET_HEADER_SHORT];
        header.copy_from_slice(&words[..vnet::VNET_HEADER_SHORT]);
        // It is what `build` made.
        vnet::parse(&header, len, ALL, vnet::DataValid::Trust).unwrap_or_default()
    }

    /// The first `len` bytes of a slot, as many as there are.
    fn slot(&self, number: u32, len: usize) -> Segment {
        let len = len.min(self.frame);
        // SAFETY: the index is below the number of slots.
        let at = unsafe { self.memory.as_ptr().add(self.index(number) * self.stride) };
        // SAFETY: `len` bytes from there are the slot's, mapped for as long as the ring, which both ends hold: they
        // live as long as the queues, and so longer than a burst.
        unsafe { Segment::new(at, len as u32) }
    }
}

/// A ring for at least so many frames of at most `frame` bytes.
pub(crate) fn ring(slots: u32, frame: usize) -> (Filler, Taker) {
    let ring = Arc::new(Ring::new(slots, frame));
    (Filler { ring: ring.clone(), next: 0 }, Taker { ring, next: 0 })
}

/// The end at which frames come in.
#[derive(Debug)]
pub(crate) struct Filler {
    ring: Arc<Ring>,
    /// The slot filled next; wraps around. Those before it that are not published yet are its own still.
    next: u32,
}

impl Filler {
    /// The longest frame, bytes.
    pub fn frame(&self) -> usize {
        self.ring.frame
    }

    /// How many slots are free.
    #[inline]
    pub fn free(&self) -> u32 {
        self.ring.lens.len() as u32 - self.next.wrapping_sub(self.ring.head.0.load(Ordering::Acquire))
    }

    /// A slot for a frame of `len` bytes; `None` where none is free. It is filled before it is published.
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

    /// Lets `fill` write a frame of `len` bytes that has this left to do, and publishes it; false, with `fill` not
    /// run, where no slot is free or it is too long.
    pub fn fill(&mut self, len: usize, offload: &Offload, fill: impl FnOnce(&mut [u8])) -> bool {
        if len > self.frame() {
            return false;
        }
        let next = self.next;
        let Some(slot) = self.slot(len) else { return false };
        // What `fill` leaves by a panic is not published, and filled again.
        self.next = next;
        // SAFETY: the slot is mapped and initialised, and this end's alone until it is published.
        fill(unsafe { std::slice::from_raw_parts_mut(slot.as_ptr(), slot.len()) });
        if *offload != Offload::default() {
            self.ring.leave(next, offload);
        }
        self.next = next.wrapping_add(1);
        self.publish();
        true
    }

    /// Publishes the slots that were filled.
    #[inline]
    pub fn publish(&mut self) {
        self.ring.tail.0.store(self.next, Ordering::Release);
    }
}

/// The end at which frames go out.
#[derive(Debug)]
pub(crate) struct Taker {
    ring: Arc<Ring>,
    /// The slot taken next; wraps around. Those before it that were not given back are its own still.
    next: u32,
}

impl Taker {
    /// Whether there is a frame.
    pub fn is_ready(&self) -> bool {
        self.ring.tail.0.load(Ordering::Acquire) != self.next
    }

    /// The next frame, whose slot is its taker's until given back, and what is left to do of it.
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

    /// Lets `look` read the next frame, and gives back its slot; `None` where there is none.
    pub fn look<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (slot, _) = self.take()?;
        // SAFETY: the slot is mapped and initialised, and this end's alone until it is given back: segments of it
        // that the filler handed out were done with when it was published.
        let seen = look(unsafe { std::slice::from_raw_parts(slot.as_ptr(), slot.len()) });
        self.give_back();
        Some(seen)
    }

    /// Gives back the slots that were taken.
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
