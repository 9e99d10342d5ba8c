//! The invariant CRC (IBTA 7.8.1 and annex A17.3): Ethernet's CRC-32 over eight bytes of ones and the packet from its
//! IP header on, with ones in place of the fields that routers may change.

use super::BTH_LEN;
use crate::proto;

/// Bytes of the invariant CRC.
pub const ICRC_LEN: usize = 4;

/// Longest headers with masked fields, bytes: IPv4 with options, or IPv6; UDP; BTH.
const MASKED: usize = 60 + proto::UDP_LEN + BTH_LEN;

/// Returns the invariant CRC of `packet` in wire order. The packet starts at the IP header and ends before
/// the CRC. `None` if the packet isn't UDP with a BTH.
#[must_use]
pub fn icrc(packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let mut head = [0; MASKED];
    let udp_at = match packet.first()? >> 4 {
        4 => Some(usize::from(packet[0] & 15) * 4).filter(|len| *len >= proto::IPV4_LEN)?,
        6 => proto::IPV6_LEN,
        _ => return None,
    };
    let end = udp_at + proto::UDP_LEN + BTH_LEN;
    let (masked, rest) = packet.split_at_checked(end)?;
    let head = head.get_mut(..end)?;
    head.copy_from_slice(masked);
    if packet[0] >> 4 == 4 {
        // TOS, TTL, checksum.
        for at in [1, 8, 10, 11] {
            head[at] = 0xff;
        }
    } else {
        // Traffic class, flow label, hop limit.
        head[0] |= 0x0f;
        head[1..4].fill(0xff);
        head[7] = 0xff;
    }
    // UDP checksum; BTH's congestion bits and reserved ones.
    head[udp_at + 6..udp_at + 8].fill(0xff);
    head[udp_at + proto::UDP_LEN + 4] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(head);
    crc.update(rest);
    Some(crc.finalize().to_le_bytes())
}

/// Returns whether the invariant CRC of `packet` is right. The packet starts at the IP header and ends with
/// the CRC.
#[must_use]
pub fn has_right_icrc(packet: &[u8]) -> bool {
    let Some((covered, found)) = packet.split_last_chunk() else { return false };
    icrc(covered).is_some_and(|expected| expected == *found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An acknowledgement: PSN 100, MSN 1, to queue pair 0x12.
    const ACK: [u8; 48] = [
        0x45, 0x02, 0x00, 0x30, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x26, 0xb9, 0x0a, 0x00, 0x00, 0x01, 0x0a,
        0x00, 0x00, 0x02, 0xc0, 0x12, 0x12, 0xb7, 0x00, 0x1c, 0x00, 0x00, 0x11, 0x40, 0xff, 0xff, 0x00, 0x00,
        0x00, 0x12, 0x00, 0x00, 0x00, 0x64, 0x1f, 0x00, 0x00, 0x01, 0x07, 0xcf, 0x7e, 0x43,
    ];

    #[test]
    fn a_known_packet_has_the_crc_that_scapy_computes() {
        assert!(has_right_icrc(&ACK));
    }

    #[test]
    fn what_routers_change_is_left_out_and_nothing_else() {
        let free = [1, 8, 10, 11, 26, 27, 32];
        for at in 0..ACK.len() {
            let mut changed = ACK;
            // Version and header length determine how the packet is parsed.
            changed[at] ^= if at == 0 { 0x10 } else { 0x81 };
            assert_eq!(has_right_icrc(&changed), free.contains(&at), "byte {at}");
        }
    }

    #[test]
    fn what_is_no_packet_has_none() {
        for len in 0..40 {
            assert_eq!(icrc(&ACK[..len]), None);
            assert!(!has_right_icrc(&ACK[..len]));
        }
        assert_eq!(icrc(&[0x55; 60]), None);
        assert_eq!(icrc(&[0x41; 60]).map(|_| ()), None, "header length below 20");
    }
}
