//! A packet ready for delivery: its rewritten head, and the location of the rest.

mod fragment;
mod segment;

pub(crate) use fragment::Cut;

use crate::key::Layout;
use crate::sums::{append, complete_outer};
use crate::template::OuterHeaders;
use crate::turn::Turn;
use mem::{Accepts, Csum, NoRoom, Offload, Room, Segment};
use packet::checksum::Sum;
use packet::proto;

/// Bytes summed at a time, so that they are still in the L1 cache when they are stored.
pub(crate) const CHUNK: usize = 2048;

/// The checksum is right, and nothing is left to do.
const VALID: Offload = Offload { csum: Csum::Valid, gso: None };

pub(crate) type Chunk = [u8; CHUNK];

/// Location of the bytes that follow a packet's head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rest<'a> {
    /// In the sender's memory.
    Segments(&'a [Segment]),
    /// In our own buffer.
    Bytes(&'a [u8]),
}

impl Rest<'_> {
    /// Copies the bytes from `at` of the packet into `out`; returns how many there were.
    pub fn gather(&self, at: usize, out: &mut [u8]) -> usize {
        match self {
            Self::Segments(segments) => mem::gather(segments, at, out),
            Self::Bytes(bytes) => {
                let bytes = bytes.get(at..).unwrap_or(&[]);
                let len = bytes.len().min(out.len());
                out[..len].copy_from_slice(&bytes[..len]);
                len
            }
        }
    }

    /// Copies `len` bytes from `at` of the packet to `to` of `dst`, and adds the stored bytes to `sum`.
    pub fn copy_summing(
        &self,
        mut at: usize,
        dst: &[Segment],
        mut to: usize,
        len: usize,
        sum: &mut Sum,
        chunk: &mut Chunk,
    ) {
        let end = at + len;
        while at < end {
            let part = (end - at).min(CHUNK);
            let part = &mut chunk[..part];
            let had = self.gather(at, part);
            part[had..].fill(0);
            sum.add(part);
            mem::scatter(part, dst, to);
            at += part.len();
            to += part.len();
        }
    }
}

/// The engine's knowledge about a frame's L4 checksum and segmentation. Offsets are from the frame's first
/// byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unfinished {
    pub partial: bool,
    /// The checksum is known to be right.
    pub valid: bool,
    /// For a large send: TCP payload bytes per segment, and whether CWR is only for the first one.
    pub gso: Option<(u16, bool)>,
}

impl Unfinished {
    /// Returns whether nothing remains to be done or told, whoever the receiver is.
    #[inline(always)]
    pub const fn is_nothing(&self) -> bool {
        !self.partial && !self.valid && self.gso.is_none()
    }
}

#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// The packet's first bytes, rewritten. They include all headers.
    pub head: &'a mut [u8],
    /// The original packet, for the bytes after `head`.
    pub rest: Rest<'a>,
    /// Offset in the original packet of the first byte that is not in `head`.
    pub rest_at: usize,
    pub rest_len: usize,
    pub unfinished: Unfinished,
    /// Offsets of the (inner) headers in `head`; used if something is unfinished.
    pub at: Layout,
    /// Outer headers at the packet's start.
    pub tunnel: Option<OuterHeaders>,
    /// The cut into fragments. Nothing follows the IP packet then.
    pub cut: Option<Cut>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NoRoom(NoRoom),
    /// The large send can't be segmented.
    Segment,
    /// A header lies beyond the rewritten bytes.
    Header,
    /// The turn's budget of segments is used up.
    Turn,
}

impl From<NoRoom> for Refused {
    fn from(no_room: NoRoom) -> Self {
        Self::NoRoom(no_room)
    }
}

impl Frame<'_> {
    pub fn len(&self) -> usize {
        self.head.len() + self.rest_len
    }

    /// Copies the frame's first bytes, as they are delivered, into `out`; returns how many.
    pub fn gather(&self, out: &mut [u8]) -> usize {
        let head = self.head.len().min(out.len());
        out[..head].copy_from_slice(&self.head[..head]);
        let rest = self.rest_len.min(out.len() - head);
        head + self.rest.gather(self.rest_at, &mut out[head..head + rest])
    }

    /// Gives the frame an identification if it needs one, a large send or a cut packet one for each frame that leaves.
    /// Returns how many.
    #[inline]
    pub fn number(&mut self, first: u16) -> u16 {
        if matches!(self.tunnel, Some(OuterHeaders { numbered: true, .. })) {
            self.numbered(first)
        } else {
            0
        }
    }

    #[cold]
    fn numbered(&mut self, first: u16) -> u16 {
        let numbers = match (self.cut, self.unfinished.gso) {
            (Some(cut), _) => cut.pieces(self).map_or(1, |pieces| pieces.number()),
            (None, Some((size, _))) => self.at.segments(size),
            (None, None) => 1,
        };
        if let Some(ip) = self.head.get_mut(OuterHeaders::IP..).and_then(<[u8]>::first_chunk_mut) {
            let _: &mut [u8; proto::IPV4_LEN] = ip;
            let (before, sum) = (u16::from_be_bytes([ip[4], ip[5]]), u16::from_be_bytes([ip[10], ip[11]]));
            ip[4..6].copy_from_slice(&first.to_be_bytes());
            ip[10..12].copy_from_slice(&packet::checksum::update_u16(sum, before, first).to_be_bytes());
        }
        numbers as u16
    }

    /// Writes the frame into `room`. Finishes what the receiver does not accept unfinished, as far as the
    /// turn's budget allows.
    #[inline]
    pub fn write(
        &mut self,
        room: &mut dyn Room,
        accepts: Accepts,
        chunk: &mut Chunk,
        turn: &mut Turn,
    ) -> Result<Delivered, Refused> {
        let unfinished = self.unfinished;
        if let Some(cut) = self.cut {
            return fragment::write(self, cut, room, chunk, turn);
        }
        let offload = if let Some((size, ecn)) = unfinished.gso {
            let taken = if self.at.v6 { accepts.tso6 } else { accepts.tso4 };
            if self.tunnel.is_some() || !taken || !accepts.csum || (ecn && !accepts.ecn) {
                return segment::write(self, size, room, chunk, turn);
            }
            let gso = mem::Gso { v6: self.at.v6, size, hdr_len: self.at.l4_end, ecn };
            Offload { csum: self.partial(), gso: Some(gso) }
        } else if unfinished.partial {
            if self.tunnel.is_some() || !accepts.csum {
                return self.write_completing(room, chunk);
            }
            Offload { csum: self.partial(), gso: None }
        } else {
            if matches!(self.tunnel, Some(OuterHeaders { sum: true, .. })) {
                return self.write_completing(room, chunk);
            }
            let valid = unfinished.valid && self.tunnel.is_none();
            if valid && (accepts.csum || room.tells_valid()) { VALID } else { Offload::default() }
        };
        match self.rest {
            Rest::Segments(rest) => room.put(self.head, rest, self.rest_at, self.rest_len, &offload)?,
            Rest::Bytes(bytes) => {
                let dst = room.reserve(self.len(), &offload)?;
                mem::scatter(self.head, dst, 0);
                let rest = bytes.get(self.rest_at..self.rest_at + self.rest_len).unwrap_or(&[]);
                mem::scatter(rest, dst, self.head.len());
            }
        }
        Ok(Delivered { packets: 1, bytes: self.len() as u64 })
    }

    pub fn csum_offset(&self) -> u16 {
        if self.at.protocol == proto::TCP { 16 } else { 6 }
    }

    fn partial(&self) -> Csum {
        Csum::Partial { start: self.at.l4, offset: self.csum_offset() }
    }

    /// Returns the offload that the receiver is told for a frame whose L4 checksum was partial and is
    /// completed.
    fn completed(&self, room: &dyn Room) -> Offload {
        let partial = self.unfinished.partial || self.unfinished.gso.is_some();
        if partial && self.tunnel.is_none() && room.tells_valid() { VALID } else { Offload::default() }
    }

    fn write_completing(&mut self, room: &mut dyn Room, chunk: &mut Chunk) -> Result<Delivered, Refused> {
        let len = self.len();
        let at = usize::from(self.at.l4);
        let head_len = self.head.len();
        if self.unfinished.partial && at + usize::from(self.csum_offset()) + 2 > head_len {
            return Err(Refused::Header);
        }
        let dst = room.reserve(len, &self.completed(room))?;
        // The Ethernet padding of a short packet is stored, but not summed.
        let end =
            if self.unfinished.partial { usize::from(self.at.l3) + usize::from(self.at.ip_len) } else { len };
        let summed = end.saturating_sub(head_len).min(self.rest_len);
        let mut payload = Sum::default();
        let mut padding = Sum::default();
        self.rest.copy_summing(self.rest_at, dst, head_len, summed, &mut payload, chunk);
        let (padding_at, padding_len) = (head_len + summed, self.rest_len - summed);
        self.rest.copy_summing(self.rest_at + summed, dst, padding_at, padding_len, &mut padding, chunk);
        if self.unfinished.partial {
            let mut sum = packet::checksum::sum(&self.head[at..head_len.min(end)]);
            append(&mut sum, payload, head_len.min(end) - at);
            let field = at + usize::from(self.csum_offset());
            let checksum = match sum.finish() {
                0 if self.at.protocol == proto::UDP => 0xffff,
                checksum => checksum,
            };
            self.head[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        if let Some(outer @ OuterHeaders { sum: true, .. }) = self.tunnel {
            let mut rest = payload;
            append(&mut rest, padding, summed);
            complete_outer(self.head, outer, rest, len);
        }
        mem::scatter(self.head, dst, 0);
        Ok(Delivered { packets: 1, bytes: len as u64 })
    }
}
