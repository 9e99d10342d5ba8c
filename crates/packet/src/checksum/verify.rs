//! Verification of a received packet's L4 checksum.

use super::{Sum, pseudo_header};
use crate::crc32c::Crc32c;
use crate::{Fragment, Headers, Ip, L4, proto};

/// The result of checking an L4 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Check {
    /// It is right.
    Right,
    /// It is wrong.
    Wrong,
    /// Not checked: a UDP checksum of 0, a protocol that has none or is unknown, or a fragment.
    Absent,
    /// `bytes` ends before the packet does.
    TooShort,
}

/// Checks the L4 checksum of the packet that `headers` were parsed from. SCTP has a CRC-32C (RFC 9260,
/// appendix A).
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
