//! Segmentation in software: splits a large TCP send for a receiver that doesn't take it whole.

use super::{Chunk, Delivered, Frame, Refused};
use crate::rewrite::HEADROOM;
use crate::sums::{addresses, append, complete_outer};
use crate::template::OuterHeaders;
use crate::turn::Turn;
use mem::Room;
use packet::checksum::{self, Sum, pseudo_header};
use packet::proto;

/// Longest headers of a segment: the new headers, and a snapshot.
pub(super) const MAX_HEADERS: usize = HEADROOM + 192;

/// Writes `frame` in segments of `size` bytes of payload. Segments written before an error stay delivered.
pub(super) fn write(
    frame: &Frame<'_>,
    size: u16,
    room: &mut dyn Room,
    chunk: &mut Chunk,
    turn: &mut Turn,
) -> Result<Delivered, Refused> {
    let at = &frame.at;
    let headers = usize::from(at.l4_end);
    let ip_end = usize::from(at.l3) + usize::from(at.ip_len);
    if at.protocol != proto::TCP || headers > MAX_HEADERS.min(frame.head.len()) || ip_end > frame.len() {
        return Err(Refused::Segment);
    }
    let payload = ip_end.checked_sub(headers).ok_or(Refused::Segment)?;
    let count = at.segments(size);
    let size = usize::from(size);
    if !turn.take(count - 1, (count - 1) * headers) {
        return Err(Refused::Turn);
    }
    let told = frame.completed(room);
    let mut delivered = Delivered::default();
    for index in 0..count {
        let offset = index * size;
        let len = size.min(payload - offset);
        let mut head = [0; MAX_HEADERS];
        let head = &mut head[..headers];
        head.copy_from_slice(&frame.head[..headers]);
        let last = index + 1 == count;
        edit(head, frame, index, offset, len, last).ok_or(Refused::Segment)?;

        let dst = room.reserve(headers + len, &told)?;
        let body = store(frame, headers + offset, len, dst, headers, chunk);
        complete(head, frame, len, body).ok_or(Refused::Segment)?;
        mem::scatter(head, dst, 0);
        delivered.packets += 1;
        delivered.bytes += (headers + len) as u64;
    }
    Ok(delivered)
}

/// Turns the copied headers into those of segment `index`, with `len` bytes of payload from `offset` of the whole
/// payload.
fn edit(
    head: &mut [u8],
    frame: &Frame<'_>,
    index: usize,
    offset: usize,
    len: usize,
    last: bool,
) -> Option<()> {
    let at = &frame.at;
    let (l3, l4) = (usize::from(at.l3), usize::from(at.l4));
    let total = head.len() + len;
    let ip = head.get_mut(l3..l4)?;
    if at.v6 {
        ip[4..6].copy_from_slice(&((total - l3 - proto::IPV6_LEN) as u16).to_be_bytes());
    } else {
        ip[2..4].copy_from_slice(&((total - l3) as u16).to_be_bytes());
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let checksum = checksum::sum(ip).finish();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    let tcp = head.get_mut(l4..l4 + proto::TCP_LEN)?;
    let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(offset as u32);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    if index > 0 {
        tcp[13] &= !proto::TCP_CWR;
    }
    if !last {
        tcp[13] &= !(proto::TCP_FIN | proto::TCP_PSH);
    }
    tcp[16..18].fill(0);
    if let Some(outer) = frame.tunnel {
        outer_fields(head, outer, index, total);
    }
    Some(())
}

/// Sets the lengths in the outer headers, which were those of the whole send, and the identification.
pub(super) fn outer_fields(head: &mut [u8], outer: OuterHeaders, index: usize, total: usize) {
    let l4 = outer.l4();
    let ip = &mut head[OuterHeaders::IP..l4];
    if outer.v6 {
        ip[4..6].copy_from_slice(&((total - l4) as u16).to_be_bytes());
    } else {
        ip[2..4].copy_from_slice(&((total - OuterHeaders::IP) as u16).to_be_bytes());
        if outer.numbered {
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
        }
        ip[10..12].fill(0);
        let checksum = checksum::sum(ip).finish();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    if outer.udp {
        head[l4 + 4..l4 + 6].copy_from_slice(&((total - l4) as u16).to_be_bytes());
        head[l4 + 6..l4 + 8].fill(0);
    }
}

/// Stores `len` bytes from `from` of the frame at `to` of `dst`, and returns their sum.
pub(super) fn store(
    frame: &Frame<'_>,
    from: usize,
    len: usize,
    dst: &[mem::Segment],
    to: usize,
    chunk: &mut Chunk,
) -> Sum {
    let head = frame.head.get(from..).unwrap_or(&[]);
    let head = &head[..head.len().min(len)];
    mem::scatter(head, dst, to);
    let mut sum = checksum::sum(head);
    let rest_at = frame.rest_at + (from + head.len()) - frame.head.len();
    let mut tail = Sum::default();
    frame.rest.copy_summing(rest_at, dst, to + head.len(), len - head.len(), &mut tail, chunk);
    append(&mut sum, tail, head.len());
    sum
}

/// Sets the checksums of a segment with `len` bytes of payload, whose sum is `body`.
fn complete(head: &mut [u8], frame: &Frame<'_>, len: usize, body: Sum) -> Option<()> {
    let at = &frame.at;
    let l4 = usize::from(at.l4);
    let (src, dst) = addresses(head, at)?;
    let mut sum = pseudo_header(src, dst, proto::TCP, (head.len() - l4 + len) as u32);
    sum.add(&head[l4..]);
    append(&mut sum, body, head.len() - l4);
    head[l4 + 16..l4 + 18].copy_from_slice(&sum.finish().to_be_bytes());
    if let Some(outer @ OuterHeaders { sum: true, .. }) = frame.tunnel {
        complete_outer(head, outer, body, head.len() + len);
    }
    Some(())
}
