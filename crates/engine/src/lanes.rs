//! Scratch memory of a burst: the state that the passes over its packets share. Each packet has a lane, and so has each
//! copy of one that goes to several ports.

use crate::cache::{Found, Slot};
use crate::frame::{Chunk, Cut, Delivered, Frame, Refused, Rest, Unfinished};
use crate::key::{Fast, Layout};
use crate::pinned::Tables;
use crate::rewrite::{HEADROOM, edit_fast, place, set_fields};
use crate::template::{Edit, OuterHeaders, Template};
use crate::turn::Turn;
use mem::{Accepts, BURST, Burst, Csum, Offload, Room, RxPacket};
use model::{DropReason, Segment, ovs};
use packet::{Fragment, Headers, L4, proto};

/// Bytes of each packet that are copied before anything is examined.
pub(crate) const SNAPSHOT: usize = 192;

const LINE: usize = 64;

/// Bytes of a packet that are prefetched early: a frame of the usual MTU. A longer copy is far enough ahead
/// by itself.
const PREFETCHED: usize = 1536;

/// Number of lanes: those of packets, then those of copies.
pub(crate) const LANES: usize = 2 * BURST;

/// A packet's head with room for new headers before it.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Head(pub [u8; HEADROOM + SNAPSHOT]);

/// A packet ready for delivery.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Out {
    /// Offset in its [`Head`] at which the frame starts.
    pub start: u16,
    /// Offset in its [`Head`] at which the frame's part there ends.
    pub end: u16,
    /// Number of its bytes in the sender's memory after the snapshot.
    pub rest_len: u32,
    /// Index of the packet in the burst.
    packet: u8,
    /// The work that is left to do, if any.
    pub work: Option<Work>,
}

/// Work on a frame that remains until its receiver is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// The state in which the sender left checksum and segmentation.
    pub unfinished: Unfinished,
    /// Offsets of the headers in the new frame.
    pub at: Layout,
    pub tunnel: Option<OuterHeaders>,
    pub cut: Option<Cut>,
}

impl Out {
    /// Has the frame cut for its link, after [`Self::set`] with the same arguments.
    #[cold]
    pub fn cut(&mut self, cut: model::Cut, mut unfinished: Unfinished, at: &Layout, template: &Template) {
        let cut = Cut::new(cut, template.prefix().len(), &mut unfinished, at);
        let at = at.shifted(HEADROOM as isize - self.start as isize);
        self.work = Some(Work { unfinished, at, tunnel: template.tunnel, cut });
    }

    /// Describes a frame from `start` to `end` of its [`Head`], which continues in the sender's memory for
    /// `rest_len` bytes. `at` are the headers' offsets in the original frame.
    #[inline(always)]
    pub fn set(
        &mut self,
        (start, end, rest_len): (usize, usize, usize),
        unfinished: Unfinished,
        tunnel: Option<OuterHeaders>,
        at: &Layout,
    ) {
        (self.start, self.end, self.rest_len) = (start as u16, end as u16, rest_len as u32);
        let worked = matches!(tunnel, Some(outer) if outer.sum | outer.numbered);
        if worked || !unfinished.is_nothing() {
            let at = at.shifted(HEADROOM as isize - start as isize);
            self.work = Some(Work { unfinished, at, tunnel, cut: None });
        } else {
            self.work = None;
        }
    }
}

pub(crate) struct Parsed {
    lanes: Box<[Fast; BURST]>,
    /// Which lanes it accepted, one bit each.
    taken: u64,
    /// Which of these have the key of the accepted lane before, one bit each.
    repeats: u64,
}

const _: () = assert!(BURST <= u64::BITS as usize);

impl Parsed {
    /// Records that it accepted no lane.
    #[inline(always)]
    pub const fn clear(&mut self) {
        (self.taken, self.repeats) = (0, 0);
    }

    /// Records that it accepted this lane, and that the lane has the key of the last one that it accepted.
    #[inline(always)]
    pub const fn mark_repeat(&mut self, lane: usize) {
        self.mark(lane);
        self.repeats |= 1 << lane;
    }

    /// Returns whether this lane has the key of the accepted lane before it.
    #[inline(always)]
    pub const fn repeats(&self, lane: usize) -> bool {
        self.repeats >> lane & 1 != 0
    }

    /// Returns the lanes that it accepted, except those that repeat the key of the one before.
    #[inline(always)]
    pub fn firsts(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.taken & !self.repeats;
        std::iter::from_fn(move || {
            let lane = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (lane < BURST).then_some(lane)
        })
    }

    /// Records that it accepted this lane.
    #[inline(always)]
    pub const fn mark(&mut self, lane: usize) {
        self.taken |= 1 << lane;
    }

    /// Returns a lane's result, if the lane exists and was accepted.
    #[inline(always)]
    pub fn get(&self, lane: usize) -> Option<&Fast> {
        self.lanes.get(lane).filter(|_| self.taken >> lane & 1 != 0)
    }

    #[inline(always)]
    pub fn at(&self, lane: usize) -> &Fast {
        &self.lanes[lane]
    }
}

/// Distance between the identifications with which workers begin: those of several workers meet late.
const FAR: u16 = 0x9e37;

/// The scratch memory of a burst.
pub(crate) struct Lanes {
    /// The next identification of a tunnel packet.
    pub number: u16,
    pub heads: Box<[Head; LANES]>,
    /// Number of the packet's bytes in each head.
    pub head_len: [u16; LANES],
    /// Number of copies' lanes in use.
    copies: usize,
    pub fast: Parsed,
    pub hash: [u64; BURST],
    /// The slot where the key's entry probably is.
    pub guess: [Slot; BURST],
    pub out: Box<[Out; LANES]>,
    /// Which packets to mark for Open vSwitch, one bit each, and the counters of their flows, which are the
    /// marks.
    marked: u64,
    marks: [u32; BURST],
}

impl Lanes {
    /// Makes the lanes of the worker with this number.
    pub fn new(worker: usize) -> Self {
        Self {
            number: (worker as u16).wrapping_mul(FAR),
            heads: Box::new([Head([0; HEADROOM + SNAPSHOT]); LANES]),
            head_len: [0; LANES],
            copies: 0,
            fast: Parsed { lanes: Box::new([Fast::default(); BURST]), taken: 0, repeats: 0 },
            hash: [0; BURST],
            guess: [Slot::default(); BURST],
            out: Box::new(std::array::from_fn(|lane| Out { packet: lane as u8, ..Out::default() })),
            marked: 0,
            marks: [0; BURST],
        }
    }

    /// Copies the head of every packet. Returns the bytes of all packets.
    #[inline]
    pub fn snapshot(&mut self, burst: &Burst) -> u64 {
        const AHEAD: usize = 4;
        let packets = burst.packets();
        let mut bytes = 0;
        for (lane, packet) in (0..BURST).zip(packets) {
            if let Some(later) = packets.get(lane + AHEAD)
                && let Some(first) = burst.segments(later).first()
            {
                mem::prefetch(first.as_ptr());
            }
            bytes += u64::from(packet.len);
            let len = SNAPSHOT.min(packet.len as usize);
            let head = &mut self.heads[lane].0[HEADROOM..HEADROOM + len];
            self.head_len[lane] = mem::gather(burst.segments(packet), 0, head) as u16;
            if let [only] = burst.segments(packet) {
                // The bytes to copy after the snapshot arrive while the burst is processed.
                for at in (SNAPSHOT..only.len().min(PREFETCHED)).step_by(LINE) {
                    mem::prefetch(only.as_ptr().wrapping_add(at));
                }
            }
        }
        bytes
    }

    /// Returns the snapshot of a packet, and the place for the result of its fast parse.
    #[inline(always)]
    pub fn parts(&mut self, lane: usize) -> (&[u8], &mut Fast) {
        let head = &self.heads[lane].0[HEADROOM..HEADROOM + usize::from(self.head_len[lane])];
        (head, &mut self.fast.lanes[lane])
    }

    /// Returns whether there are lanes for so many copies.
    pub const fn has_room(&self, copies: usize) -> bool {
        copies <= LANES - BURST - self.copies
    }

    /// Records that all lanes are delivered: frees the lanes of copies, and clears the marks.
    pub const fn delivered(&mut self) {
        (self.copies, self.marked) = (0, 0);
    }

    /// Marks a lane's packet with the counter of its flow, by which Open vSwitch is to know it.
    #[inline(always)]
    pub const fn mark(&mut self, lane: usize, counter: u32) {
        self.marked |= 1 << lane;
        self.marks[lane] = counter;
    }

    /// Returns the mark of a lane's packet: the counter of the flow by which Open vSwitch is to know it.
    #[inline(always)]
    pub fn mark_of(&self, lane: usize) -> Option<u32> {
        self.marks.get(lane).copied().filter(|_| self.marked >> lane & 1 != 0)
    }

    /// Copies a packet that is not rewritten yet into a lane of its own, and returns the number of that lane.
    pub fn copy(&mut self, lane: usize) -> Option<usize> {
        let to = BURST + self.copies;
        let (packets, copies) = self.heads.split_at_mut(BURST);
        let (head, copy) = (packets.get(lane)?, copies.get_mut(self.copies)?);
        let snapshot = HEADROOM..HEADROOM + usize::from(self.head_len[lane]);
        copy.0[snapshot.clone()].copy_from_slice(&head.0[snapshot]);
        self.head_len[to] = self.head_len[lane];
        self.out[to].packet = lane as u8;
        self.copies += 1;
        Some(to)
    }

    /// Rewrites a packet of `len` bytes that the fast parse accepted, in its own lane or in that of a copy.
    /// `fields`: the fields that a flow of Open vSwitch sets, for templates that need them. `entropy`: that of the tunnel, or
    /// the translated port.
    #[allow(clippy::too_many_arguments)] // a packet and how it is rewritten
    #[inline(always)]
    pub fn rewrite<'a>(
        &mut self,
        packet: usize,
        lane: usize,
        len: usize,
        template: &Template,
        fields: impl FnOnce() -> Option<&'a ovs::Edits>,
        entropy: u32,
        unfinished: Unfinished,
    ) -> Result<(), DropReason> {
        let fast = &self.fast.lanes[packet];
        let head = &mut self.heads[lane].0;
        let head_len = usize::from(self.head_len[lane]);
        if template.changes_nothing() {
            let all = (HEADROOM, HEADROOM + head_len, len - head_len);
            self.out[lane].set(all, unfinished, None, &fast.at);
            return Ok(());
        }
        if template.edit != Edit::Nothing {
            let (frame, partial) = (&mut head[HEADROOM..HEADROOM + head_len], unfinished.partial);
            match template.edit {
                Edit::Fields => {
                    fields().and_then(|fields| set_fields(frame, template.strip, &fast.at, fields, partial))
                }
                _ => edit_fast(frame, &fast.at, template, entropy, partial),
            }
            .ok_or(DropReason::L4Malformed)?;
        }
        let end = fast.end(len, template);
        let placed = place(head, head_len, end, template, entropy).ok_or(DropReason::TxTooLong)?;
        self.out[lane].set(placed, unfinished, template.tunnel, &fast.at);
        Ok(())
    }

    /// Prepares a packet of `len` bytes for delivery as it is.
    #[inline(always)]
    pub fn leave(&mut self, lane: usize, len: usize) {
        let head_len = usize::from(self.head_len[lane]);
        let all = (HEADROOM, HEADROOM + head_len, len - head_len);
        self.out[lane].set(all, Unfinished::default(), None, &Layout::default());
    }

    /// Tracks a lane's TCP segment, which must not be rewritten yet. False if the segment needs the slow
    /// path.
    #[inline(always)]
    pub fn follow(&self, lane: usize, entry: &Found<'_>, tables: Tables<'_>) -> bool {
        let fast = &self.fast.lanes[lane];
        let Some((flow, reply)) = entry.flow() else { return true };
        let header = self.heads[lane].0.get(HEADROOM + usize::from(fast.at.l4)..);
        let Some(header) = header.and_then(|header| header.first_chunk()) else { return false };
        tables.shared.flows().advance(flow, reply, &segment(header, fast.at.payload()))
    }

    /// Returns the snapshot of a packet that is not rewritten yet.
    #[inline(always)]
    pub fn head(&self, lane: usize) -> &[u8] {
        &self.heads[lane].0[HEADROOM..HEADROOM + usize::from(self.head_len[lane])]
    }

    /// Writes the frame for delivery into `room`.
    #[inline(always)]
    pub fn write(
        &mut self,
        lane: usize,
        burst: &Burst,
        room: &mut dyn Room,
        accepts: Accepts,
        chunk: &mut Chunk,
        turn: &mut Turn,
    ) -> Result<Delivered, Refused> {
        let out = &self.out[lane];
        if out.work.is_some() {
            let first = self.number;
            let mut frame = self.frame(lane, burst);
            let numbers = frame.number(first);
            let written = frame.write(room, accepts, chunk, turn);
            self.number = first.wrapping_add(numbers);
            return written;
        }
        let head = &self.heads[lane].0[usize::from(out.start)..usize::from(out.end)];
        let segments = burst.segments(&burst.packets()[usize::from(out.packet)]);
        let rest_len = out.rest_len as usize;
        room.put(head, segments, self.head_len[lane].into(), rest_len, &Offload::default())?;
        Ok(Delivered { packets: 1, bytes: (head.len() + rest_len) as u64 })
    }

    pub fn frame<'a>(&'a mut self, lane: usize, burst: &'a Burst) -> Frame<'a> {
        let out = &self.out[lane];
        let packet = &burst.packets()[usize::from(out.packet)];
        let Work { unfinished, at, tunnel, cut } = out.work.unwrap_or_default();
        Frame {
            head: &mut self.heads[lane].0[usize::from(out.start)..usize::from(out.end)],
            rest: Rest::Segments(burst.segments(packet)),
            rest_at: usize::from(self.head_len[lane]),
            rest_len: out.rest_len as usize,
            unfinished,
            at,
            tunnel,
            cut,
        }
    }
}

/// Describes a TCP segment with this header and payload length, neither SYN nor FIN.
#[inline(always)]
fn segment(header: &[u8; proto::TCP_LEN], payload: usize) -> Segment {
    let [_, _, _, _, s0, s1, s2, s3, a0, a1, a2, a3, _, flags, w0, w1, ..] = *header;
    Segment {
        flags,
        seq: u32::from_be_bytes([s0, s1, s2, s3]),
        len: payload as u32,
        ack: u32::from_be_bytes([a0, a1, a2, a3]),
        window: u16::from_be_bytes([w0, w1]),
        scale: None,
    }
}

impl Layout {
    /// Finds the offsets of the headers parsed into `headers`; `None` if it isn't an IP packet with a known
    /// L4 header.
    pub fn of(headers: &Headers, tunnelled: bool) -> Option<Self> {
        let ip = headers.ip()?;
        let header_len = match headers.l4 {
            L4::Tcp { header_len, .. } => u16::from(header_len),
            L4::Udp { .. } => proto::UDP_LEN as u16,
            _ => 0,
        };
        Some(Self {
            l3: ip.at,
            l4: headers.l4_at,
            l4_end: headers.l4_at + header_len,
            ip_len: ip.len.try_into().ok()?,
            protocol: match (headers.l4, ip.fragment) {
                (L4::Tcp { .. }, Fragment::Whole) => proto::TCP,
                (L4::Udp { .. }, Fragment::Whole) => proto::UDP,
                // Nothing can be unfinished, so the protocol does not matter.
                _ => proto::NO_NEXT_HEADER,
            },
            v6: ip.src.is_ipv6(),
            tunnelled,
        })
    }

    /// Returns the number of segments of a large send with `size` bytes of payload each.
    pub fn segments(&self, size: u16) -> usize {
        self.payload().div_ceil(size.max(1).into()).max(1)
    }

    /// Returns the number of bytes after the L4 header, without padding.
    pub fn payload(&self) -> usize {
        (usize::from(self.l3) + usize::from(self.ip_len)).saturating_sub(self.l4_end.into())
    }

    /// Returns the same headers in a frame that starts `by` bytes earlier.
    #[inline(always)]
    pub fn shifted(self, by: isize) -> Self {
        let shift = |at: u16| (at as isize + by) as u16;
        Self { l3: shift(self.l3), l4: shift(self.l4), l4_end: shift(self.l4_end), ..self }
    }
}

/// Segments with less payload than this, in bytes, are made only in small numbers ([`SMALL_SEGMENTS`]). No TCP needs
/// them: without an MSS option, segments have 536 bytes over IPv4 and 1220 over IPv6 (RFC 9293, 3.7.1); hosts do not
/// go below some 200 when they learn a path's MTU; and the segmentation of NICs begins here (i40e, ice; 88 for idpf,
/// gve).
pub(crate) const MIN_SEGMENT: u16 = 64;
/// Most smaller segments of one packet. They come from a kernel that merges short segments of one batch, which has 64
/// packets (Linux: `NAPI_POLL_WEIGHT`), and passes them on as a large send.
pub(crate) const SMALL_SEGMENTS: usize = 64;

/// Compares a sender's offload request with the headers found (VIRTIO 1.2, 5.1.6.2).
///
/// # Errors
/// The reason to drop the packet: the request does not fit it, or asks for too many small segments.
#[inline]
pub(crate) fn check_offload(offload: &Offload, at: Option<&Layout>) -> Result<Unfinished, DropReason> {
    const MALFORMED: DropReason = DropReason::OffloadMalformed;
    let mut unfinished = Unfinished::default();
    match offload.csum {
        Csum::Unknown => {}
        // If there is a tunnel, the outer packet was checked.
        Csum::Valid => unfinished.valid = at.is_some_and(|at| !at.tunnelled),
        Csum::Partial { start, offset } => {
            // A frame without IP has nothing to complete. If it came from a tunnel, the request was about the outer
            // checksum.
            let Some(at) = at else {
                return if offload.gso.is_some() { Err(MALFORMED) } else { Ok(unfinished) };
            };
            let outer = at.tunnelled && start < at.l3;
            let field = match at.protocol {
                proto::TCP => 16,
                proto::UDP => 6,
                _ if outer => offset,
                _ => return Err(MALFORMED),
            };
            if !outer && (start != at.l4 || offset != field) {
                return Err(MALFORMED);
            }
            unfinished.partial = !outer;
        }
    }
    if let Some(gso) = offload.gso {
        let at = at.ok_or(MALFORMED)?;
        let fits = at.protocol == proto::TCP && at.v6 == gso.v6 && gso.size > 0 && unfinished.partial;
        if !fits {
            return Err(MALFORMED);
        }
        if gso.size < MIN_SEGMENT && at.segments(gso.size) > SMALL_SEGMENTS {
            return Err(DropReason::SegmentTooSmall);
        }
        unfinished.gso = Some((gso.size, gso.ecn));
    }
    Ok(unfinished)
}

/// Returns the bytes that count against policers if a packet of `len` bytes that the fast parse accepted
/// leaves by `template`, as defined by [`model::rewrite::metered_len`].
#[cold]
pub(crate) fn metered_len(fast: &Fast, packet: &RxPacket, template: &Template) -> usize {
    let grown = template.grown();
    let len = fast.end(packet.len as usize, template).saturating_add_signed(grown);
    packet.offload.gso.map_or(len, |gso| {
        let headers = usize::from(fast.at.l4_end).saturating_add_signed(grown);
        fast.at.segments(gso.size) * headers + fast.at.payload()
    })
}

/// Returns the packet's length that counts against an MTU; for a large send, that of one segment.
#[inline(always)]
pub(crate) fn mtu_len(fast: &Fast, packet: &RxPacket) -> u16 {
    match packet.offload.gso {
        None => fast.mtu_len,
        Some(gso) => (fast.at.l4_end - fast.at.l3).saturating_add(gso.size).min(fast.mtu_len),
    }
}
