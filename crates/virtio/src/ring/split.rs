//! Split virtqueues (VIRTIO 1.2, 2.7).
//!
//! Positions are free-running counters. They always have this order, and none is further from the first than the
//! ring's size:
//!
//! ```text
//! used (published) .. used + done .. next (taken) .. read (heads read ahead) .. avail (from the driver, checked)
//! ```
//!
//! Only [`Virtqueue::look`] lets the driver move a position, and only within that order. So whatever the driver does
//! from burst to burst, no more chains are in flight than the ring has, and no head is taken that the driver withdrew.
//!
//! The driver's writes lie in its CPU's cache, and each line takes hundreds of cycles to come over. A packet needs
//! several lines, one after the other: an entry of the available ring, a descriptor, a buffer. So each is prefetched
//! while packets before it are worked on: entries a burst before they are read, descriptors a burst before they are
//! taken, buffers some packets before.

use super::chain::{Desc, Links};
use super::{Access, Chain, Fault, Layout, MAX_CHAIN, Memory, Virtqueue, passes};
use mem::{BURST, Segment, prefetch, prefetch_write};
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// Most heads that are read and not taken: a power of two.
const HEADS: u16 = 2 * BURST as u16;

/// Distance from the buffer that is taken to the one that is prefetched.
const PREFETCH: u16 = 12;

/// Heads that are read ahead between bursts: those of the next burst, and those whose buffers it prefetches.
const AHEAD: u16 = BURST as u16 + PREFETCH;

const LINE: usize = 64;

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;

/// The device's side of a split ring.
pub(crate) struct Split {
    at: Layout,
    event_idx: bool,
    /// The available index (`avail.idx`) when it was last read.
    avail: u16,
    /// Next entry of the available ring to take.
    next: u16,
    /// Used index, as the driver sees it.
    used: u16,
    /// Next entry of the available ring to read.
    read: u16,
    /// Heads of the entries from `next` to `read`, each at its position.
    heads: [u16; HEADS as usize],
    /// Completed but not yet published: (id, written), in the used ring's layout. No more than the ring has.
    shadow: Vec<[u32; 2]>,
}

impl Split {
    /// Resumes the ring at `at`, at the available index `base`.
    ///
    /// A device that died left chains that were taken but not completed, between the used index and `base`.
    /// As chains are completed in order, these are exactly the missing ones, and are taken again. A VMM that
    /// does not know the position passes 0 (DPDK's virtio-user, on reconnection): then the used index alone
    /// counts.
    ///
    /// # Safety
    /// `at` must be a split ring's layout, with room for event indexes if `event_idx`, and stay mapped as long as the
    /// ring lives.
    pub(crate) unsafe fn new(at: Layout, event_idx: bool, base: u32) -> Self {
        let shadow = Vec::with_capacity(usize::from(at.size));
        let heads = [0; HEADS as usize];
        let mut ring = Self { at, event_idx, avail: 0, next: base as u16, used: 0, read: 0, heads, shadow };
        let used = ring.device(2).load(Ordering::Relaxed);
        if ring.next.wrapping_sub(used) <= at.size || base == 0 {
            ring.next = used;
        }
        (ring.used, ring.avail, ring.read) = (ring.next, ring.next, ring.next);
        ring
    }

    /// Returns the 16 bits at byte `offset` of the driver area: flags, index, entries, used_event.
    fn driver(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: offsets come from this file and lie in the area (Layout::resolve), which is aligned; both
        // sides access it atomically.
        unsafe { AtomicU16::from_ptr(self.at.driver.add(offset).cast()) }
    }

    /// Returns the 16 bits at byte `offset` of the device area: flags, index, avail_event.
    fn device(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.at.device.add(offset).cast()) }
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.at.size - 1))
    }

    fn desc(&self, index: u16) -> Desc {
        debug_assert!(index < self.at.size);
        // SAFETY: the index was checked against the ring's size; the table is aligned to 16.
        let [addr, rest] = unsafe { ptr::read_volatile(self.at.desc.cast::<[u64; 2]>().add(index.into())) };
        Desc::split(addr, rest)
    }

    /// Returns the head of the entry at a position that was read.
    #[inline(always)]
    fn head(&self, position: u16) -> u16 {
        self.heads[usize::from(position % HEADS)]
    }

    /// Reads heads until there are `count` (of at most [`HEADS`]), if so many are available, and prefetches their
    /// descriptors, then the entries after them. It ends before an entry that names no descriptor.
    #[inline(never)]
    fn read_heads(&mut self, count: u16) {
        let there = self.read.wrapping_sub(self.next);
        for _ in there..self.avail.wrapping_sub(self.next).min(count) {
            let entry = self.slot(self.read);
            let head = self.driver(4 + 2 * entry).load(Ordering::Relaxed);
            if head >= self.at.size {
                return;
            }
            prefetch(self.at.desc.wrapping_add(16 * usize::from(head)));
            self.heads[usize::from(self.read % HEADS)] = head;
            self.read = self.read.wrapping_add(1);
        }
        if self.read != self.avail {
            for later in [0, BURST as u16 / 2, BURST as u16 - 1] {
                let entry = self.slot(self.read.wrapping_add(later));
                prefetch(self.at.driver.wrapping_add(4 + 2 * entry));
            }
        }
    }

    #[inline(always)]
    fn next_head(&mut self) -> Result<Option<u16>, Fault> {
        if self.next == self.read {
            if self.next == self.avail {
                return Ok(None);
            }
            self.read_heads(HEADS);
            if self.next == self.read {
                return Err(Fault::HeadOutside);
            }
        }
        Ok(Some(self.head(self.next)))
    }

    /// Appends the segments of the chain at `head`.
    fn walk(
        &self,
        head: u16,
        access: Access,
        memory: &mut Memory,
        out: &mut Vec<Segment>,
    ) -> Result<(), super::chain::Malformed> {
        let first = out.len();
        let mut index = head;
        // Counting the steps limits a chain that runs in a circle.
        for _ in 0..MAX_CHAIN.min(self.at.size.into()) {
            let desc = self.desc(index);
            memory.append(&desc, Links::Chained, access, first, out)?;
            if !desc.has_next() {
                return Ok(());
            }
            if desc.next >= self.at.size {
                break;
            }
            index = desc.next;
        }
        Err(super::chain::Malformed)
    }
}

impl Virtqueue for Split {
    fn look(&mut self) -> Result<(), Fault> {
        let avail = self.driver(2).load(Ordering::Acquire);
        // Not past the ring's size, and not back behind what was taken or read ahead.
        let read = self.read.wrapping_sub(self.used);
        if !(read..=self.at.size).contains(&avail.wrapping_sub(self.used)) {
            return Err(Fault::IndexJump);
        }
        self.avail = avail;
        Ok(())
    }

    #[inline]
    fn take(
        &mut self,
        access: Access,
        memory: &mut Memory,
        out: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, Fault> {
        let Some(head) = self.next_head()? else { return Ok(None) };
        self.next = self.next.wrapping_add(1);
        let first = out.len();
        let ok = self.walk(head, access, memory, out).is_ok();
        if !ok {
            out.truncate(first);
        }
        Ok(Some(Chain { id: head, slots: 1, ok }))
    }

    fn known(&self) -> usize {
        self.avail.wrapping_sub(self.next).into()
    }

    fn read_ahead(&mut self) {
        self.read_heads(AHEAD);
    }

    fn expect_used(&self, count: usize) {
        let used = usize::from(self.used) + self.shadow.len();
        for place in (used..used + count).step_by(LINE / 8) {
            prefetch_write(self.at.device.wrapping_add(4 + 8 * self.slot(place as u16)));
        }
    }

    #[inline(always)]
    fn take_single(&mut self, access: Access, memory: &Memory) -> Option<(Chain, Segment)> {
        let head = self.next_head().ok()??;
        let buffer = memory.single(&self.desc(head), access)?;
        self.next = self.next.wrapping_add(1);
        Some((Chain { id: head, slots: 1, ok: true }, buffer))
    }

    #[inline(always)]
    fn take_singles(
        &mut self,
        access: Access,
        memory: &Memory,
        most: usize,
        mut more: impl FnMut(Chain, Segment) -> bool,
    ) {
        if self.next == self.read {
            self.read_heads(HEADS);
        }
        let (first, there) = (self.next, self.read.wrapping_sub(self.next));
        for ahead in 0..there.min(most as u16) {
            let id = self.head(first.wrapping_add(ahead));
            let Some(buffer) = memory.single(&self.desc(id), access) else { return };
            self.next = first.wrapping_add(ahead + 1);
            if !more(Chain { id, slots: 1, ok: true }, buffer) {
                return;
            }
        }
    }

    #[inline(always)]
    fn prefetch(&self, memory: &Memory) {
        if self.read.wrapping_sub(self.next) >= PREFETCH {
            memory.prefetch(&self.desc(self.head(self.next.wrapping_add(PREFETCH - 1))));
        }
    }

    fn rewind(&mut self, chains: &[Chain]) {
        self.next = self.next.wrapping_sub(chains.len() as u16);
        self.read = self.next;
    }

    #[inline]
    fn complete(&mut self, chain: Chain, written: u32) {
        if self.shadow.len() < usize::from(self.at.size) {
            self.shadow.push([u32::from(chain.id), written]);
        }
    }

    fn publish(&mut self) -> bool {
        let done = self.shadow.as_slice();
        let count = done.len();
        if count == 0 {
            return false;
        }
        let first = self.slot(self.used);
        let (until_end, wrapped) = done.split_at(count.min(usize::from(self.at.size) - first));
        // SAFETY: the first piece ends at the ring's end at the latest. The second begins at the ring's start and is
        // no longer than the ring: `complete` lets in no more. The ring is aligned to 4; our own memory does not
        // overlap it.
        unsafe {
            let ring = self.at.device.add(4).cast::<[u32; 2]>();
            ptr::copy_nonoverlapping(until_end.as_ptr(), ring.add(first), until_end.len());
            ptr::copy_nonoverlapping(wrapped.as_ptr(), ring, wrapped.len());
        }
        self.shadow.clear();
        let old = self.used;
        self.used = old.wrapping_add(count as u16);
        self.device(2).store(self.used, Ordering::Release);
        // The driver sets its event and then reads the index; we set the index and then read its event.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.driver(4 + 2 * usize::from(self.at.size)).load(Ordering::Relaxed);
            passes(event, self.used, old)
        } else {
            self.driver(0).load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
        }
    }

    fn want_kicks(&mut self, want: bool) {
        if self.event_idx {
            // An event index that is not advanced asks for nothing (until the index has gone all the way round).
            if want {
                self.device(4 + 8 * usize::from(self.at.size)).store(self.next, Ordering::Relaxed);
            }
        } else {
            self.device(0).store(if want { 0 } else { USED_NO_NOTIFY }, Ordering::Relaxed);
        }
        if want {
            fence(Ordering::SeqCst);
        }
    }

    fn pending(&self) -> bool {
        self.driver(2).load(Ordering::Relaxed) != self.next
    }

    fn base(&self) -> u32 {
        u32::from(self.next)
    }
}
