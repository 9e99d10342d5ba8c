//! Fragmentation of IPv4 packets (RFC 791, 3.2).

use crate::{checksum, proto};

/// Bytes of a fragment's payload come in blocks of this size.
pub(crate) const BLOCK: usize = 8;
/// More fragments follow, as a bit of the header's field.
pub(crate) const MORE: u16 = 0x2000;
pub(crate) const OFFSET: u16 = 0x1fff;
/// A link's least MTU, bytes (RFC 791, 3.2).
const MIN_MTU: usize = 68;

/// The pieces into which an IPv4 packet is cut, in order.
#[derive(Clone, Debug)]
pub struct Pieces {
    header_len: usize,
    payload: usize,
    /// Most bytes of payload in a piece, a multiple of [`BLOCK`].
    most: usize,
    /// Offset of the next piece in the payload.
    at: usize,
}

/// A piece of an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the payload of the packet, bytes.
    pub at: usize,
    /// Bytes of payload.
    pub len: usize,
    /// Whether it is the packet's end.
    pub last: bool,
}

impl Pieces {
    /// Cuts an IPv4 packet of `len` bytes, whose first bytes are `head`, into pieces that fit this MTU, bytes. `None`
    /// if the MTU is less than any link of IPv4 may have, or the lengths do not fit each other: a fragment that ends
    /// beyond the longest packet would get pieces that begin another one.
    #[must_use]
    pub fn new(head: &[u8], len: usize, mtu: usize) -> Option<Self> {
        let fixed: &[u8; proto::IPV4_LEN] = head.first_chunk()?;
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        let offset = usize::from(u16::from_be_bytes([fixed[6], fixed[7]]) & OFFSET) * BLOCK;
        let payload = len.checked_sub(header_len)?;
        let is_sound = header_len >= proto::IPV4_LEN && offset + len <= usize::from(u16::MAX);
        let most = mtu.checked_sub(header_len)? / BLOCK * BLOCK;
        (is_sound && mtu >= MIN_MTU).then_some(Self { header_len, payload, most, at: 0 })
    }

    /// Returns the length of the header, bytes.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.header_len
    }

    /// Returns the number of pieces.
    #[must_use]
    pub const fn number(&self) -> usize {
        let number = self.payload.div_ceil(self.most);
        if number == 0 { 1 } else { number }
    }

    /// Returns the bytes of all pieces, headers included.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.number() * self.header_len + self.payload
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let left = self.payload.checked_sub(self.at).filter(|left| *left > 0 || self.at == 0)?;
        let piece = Piece { at: self.at, len: left.min(self.most), last: left <= self.most };
        self.at += piece.len.max(1);
        Some(piece)
    }
}

impl Piece {
    /// Turns the packet's header into that of the piece: length, place, checksum. Options that only the first
    /// fragment has are overwritten in the others. A packet that is a fragment itself may be cut further.
    pub fn write_header(&self, header: &mut [u8]) {
        let total = (header.len() + self.len) as u16;
        let Some((fixed, options)) = header.split_at_mut_checked(proto::IPV4_LEN) else { return };
        fixed[2..4].copy_from_slice(&total.to_be_bytes());
        let field = u16::from_be_bytes([fixed[6], fixed[7]]);
        let offset = (field & OFFSET).wrapping_add((self.at / BLOCK) as u16) & OFFSET;
        let more = if self.last { field & MORE } else { MORE };
        fixed[6..8].copy_from_slice(&(field & !(OFFSET | MORE) | offset | more).to_be_bytes());
        if self.at > 0 {
            blank_options(options);
        }
        header[10..12].fill(0);
        let checksum = checksum::sum(header).finish();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Overwrites options without the flag "copied" by ones without meaning.
fn blank_options(mut options: &mut [u8]) {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    while let Some(&kind) = options.first() {
        let len = match (kind, options.get(1)) {
            (END, _) => return,
            (NO_OPERATION, _) => 1,
            (_, Some(&len)) if len >= 2 => usize::from(len).min(options.len()),
            _ => return,
        };
        let (option, rest) = options.split_at_mut(len);
        if kind & COPIED == 0 {
            option.fill(NO_OPERATION);
        }
        options = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(options: &[u8]) -> Vec<u8> {
        let mut header = vec![0; proto::IPV4_LEN];
        header[0] = 0x40 | ((proto::IPV4_LEN + options.len()) / 4) as u8;
        header.extend(options);
        header
    }

    #[test]
    fn pieces_make_the_whole_and_fit() {
        for header_len in [20, 24, 60] {
            for len in [header_len, header_len + 1, 576, 1500, 1501, 65535] {
                for mtu in [68, 69, 576, 1480, 1500, 9000] {
                    let pieces = Pieces::new(&header(&vec![1; header_len - 20]), len, mtu).unwrap();
                    let (count, total) = (pieces.number(), pieces.total());
                    let pieces: Vec<_> = pieces.collect();
                    assert_eq!(pieces.len(), count, "{header_len} {len} {mtu}");
                    assert_eq!(pieces.iter().map(|piece| header_len + piece.len).sum::<usize>(), total);
                    let ends = pieces.iter().map(|piece| piece.at + piece.len);
                    let starts = pieces.iter().skip(1).map(|piece| piece.at).chain([len - header_len]);
                    assert!(ends.eq(starts), "no gap and no overlap");
                    let fits = |piece: &Piece| {
                        header_len + piece.len <= mtu && (piece.last || piece.len.is_multiple_of(8))
                    };
                    assert!(pieces.iter().all(fits));
                    assert!(pieces.iter().rev().skip(1).all(|piece| !piece.last) && pieces[count - 1].last);
                }
            }
        }
        assert!(
            Pieces::new(&header(&[]), 1500, 67).is_none() && Pieces::new(&header(&[]), 19, 1500).is_none()
        );
    }

    #[test]
    fn a_fragment_is_cut_into_fragments_of_the_same_packet() {
        let mut head = header(&[]);
        head[6..8].copy_from_slice(&(MORE | 10).to_be_bytes());
        let field = |piece: Piece| {
            let mut head = head.clone();
            piece.write_header(&mut head);
            assert_eq!(checksum::sum(&head).finish(), 0);
            (u16::from_be_bytes([head[2], head[3]]), u16::from_be_bytes([head[6], head[7]]))
        };
        let fields: Vec<_> = Pieces::new(&head, 20 + 96, 68).unwrap().map(field).collect();
        assert_eq!(fields, [(68, MORE | 10), (68, MORE | 16)], "more follow the last piece");
        // This one ends beyond the longest packet.
        head[6..8].copy_from_slice(&8000_u16.to_be_bytes());
        assert!(Pieces::new(&head, 1535, 576).is_some() && Pieces::new(&head, 1536, 576).is_none());
    }

    #[test]
    fn only_the_first_piece_has_options_that_are_not_copied() {
        // Record route (not copied), no operation, router alert (copied), end.
        let mut head = header(&[7, 3, 4, 1, 0x94, 4, 0, 0, 0, 9, 9, 9]);
        let whole = head.clone();
        Piece { at: 0, len: 8, last: false }.write_header(&mut head);
        assert_eq!(head[20..], whole[20..]);
        Piece { at: 8, len: 8, last: true }.write_header(&mut head);
        assert_eq!(head[20..], [1, 1, 1, 1, 0x94, 4, 0, 0, 0, 9, 9, 9]);
        // Options that are cut off end nothing.
        Piece { at: 8, len: 8, last: true }.write_header(&mut header(&[7, 200, 0, 0]));
    }
}
