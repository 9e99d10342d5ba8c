//! Fragmentation of an IPv4 packet that is too big for the next link (RFC 791, 3.2; RFC 1812, 4.2.2.7).

use super::segment::{MAX_HEADERS, outer_fields, store};
use super::{CHUNK, Chunk, Delivered, Frame, Refused, Unfinished};
use crate::key::Layout;
use crate::sums::{append, complete_outer};
use crate::template::OuterHeaders;
use crate::turn::Turn;
use mem::{Offload, Room};
use packet::checksum::{self, Sum};
use packet::{Pieces, proto};

/// The cut of a frame into fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The longest packet, bytes.
    mtu: u16,
    /// Offset of the IP header in the frame.
    ip: u16,
}

impl Cut {
    /// Returns the cut of a packet behind new headers of `prefix` bytes. A large send is not cut: its segments are made
    /// smaller.
    pub fn new(cut: model::Cut, prefix: usize, unfinished: &mut Unfinished, at: &Layout) -> Option<Self> {
        let (mtu, ip) = match cut {
            model::Cut::Packet(mtu) => (mtu, prefix),
            model::Cut::Tunnel(mtu) => (mtu, OuterHeaders::IP),
        };
        if let Some((size, _)) = &mut unfinished.gso {
            *size = (*size).min(mtu.saturating_sub(at.l4_end - at.l3)).max(1);
            return None;
        }
        Some(Self { mtu, ip: ip as u16 })
    }

    /// Returns the pieces of a frame.
    pub(super) fn pieces(self, frame: &Frame<'_>) -> Option<Pieces> {
        let ip = usize::from(self.ip);
        Pieces::new(frame.head.get(ip..)?, frame.len().checked_sub(ip)?, self.mtu.into())
    }
}

/// Writes `frame` in fragments, each copied once. Fragments written before an error stay delivered.
pub(super) fn write(
    frame: &mut Frame<'_>,
    cut: Cut,
    room: &mut dyn Room,
    chunk: &mut Chunk,
    turn: &mut Turn,
) -> Result<Delivered, Refused> {
    let ip = usize::from(cut.ip);
    // If a tunnel packet itself is cut, only the first fragment has the headers behind the outer IP header.
    let tunnel = frame.tunnel.filter(|_| ip > OuterHeaders::IP);
    let pieces = cut.pieces(frame).ok_or(Refused::Segment)?;
    let headers = ip + pieces.header_len();
    if headers > MAX_HEADERS.min(frame.head.len()) {
        return Err(Refused::Header);
    }
    let more = pieces.number() - 1;
    if !turn.take(more, more * headers) {
        return Err(Refused::Turn);
    }
    if frame.unfinished.partial {
        complete(frame, chunk)?;
    }
    let mut delivered = Delivered::default();
    for (number, piece) in pieces.enumerate() {
        let mut head = [0; MAX_HEADERS];
        let head = &mut head[..headers];
        head.copy_from_slice(&frame.head[..headers]);
        piece.write_header(&mut head[ip..]);
        let total = headers + piece.len;
        if let Some(outer) = tunnel {
            outer_fields(head, outer, number, total);
        }
        let dst = room.reserve(total, &Offload::default())?;
        let body = store(frame, headers + piece.at, piece.len, dst, headers, chunk);
        if let Some(outer @ OuterHeaders { sum: true, .. }) = tunnel {
            complete_outer(head, outer, body, total);
        }
        mem::scatter(head, dst, 0);
        delivered.packets += 1;
        delivered.bytes += total as u64;
    }
    Ok(delivered)
}

/// Completes the L4 checksum, which is in the first fragment and covers all of them. If the sender changes the payload
/// meanwhile, its own packet is wrong.
fn complete(frame: &mut Frame<'_>, chunk: &mut Chunk) -> Result<(), Refused> {
    let (l4, head_len) = (usize::from(frame.at.l4), frame.head.len());
    let field = l4 + usize::from(frame.csum_offset());
    if field + 2 > head_len {
        return Err(Refused::Header);
    }
    let mut rest = Sum::default();
    let mut at = 0;
    while at < frame.rest_len {
        let part = &mut chunk[..(frame.rest_len - at).min(CHUNK)];
        let had = frame.rest.gather(frame.rest_at + at, part);
        part[had..].fill(0);
        rest.add(part);
        at += part.len();
    }
    let mut sum = checksum::sum(&frame.head[l4..]);
    append(&mut sum, rest, head_len - l4);
    let checksum = match sum.finish() {
        0 if frame.at.protocol == proto::UDP => 0xffff,
        checksum => checksum,
    };
    frame.head[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}
