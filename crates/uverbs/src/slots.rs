//! The memory of a work queue: a header, and a ring of slots of one size.
//!
//! A slot begins with its sequence number, counted from 1: once that is right, the request is published. So the device
//! finds a request of a send queue, and the bytes of a short inline message, in the one cache line that it looks at.

use crate::Memory;
use crate::request::{Segment, WorkRequest, opcode};
use crate::sync::{AtomicU32, AtomicU64, Ordering, reads, writes};
use serde::{Deserialize, Serialize};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;

/// The location and layout of a queue in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Bytes before the queue; a multiple of 64.
    pub offset: u32,
    /// Number of slots, a power of two.
    pub slots: u32,
    /// Bytes of a slot, a multiple of 64.
    pub stride: u32,
    /// Bytes of a slot before the list or the inline message.
    pub list: u32,
}

/// Smallest number of slots of a send queue. The number of finished slots is in the device's cache: the library reads
/// it only when it has filled all slots.
const FEWEST: u32 = 16;

/// Largest number of a slot's bytes that are prefetched: a request, and the beginning of its list or inline message.
const PREFETCHED: u32 = 128;

/// The beginning of a slot. In a receive, the list takes the place of the fields from `inline_len` on.
#[repr(C, align(64))]
struct Stored {
    sequence: AtomicU32,
    opcode: u8,
    flags: u8,
    segments: u16,
    id: u64,
    /// This field and the following ones are only in sends.
    inline_len: u32,
    number: u32,
    /// For a datagram: queue pair, and queue key.
    address: u64,
    /// For a datagram: address handle.
    rkey: u32,
    immediate: u32,
}

/// Bytes of a slot that a receive needs.
const RECEIVE: u32 = offset_of!(Stored, inline_len) as u32;
/// Bytes of a slot that a send needs.
const SEND: u32 = (offset_of!(Stored, immediate) + size_of::<u32>()) as u32;
/// Offset, in the list, of the operands of an atomic operation or of a window's binding; the list then has at most one
/// segment.
const OPERANDS: usize = size_of::<Segment>();
/// Smallest number of bytes after the beginning of the list: a segment and the operands.
const AFTER: u32 = (OPERANDS + 2 * size_of::<u64>()) as u32;

const _: () = assert!(RECEIVE == 16 && SEND == 40 && size_of::<Stored>() == 64);

const fn has_operands(asked: u8) -> bool {
    matches!(asked, opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD | opcode::BIND_MW)
}

impl Shape {
    /// Returns a shape with room for at least `requests` of at most `segments` segments or `inline` bytes each.
    #[must_use]
    pub fn new(offset: u32, requests: u32, segments: u32, inline: u32) -> Self {
        let bytes = (segments * size_of::<Segment>() as u32).max(inline);
        Self::with(offset, requests.max(FEWEST), SEND, bytes)
    }

    /// Returns a shape with room for at least twice as many receives, of at most `segments` segments each. So the slot
    /// that is filled next is never the one that was just read.
    #[must_use]
    pub fn of_receives(offset: u32, receives: u32, segments: u32) -> Self {
        Self::with(offset, receives.max(1) * 2, RECEIVE, segments * size_of::<Segment>() as u32)
    }

    fn with(offset: u32, requests: u32, list: u32, bytes: u32) -> Self {
        let stride = (list + bytes.max(AFTER)).next_multiple_of(64);
        Self { offset, slots: requests.next_power_of_two(), stride, list }
    }

    /// Returns the bytes of a slot's list or inline message.
    pub(crate) const fn room(&self) -> usize {
        (self.stride - self.list) as usize
    }

    /// Returns the offset of the queue's end.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.offset as usize + size_of::<Header>() + self.slots as usize * self.stride as usize
    }

    const fn slot(&self, number: u32) -> usize {
        let slot = number & (self.slots - 1);
        self.offset as usize + size_of::<Header>() + slot as usize * self.stride as usize
    }

    const fn is_of_receives(&self) -> bool {
        self.list == RECEIVE
    }

    fn is_valid_in(&self, memory: &Memory) -> bool {
        let is_shape = self.slots.is_power_of_two()
            && self.stride.is_multiple_of(64)
            && (self.list == RECEIVE || self.list == SEND)
            && self.stride >= self.list + AFTER
            && self.offset.is_multiple_of(64);
        let bytes = u64::from(self.slots) * u64::from(self.stride);
        let end = bytes.checked_add(u64::from(self.offset) + size_of::<Header>() as u64);
        is_shape && end.is_some_and(|end| end <= memory.len() as u64)
    }
}

/// The header before the slots. Each writer has its own cache line.
#[repr(C, align(64))]
pub(crate) struct Header {
    /// Number of slots that the library has published.
    pub tail: AtomicU32,
    _library: [u32; 15],
    /// Number of finished slots, in the lower half. The device writes it; in a receive queue the library does, and in a
    /// shared one all takers. The upper half, in a shared queue, is the taker of the last slot.
    pub head: AtomicU64,
    _done: [u32; 14],
    /// In a receive queue: number of slots that the device, or a peer that shares memory, has taken.
    pub taken: AtomicU32,
    _taker: [u32; 15],
    /// The device's wish for doorbells: [`WANTED`], [`SPARED`], or 0. 0 means that sends are announced and receives are
    /// not.
    pub doorbell: AtomicU32,
    /// In a shared receive queue: takers tell the device when fewer receives than this are left.
    pub limit: AtomicU32,
    _device: [u32; 14],
}

/// Receives must be announced, because the device flushes them at once.
pub(crate) const WANTED: u32 = 1;
/// Sends need not be announced: the device checks for them itself.
pub(crate) const SPARED: u32 = 2;

impl Header {
    /// Returns the number of finished slots.
    #[inline]
    pub fn head(&self, order: Ordering) -> u32 {
        self.head.load(order) as u32
    }

    /// Sets the number of finished slots. Release: slots are filled again only after they were read.
    #[inline]
    pub fn set_head(&self, head: u32) {
        self.head.store(head.into(), Ordering::Release);
    }

    /// Sets the device's wish for doorbells. The device must check the queue afterwards: at least one side then
    /// sees the other ([`WorkQueue::is_spared_doorbell`](crate::WorkQueue::is_spared_doorbell)).
    pub fn say(&self, doorbell: u32) {
        self.doorbell.store(doorbell, Ordering::Relaxed);
        crate::sync::fence();
    }

    /// Drops all published requests, for the device. Both sides continue with the next number, so earlier contents of
    /// slots are never taken for new.
    pub fn reset(&self) -> u32 {
        let tail = self.tail.load(Ordering::Acquire);
        self.taken.store(tail, Ordering::Relaxed);
        self.set_head(tail);
        self.say(0);
        tail
    }
}

/// The other side wrote invalid data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work queue is corrupt")]
pub struct Corrupt;

/// Header and slots in their memory. Both ends use this type.
#[derive(Debug)]
pub(crate) struct Slots {
    memory: Arc<Memory>,
    header: NonNull<Header>,
    pub shape: Shape,
}

// SAFETY: the pointer is into `memory`, which can be used from any thread; the header is only used through atomics.
unsafe impl Send for Slots {}

impl Slots {
    pub fn new(memory: Arc<Memory>, shape: Shape) -> Result<Self, Corrupt> {
        if !shape.is_valid_in(&memory) {
            return Err(Corrupt);
        }
        Ok(Self { header: memory.at(shape.offset as usize), memory, shape })
    }

    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: it was checked to be inside the memory, which `self` keeps mapped; it consists of atomics.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    fn stored(&self, number: u32) -> NonNull<Stored> {
        self.memory.at(self.shape.slot(number))
    }

    #[inline]
    fn sequence(&self, number: u32) -> &AtomicU32 {
        // SAFETY: within the mapping (`stored`); it is an atomic.
        unsafe { &(*self.stored(number).as_ptr()).sequence }
    }

    /// Is true if the slot with this number was published. The caller then sees the rest of the slot, too.
    #[inline]
    pub fn is_published(&self, number: u32) -> bool {
        self.sequence(number).load(Ordering::Acquire) == number.wrapping_add(1)
    }

    #[inline]
    pub fn publish(&self, number: u32) {
        // Release: see `is_published`.
        self.sequence(number).store(number.wrapping_add(1), Ordering::Release);
    }

    /// Returns the address of a slot's list or inline message.
    #[inline]
    pub fn list(&self, number: u32) -> NonNull<u8> {
        self.memory.at(self.shape.slot(number) + self.shape.list as usize)
    }

    #[inline]
    fn operands(&self, number: u32) -> NonNull<u64> {
        self.memory.at(self.shape.slot(number) + self.shape.list as usize + OPERANDS)
    }

    /// Writes a request to a slot that is not published. The list must be written after it.
    #[inline]
    pub fn write(&self, number: u32, request: &WorkRequest) {
        writes(self.sequence(number));
        let place = self.stored(number).as_ptr();
        // SAFETY: within the slot, and nobody reads it before it is published; the sequence number is left alone.
        unsafe {
            (&raw mut (*place).opcode).write_volatile(request.opcode);
            (&raw mut (*place).flags).write_volatile(request.flags);
            (&raw mut (*place).segments).write_volatile(request.segments);
            (&raw mut (*place).id).write_volatile(request.id);
            if self.shape.is_of_receives() {
                return;
            }
            let to = u64::from(request.remote_qkey) << 32 | u64::from(request.remote_qpn);
            (&raw mut (*place).inline_len).write_volatile(request.inline_len);
            (&raw mut (*place).number).write_volatile(request.number);
            // The two addresses share a field: a request has a place at the peer, or is a datagram, or has neither.
            (&raw mut (*place).address).write_volatile(request.address | to);
            (&raw mut (*place).rkey).write_volatile(request.rkey | request.ah);
            (&raw mut (*place).immediate).write_volatile(request.immediate);
            if has_operands(request.opcode) {
                let operands = self.operands(number).as_ptr();
                operands.write_volatile(request.compare_add);
                operands.add(1).write_volatile(request.swap);
            }
        }
    }

    /// Reads the request of a slot. Any bytes are a request, though perhaps an invalid one.
    #[inline]
    fn request(&self, number: u32) -> WorkRequest {
        let place = self.stored(number).as_ptr();
        let mut request = WorkRequest::default();
        // SAFETY: within the slot; each field is read once.
        unsafe {
            request.opcode = (&raw const (*place).opcode).read_volatile();
            request.flags = (&raw const (*place).flags).read_volatile();
            request.segments = (&raw const (*place).segments).read_volatile();
            request.id = (&raw const (*place).id).read_volatile();
            if self.shape.is_of_receives() {
                return request;
            }
            request.inline_len = (&raw const (*place).inline_len).read_volatile();
            request.number = (&raw const (*place).number).read_volatile();
            request.address = (&raw const (*place).address).read_volatile();
            request.rkey = (&raw const (*place).rkey).read_volatile();
            request.immediate = (&raw const (*place).immediate).read_volatile();
            (request.remote_qpn, request.remote_qkey) =
                (request.address as u32, (request.address >> 32) as u32);
            request.ah = request.rkey;
            if has_operands(request.opcode) {
                let operands = self.operands(number).as_ptr();
                request.compare_add = operands.read_volatile();
                request.swap = operands.add(1).read_volatile();
            }
        }
        request
    }

    /// Returns, for the library, a request that it wrote, and the address of its list or inline message.
    pub fn own(&self, number: u32) -> (WorkRequest, NonNull<u8>) {
        (self.request(number), self.list(number))
    }

    /// Reads the request of a slot once, for its taker, and checks it. Appends its segments to `segments`, and the
    /// bytes of an inline message to `inline`.
    #[inline]
    pub fn read(
        &self,
        number: u32,
        segments: &mut Vec<Segment>,
        inline: &mut Vec<u8>,
    ) -> Result<WorkRequest, Corrupt> {
        let request = self.request(number);
        let room = self.shape.room();
        let count = usize::from(request.segments);
        let len = request.inline_len as usize;
        if count * size_of::<Segment>() > room || len > room || (count > 0 && len > 0) {
            return Err(Corrupt);
        }
        let list = self.list(number);
        for at in 0..count {
            // SAFETY: within the slot, as was checked; any bytes are a segment.
            segments.push(unsafe { list.cast::<Segment>().add(at).read_volatile() });
        }
        let end = inline.len() + len;
        for at in 0..len.div_ceil(size_of::<u64>()) {
            // SAFETY: within the slot, as was checked: lists begin and slots end at multiples of eight bytes.
            inline.extend_from_slice(&unsafe { list.cast::<u64>().add(at).read_volatile() }.to_ne_bytes());
        }
        inline.truncate(end);
        Ok(request)
    }

    /// Tells a model that a slot is read, while nobody fills it.
    #[inline]
    pub fn is_read(&self, number: u32) {
        reads(self.sequence(number));
    }

    /// Copies a slot that is not published to another.
    pub fn copy(&self, from: u32, to: u32) {
        let (begin, len) = (size_of::<u32>(), self.shape.stride as usize - size_of::<u32>());
        let [from, to] = [from, to].map(|number| self.stored(number).cast::<u8>().as_ptr());
        // SAFETY: both are different slots inside the memory; the sequence numbers are left alone.
        unsafe { std::ptr::copy_nonoverlapping(from.add(begin), to.add(begin), len) };
    }

    #[inline]
    pub fn prefetch(&self, number: u32) {
        self.memory.prefetch(self.shape.slot(number), self.shape.stride.min(PREFETCHED) as usize);
    }

    /// Prefetches a slot for writing, which takes it away from all other caches.
    #[inline]
    pub fn prefetch_to_write(&self, number: u32) {
        let slot = self.shape.slot(number);
        for line in (0..self.shape.stride.min(PREFETCHED) as usize).step_by(64) {
            self.memory.prefetch_to_write(slot + line);
        }
    }
}
