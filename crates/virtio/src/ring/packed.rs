//! Packed virtqueues (VIRTIO 1.2, 2.8).

mod passed;
mod resume;

use super::chain::{Desc, Links};
use super::death::step;
use super::journal::{Done, Journal};
use super::{Access, Chain, Fault, Layout, MAX_CHAIN, Memory, Virtqueue, passes};
use mem::Segment;
use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

const DESC_AVAIL: u16 = 1 << 7;
const DESC_USED: u16 = 1 << 15;
const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;

/// Distance from the buffer that is taken to the one that is prefetched.
const PREFETCH: u16 = 4;

const EVENT_ENABLE: u16 = 0;
const EVENT_DISABLE: u16 = 1;
const EVENT_DESC: u16 = 2;

/// A position in the ring, with its wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) index: u16,
    wrap: bool,
}

impl Position {
    /// The first position of a ring after a reset.
    const FIRST: Self = Self { index: 0, wrap: true };

    pub(super) fn advance(self, slots: u16, size: u16) -> Self {
        let index = u32::from(self.index) + u32::from(slots);
        match index.checked_sub(size.into()) {
            Some(index) => Self { index: index as u16, wrap: !self.wrap },
            None => Self { index: index as u16, ..self },
        }
    }

    /// Returns the number of slots from here to a later position; `None` if that is not later, or more than a
    /// lap away.
    pub(super) fn until(self, later: Self, size: u16) -> Option<u16> {
        let lap = if self.wrap == later.wrap { 0 } else { size };
        (later.index + lap).checked_sub(self.index)
    }

    fn back(self, slots: u16, size: u16) -> Self {
        match self.index.checked_sub(slots) {
            Some(index) => Self { index, ..self },
            None => Self {
                index: (u32::from(self.index) + u32::from(size) - u32::from(slots)) as u16,
                wrap: !self.wrap,
            },
        }
    }

    /// Encodes it as event suppression and GET_VRING_BASE do: with the wrap counter in bit 15.
    pub(super) fn encoded(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    /// Reverses [`Position::encoded`].
    pub(super) fn decoded(word: u16) -> Self {
        Self { index: word & 0x7fff, wrap: word & 0x8000 != 0 }
    }
}

/// The device's side of a packed ring.
pub(crate) struct Packed {
    at: Layout,
    event_idx: bool,
    /// Whether one used descriptor may stand for a batch (IN_ORDER negotiated, 2.8.8).
    in_order: bool,
    /// Next descriptor to take.
    next: Position,
    /// Position of the next used descriptor.
    used: Position,
    /// Number of slots taken and not published.
    in_flight: u16,
    /// Chains that are completed and not published, and the state that the next process needs.
    journal: Journal,
}

impl Packed {
    /// Resumes the ring at `at`, at the position that `base` encodes. The upper half of `base` (the used
    /// position) is ignored: a ring is stopped with everything returned, so both positions are equal, and
    /// some VMMs leave it zero.
    ///
    /// # Safety
    /// `at` must be a packed ring's layout and stay mapped as long as the ring lives; `journal` must be for its size.
    pub(crate) unsafe fn new(
        at: Layout,
        event_idx: bool,
        in_order: bool,
        base: u32,
        journal: Journal,
    ) -> Self {
        let base = Position::decoded(base as u16);
        // An index outside the ring (a hostile or confused VMM) starts at the beginning.
        let next = if base.index < at.size { base } else { Position { index: 0, ..base } };
        Self { at, event_idx, in_order, next, used: next, in_flight: 0, journal }
    }

    /// Returns the journal, for when the ring has stopped.
    pub(crate) fn into_journal(self) -> Journal {
        self.journal
    }

    /// Returns length, id and flags of a descriptor, in one word.
    fn rest(&self, index: u16) -> &AtomicU64 {
        debug_assert!(index < self.at.size);
        // SAFETY: the index is below the ring's size; descriptors are aligned to 16.
        unsafe { AtomicU64::from_ptr(self.at.desc.add(16 * usize::from(index) + 8).cast()) }
    }

    /// Returns only the flags of a descriptor, which the driver must see after the rest.
    fn flags(&self, index: u16) -> &AtomicU16 {
        debug_assert!(index < self.at.size);
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.at.desc.add(16 * usize::from(index) + 14).cast()) }
    }

    /// Returns whether the driver made the descriptor at this position available.
    #[inline(always)]
    fn available_at(&self, position: Position) -> bool {
        Self::is_available(self.flags(position.index).load(Ordering::Relaxed), position.wrap)
    }

    fn desc(&self, index: u16) -> Desc {
        let rest = self.rest(index).load(Ordering::Acquire);
        // SAFETY: as in `rest`.
        let addr =
            unsafe { ptr::read_volatile(self.at.desc.cast::<[u64; 2]>().add(index.into()).cast::<u64>()) };
        Desc::packed(addr, rest)
    }

    /// Returns whether `flags` at a position with wrap counter `wrap` mean available (2.8.1).
    fn is_available(flags: u16, wrap: bool) -> bool {
        (flags & DESC_AVAIL != 0) == wrap && (flags & DESC_USED != 0) != wrap
    }

    /// Returns the fields of an event suppression structure (2.8.10): position, then flags.
    fn event(area: *mut u8) -> (*mut u16, *mut u16) {
        let area = area.cast::<u16>();
        (area, area.wrapping_add(1))
    }

    fn notify_wanted(&self, old: Position) -> bool {
        let (off_wrap, flags) = Self::event(self.at.driver);
        // SAFETY: the area holds both and is aligned (Layout::resolve).
        let (off_wrap, flags) = unsafe { (AtomicU16::from_ptr(off_wrap), AtomicU16::from_ptr(flags)) };
        match flags.load(Ordering::Acquire) & 3 {
            EVENT_DISABLE => false,
            EVENT_DESC if self.event_idx => {
                let off_wrap = off_wrap.load(Ordering::Relaxed);
                let (size, mut event, mut from) = (self.at.size, off_wrap & 0x7fff, old.index);
                // Both relative to the lap of the used position.
                if old.wrap != self.used.wrap {
                    from = from.wrapping_sub(size);
                }
                if (off_wrap & 0x8000 != 0) != self.used.wrap {
                    event = event.wrapping_sub(size);
                }
                passes(event, self.used.index, from)
            }
            _ => true,
        }
    }

    /// Writes the used descriptor of `done` at `place`, in one store: the driver sees all of it or nothing.
    #[inline(always)]
    fn write_used(&self, place: Position, done: Done) {
        step();
        self.rest(place.index).store(Self::used_word(place, done), Ordering::Release);
    }

    /// Returns the second word of the used descriptor of `done` at `place`.
    #[inline(always)]
    fn used_word(place: Position, done: Done) -> u64 {
        let lap = if place.wrap { DESC_AVAIL | DESC_USED } else { 0 };
        done.used(lap | if done.written() > 0 { DESC_WRITE } else { 0 })
    }

    /// Writes the batch into the ring, from this position on.
    #[inline]
    fn write(&self, from: Position) {
        let mut entries = self.journal.entries();
        let Some(head) = entries.next() else { return };
        let mut place = from.advance(head.slots(), self.at.size);
        for done in entries {
            // The driver does not look here before the head has changed.
            self.write_used(place, done);
            place = place.advance(done.slots(), self.at.size);
        }
        self.write_used(from, head);
    }

    /// Publishes as [`Virtqueue::publish`] says. `COPIED`: the journal has a copy. A separate function, so as
    /// not to slow down rings without a copy.
    #[inline(always)]
    fn publish_as<const COPIED: bool>(&mut self) -> bool {
        let slots: u16 = self.journal.entries().map(Done::slots).sum();
        if slots == 0 {
            return false;
        }
        let old = self.used;
        self.used = old.advance(slots, self.at.size);
        self.journal.announce(old, self.used);
        if COPIED {
            self.journal.announce_in_copy();
        }
        self.write(old);
        self.journal.clear();
        self.in_flight -= slots;
        fence(Ordering::SeqCst);
        self.notify_wanted(old)
    }

    /// Publishes a ring whose journal has a copy, which few VMMs keep.
    #[cold]
    fn publish_with_copy(&mut self) -> bool {
        self.publish_as::<true>()
    }
}

impl Virtqueue for Packed {
    fn look(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    #[inline]
    fn take(
        &mut self,
        access: Access,
        memory: &mut Memory,
        out: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, Fault> {
        let mut desc = self.desc(self.next.index);
        if !Self::is_available(desc.flags, self.next.wrap) {
            return Ok(None);
        }
        let (first, room) = (out.len(), (self.at.size - self.in_flight).min(MAX_CHAIN as u16));
        let (mut at, mut slots, mut ok) = (self.next, 0, true);
        loop {
            // The driver must not reuse slots in flight: a chain that reaches into them has no end. A chain
            // is also followed no longer than in a split ring.
            if slots == room {
                return Err(Fault::EndlessChain);
            }
            slots += 1;
            at = at.advance(1, self.at.size);
            if ok {
                ok = memory.append(&desc, Links::Sequence, access, first, out).is_ok();
            } else {
                memory.work.spend(1);
            }
            if !desc.has_next() {
                break;
            }
            desc = self.desc(at.index);
        }
        if !ok {
            out.truncate(first);
        }
        self.next = at;
        self.in_flight += slots;
        Ok(Some(Chain { id: desc.next, slots, ok }))
    }

    #[inline(always)]
    fn take_single(&mut self, access: Access, memory: &Memory) -> Option<(Chain, Segment)> {
        let desc = self.desc(self.next.index);
        if !Self::is_available(desc.flags, self.next.wrap) || self.in_flight == self.at.size {
            return None;
        }
        let buffer = memory.single(&desc, access)?;
        self.next = self.next.advance(1, self.at.size);
        self.in_flight += 1;
        Some((Chain { id: desc.next, slots: 1, ok: true }, buffer))
    }

    #[inline(always)]
    fn prefetch(&self, memory: &Memory) {
        memory.prefetch(&self.desc(self.next.advance(PREFETCH, self.at.size).index));
    }

    fn rewind(&mut self, chains: &[Chain]) {
        let slots = chains.iter().map(|c| c.slots).sum();
        self.next = self.next.back(slots, self.at.size);
        self.in_flight -= slots;
    }

    #[inline]
    fn complete(&mut self, chain: Chain, written: u32) {
        let done = Done::new(chain.id, chain.slots, written);
        // The last chain of a batch stands for all; if lengths matter, each has its own descriptor.
        let extends = self.in_order && written == 0 && self.journal.extend_newest(done);
        if !extends {
            self.journal.push(done);
        }
    }

    #[inline]
    fn publish(&mut self) -> bool {
        if self.journal.is_copied() { self.publish_with_copy() } else { self.publish_as::<false>() }
    }

    fn want_kicks(&mut self, want: bool) {
        let (off_wrap, flags) = Self::event(self.at.device);
        // SAFETY: as in `notify_wanted`.
        let (off_wrap, flags) = unsafe { (AtomicU16::from_ptr(off_wrap), AtomicU16::from_ptr(flags)) };
        let value = match (want, self.event_idx) {
            (false, _) => EVENT_DISABLE,
            (true, false) => EVENT_ENABLE,
            (true, true) => {
                off_wrap.store(self.next.encoded(), Ordering::Relaxed);
                EVENT_DESC
            }
        };
        flags.store(value, Ordering::Release);
        if want {
            fence(Ordering::SeqCst);
        }
    }

    fn pending(&self) -> bool {
        self.available_at(self.next)
    }

    fn base(&self) -> u32 {
        u32::from(self.next.encoded()) | u32::from(self.used.encoded()) << 16
    }
}
