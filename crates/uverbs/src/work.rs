//! Work queues: rings of slots of one size that the library writes and the device reads.
//!
//! A slot holds a [`WorkRequest`], followed by the scatter/gather list or the bytes of an inline message. Receives
//! need little of a request: their list replaces the rest, so a slot with up to three segments is a cache line.

use crate::Memory;
use crate::point::{Point, point};
use crate::request::RECEIVE;
pub use crate::request::{Segment, WorkRequest, opcode, send_flags};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use serde::{Deserialize, Serialize};
use std::ptr::NonNull;
use std::sync::Arc;

/// The location and layout of a queue in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Bytes before it; a multiple of 64.
    pub offset: u32,
    /// Slots, a power of two.
    pub slots: u32,
    /// Bytes of a slot, a multiple of 64.
    pub stride: u32,
    /// Bytes of a slot before the list or the inline message.
    pub list: u32,
}

/// Fewest slots of a send queue. How many are done is in the device's cache: the library looks there only when it has
/// filled all of them.
const FEWEST: u32 = 16;

/// Most bytes of a slot that are prefetched: a request, and the beginning of its list or inline message.
const PREFETCHED: u32 = 128;

impl Shape {
    /// Room for at least `requests` of at most `segments` segments or `inline` bytes each.
    #[must_use]
    pub fn new(offset: u32, requests: u32, segments: u32, inline: u32) -> Self {
        let bytes = (segments * size_of::<Segment>() as u32).max(inline);
        Self::with(offset, requests.max(FEWEST), size_of::<WorkRequest>() as u32, bytes)
    }

    /// Room for at least twice as many receives of at most `segments` segments each, so the slot that is filled next
    /// is never the one that was just read.
    #[must_use]
    pub fn of_receives(offset: u32, receives: u32, segments: u32) -> Self {
        Self::with(offset, receives.max(1) * 2, RECEIVE as u32, segments * size_of::<Segment>() as u32)
    }

    fn with(offset: u32, requests: u32, list: u32, bytes: u32) -> Self {
        let stride = (list + bytes).max(size_of::<WorkRequest>() as u32).next_multiple_of(64);
        Self { offset, slots: requests.next_power_of_two(), stride, list }
    }

    /// Bytes of a list, or an inline message.
    const fn room(&self) -> usize {
        (self.stride - self.list) as usize
    }

    /// Bytes to its end.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.offset as usize + size_of::<Header>() + self.slots as usize * self.stride as usize
    }

    const fn slot(&self, index: u32) -> usize {
        let slot = index & (self.slots - 1);
        self.offset as usize + size_of::<Header>() + slot as usize * self.stride as usize
    }
}

/// Receives must be announced: they are flushed at once.
const WANTED: u32 = 1;
/// Sends need not be announced: the device checks for them itself.
const SPARED: u32 = 2;

/// The header before the slots. Each writer has its own cache line.
#[repr(C, align(64))]
pub(crate) struct Header {
    /// Number of slots that the library has filled.
    pub tail: AtomicU32,
    _library: [u32; 15],
    /// Number of finished slots in the lower half. Written by the device; in a receive queue, by the library; in a
    /// shared one, by all takers. The upper half, in a shared queue, holds who took the last one.
    pub head: AtomicU64,
    _done: [u32; 14],
    /// Number of slots taken, by the device or, in a receive queue, by a peer that shares memory.
    taken: AtomicU32,
    _taker: [u32; 15],
    /// The device's wish for doorbells: [`WANTED`], [`SPARED`], or 0, which means that sends are announced and
    /// receives are not.
    doorbell: AtomicU32,
    /// In a shared receive queue: the device is told when fewer are left.
    pub limit: AtomicU32,
    _device: [u32; 14],
}

impl Header {
    /// Slots done with.
    #[inline]
    pub fn head(&self, order: Ordering) -> u32 {
        self.head.load(order) as u32
    }

    /// Release: slots are filled again only after they were read.
    #[inline]
    fn set_head(&self, head: u32) {
        self.head.store(head.into(), Ordering::Release);
    }
}

/// The other side wrote invalid data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work queue is corrupt")]
pub struct Corrupt;

/// The library's end of a work queue. Slots are filled in order, and the device sees them when they are published.
#[derive(Debug)]
pub struct WorkQueue {
    memory: Arc<Memory>,
    header: NonNull<Header>,
    shape: Shape,
    /// Most requests posted at a time: as many as were requested.
    limit: u32,
    published: u32,
    filled: u32,
    /// Number of finished slots when it was last read.
    done: u32,
}

// SAFETY: the pointer is into `memory`, which can be used from any thread; the header is only used through atomics.
unsafe impl Send for WorkQueue {}

impl WorkQueue {
    /// A queue in this memory, of which at most `limit` slots are used.
    ///
    /// # Errors
    /// If it is not inside the memory, or its shape is invalid.
    pub fn new(memory: Arc<Memory>, shape: Shape, limit: u32) -> Result<Self, Corrupt> {
        let header = header(&memory, shape)?;
        Ok(Self { memory, header, shape, limit: limit.min(shape.slots), published: 0, filled: 0, done: 0 })
    }

    /// The same, continuing after what the other side published there before.
    #[must_use]
    pub fn continued(self) -> Self {
        let tail = self.header().tail.load(Ordering::Acquire);
        Self { published: tail, filled: tail, ..self }
    }

    fn header(&self) -> &Header {
        // SAFETY: it was checked to be inside the memory, which `self` keeps mapped; it consists of atomics.
        unsafe { self.header.as_ref() }
    }

    /// Whether there is room for one more.
    #[must_use]
    #[inline]
    pub fn has_room(&mut self) -> bool {
        if self.filled.wrapping_sub(self.done) >= self.limit {
            // Acquire: whoever finished a slot has read it before it is filled again.
            self.done = self.header().head(Ordering::Acquire);
        }
        self.filled.wrapping_sub(self.done) < self.limit
    }

    /// Fills the next slot, if there is one, with a request and its segments. False if there is no room, or the list
    /// is longer than a slot.
    #[must_use]
    pub fn fill(&mut self, request: &WorkRequest, segments: &[Segment]) -> bool {
        let parts = [segments.as_ptr().cast::<u8>()];
        let len = size_of_val(segments);
        // SAFETY: the pointer is to `len` bytes that may be read.
        unsafe { self.fill_raw(request, &[(parts[0], len)]) }
    }

    /// Fills the next slot with a request and the bytes of an inline message.
    ///
    /// # Safety
    /// Each part must be readable: a pointer and a length.
    #[must_use]
    pub unsafe fn fill_inline(&mut self, request: &WorkRequest, parts: &[(*const u8, usize)]) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.fill_raw(request, parts) }
    }

    /// # Safety
    /// Each part must be readable.
    #[inline]
    unsafe fn fill_raw(&mut self, request: &WorkRequest, parts: &[(*const u8, usize)]) -> bool {
        let room = self.shape.room();
        let len = parts.iter().fold(0_usize, |sum, (_, len)| sum.saturating_add(*len));
        if len > room || !self.has_room() {
            return false;
        }
        let slot = self.shape.slot(self.filled);
        let place = self.memory.at::<WorkRequest>(slot);
        // SAFETY: the slot is inside the memory (`at`), and the device does not read it before it is published.
        unsafe { place.write_volatile(*request) };
        let mut offset = slot + self.shape.list as usize;
        for (part, len) in parts {
            if *len > 0 {
                let place = self.memory.at::<u8>(offset).as_ptr();
                // SAFETY: `len` bytes are left in the slot, as was checked; the caller promises that they can be read.
                unsafe { std::ptr::copy_nonoverlapping(*part, place, *len) };
                offset += len;
            }
        }
        self.filled = self.filled.wrapping_add(1);
        point(Point::Filled);
        true
    }

    /// Prefetches the slot that is filled next from the cache of its last reader.
    #[inline]
    pub fn prefetch(&self) {
        let slot = self.shape.slot(self.filled);
        for line in (0..self.shape.stride.min(PREFETCHED) as usize).step_by(64) {
            self.memory.prefetch_to_write(slot + line);
        }
    }

    /// Publishes the filled slots to the device.
    #[inline]
    pub fn publish(&mut self) {
        self.published = self.filled;
        // Release: whoever sees the tail sees the slots before it.
        self.header().tail.store(self.filled, Ordering::Release);
        point(Point::Published);
    }

    /// Whether the device wants the doorbell for published receives. A device that requests it at this moment checks
    /// again later: waiting here until others see what was published would take longer than everything else.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.header().doorbell.load(Ordering::Relaxed) == WANTED
    }

    /// Whether the device wants no doorbell for sends. Call it after [`Self::publish`].
    #[must_use]
    pub fn is_spared_doorbell(&self) -> bool {
        // Pairs with `WorkSource::say`, after which the device checks the queue.
        fence();
        self.header().doorbell.load(Ordering::Relaxed) == SPARED
    }

    /// Whether the device has finished everything that was published.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.header().head(Ordering::Acquire) == self.published
    }

    /// Number of requests that were filled but not published.
    #[must_use]
    pub const fn unpublished(&self) -> u32 {
        self.filled.wrapping_sub(self.published)
    }

    /// A slot's request, and the address of its list or inline message.
    fn slot(&self, number: u32) -> (WorkRequest, NonNull<u8>) {
        let slot = self.shape.slot(number);
        // SAFETY: the slot is inside the memory (`at`); we wrote it, and any bytes are a valid request.
        let request = unsafe { self.memory.at::<WorkRequest>(slot).read_volatile() };
        (request, self.memory.at(slot + self.shape.list as usize))
    }

    /// The request that was filled as the `index`th unpublished one. Its list is appended, or the bytes of its inline
    /// message are returned.
    #[inline]
    pub fn peek(&self, index: u32, segments: &mut Vec<Segment>) -> (WorkRequest, &[u8]) {
        let (request, list) = self.slot(self.published.wrapping_add(index));
        self.append(&request, list, segments);
        let len = (request.inline_len as usize).min(self.shape.room());
        // SAFETY: within the slot, to which nobody writes while `self` is borrowed: the device never does, since it is
        // not published.
        (request, unsafe { std::slice::from_raw_parts(list.as_ptr(), len) })
    }

    #[inline]
    fn append(&self, request: &WorkRequest, list: NonNull<u8>, segments: &mut Vec<Segment>) {
        let count = usize::from(request.segments).min(self.shape.room() / size_of::<Segment>());
        for at in 0..count {
            // SAFETY: within the slot; any bytes are a valid segment.
            segments.push(unsafe { list.cast::<Segment>().add(at).read_volatile() });
        }
    }

    /// Takes back the first `count` requests that were filled but not published: they are done.
    #[inline]
    pub fn take_back(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        let stride = self.shape.stride as usize;
        for index in 0..self.unpublished().saturating_sub(count) {
            let index = self.published.wrapping_add(index);
            let from = self.memory.at::<u8>(self.shape.slot(index.wrapping_add(count)));
            let to = self.memory.at::<u8>(self.shape.slot(index));
            // SAFETY: both are different slots inside the memory.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), stride) };
        }
        self.filled = self.filled.wrapping_sub(count);
    }

    /// The identifier of the oldest receive that was not returned; its list is appended.
    #[inline]
    pub fn oldest(&self, segments: &mut Vec<Segment>) -> u64 {
        let (request, list) = self.slot(self.header().head(Ordering::Relaxed));
        self.append(&request, list, segments);
        request.id
    }

    /// Returns the oldest receive that was taken.
    #[inline]
    pub fn give_back(&mut self) {
        let head = self.header().head(Ordering::Relaxed);
        // A completion from before a reset returns nothing. `taken` is not checked either, because it is in another's
        // cache.
        if head != self.published {
            self.header().set_head(head.wrapping_add(1));
            point(Point::GivenBack);
        }
    }

    /// Takes back what was filled but not published.
    pub fn abort(&mut self) {
        self.filled = self.published;
    }

    /// For a queue whose device is gone: calls `each` with the unfinished requests in order, as if the device had
    /// finished them.
    pub fn abandon(&mut self, mut each: impl FnMut(&WorkRequest)) {
        let head = self.header().head(Ordering::Acquire);
        for index in 0..self.published.wrapping_sub(head).min(self.shape.slots) {
            let slot = self.shape.slot(head.wrapping_add(index));
            // SAFETY: the slot lies in the memory (`at`); we wrote it.
            each(&unsafe { self.memory.at::<WorkRequest>(slot).read_volatile() });
        }
        self.header().set_head(self.published);
    }

    /// Starts again, as the device does with a queue pair that is reset.
    pub fn reset(&mut self) {
        (self.filled, self.published, self.done) = (0, 0, 0);
    }
}

/// The taking end of a work queue: the device's or, for a receive queue, that of a peer that shares memory. Only one
/// takes at a time.
#[derive(Debug)]
pub struct WorkSource {
    memory: Arc<Memory>,
    header: NonNull<Header>,
    shape: Shape,
    /// The tail when [`Self::take_known`] last read it.
    seen: u32,
}

// SAFETY: as for `WorkQueue`.
unsafe impl Send for WorkSource {}

impl WorkSource {
    /// A queue in this memory.
    ///
    /// # Errors
    /// If it is not inside the memory, or its shape is invalid.
    pub fn new(memory: Arc<Memory>, shape: Shape) -> Result<Self, Corrupt> {
        let header = header(&memory, shape)?;
        Ok(Self { memory, header, shape, seen: 0 })
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: it was checked to lie in the memory, which `self` keeps mapped; it consists of atomics.
        unsafe { self.header.as_ref() }
    }

    pub(crate) const fn slots(&self) -> u32 {
        self.shape.slots
    }

    /// Number of requests that were published but not taken, and number of all requests taken.
    fn look(&self) -> Result<(u32, u32), Corrupt> {
        let header = self.header();
        // Acquire: the loads keep this order.
        let taken = header.taken.load(Ordering::Acquire);
        // In this order: in a receive queue, the library may advance both at any time, the head first.
        let tail = header.tail.load(Ordering::Acquire);
        let head = header.head(Ordering::Relaxed);
        let held = tail.wrapping_sub(head);
        let held_by_us = taken.wrapping_sub(head);
        if held > self.shape.slots || held < held_by_us {
            return Err(Corrupt);
        }
        Ok((held - held_by_us, taken))
    }

    /// Number of requests that were published but not taken.
    ///
    /// # Errors
    /// If there would be more than slots.
    pub fn waiting(&self) -> Result<u32, Corrupt> {
        self.look().map(|(waiting, _)| waiting)
    }

    /// Takes the next request, if there is one, with the number of its slot. Its segments are appended to `segments`,
    /// the bytes of an inline message to `inline`.
    ///
    /// # Errors
    /// If the queue or the request is invalid.
    pub fn take(
        &mut self,
        segments: &mut Vec<Segment>,
        inline: &mut Vec<u8>,
    ) -> Result<Option<(u32, WorkRequest)>, Corrupt> {
        let (waiting, number) = self.look()?;
        if waiting == 0 {
            return Ok(None);
        }
        let request = self.read(number, segments, inline)?;
        self.header().taken.store(number.wrapping_add(1), Ordering::Release);
        point(Point::Taken);
        Ok(Some((number, request)))
    }

    /// As [`Self::take`], for receives: it reads what the library writes only if no more requests are known. `note` is
    /// called with number and identifier before it is taken.
    ///
    /// # Errors
    /// As of that.
    #[inline]
    pub fn take_known(
        &mut self,
        segments: &mut Vec<Segment>,
        note: impl FnOnce(u32, u64),
    ) -> Result<Option<(u32, WorkRequest)>, Corrupt> {
        let number = self.header().taken.load(Ordering::Relaxed);
        if !(1..=self.shape.slots).contains(&self.seen.wrapping_sub(number)) {
            self.seen = self.header().tail.load(Ordering::Acquire);
            match self.seen.wrapping_sub(number) {
                0 => return Ok(None),
                waiting if waiting > self.shape.slots => return Err(Corrupt),
                _ => {}
            }
        }
        self.prefetch_after(number);
        let request = self.read(number, segments, &mut Vec::new())?;
        note(number, request.id);
        point(Point::ReceiveNoted);
        self.header().taken.store(number.wrapping_add(1), Ordering::Release);
        point(Point::ReceiveTaken);
        Ok(Some((number, request)))
    }

    /// Whether the request with this number was the last one taken.
    #[must_use]
    pub fn was_taken_last(&self, number: u32) -> bool {
        self.header().taken.load(Ordering::Acquire) == number.wrapping_add(1)
    }

    /// Prefetches the request after this one.
    pub(crate) fn prefetch_after(&self, number: u32) {
        self.prefetch_slot(number.wrapping_add(1));
    }

    /// Prefetches the next request, which was published.
    #[inline]
    pub fn prefetch(&self) {
        self.prefetch_slot(self.header().taken.load(Ordering::Relaxed));
    }

    fn prefetch_slot(&self, number: u32) {
        self.memory.prefetch(self.shape.slot(number), self.shape.stride.min(PREFETCHED) as usize);
    }

    /// Reads the request of a slot; lists are appended as for [`Self::take`].
    #[inline]
    pub(crate) fn read(
        &self,
        number: u32,
        segments: &mut Vec<Segment>,
        inline: &mut Vec<u8>,
    ) -> Result<WorkRequest, Corrupt> {
        let slot = self.shape.slot(number);
        // SAFETY: the slot is inside the memory; any bytes are a request, though perhaps an invalid one.
        let request = unsafe { self.memory.at::<WorkRequest>(slot).read_volatile() };
        let list = slot + self.shape.list as usize;
        let room = self.shape.room();
        let count = usize::from(request.segments);
        let inline_len = request.inline_len as usize;
        if count * size_of::<Segment>() > room || inline_len > room || (count > 0 && inline_len > 0) {
            return Err(Corrupt);
        }
        for at in 0..count {
            // SAFETY: within the slot, as was checked; any bytes are a segment.
            segments
                .push(unsafe { self.memory.at::<Segment>(list + at * size_of::<Segment>()).read_volatile() });
        }
        for at in 0..inline_len {
            // SAFETY: within the slot, as was checked.
            inline.push(unsafe { self.memory.at::<u8>(list + at).read_volatile() });
        }
        Ok(request)
    }

    /// Puts back the request that was taken last.
    pub fn put_back(&self, number: u32) {
        self.header().taken.store(number, Ordering::Release);
    }

    /// Lets the library reuse all slots before the one with this number.
    pub fn release_before(&mut self, number: u32) {
        // Release: they were read before they are filled again.
        self.header().set_head(number);
        point(Point::Released);
    }

    /// Lets the library reuse all slots whose requests were taken.
    pub fn release_taken(&mut self) {
        self.release_before(self.header().taken.load(Ordering::Relaxed));
    }

    /// Sets whether the doorbell must be rung for receives too. Receives posted at this moment come without it.
    pub fn want_doorbell(&mut self, wanted: bool) {
        self.say(if wanted { WANTED } else { 0 });
    }

    /// Sets whether the doorbell need not be rung for sends: then the device must check the queue soon.
    pub fn spare_doorbell(&mut self, spared: bool) {
        self.say(if spared { SPARED } else { 0 });
    }

    fn say(&mut self, doorbell: u32) {
        self.header().doorbell.store(doorbell, Ordering::Relaxed);
        // The device checks the queue after this: at least one side sees the other (`WorkQueue::is_spared_doorbell`).
        fence();
    }

    /// Resets everything, as the library does.
    pub fn reset(&mut self) {
        let header = self.header();
        header.tail.store(0, Ordering::Relaxed);
        header.taken.store(0, Ordering::Relaxed);
        header.set_head(0);
        self.want_doorbell(false);
        self.seen = 0;
    }
}

fn header(memory: &Memory, shape: Shape) -> Result<NonNull<Header>, Corrupt> {
    let is_shape = shape.slots.is_power_of_two()
        && shape.stride.is_multiple_of(64)
        && shape.stride as usize >= size_of::<WorkRequest>()
        && (RECEIVE as u32..=shape.stride).contains(&shape.list)
        && shape.list.is_multiple_of(align_of::<Segment>() as u32)
        && shape.offset.is_multiple_of(64);
    let bytes = u64::from(shape.slots) * u64::from(shape.stride);
    let end = bytes.checked_add(u64::from(shape.offset) + size_of::<Header>() as u64);
    if !is_shape || end.is_none_or(|end| end > memory.len() as u64) {
        return Err(Corrupt);
    }
    Ok(memory.at(shape.offset as usize))
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
