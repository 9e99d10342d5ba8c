//! Options of a client's SYN that the stack must not see as they are.

use packet::checksum::update_u16;
use packet::proto;

/// Kinds of options (RFC 9293, 3.1; RFC 2018, 2).
const END: u8 = 0;
const NOTHING: u8 = 1;
const LONGEST_SEGMENT: u8 = 2;
const SACK_PERMITTED: u8 = 4;
/// Smallest segment that every host takes, bytes (RFC 9293, 3.7.1).
const SMALLEST: u16 = 536;
/// The place of the checksum in a segment.
const SUM: usize = proto::TCP_LEN - 4;

/// Returns an IP packet with a SYN that begins at `at` and has a header of so many bytes, with options that the stack
/// bears. The permission of selective acknowledgements is erased: smoltcp 0.12 computes those wrong, with an overflow,
/// for sequence numbers near 2^32. Small segments become as long as every host takes: otherwise one request could have
/// thousands of packets for an answer.
pub(super) fn tamed(packet: &[u8], at: usize, header_len: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(header) = packet.get_mut(at..at + header_len) {
        let mut from = proto::TCP_LEN;
        while let Some((option, len)) = next(header, from) {
            match option {
                [SACK_PERMITTED, 2] => put(header, from, [NOTHING; 2]),
                [LONGEST_SEGMENT, 4] => put_longest(header, from + 2),
                _ => {}
            }
            from += len;
        }
    }
    packet
}

/// Raises the longest segment that is written at a place.
fn put_longest(header: &mut [u8], at: usize) {
    let longest = header.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u16::from_be_bytes(*bytes));
    if longest.is_some_and(|longest| longest < SMALLEST) {
        put(header, at, SMALLEST.to_be_bytes());
    }
}

/// Returns the kind and the length of the option at a place, as they are written, and how long it is.
fn next(header: &[u8], at: usize) -> Option<([u8; 2], usize)> {
    match *header.get(at..)? {
        [] | [END, ..] => None,
        [NOTHING, ..] => Some(([NOTHING, 1], 1)),
        // The stack refuses them.
        [_] | [_, 0 | 1, ..] => None,
        [kind, len, ..] => Some(([kind, len], len.into())),
    }
}

/// Writes two bytes over those at a place, and mends the checksum.
fn put(header: &mut [u8], at: usize, new: [u8; 2]) {
    let Some(place) = header.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else { return };
    let old = std::mem::replace(place, new);
    // At an odd place the two bytes belong to two words, and sum up as one with its bytes swapped.
    let word =
        |bytes| if at.is_multiple_of(2) { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) };
    if let Some(sum) = header.get_mut(SUM..).and_then(<[u8]>::first_chunk_mut) {
        *sum = update_u16(u16::from_be_bytes(*sum), word(old), word(new)).to_be_bytes();
    }
}
