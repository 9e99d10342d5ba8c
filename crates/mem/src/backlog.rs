//! A bounded queue of frames in memory of this process. One end puts frames in, the other takes them out.
//!
//! Both ends need `&mut`, so one thread at a time fills and publishes, and one takes and returns. The memory of a frame
//! belongs to the filling end until it is published, and to the taking end until it is returned.

use crate::{Offload, Segment};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A frame that waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    /// Bytes put in before it; wraps around.
    at: usize,
    pub len: u32,
    pub offload: Offload,
    /// When it was put in, by the clock of the filling end.
    pub since_ns: u64,
}

/// Two cache lines, because the CPU fetches them in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// Counts that wrap around, in frames and bytes.
#[derive(Debug, Default)]
struct Reached {
    frames: AtomicUsize,
    bytes: AtomicUsize,
}

#[derive(Debug)]
struct Backlog {
    memory: NonNull<u8>,
    layout: Layout,
    frames: Box<[UnsafeCell<Frame>]>,
    /// Frames published so far.
    tail: Line<Reached>,
    /// Frames returned so far.
    head: Line<Reached>,
}

// SAFETY: the queue owns the memory; each byte and each entry is accessed only by the end to which it belongs.
unsafe impl Send for Backlog {}
// SAFETY: as above; the rest are atomics and fields that never change.
unsafe impl Sync for Backlog {}

/// Creates a queue of so many frames and bytes at most, both rounded up to powers of two.
#[must_use]
pub fn backlog(frames: usize, bytes: usize) -> (Filler, Taker) {
    let (frames, bytes) = (frames.max(2).next_power_of_two(), bytes.max(64).next_power_of_two());
    #[allow(clippy::expect_used, reason = "queues are small")]
    let layout = Layout::from_size_align(bytes, 64).expect("a queue fits memory");
    // SAFETY: the layout is not empty.
    let memory = unsafe { alloc_zeroed(layout) };
    let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
    let frames = (0..frames).map(|_| UnsafeCell::default()).collect();
    let all = Arc::new(Backlog { memory, layout, frames, tail: Line::default(), head: Line::default() });
    let none = Segment::EMPTY;
    (Filler { all: all.clone(), next: 0, at: 0, segments: [none; 2] }, Taker { all, next: 0, at: 0 })
}

impl Backlog {
    const fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn entry(&self, number: usize) -> *mut Frame {
        self.frames[number & (self.frames.len() - 1)].get()
    }

    /// Returns the memory of a frame: two pieces if it reaches beyond the end, else one and an empty one.
    fn segments(&self, at: usize, len: usize) -> [Segment; 2] {
        let start = at & (self.bytes() - 1);
        let first = len.min(self.bytes() - start);
        // SAFETY: `start` is inside the memory.
        let (start, origin) = (unsafe { self.memory.as_ptr().add(start) }, self.memory.as_ptr());
        // SAFETY: both pieces are inside the memory, which lives as long as the ends, and so longer than a burst.
        unsafe { [Segment::new(start, first as u32), Segment::new(origin, (len - first) as u32)] }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        // SAFETY: allocated by `backlog` with this layout, and no end is left.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// The end that puts frames in.
#[derive(Debug)]
pub struct Filler {
    all: Arc<Backlog>,
    /// The number of the next frame, and the bytes before it; they wrap around.
    next: usize,
    at: usize,
    /// The memory that was reserved last.
    segments: [Segment; 2],
}

impl Filler {
    /// Returns whether all frames that were reserved have come back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == self.all.head.0.frames.load(Ordering::Acquire)
    }

    /// Reserves memory for a frame; `None` if there is no room. The caller fills it before it is published.
    pub fn reserve(&mut self, len: usize, offload: &Offload, now_ns: u64) -> Option<&[Segment]> {
        let head = &self.all.head.0;
        let frames = self.next.wrapping_sub(head.frames.load(Ordering::Acquire));
        let bytes = self.at.wrapping_sub(head.bytes.load(Ordering::Acquire));
        if frames >= self.all.frames.len() || len > self.all.bytes() - bytes {
            return None;
        }
        let frame = Frame { at: self.at, len: len as u32, offload: *offload, since_ns: now_ns };
        // SAFETY: the entry was returned, so it belongs to this end until it is published.
        unsafe { *self.all.entry(self.next) = frame };
        self.segments = self.all.segments(self.at, len);
        (self.next, self.at) = (self.next.wrapping_add(1), self.at.wrapping_add(len));
        Some(if self.segments[1].is_empty() { &self.segments[..1] } else { &self.segments })
    }

    /// Publishes the frames reserved so far.
    pub fn publish(&mut self) {
        let tail = &self.all.tail.0;
        tail.bytes.store(self.at, Ordering::Relaxed);
        tail.frames.store(self.next, Ordering::Release);
    }
}

/// The end that takes frames out.
#[derive(Debug)]
pub struct Taker {
    all: Arc<Backlog>,
    /// The number of the next frame, and the bytes before it; they wrap around.
    next: usize,
    at: usize,
}

impl Taker {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.tail.0.frames.load(Ordering::Acquire) == self.next
    }

    /// Returns how many frames and bytes were not taken yet.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        let tail = &self.all.tail.0;
        let frames = tail.frames.load(Ordering::Acquire).wrapping_sub(self.next);
        (frames, tail.bytes.load(Ordering::Relaxed).wrapping_sub(self.at))
    }

    /// Takes the next frame. Its memory belongs to this end until it is returned.
    pub fn take(&mut self) -> Option<Frame> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the entry was published, so it belongs to this end until it is returned.
        let frame = unsafe { *self.all.entry(self.next) };
        self.next = self.next.wrapping_add(1);
        self.at = frame.at.wrapping_add(frame.len as usize);
        Some(frame)
    }

    /// Returns the memory of a frame that was taken and not returned.
    #[must_use]
    pub fn memory(&self, frame: &Frame) -> [Segment; 2] {
        self.all.segments(frame.at, frame.len as usize)
    }

    /// Returns the frames that were taken to the filling end.
    pub fn give_back(&mut self) {
        let head = &self.all.head.0;
        head.bytes.store(self.at, Ordering::Release);
        head.frames.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::{gather, scatter};

    fn put(filler: &mut Filler, bytes: &[u8]) -> bool {
        let Some(to) = filler.reserve(bytes.len(), &Offload::default(), 7) else { return false };
        assert_eq!(scatter(bytes, to, 0), bytes.len());
        filler.publish();
        true
    }

    fn get(taker: &mut Taker) -> Option<Vec<u8>> {
        let frame = taker.take()?;
        let mut bytes = vec![0; frame.len as usize];
        assert_eq!(gather(&taker.memory(&frame), 0, &mut bytes), bytes.len());
        taker.give_back();
        Some(bytes)
    }

    #[test]
    fn frames_come_out_whole_and_in_order_also_around_the_end() {
        let (mut filler, mut taker) = backlog(4, 128);
        for round in 0..50u8 {
            let frames = [vec![round; 50], vec![round + 100; 1 + usize::from(round)]];
            assert!(frames.iter().all(|frame| put(&mut filler, frame)));
            assert_eq!(taker.waiting(), (2, frames.iter().map(Vec::len).sum()));
            assert_eq!([get(&mut taker).unwrap(), get(&mut taker).unwrap()], frames);
            assert!(get(&mut taker).is_none() && taker.is_empty());
        }
    }

    #[test]
    fn frames_and_bytes_are_bounded() {
        let (mut filler, mut taker) = backlog(4, 128);
        assert!(put(&mut filler, &[1; 128]));
        assert!(!put(&mut filler, &[2; 1]), "no bytes left");
        assert_eq!(get(&mut taker).unwrap().len(), 128);
        assert!(!put(&mut filler, &[1; 129]), "longer than all");
        assert!((0..4).all(|n| put(&mut filler, &[n])));
        assert!(!put(&mut filler, &[4]), "no entries left");
        assert_eq!(get(&mut taker), Some(vec![0]));
        assert!(put(&mut filler, &[4]));
    }

    #[test]
    fn what_is_not_published_is_not_there_and_what_is_taken_stays() {
        let (mut filler, mut taker) = backlog(2, 64);
        assert!(filler.reserve(60, &Offload::default(), 0).is_some());
        assert!(taker.is_empty());
        filler.publish();
        let frame = taker.take().unwrap();
        assert_eq!((frame.len, frame.since_ns, taker.waiting()), (60, 0, (0, 0)));
        assert!(filler.reserve(10, &Offload::default(), 0).is_none(), "the frame was not returned");
        taker.give_back();
        assert!(filler.reserve(10, &Offload::default(), 0).is_some());
    }

    #[test]
    fn two_threads_pass_frames() {
        let rounds = if cfg!(miri) { 100 } else { 20_000u32 };
        let (mut filler, mut taker) = backlog(8, 256);
        let sender = std::thread::spawn(move || {
            for n in 0..rounds {
                let frame = vec![n as u8; 1 + n as usize % 90];
                while !put(&mut filler, &frame) {
                    std::thread::yield_now();
                }
            }
        });
        for n in 0..rounds {
            let frame = loop {
                match get(&mut taker) {
                    Some(frame) => break frame,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(frame, vec![n as u8; 1 + n as usize % 90]);
        }
        sender.join().unwrap();
    }
}
