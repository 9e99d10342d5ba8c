//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

mod delta;
mod verify;

pub use delta::{Delta, update_u16};
pub use verify::{L4Check, verify_l4};

use crate::proto;
use std::net::IpAddr;

/// A running one's complement sum. It takes pieces of any length in sequence, odd ones too.
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

    /// Adds bytes while copying them: as many as the shorter of the two slices holds.
    #[inline]
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        let len = dst.len().min(src.len());
        self.join(copy_words(&mut dst[..len], &src[..len]), len);
    }

    /// Adds a 16-bit value at an even offset.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.join(u64::from(value.to_be()), 2);
    }

    /// Adds a 32-bit value at an even offset.
    #[inline]
    pub fn add_u32(&mut self, value: u32) {
        self.join(u64::from(value.to_be()), 4);
    }

    /// Returns the sum as a 16-bit number in host order; 0xffff over data that includes its valid checksum.
    #[inline]
    #[must_use]
    pub const fn fold(self) -> u16 {
        u16::from_be(fold(self.words))
    }

    /// Returns the checksum: the sum's complement.
    #[inline]
    #[must_use]
    pub const fn finish(self) -> u16 {
        !self.fold()
    }

    #[inline(always)]
    fn join(&mut self, words: u64, len: usize) {
        // Bytes that start at an odd offset are swapped within their words, and so is their sum (RFC 1071, 2 B).
        let words = if self.odd { u64::from(fold(words).swap_bytes()) } else { words };
        // Two 32-bit sums: the upper half never overflows, however many are joined.
        self.words = u64::from(fold32(self.words)) + u64::from(fold32(words));
        self.odd ^= len % 2 == 1;
    }
}

/// Returns the sum of some bytes.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum { words: add_words(bytes), odd: bytes.len() % 2 == 1 }
}

/// Returns the folded sum of an IPv4 header without options. This takes a few additions and no loop.
#[inline(always)]
pub(crate) fn sum_ipv4_header(header: &[u8; proto::IPV4_LEN]) -> u16 {
    let (words, _) = header.as_chunks::<4>();
    let mut sum = 0;
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    fold(sum)
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

/// Copies bytes and returns their sum, as [`add_words`] does.
#[inline(always)]
fn copy_words(dst: &mut [u8], src: &[u8]) -> u64 {
    let (rounds, rest) = src.as_chunks::<ROUND>();
    let (dst_rounds, dst_rest) = dst.as_chunks_mut::<ROUND>();
    let mut lanes = [0_u64; ROUND / 4];
    for (to, from) in dst_rounds.iter_mut().zip(rounds) {
        *to = *from;
        add_round(&mut lanes, from);
    }
    dst_rest.copy_from_slice(rest);
    total(&lanes) + add_rest(rest)
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

/// Returns the pseudo-header's sum for an L4 segment of `len` bytes (RFC 9293, 3.1; RFC 8200, 8.1).
///
/// Addresses of different families have no pseudo-header; each is then summed as it is.
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

/// Returns the checksum of an L4 `segment` whose checksum field is zero. A UDP checksum of 0 is sent as
/// 0xffff (RFC 768).
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
