//! Options of a client's SYN that the stack must not see.

use packet::checksum::update_u16;
use packet::proto;

/// Kinds of options (RFC 9293, 3.1; RFC 2018, 2).
const END: u8 = 0;
const NOTHING: u8 = 1;
const SACK_PERMITTED: u8 = 4;
/// Where a segment has its checksum.
const SUM: usize = proto::TCP_LEN - 4;

/// Returns an IP packet with a SYN that begins at `at` and has a header of so many bytes, without the permission of
/// selective acknowledgements: smoltcp 0.12 computes those wrong, with an overflow, for sequence numbers near 2^32.
pub(super) fn without_sack(packet: &[u8], at: usize, header_len: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(header) = packet.get_mut(at..at + header_len) {
        let mut from = proto::TCP_LEN;
        while let Some((option, len)) = next(header, from) {
            if option == [SACK_PERMITTED, 2] {
                erase(header, from);
            }
            from += len;
        }
    }
    packet
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

/// Writes two options over the one of two bytes at a place, which say nothing, and mends the checksum.
fn erase(header: &mut [u8], at: usize) {
    // At an odd place the two bytes belong to two words, and sum up as one with its bytes swapped.
    let (old, new) = ([SACK_PERMITTED, 2], [NOTHING; 2]);
    let old = if at.is_multiple_of(2) { u16::from_be_bytes(old) } else { u16::from_le_bytes(old) };
    if let Some(option) = header.get_mut(at..at + 2) {
        option.copy_from_slice(&new);
    }
    if let Some(sum) = header.get_mut(SUM..).and_then(<[u8]>::first_chunk_mut) {
        *sum = update_u16(u16::from_be_bytes(*sum), old, u16::from_be_bytes(new)).to_be_bytes();
    }
}
