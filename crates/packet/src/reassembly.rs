//! Reassembly of an IPv4 packet from its fragments (RFC 791, 3.2).

use crate::fragment::{BLOCK, MORE, OFFSET};
use crate::{Headers, checksum, ecn, proto};

/// Most fragments of a packet.
const MOST: usize = 128;

/// An IPv4 packet of which fragments have come.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// The first fragment's frame up to its payload; until it comes, another's.
    head: Vec<u8>,
    /// Offset of the IP header in `head`.
    ip: usize,
    payload: Vec<u8>,
    /// Start and end of each fragment's payload.
    parts: Vec<(usize, usize)>,
    /// Length of the payload, once the last fragment has come.
    len: Option<usize>,
    /// A bit for each ECN field seen.
    ecn: u8,
}

/// The use of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Others are missing.
    Partial,
    /// None is missing: [`Reassembly::finish`].
    Whole,
    /// It came before.
    Duplicate,
    /// It does not fit the others. Overlaps are attacks, or belong to different packets (RFC 5722 says so for IPv6).
    Misfit,
}

impl Reassembly {
    /// Returns the length that a packet has at least if this is a fragment of it, without its header.
    #[must_use]
    pub fn least(frame: &[u8], headers: &Headers) -> usize {
        let Some(ip) = headers.ip() else { return 0 };
        let field = frame.get(usize::from(ip.at) + 6..).and_then(<[u8]>::first_chunk);
        let start = field.map_or(0, |field| usize::from(u16::from_be_bytes(*field) & OFFSET) * BLOCK);
        start + (ip.len as usize).saturating_sub(ip.header_len.into())
    }

    /// Adds a fragment, with the headers of its frame.
    pub fn add(&mut self, frame: &[u8], headers: &Headers) -> Fit {
        self.put(frame, headers).unwrap_or(Fit::Misfit)
    }

    fn put(&mut self, frame: &[u8], headers: &Headers) -> Option<Fit> {
        let ip = headers.ip().filter(|ip| ip.src.is_ipv4())?;
        let at = usize::from(ip.at);
        let header: &[u8; proto::IPV4_LEN] = frame.get(at..)?.first_chunk()?;
        let header_len = usize::from(header[0] & 0xf) * 4;
        let payload = frame.get(at + header_len..at + ip.len as usize)?;
        let field = u16::from_be_bytes([header[6], header[7]]);
        let (start, last) = (usize::from(field & OFFSET) * BLOCK, field & MORE == 0);
        let end = start + payload.len();
        let too_long = header_len + end > usize::from(u16::MAX);
        let odd = !last && !payload.len().is_multiple_of(BLOCK);
        if payload.is_empty() || too_long || odd || self.parts.len() >= MOST {
            return None;
        }
        if self.parts.contains(&(start, end)) {
            return Some(Fit::Duplicate);
        }
        let overlaps = self.parts.iter().any(|&(from, to)| start < to && from < end);
        let beyond = if last { self.payload.len() > end } else { self.len.is_some_and(|len| end > len) };
        if overlaps || beyond || last && self.len.is_some() {
            return None;
        }
        if start == 0 || self.head.is_empty() {
            self.head.clear();
            self.head.extend_from_slice(&frame[..at + header_len]);
            self.ip = at;
        }
        if self.payload.len() < end {
            self.payload.resize(end, 0);
        }
        self.payload[start..end].copy_from_slice(payload);
        self.parts.push((start, end));
        self.ecn |= 1 << (ip.tos & ecn::ECN_MASK);
        if last {
            self.len = Some(end);
        }
        let had: usize = self.parts.iter().map(|(start, end)| end - start).sum();
        Some(if self.len == Some(had) { Fit::Whole } else { Fit::Partial })
    }

    /// Returns the frame with the whole packet. `None` if its fragments have ECN fields that contradict each other (RFC
    /// 3168, 5.3).
    #[must_use]
    pub fn finish(&self) -> Option<Vec<u8>> {
        const NOT_ECT: u8 = 1;
        const CE: u8 = 1 << 3;
        if self.head.is_empty() || self.ecn & NOT_ECT != 0 && self.ecn != NOT_ECT {
            return None;
        }
        let mut frame = Vec::with_capacity(self.head.len() + self.payload.len());
        frame.extend_from_slice(&self.head);
        frame.extend_from_slice(&self.payload);
        let (head, len) = (self.head.len(), u16::try_from(frame.len() - self.ip).ok()?);
        let header = &mut frame[self.ip..head];
        header[1] |= if self.ecn & CE != 0 { ecn::ECN_MASK } else { 0 };
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[6] &= !((MORE | OFFSET) >> 8) as u8;
        header[7] = 0;
        header[10..12].fill(0);
        let checksum = checksum::sum(header).finish();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        Some(frame)
    }

    /// Returns the start of a fragment.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the number of fragments.
    #[must_use]
    pub const fn fragments(&self) -> usize {
        self.parts.len()
    }

    /// Returns how many bytes it takes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.payload.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pieces;

    /// Makes a frame with an IPv4 packet of this payload and traffic class, in fragments of at most `mtu` bytes.
    fn fragments(payload: usize, tos: u8, mtu: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut whole = vec![0; proto::ETHERNET_LEN];
        whole[12] = 8;
        let len = (proto::IPV4_LEN + payload) as u16;
        whole.extend([
            0x45,
            tos,
            (len >> 8) as u8,
            len as u8,
            0,
            9,
            0,
            0,
            64,
            47,
            0,
            0,
            192,
            0,
            2,
            2,
            192,
            0,
            2,
            1,
        ]);
        whole.extend((0..payload).map(|at| (at % 251) as u8));
        let sum = checksum::sum(&whole[14..34]).finish();
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
        let pieces = Pieces::new(&whole[14..], usize::from(len), mtu).unwrap();
        let cut = pieces.map(|piece| {
            let mut frame = whole[..34].to_vec();
            piece.write_header(&mut frame[14..]);
            frame.extend_from_slice(&whole[34 + piece.at..34 + piece.at + piece.len]);
            frame
        });
        let cut = cut.collect();
        (whole, cut)
    }

    fn add(to: &mut Reassembly, frame: &[u8]) -> Fit {
        to.add(frame, &Headers::ethernet(frame, 0, frame.len()).unwrap())
    }

    #[test]
    fn fragments_in_any_order_make_the_packet() {
        for (payload, mtu) in [(100, 68), (1480, 1400), (9000, 1500), (60_000, 1500), (65_515, 65_000)] {
            let (whole, cut) = fragments(payload, 2, mtu);
            for turn in 0..cut.len().min(5) {
                let mut packet = Reassembly::default();
                let mut order: Vec<_> = cut.iter().collect();
                order.rotate_left(turn);
                if turn % 2 == 1 {
                    order.reverse();
                }
                let (last, others) = order.split_last().unwrap();
                // The Ethernet padding of a short one is no payload.
                assert!(others.iter().all(|one| add(&mut packet, one) == Fit::Partial));
                assert_eq!(add(&mut packet, &[last, &[7; 30][..]].concat()), Fit::Whole);
                assert_eq!(packet.finish().unwrap(), whole, "{payload} {mtu} {turn}");
                assert_eq!((packet.fragments(), packet.bytes()), (cut.len(), payload));
            }
        }
    }

    #[test]
    fn what_came_before_is_told_and_what_overlaps_does_not_fit() {
        let (_, cut) = fragments(300, 0, 120);
        let (_, other) = fragments(300, 0, 68);
        let mut packet = Reassembly::default();
        assert_eq!(add(&mut packet, &cut[1]), Fit::Partial);
        assert_eq!(add(&mut packet, &cut[1]), Fit::Duplicate);
        assert_eq!(add(&mut packet, &other[2]), Fit::Misfit);
        assert_eq!(add(&mut packet, cut.last().unwrap()), Fit::Partial);
        let (_, longer) = fragments(600, 0, 120);
        assert_eq!(add(&mut packet, &longer[4]), Fit::Misfit, "beyond the end");
        let (_, shorter) = fragments(100, 0, 96);
        let mut packet = Reassembly::default();
        assert_eq!(add(&mut packet, &cut[2]), Fit::Partial);
        assert_eq!(add(&mut packet, shorter.last().unwrap()), Fit::Misfit, "an end before the others");
    }

    #[test]
    fn congestion_marks_are_kept_and_contradictions_refused() {
        for (one, other, result) in
            [(0, 0, Some(0)), (2, 2, Some(2)), (2, 3, Some(3)), (3, 1, Some(3)), (0, 3, None), (2, 0, None)]
        {
            let mut packet = Reassembly::default();
            add(&mut packet, &fragments(100, one, 96).1[0]);
            assert_eq!(add(&mut packet, &fragments(100, other, 96).1[1]), Fit::Whole);
            let whole = packet.finish();
            assert_eq!(whole.as_ref().map(|whole| whole[15]), result, "{one} {other}");
            assert!(whole.is_none_or(|whole| checksum::sum(&whole[14..34]).finish() == 0));
        }
    }
}
