//! The rings between the daemon and a driver: packets in slots of memory that both map
//! (`ovs-pmd/protocol.h`).
//!
//! The driver may write anything anywhere at any time. So each index is read once and checked, each packet's
//! description is read once into a private copy, and payload is only copied ([`Segment`]). Everything that
//! this side needs to go on is in its own memory. If the other end breaks the rules, the ring loses its
//! contents, nothing more.

use mem::{Accepts, BURST, Offload, Segment, vnet};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use uverbs::{Memory, MemoryError};

/// Bytes of the page at the start.
const PAGE: usize = 4096;
/// Bytes of a slot.
pub const SLOT: usize = 2048;
/// Slots of each ring.
pub const SLOTS: u32 = 2048;
/// Bytes of a ring's header. The tail is at 0, the request to be woken at 4, and the head at 128.
const HEADER: usize = 256;
const ASLEEP: usize = 4;
const HEAD: usize = 128;
/// Bytes of a packet's description: its length, and a `virtio_net_hdr` without `num_buffers`.
const PACKET: usize = 16;
/// Flag in a description to the driver, after the length: the L4 checksum is right. The second word has the
/// counter of the packet's flow plus one, or 0.
const VALID_CSUM: u64 = 2;
/// Bits of the first word of a description that say what is unfinished: flags and type of segmentation.
const UNFINISHED_PART: u64 = 0xffff << 32;
const RING: usize = HEADER + SLOTS as usize * PACKET;
/// Bytes of a ring's slots.
const DATA: usize = SLOTS as usize * SLOT;
/// Bytes of the whole memory.
const LEN: usize = PAGE + 2 * (RING + DATA);
/// Shortest frame, bytes: an Ethernet header.
const SHORTEST: usize = 14;
/// Longest frame that a driver may send, bytes: a large TCP segment.
const LONGEST: usize = 65_535 + 14 + 2 * 4;
/// The work that a driver may leave unfinished, which is what it offers OVS.
const UNFINISHED: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToDriver,
    FromDriver,
}

impl Way {
    const fn ring(self) -> usize {
        PAGE + self as usize * RING
    }

    const fn data(self) -> usize {
        PAGE + 2 * RING + self as usize * DATA
    }
}

/// The numbers in the page that a driver reads, from byte 8 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Packets, bytes and drops of what the port received, then of what was sent by it.
    pub all: [u64; 6],
}

/// The memory of one session's port.
#[derive(Debug)]
pub struct Rings(Memory);

impl Rings {
    /// Makes new memory, and returns it with the file for the driver.
    ///
    /// # Errors
    /// The kernel has no memory or descriptors.
    pub fn create() -> Result<(Self, std::os::fd::OwnedFd), MemoryError> {
        let (memory, file) = Memory::create("viaduct-ovs", LEN)?;
        Ok((Self(memory), file))
    }

    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        #[allow(clippy::expect_used, reason = "offsets are made of constants and masked indexes")]
        self.0.part(offset, len).expect("inside the memory of a port")
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned: all offsets are multiples of 4, and
        // the mapping begins at a page. Both sides access it as an atomic.
        unsafe { self.at(offset, 4).cast().as_ref() }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above, with offsets that are multiples of 8.
        unsafe { self.at(offset, 8).cast().as_ref() }
    }

    /// Tells the driver whether the port's link is up, and its counters.
    pub fn tell(&self, up: bool, numbers: &Numbers) {
        self.word(0).store(up.into(), Ordering::Relaxed);
        for (at, number) in numbers.all.into_iter().enumerate() {
            self.long(8 + 8 * at).store(number, Ordering::Relaxed);
        }
    }

    /// Returns `len` bytes of a packet whose first slot has this index, in one piece, or in two if it wraps
    /// around.
    fn pieces(&self, way: Way, index: u32, len: usize) -> [Segment; 2] {
        let start = (index & (SLOTS - 1)) as usize * SLOT;
        let len = len.min(DATA);
        let first = len.min(DATA - start);
        [(start, first), (0, len - first)].map(|(at, len)| {
            // SAFETY: inside the slots of the ring, which stay mapped as long as the ends hold `self`, and so longer
            // than a burst.
            unsafe { Segment::new(self.at(way.data() + at, len).as_ptr(), len as u32) }
        })
    }

    /// Returns `len` bytes of the slot with this index.
    fn slot(&self, way: Way, index: u32, len: usize) -> Segment {
        let (at, len) = ((index & (SLOTS - 1)) as usize * SLOT, len.min(SLOT));
        // SAFETY: as above.
        unsafe { Segment::new(self.at(way.data() + at, len).as_ptr(), len as u32) }
    }

    /// Returns the description of the packet with this index, as two words.
    fn description(&self, way: Way, index: u32) -> [&AtomicU64; 2] {
        let first = self.at(way.ring() + HEADER + (index & (SLOTS - 1)) as usize * PACKET, PACKET);
        // SAFETY: as in `word`; both are inside of `PACKET` bytes.
        [0, 8].map(|at| unsafe { first.add(at).cast().as_ref() })
    }
}

/// Returns the number of slots for a packet of this length.
const fn slots_of(len: usize) -> u32 {
    len.div_ceil(SLOT) as u32
}

/// The daemon's end of a ring to the driver.
#[derive(Debug)]
pub struct Outgoing {
    rings: Arc<Rings>,
    /// The slot to fill next; wraps around.
    next: u32,
    /// Slots known to be free.
    free: u32,
    /// The flow's mark for the descriptions of packets.
    mark: u64,
    segments: [Segment; 2],
}

impl Outgoing {
    pub fn new(rings: Arc<Rings>) -> Self {
        let segments = rings.pieces(Way::ToDriver, 0, 0);
        Self { rings, next: 0, free: SLOTS, mark: 0, segments }
    }

    /// Counts the free slots. A head that can't be right counts as a full ring.
    fn look(&mut self) {
        let head = self.rings.word(Way::ToDriver.ring() + HEAD).load(Ordering::Acquire);
        self.free = SLOTS.saturating_sub(self.next.wrapping_sub(head));
    }

    /// Is true if there is room for two bursts of frames that fit into a slot: a second worker may send a
    /// burst at the same time.
    pub fn has_room(&mut self) -> bool {
        const ROOM: u32 = 2 * BURST as u32;
        if self.free < ROOM {
            self.look();
        }
        self.free >= ROOM
    }

    /// Takes the slots for a frame of `len` bytes, and describes it. Returns the index of the first slot;
    /// `None` if there are too few free ones.
    #[inline(always)]
    fn take(&mut self, len: usize, valid: bool) -> Option<u32> {
        let (first, slots) = (self.next, slots_of(len));
        if slots > self.free {
            self.look();
        }
        if slots > self.free || slots == 0 {
            return None;
        }
        let [low, high] = self.rings.description(Way::ToDriver, first);
        // Nothing is left unfinished.
        let flags = if valid { VALID_CSUM } else { 0 };
        low.store(len as u64 | flags << 32, Ordering::Relaxed);
        high.store(self.mark, Ordering::Relaxed);
        self.next = first.wrapping_add(slots);
        self.free -= slots;
        Some(first)
    }

    /// Reserves room for a frame; `None` if there is none. `valid` tells the driver that the L4 checksum is
    /// known to be right.
    pub fn reserve(&mut self, len: usize, valid: bool) -> Option<&[Segment]> {
        let first = self.take(len, valid)?;
        self.segments = self.rings.pieces(Way::ToDriver, first, len);
        Some(if self.segments[1].is_empty() { &self.segments[..1] } else { &self.segments })
    }

    /// Does the same as `reserve` for a frame that fits into a slot.
    #[inline(always)]
    pub fn reserve_one(&mut self, len: usize, valid: bool) -> Option<Segment> {
        let first = self.take(len.min(SLOT), valid)?;
        Some(self.rings.slot(Way::ToDriver, first, len))
    }

    /// Marks packets from here on as packets of the flow with this counter.
    pub const fn mark(&mut self, flow: Option<u32>) {
        self.mark = match flow {
            Some(counter) => counter as u64 + 1,
            None => 0,
        };
    }

    /// Shows the filled slots to the driver.
    pub fn publish(&self) {
        self.rings.word(Way::ToDriver.ring()).store(self.next, Ordering::Release);
    }
}

#[derive(Debug)]
pub enum Next {
    Empty,
    /// A packet in one slot, with nothing unfinished.
    Finished(Segment),
    /// Any other packet: its pieces, its length, and what is unfinished.
    Packet([Segment; 2], u32, Offload),
    /// Something that can't be a packet. It is skipped.
    Malformed,
}

/// The daemon's end of a ring from the driver.
#[derive(Debug)]
pub struct Incoming {
    rings: Arc<Rings>,
    /// The slot to take next; wraps around.
    next: u32,
    /// Slots known to be filled.
    ready: u32,
}

impl Incoming {
    pub const fn new(rings: Arc<Rings>) -> Self {
        Self { rings, next: 0, ready: 0 }
    }

    fn tail(&self) -> &AtomicU32 {
        self.rings.word(Way::FromDriver.ring())
    }

    fn asleep(&self) -> &AtomicU32 {
        self.rings.word(Way::FromDriver.ring() + ASLEEP)
    }

    /// Takes the next packet, whose slots stay occupied until [`Incoming::give_back`].
    #[inline]
    pub fn take(&mut self) -> Next {
        if self.ready == 0 {
            // A tail that can't be right is the driver's mistake: then all slots are read.
            self.ready = self.tail().load(Ordering::Acquire).wrapping_sub(self.next).min(SLOTS);
            if self.ready == 0 {
                return Next::Empty;
            }
        }
        let [low, high] = self.rings.description(Way::FromDriver, self.next);
        let low = low.load(Ordering::Relaxed);
        let len = low as u32 as usize;
        if (SHORTEST..=SLOT).contains(&len) && low & UNFINISHED_PART == 0 {
            let slot = self.rings.slot(Way::FromDriver, self.next, len);
            self.next = self.next.wrapping_add(1);
            self.ready -= 1;
            return Next::Finished(slot);
        }
        self.take_any(low, high.load(Ordering::Relaxed))
    }

    /// Does the same as `take` for a packet with any description.
    #[cold]
    fn take_any(&mut self, low: u64, high: u64) -> Next {
        let len = low as u32 as usize;
        let slots = slots_of(len);
        if slots == 0 || slots > self.ready || len > LONGEST {
            // Nobody knows where the next packet begins.
            self.next = self.next.wrapping_add(self.ready);
            self.ready = 0;
            return Next::Malformed;
        }
        let at = self.next;
        self.next = at.wrapping_add(slots);
        self.ready -= slots;
        let mut header = [0; vnet::VNET_HEADER_SHORT];
        header[..4].copy_from_slice(&low.to_le_bytes()[4..]);
        header[4..].copy_from_slice(&high.to_le_bytes()[..6]);
        match vnet::parse(&header, len, UNFINISHED, vnet::DataValid::Ignore) {
            Ok(offload) if len >= SHORTEST => {
                Next::Packet(self.rings.pieces(Way::FromDriver, at, len), len as u32, offload)
            }
            _ => Next::Malformed,
        }
    }

    /// Gives back the slots of everything that was taken.
    pub fn give_back(&self) {
        self.rings.word(Way::FromDriver.ring() + HEAD).store(self.next, Ordering::Release);
    }

    /// Asks to be woken. Returns true if packets are there already.
    pub fn arm(&self) -> bool {
        self.asleep().store(1, Ordering::Relaxed);
        // Pairs with the driver's fence: the driver publishes, then checks whether this side sleeps.
        fence(Ordering::SeqCst);
        self.tail().load(Ordering::Acquire) != self.next
    }

    /// Withdraws the request to be woken.
    pub fn disarm(&self) {
        self.asleep().store(0, Ordering::Relaxed);
    }
}

/// The driver's ends of rings, for tests.
#[cfg(test)]
pub mod driver {
    use super::*;

    impl Rings {
        pub fn poke(&self, offset: usize, value: u32) {
            self.word((offset % LEN) & !3).store(value, Ordering::Relaxed);
        }

        pub fn word_at(&self, offset: usize) -> u32 {
            self.word(offset).load(Ordering::Relaxed)
        }

        /// Sends a frame as a driver does with `ring_send`.
        pub fn send(&self, next: &mut u32, frame: &[u8], header: [u8; vnet::VNET_HEADER_SHORT]) -> bool {
            let head = self.word(Way::FromDriver.ring() + HEAD).load(Ordering::Acquire);
            // The head may be anything by now, because tests scribble.
            if SLOTS.checked_sub(next.wrapping_sub(head)).is_none_or(|free| slots_of(frame.len()) > free) {
                return false;
            }
            let mut bytes = [0; PACKET];
            bytes[..4].copy_from_slice(&(frame.len() as u32).to_le_bytes());
            bytes[4..4 + header.len()].copy_from_slice(&header);
            let [low, high] = self.description(Way::FromDriver, *next);
            let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            low.store(word(0), Ordering::Relaxed);
            high.store(word(8), Ordering::Relaxed);
            mem::scatter(frame, &self.pieces(Way::FromDriver, *next, frame.len()), 0);
            *next = next.wrapping_add(slots_of(frame.len()));
            self.word(Way::FromDriver.ring()).store(*next, Ordering::Release);
            true
        }

        /// Receives a frame as a driver does with `ring_receive`.
        pub fn receive(&self, next: &mut u32) -> Option<Vec<u8>> {
            let ready = self.word(Way::ToDriver.ring()).load(Ordering::Acquire).wrapping_sub(*next);
            if ready == 0 {
                return None;
            }
            let len = self.description(Way::ToDriver, *next)[0].load(Ordering::Relaxed) as u32 as usize;
            assert!(slots_of(len) <= ready && ready <= SLOTS);
            let mut frame = vec![0; len];
            mem::gather(&self.pieces(Way::ToDriver, *next, len), 0, &mut frame);
            *next = next.wrapping_add(slots_of(len));
            self.word(Way::ToDriver.ring() + HEAD).store(*next, Ordering::Release);
            Some(frame)
        }

        /// Is true if the daemon asked to be woken.
        pub fn is_asleep(&self) -> bool {
            self.word(Way::FromDriver.ring() + ASLEEP).load(Ordering::Relaxed) != 0
        }

        /// Returns link and counters as the driver sees them.
        pub fn told(&self) -> (bool, Numbers) {
            let all = std::array::from_fn(|at| self.long(8 + 8 * at).load(Ordering::Relaxed));
            (self.word(0).load(Ordering::Relaxed) == 1, Numbers { all })
        }
    }
}
