//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

use crate::crc32c::Crc32c;
use crate::{Fragment, Headers, Ip, L4, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A one's complement sum in the making. Takes pieces of any length in sequence, odd ones too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Sum of 16-bit words in memory order, with its carries in the upper bits.
    words: u64,
    /// Whether an odd number of bytes was added, so that the next one is the low byte of its word.
    odd: bool,
}

impl Sum {
    /// Adds bytes.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        self.join(add_words(bytes), bytes.len());
    }

    /// Adds bytes while copying them: the shorter of the two slices' lengths.
    #[inline]
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        let len = dst.len().min(src.len());
        self.join(copy_words(&mut dst[..len], &src[..len]), len);
    }

    /// Adds a 16-bit value at an even place.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.join(u64::from(value.to_be()), 2);
    }

    /// Adds a 32-bit value at an even place.
    #[inline]
    pub fn add_u32(&mut self, value: u32) {
        self.join(u64::from(value.to_be()), 4);
    }

    /// The sum as a 16-bit number in host order; 0xffff over data that includes its valid checksum.
    #[inline]
    #[must_use]
    pub const fn fold(self) -> u16 {
        u16::from_be(fold(self.words))
    }

    /// The checksum: the sum's complement.
    #[inline]
    #[must_use]
    pub const fn finish(self) -> u16 {
        !self.fold()
    }

    #[inline(always)]
    fn join(&mut self, words: u64, len: usize) {
        // Bytes that start at an odd place are swapped within their words, and so is their sum (RFC 1071, 2 B).
        let words = if self.odd { u64::from(fold(words).swap_bytes()) } else { words };
        // Room for 2^16 more such sums before the upper bits overflow.
        self.words = u64::from(fold32(self.words)) + u64::from(fold32(words));
        self.odd ^= len % 2 == 1;
    }
}

/// The sum of some bytes.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum { words: add_words(bytes), odd: bytes.len() % 2 == 1 }
}

/// The folded sum of an IPv4 header without options: a few additions, no loop.
#[inline(always)]
pub(crate) fn sum_ipv4_header(header: &[u8; proto::IPV4_LEN]) -> u16 {
    let (words, _) = header.as_chunks::<4>();
    let mut sum = 0;
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    fold(sum)
}

/// Copies `src` to `dst` (the shorter of their lengths) and returns the sum of what it copied.
#[inline]
pub fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> Sum {
    let mut sum = Sum::default();
    sum.copy(dst, src);
    sum
}

#[inline(always)]
const fn fold32(words: u64) -> u32 {
    let sum = (words & 0xffff_ffff) + (words >> 32);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

#[inline(always)]
const fn fold(words: u64) -> u16 {
    let sum = fold32(words);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Bytes per round: eight 32-bit lanes, which the compiler turns into vector additions.
const ROUND: usize = 32;

/// Sums 32-bit words in 64-bit lanes: no lane overflows below 16 GiB.
#[inline(always)]
fn add_words(bytes: &[u8]) -> u64 {
    let (rounds, rest) = bytes.as_chunks::<ROUND>();
    let mut lanes = [0_u64; ROUND / 4];
    for round in rounds {
        add_round(&mut lanes, round);
    }
    total(&lanes) + add_rest(rest)
}

/// [`add_words`] of what is copied.
#[inline(always)]
fn copy_words(dst: &mut [u8], src: &[u8]) -> u64 {
    let (rounds, rest) = src.as_chunks::<ROUND>();
    let (dst_rounds, dst_rest) = dst.as_chunks_mut::<ROUND>();
    let mut lanes = [0_u64; ROUND / 4];
    for (to, from) in dst_rounds.iter_mut().zip(rounds) {
        *to = *from;
        add_round(&mut lanes, to);
    }
    dst_rest.copy_from_slice(rest);
    total(&lanes) + add_rest(dst_rest)
}

#[inline(always)]
fn add_round(lanes: &mut [u64; ROUND / 4], round: &[u8; ROUND]) {
    let (words, _) = round.as_chunks::<4>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane += u64::from(u32::from_ne_bytes(*word));
    }
}

#[inline(always)]
fn total(lanes: &[u64; ROUND / 4]) -> u64 {
    lanes.iter().map(|lane| u64::from(fold32(*lane))).sum()
}

#[inline(always)]
fn add_rest(rest: &[u8]) -> u64 {
    let (words, tail) = rest.as_chunks::<4>();
    let mut sum = 0;
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// The pseudo-header's sum for an L4 segment of `len` bytes (RFC 9293, 3.1; RFC 8200, 8.1).
///
/// Addresses of different families have no pseudo-header: each is summed as it is.
#[inline]
#[must_use]
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> Sum {
    let mut sum = Sum::default();
    sum.add_u32(len);
    sum.add_u16(u16::from(protocol));
    add_address(&mut sum, src);
    add_address(&mut sum, dst);
    sum
}

#[inline(always)]
fn add_address(sum: &mut Sum, addr: IpAddr) {
    match addr {
        IpAddr::V4(v4) => sum.add(&v4.octets()),
        IpAddr::V6(v6) => sum.add(&v6.octets()),
    }
}

/// The IPv4 pseudo-header's sum.
#[inline]
#[must_use]
pub fn pseudo_header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Sum {
    pseudo_header(src.into(), dst.into(), protocol, u32::from(len))
}

/// The IPv6 pseudo-header's sum.
#[inline]
#[must_use]
pub fn pseudo_header_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Sum {
    pseudo_header(src.into(), dst.into(), protocol, len)
}

/// What replacing some fields does to a checksum over them (RFC 1624, equation 3).
///
/// Fields must lie at even places of the summed data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(Sum);

impl Delta {
    /// Takes note that a 16-bit field was `old` and is `new`.
    #[inline]
    pub fn replace_u16(&mut self, old: u16, new: u16) {
        self.0.add_u16(!old);
        self.0.add_u16(new);
    }

    /// Takes note that a 32-bit field was `old` and is `new`.
    #[inline]
    pub fn replace_u32(&mut self, old: u32, new: u32) {
        self.0.add_u32(!old);
        self.0.add_u32(new);
    }

    /// Takes note that a 16-byte field was `old` and is `new`.
    #[inline]
    pub fn replace_bytes16(&mut self, old: [u8; 16], new: [u8; 16]) {
        self.0.add(&(!u128::from_ne_bytes(old)).to_ne_bytes());
        self.0.add(&new);
    }

    /// The checksum that replaces `checksum`.
    #[inline]
    #[must_use]
    pub fn apply(self, checksum: u16) -> u16 {
        !self.apply_partial(!checksum)
    }

    /// The sum that replaces `sum`: the content of a checksum field that is still to be completed, which holds the
    /// pseudo-header's sum, not complemented.
    #[inline]
    #[must_use]
    pub fn apply_partial(self, sum: u16) -> u16 {
        let mut total = self.0;
        total.add_u16(sum);
        total.fold()
    }
}

/// The checksum after a 16-bit field changed from `old` to `new`.
#[inline]
#[must_use]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    let mut delta = Delta::default();
    delta.replace_u16(old, new);
    delta.apply(checksum)
}

/// The checksum after a 32-bit field changed from `old` to `new`.
#[inline]
#[must_use]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let mut delta = Delta::default();
    delta.replace_u32(old, new);
    delta.apply(checksum)
}

/// The checksum after a 16-byte field changed from `old` to `new`.
#[inline]
#[must_use]
pub fn update_bytes16(checksum: u16, old: [u8; 16], new: [u8; 16]) -> u16 {
    let mut delta = Delta::default();
    delta.replace_bytes16(old, new);
    delta.apply(checksum)
}

/// The checksum of an L4 `segment` whose checksum field is zero. A UDP checksum of 0 is sent as 0xffff (RFC 768).
#[must_use]
pub fn l4(src: IpAddr, dst: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let mut sum = match protocol {
        proto::ICMP => Sum::default(),
        _ => pseudo_header(src, dst, protocol, segment.len() as u32),
    };
    sum.add(segment);
    match sum.finish() {
        0 if protocol == proto::UDP => 0xffff,
        checksum => checksum,
    }
}

/// Why an L4 checksum can't be vouched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Check {
    /// It is right.
    Right,
    /// It is wrong.
    Wrong,
    /// There is none: UDP's is 0, the protocol has none that is known here, or it is a fragment.
    Absent,
    /// Not all of the packet is at hand.
    TooShort,
}

/// Checks the L4 checksum of the packet that `headers` were parsed from; SCTP's is a CRC-32C (RFC 9260, appendix A).
#[must_use]
pub fn verify_l4(bytes: &[u8], headers: &Headers) -> L4Check {
    let Some(ip) = headers.ip() else { return L4Check::Absent };
    if headers.l4 == L4::Other || ip.fragment != Fragment::Whole {
        return L4Check::Absent;
    }
    let end = usize::from(ip.at) + ip.len as usize;
    let Some(mut segment) = bytes.get(usize::from(headers.l4_at)..end) else { return L4Check::TooShort };
    let right = match headers.l4 {
        L4::Sctp { .. } => sctp_right(segment),
        L4::Udp { .. } => {
            let [.., l0, l1, c0, c1] = *segment.first_chunk::<8>().unwrap_or(&[0; 8]);
            if [c0, c1] == [0, 0] {
                return L4Check::Absent;
            }
            segment = segment.get(..usize::from(u16::from_be_bytes([l0, l1]))).unwrap_or(segment);
            internet_right(ip, segment)
        }
        _ => internet_right(ip, segment),
    };
    if right { L4Check::Right } else { L4Check::Wrong }
}

fn internet_right(ip: &Ip, segment: &[u8]) -> bool {
    let mut sum = match ip.protocol {
        proto::ICMP => Sum::default(),
        _ => pseudo_header(ip.src, ip.dst, ip.protocol, segment.len() as u32),
    };
    sum.add(segment);
    sum.fold() == 0xffff
}

fn sctp_right(segment: &[u8]) -> bool {
    let Some((head, chunks)) = segment.split_first_chunk::<{ proto::SCTP_LEN }>() else { return false };
    let [ports @ .., c0, c1, c2, c3] = *head;
    let ports: [u8; 8] = ports;
    let mut crc = Crc32c::default();
    crc.add(&ports);
    crc.add(&[0; 4]);
    crc.add(chunks);
    crc.finish() == u32::from_le_bytes([c0, c1, c2, c3])
}
