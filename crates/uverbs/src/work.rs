//! Work queues: rings of slots that the library fills. The device takes posted requests; a peer that shares memory
//! takes receives.
//!
//! A slot holds a [`WorkRequest`], followed by the scatter/gather list or the bytes of an inline message. Receives
//! need only the first fields of a request: their list replaces the rest, so a slot with up to three segments is a
//! cache line.

use crate::Memory;
use crate::point::{Point, point};
pub use crate::request::{Segment, WorkRequest, opcode, send_flags};
pub(crate) use crate::slots::Header;
pub use crate::slots::{Corrupt, Shape};
use crate::slots::{SPARED, Slots, WANTED};
use crate::sync::{Ordering, fence};
use std::ptr::NonNull;
use std::sync::Arc;

/// The library's end of a work queue. Slots are filled in order, and the device sees them when they are published.
#[derive(Debug)]
pub struct WorkQueue {
    slots: Slots,
    /// Largest number of requests posted at a time: as many as the program asked for.
    limit: u32,
    published: u32,
    filled: u32,
    /// Number of finished slots when it was last read.
    done: u32,
}

impl WorkQueue {
    /// Creates the end for a queue in this memory, of which at most `limit` slots are used.
    ///
    /// # Errors
    /// If the queue is not inside the memory, or its shape is invalid.
    pub fn new(memory: Arc<Memory>, shape: Shape, limit: u32) -> Result<Self, Corrupt> {
        let slots = Slots::new(memory, shape)?;
        Ok(Self { slots, limit: limit.min(shape.slots), published: 0, filled: 0, done: 0 })
    }

    /// Continues after the requests that the other side published in this queue before.
    #[must_use]
    pub fn continued(self) -> Self {
        let tail = self.header().tail.load(Ordering::Acquire);
        Self { published: tail, filled: tail, ..self }
    }

    #[inline]
    fn header(&self) -> &Header {
        self.slots.header()
    }

    /// Is true if there is room for one more request.
    #[must_use]
    #[inline]
    pub fn has_room(&mut self) -> bool {
        if self.filled.wrapping_sub(self.done) >= self.limit {
            // Acquire: whoever finished a slot has read it before it is filled again.
            self.done = self.header().head(Ordering::Acquire);
        }
        self.filled.wrapping_sub(self.done) < self.limit
    }

    /// Fills the next slot, if there is one, with a request and its segments. Returns false if there is no room, or the
    /// list is longer than a slot.
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

    /// Fills the next slot with a request and the bytes of its list or inline message.
    ///
    /// # Safety
    /// Each part must be readable.
    #[inline]
    unsafe fn fill_raw(&mut self, request: &WorkRequest, parts: &[(*const u8, usize)]) -> bool {
        let room = self.slots.shape.room();
        let len = parts.iter().fold(0_usize, |sum, (_, len)| sum.saturating_add(*len));
        if len > room || !self.has_room() {
            return false;
        }
        self.slots.write(self.filled, request);
        let mut place = self.slots.list(self.filled).as_ptr();
        for (part, len) in parts.iter().filter(|(_, len)| *len > 0) {
            // SAFETY: `len` bytes are left in the slot, as was checked; the caller promises that they can be read.
            unsafe {
                std::ptr::copy_nonoverlapping(*part, place, *len);
                place = place.add(*len);
            }
        }
        self.filled = self.filled.wrapping_add(1);
        point(Point::Filled);
        true
    }

    /// Prefetches the slot that is filled next from the cache of its last reader.
    #[inline]
    pub fn prefetch(&self) {
        self.slots.prefetch_to_write(self.filled);
    }

    #[inline]
    pub fn publish(&mut self) {
        for number in 0..self.unpublished() {
            self.slots.publish(self.published.wrapping_add(number));
        }
        self.published = self.filled;
        // Release: whoever sees the tail sees the slots before it.
        self.header().tail.store(self.filled, Ordering::Release);
        point(Point::Published);
    }

    /// Is true if the device wants the doorbell for published receives. A device that requests it at this moment checks
    /// again later: to wait here until others see the published receives would take longer than everything else.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.header().doorbell.load(Ordering::Relaxed) == WANTED
    }

    /// Is true if the device wants no doorbell for sends. Call it after [`Self::publish`].
    #[must_use]
    pub fn is_spared_doorbell(&self) -> bool {
        // Pairs with `Header::say`, after which the device checks the queue.
        fence();
        self.header().doorbell.load(Ordering::Relaxed) == SPARED
    }

    /// Is true if the device has finished all published requests.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.header().head(Ordering::Acquire) == self.published
    }

    /// Returns the number of requests that were filled but not published.
    #[must_use]
    pub const fn unpublished(&self) -> u32 {
        self.filled.wrapping_sub(self.published)
    }

    /// Returns the request that was filled as the `index`th unpublished one. Appends its list to `segments`, or returns
    /// the bytes of its inline message.
    #[inline]
    pub fn peek(&self, index: u32, segments: &mut Vec<Segment>) -> (WorkRequest, &[u8]) {
        let (request, list) = self.slots.own(self.published.wrapping_add(index));
        self.append(&request, list, segments);
        let len = (request.inline_len as usize).min(self.slots.shape.room());
        // SAFETY: within the slot, to which nobody writes while `self` is borrowed: the device never does, since it is
        // not published.
        (request, unsafe { std::slice::from_raw_parts(list.as_ptr(), len) })
    }

    #[inline]
    fn append(&self, request: &WorkRequest, list: NonNull<u8>, segments: &mut Vec<Segment>) {
        let count = usize::from(request.segments).min(self.slots.shape.room() / size_of::<Segment>());
        for at in 0..count {
            // SAFETY: within the slot; any bytes are a valid segment.
            segments.push(unsafe { list.cast::<Segment>().add(at).read_volatile() });
        }
    }

    /// Takes back the first `count` requests that were filled but not published, because they are done.
    #[inline]
    pub fn take_back(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        for index in 0..self.unpublished().saturating_sub(count) {
            let to = self.published.wrapping_add(index);
            self.slots.copy(to.wrapping_add(count), to);
        }
        self.filled = self.filled.wrapping_sub(count);
    }

    /// Returns the identifier of the oldest receive that was not returned; appends its list to `segments`.
    #[inline]
    pub fn oldest(&self, segments: &mut Vec<Segment>) -> u64 {
        let (request, list) = self.slots.own(self.header().head(Ordering::Relaxed));
        self.append(&request, list, segments);
        request.id
    }

    /// Returns the oldest receive that was taken.
    #[inline]
    pub fn give_back(&mut self) {
        let head = self.header().head(Ordering::Relaxed);
        // A completion from before a reset returns nothing. `taken` is not checked, because it is in another
        // processor's cache.
        if head != self.published {
            self.header().set_head(head.wrapping_add(1));
            point(Point::GivenBack);
        }
    }

    /// Takes back all requests that were filled but not published.
    pub fn abort(&mut self) {
        self.filled = self.published;
    }

    /// Calls `each` with the unfinished requests in order, as if the device, which is gone, had finished them.
    pub fn abandon(&mut self, mut each: impl FnMut(&WorkRequest)) {
        let head = self.header().head(Ordering::Acquire);
        for index in 0..self.published.wrapping_sub(head).min(self.slots.shape.slots) {
            each(&self.slots.own(head.wrapping_add(index)).0);
        }
        self.header().set_head(self.published);
    }

    /// Forgets the posted requests, as the device does when a queue pair is reset. Numbers go on.
    pub fn reset(&mut self) {
        (self.filled, self.done) = (self.published, self.published);
    }
}

/// The taking end of a receive queue: the device's, or that of a peer that shares memory. Only one takes at a time.
#[derive(Debug)]
pub struct WorkSource {
    slots: Slots,
    /// The tail when [`Self::take_known`] last read it.
    seen: u32,
}

impl WorkSource {
    /// Creates the end for a queue in this memory.
    ///
    /// # Errors
    /// If the queue is not inside the memory, or its shape is invalid.
    pub fn new(memory: Arc<Memory>, shape: Shape) -> Result<Self, Corrupt> {
        Ok(Self { slots: Slots::new(memory, shape)?, seen: 0 })
    }

    pub(crate) fn header(&self) -> &Header {
        self.slots.header()
    }

    pub(crate) const fn slots(&self) -> u32 {
        self.slots.shape.slots
    }

    /// Returns the number of receives that were published but not taken.
    #[cfg(all(test, loom))]
    pub(crate) fn waiting(&self) -> u32 {
        let header = self.header();
        let taken = header.taken.load(Ordering::Acquire);
        header.tail.load(Ordering::Acquire).wrapping_sub(taken)
    }

    /// Takes the next receive, if there is one, with the number of its slot, and appends its segments to `segments`.
    /// Reads what the library writes only if no more receives are known. Calls `note` with number and identifier before
    /// it takes the receive.
    ///
    /// # Errors
    /// If the queue or the receive is invalid.
    #[inline]
    pub fn take_known(
        &mut self,
        segments: &mut Vec<Segment>,
        note: impl FnOnce(u32, u64),
    ) -> Result<Option<(u32, WorkRequest)>, Corrupt> {
        let number = self.header().taken.load(Ordering::Relaxed);
        if !(1..=self.slots()).contains(&self.seen.wrapping_sub(number)) {
            self.seen = self.header().tail.load(Ordering::Acquire);
            match self.seen.wrapping_sub(number) {
                0 => return Ok(None),
                waiting if waiting > self.slots() => return Err(Corrupt),
                _ => {}
            }
        }
        self.prefetch_after(number);
        let request = self.read(number, segments)?;
        note(number, request.id);
        point(Point::ReceiveNoted);
        self.header().taken.store(number.wrapping_add(1), Ordering::Release);
        point(Point::ReceiveTaken);
        Ok(Some((number, request)))
    }

    /// Is true if the receive with this number was the last one taken.
    #[must_use]
    pub fn was_taken_last(&self, number: u32) -> bool {
        self.header().taken.load(Ordering::Acquire) == number.wrapping_add(1)
    }

    pub(crate) fn prefetch_after(&self, number: u32) {
        self.slots.prefetch(number.wrapping_add(1));
    }

    /// Reads the receive of a slot; appends its list to `segments`.
    #[inline]
    pub(crate) fn read(&self, number: u32, segments: &mut Vec<Segment>) -> Result<WorkRequest, Corrupt> {
        self.slots.read(number, segments, &mut Vec::new())
    }

    /// Puts back the receive that was taken last.
    pub fn put_back(&self, number: u32) {
        self.header().taken.store(number, Ordering::Release);
    }

    /// Sets whether the library must ring the doorbell for receives, too. Receives posted at this moment come
    /// without it.
    pub fn want_doorbell(&mut self, wanted: bool) {
        self.header().say(if wanted { WANTED } else { 0 });
    }

    /// Forgets the posted receives, as the library does.
    pub fn reset(&mut self) {
        self.seen = self.header().reset();
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
