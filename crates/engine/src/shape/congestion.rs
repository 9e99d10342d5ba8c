//! Marks congestion in packets whose ends do ECN (RFC 3168).

use packet::checksum::update_u16;

/// Bytes of a frame that are looked at: Ethernet with two tags, and the first two of IP's checksum.
pub(super) const LOOKED_AT: usize = 14 + 8 + 12;

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Congestion experienced, in the last two bits of the traffic class.
const CE: u16 = 3;

/// Marks the packet in a frame that begins with these bytes. False if its ends do no ECN, or it is not IP.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    try_mark(frame).unwrap_or(false)
}

fn try_mark(frame: &mut [u8]) -> Option<bool> {
    let word =
        |frame: &[u8], at: usize| frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut at = 12;
    while VLAN.contains(&word(frame, at)?) {
        at += 4;
    }
    let (ethertype, ip) = (word(frame, at)?, at + 2);
    let before = word(frame, ip)?;
    // The first word of both headers holds the traffic class, at different places.
    let after = match ethertype {
        IPV4 => before | CE,
        IPV6 => before | CE << 4,
        _ => return None,
    };
    let class = if ethertype == IPV4 { before & CE } else { before >> 4 & CE };
    if class == 0 {
        return Some(false);
    }
    if ethertype == IPV4 {
        let sum = update_u16(word(frame, ip + 10)?, before, after);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame[ip..ip + 2].copy_from_slice(&after.to_be_bytes());
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::checksum::sum;

    fn ipv4(tags: &[u8], tos: u8) -> Vec<u8> {
        let mut ip = vec![0x45, tos, 0, 40, 1, 2, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = sum(&ip).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        [&[2; 12], tags, &[8, 0], &ip].concat()
    }

    fn ipv6(class: u8) -> Vec<u8> {
        let mut frame = [&[2; 12][..], &[0x86, 0xdd], &[0; 40]].concat();
        frame[14] = 0x60 | class >> 4;
        frame[15] = class << 4;
        frame
    }

    #[test]
    fn what_does_ecn_is_marked_and_its_checksum_stays_right() {
        for tags in [&[][..], &[0x81, 0, 0, 7], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8]] {
            for tos in [0xb9, 0xba, 0xbb] {
                let mut frame = ipv4(tags, tos);
                assert!(mark(&mut frame[..LOOKED_AT]));
                assert_eq!(frame, ipv4(tags, 0xbb));
            }
        }
        for class in [0xb9, 0xba, 0xbb] {
            let mut frame = ipv6(class);
            assert!(mark(&mut frame));
            assert_eq!(frame, ipv6(0xbb));
        }
    }

    #[test]
    fn what_does_no_ecn_is_left_as_it_is() {
        for frame in [ipv4(&[], 0xb8), ipv6(0xb8), vec![0; 60], vec![8; 13], vec![0x81; 60]] {
            let mut marked = frame.clone();
            assert!(!mark(&mut marked));
            assert_eq!(marked, frame);
        }
    }
}
