//! Packets to a guest: [`mem::TxQueue`] over a driver's receive ring.

use crate::aside::Outlet;
use crate::features::Features;
use crate::lease::Taken;
use crate::queue::{Running, Shared};
use crate::ring::{Access, Chain, Fault, Memory, Virtqueue, dispatch};
use crate::rx::skip;
use arrayvec::ArrayVec;
use mem::{Accepts, BURST, Csum, NoRoom, Offload, Room, Segment, TxQueue, copy, prefetch, scatter, vnet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The queue at `index` of a port.
pub(crate) struct GuestTx {
    shared: Arc<Shared>,
    index: usize,
    /// Takes packets while workers should not touch the ring.
    outlet: Arc<Outlet>,
}

impl GuestTx {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> io::Result<Self> {
        let outlet = Outlet::new(shared.clone(), index)?;
        Ok(Self { shared, index, outlet })
    }
}

impl TxQueue for GuestTx {
    fn accepts(&self) -> Accepts {
        accepts(&self.shared)
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        if self.outlet.is_used()
            && let Some(leased) = self.outlet.burst(fill)
        {
            return leased;
        }
        burst(&self.shared, self.index, fill)
    }

    fn suspect(&self) {
        self.outlet.begin();
    }
}

pub(crate) fn accepts(shared: &Shared) -> Accepts {
    Features(shared.features.load(Ordering::Relaxed)).left_to_driver()
}

/// Returns whether a packet may be given to a driver that accepts these offloads.
pub(crate) fn is_accepted(offload: &Offload, accepts: Accepts, tells_valid: bool) -> bool {
    let is_sum_accepted = match offload.csum {
        Csum::Unknown => true,
        Csum::Valid => accepts.csum || tells_valid,
        Csum::Partial { .. } => accepts.csum,
    };
    is_sum_accepted
        && offload.gso.is_none_or(|gso| {
            let is_kind_accepted = if gso.v6 { accepts.tso6 } else { accepts.tso4 };
            accepts.csum && is_kind_accepted && (accepts.ecn || !gso.ecn)
        })
}

/// Does for the ring at `index` what [`TxQueue::burst`] says.
#[inline]
pub(crate) fn burst(shared: &Shared, index: usize, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
    let lease = match shared.healthy() {
        true => shared.queues[index].lease(),
        false => Err(Taken::Closed),
    };
    let mut held = match lease {
        Ok(held) if held.enabled => held,
        Err(Taken::Busy) => return false,
        _ => {
            fill(&mut Down);
            return true;
        }
    };
    let Running { ring, memory, segments, features, .. } = &mut *held;
    segments.clear();
    let (notify, malformed, fault) = dispatch!(ring, ring => {
        let mut room = GuestRoom::new(ring, memory, segments, *features);
        fill(&mut room);
        room.memory.written(room.segments);
        let GuestRoom { malformed, fault, .. } = room;
        let notify = ring.publish();
        ring.read_ahead();
        (notify, malformed, fault)
    });
    held.memory.written(&held.areas);
    if notify {
        held.notify();
    }
    held.count_malformed(malformed);
    if let Some(fault) = fault {
        shared.fail(&held, fault);
    }
    true
}

/// Room in a queue that does not exist.
pub(crate) struct Down;

impl Room for Down {
    fn reserve(&mut self, _: usize, _: &Offload) -> Result<&[Segment], NoRoom> {
        Err(NoRoom::Down)
    }
}

/// Room in a driver's receive ring.
struct GuestRoom<'a, R> {
    ring: &'a mut R,
    memory: &'a mut Memory,
    segments: &'a mut Vec<Segment>,
    features: Features,
    malformed: u64,
    fault: Option<Fault>,
    /// Whether a packet may take the short path: there is no fault, and what is written is not logged.
    short: bool,
}

impl<'a, R: Virtqueue> GuestRoom<'a, R> {
    fn new(
        ring: &'a mut R,
        memory: &'a mut Memory,
        segments: &'a mut Vec<Segment>,
        features: Features,
    ) -> Self {
        let fault = if ring.known() < ENOUGH { ring.look().err() } else { None };
        ring.expect_used(BURST);
        let short = fault.is_none() && !memory.logs();
        Self { ring, memory, segments, features, malformed: 0, fault, short }
    }

    #[cold]
    fn fail(&mut self, fault: Fault) -> NoRoom {
        (self.fault, self.short) = (Some(fault), false);
        NoRoom::Down
    }

    /// Returns whether the driver made more chains available than were known.
    fn has_more(&mut self) -> Result<bool, NoRoom> {
        self.ring.look().map_err(|fault| self.fail(fault))?;
        Ok(self.ring.known() > 0)
    }

    /// Takes chains for `need` bytes into `segments` and completes them; returns how many.
    fn take(&mut self, need: usize) -> Result<u16, NoRoom> {
        // Chains of the packet, on the stack and limited like the segments: each has at least one.
        let mut chains: ArrayVec<Chain, MAX_BUFFERS> = ArrayVec::new();
        let mut lens: ArrayVec<u32, MAX_BUFFERS> = ArrayVec::new();
        let most = if self.features.has(Features::MRG_RXBUF) { MAX_BUFFERS } else { 1 };
        let mut room = 0;
        // The caller has filled the packet that it asked for before.
        self.memory.written(self.segments);
        self.segments.clear();
        while room < need {
            if chains.len() == most || !Running::has_room(self.segments) {
                self.ring.rewind(&chains);
                return Err(NoRoom::TooLong);
            }
            if self.memory.work.is_used_up() {
                self.ring.rewind(&chains);
                return Err(NoRoom::Full);
            }
            let first = self.segments.len();
            let chain = match self.ring.take(Access::Write, self.memory, self.segments) {
                Ok(Some(chain)) => chain,
                Ok(None) if self.has_more()? => continue,
                Ok(None) => {
                    self.ring.rewind(&chains);
                    return Err(NoRoom::Full);
                }
                Err(fault) => return Err(self.fail(fault)),
            };
            chains.push(chain);
            if !chain.ok {
                // It is returned empty, in order, together with the chains taken for the previous packet.
                self.malformed += 1;
                chains.drain(..).for_each(|c| self.ring.complete(c, 0));
                if let Err(fault) = self.memory.work.malformed() {
                    return Err(self.fail(fault));
                }
                lens.clear();
                self.segments.clear();
                room = 0;
                continue;
            }
            self.memory.work.good();
            prefetch(self.segments[first].as_ptr());
            let len: usize = self.segments[first..].iter().map(Segment::len).sum();
            lens.push(len.min(need - room) as u32);
            room += len;
        }
        for (chain, len) in chains.iter().zip(&lens) {
            self.ring.complete(*chain, *len);
        }
        Ok(chains.len() as u16)
    }

    /// Puts a packet into buffers of any form. Separate from the short path, so as not to slow it down.
    #[inline(never)]
    fn put_anywhere(
        &mut self,
        head: &[u8],
        rest: &[Segment],
        rest_at: usize,
        rest_len: usize,
        offload: &Offload,
    ) -> Result<(), NoRoom> {
        let dst = self.reserve(head.len() + rest_len, offload)?;
        scatter(head, dst, 0);
        copy(rest, rest_at, dst, head.len(), rest_len);
        Ok(())
    }
}

/// If so many buffers are known to be available, a burst begins without a look at the driver's index: it is read anew
/// if they don't suffice.
const ENOUGH: usize = 2 * BURST;

/// Most buffers of one packet: a full-sized segment in buffers of 512 bytes.
const MAX_BUFFERS: usize = 130;

impl<R: Virtqueue> Room for GuestRoom<'_, R> {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        if self.fault.is_some() {
            return Err(NoRoom::Down);
        }
        let header_len = self.features.header_len();
        self.memory.work.grant_packet(header_len + len);
        // Nothing is written to chains that were put back.
        let buffers = self.take(header_len + len).inspect_err(|_| self.segments.clear())?;
        // A driver may post more than the packet needs, and what stays as it was is not marked.
        trim(self.segments, header_len + len);
        let mut header = vnet::build(offload);
        header[10..].copy_from_slice(&buffers.to_le_bytes());
        scatter(&header[..header_len], self.segments, 0);
        // The rest is written later, and marked then.
        self.memory.written(self.segments);
        Ok(skip(self.segments, header_len))
    }

    /// Stores a packet as [`mem::Room::put`] does, with a short path for the buffers that most drivers post:
    /// one descriptor each, with room for a whole frame.
    #[inline]
    fn put(
        &mut self,
        head: &[u8],
        rest: &[Segment],
        rest_at: usize,
        rest_len: usize,
        offload: &Offload,
    ) -> Result<(), NoRoom> {
        if self.short
            && let Some((chain, buffer)) = self.ring.take_single(Access::Write, self.memory)
        {
            let header_len = self.features.header_len();
            let len = header_len + head.len() + rest_len;
            if len <= buffer.len() {
                self.ring.prefetch(self.memory);
                self.memory.work.good();
                self.ring.complete(chain, len as u32);
                let stored = match *offload == Offload::default() {
                    true => store_header(&buffer, header_len, &[0; vnet::VNET_HEADER]),
                    false => store_header(&buffer, header_len, &vnet::build(offload)),
                } && buffer.store(header_len, head);
                debug_assert!(stored, "the length was compared");
                if rest_len > 0 {
                    copy(rest, rest_at, &[buffer], header_len + head.len(), rest_len);
                }
                return Ok(());
            }
            self.ring.rewind(&[chain]);
        }
        self.put_anywhere(head, rest, rest_at, rest_len, offload)
    }
}

/// Stores a header for one buffer by two stores.
#[inline(always)]
fn store_header(buffer: &Segment, header_len: usize, header: &[u8; vnet::VNET_HEADER]) -> bool {
    let [first @ .., a, b, _, _] = *header;
    let last = if header_len == vnet::VNET_HEADER {
        buffer.store(first.len(), &[a, b, 1, 0])
    } else {
        buffer.store(first.len(), &[a, b])
    };
    last && buffer.store(0, &first)
}

/// Keeps the first `len` bytes.
fn trim(segments: &mut Vec<Segment>, len: usize) {
    let mut left = len;
    for (i, segment) in segments.iter_mut().enumerate() {
        if segment.len() >= left {
            *segment = segment.slice(0, left);
            return segments.truncate(i + 1);
        }
        left -= segment.len();
    }
}
