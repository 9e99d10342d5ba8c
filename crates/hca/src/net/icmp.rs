//! ICMP messages to a guest, as far as they concern its verbs device.

use packet::{Headers, L4, proto};
use rdma::cm::QUOTED;
use std::net::IpAddr;

/// Length of the headers of a datagram to a connection manager: UDP, BTH, DETH.
const BEFORE: usize = proto::UDP_LEN + 12 + 8;
/// The code of an unreachable destination that only means a packet too long.
const TOO_LONG: u8 = 4;

/// A message of the connection manager that does not reach its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undelivered {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The first bytes of its MAD.
    pub head: [u8; QUOTED],
}

/// Reads an ICMP message. Returns the message of the connection manager that it reports as undelivered, if it does;
/// `None` if the frame is no ICMP message. The sender may lie.
pub(crate) fn read(frame: &[u8]) -> Option<Option<Undelivered>> {
    let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
    let L4::Icmp { kind, code, .. } = headers.l4 else { return None };
    let is_unreachable = match headers.ip()?.src {
        IpAddr::V4(_) => kind == proto::ICMP_UNREACHABLE && code != TOO_LONG,
        IpAddr::V6(_) => kind == proto::ICMPV6_UNREACHABLE,
    };
    Some(if is_unreachable { undelivered(&headers, frame) } else { None })
}

fn undelivered(headers: &Headers, frame: &[u8]) -> Option<Undelivered> {
    let end = usize::from(headers.ip()?.at) + headers.ip()?.len as usize;
    let quoted = headers.quoted(frame, frame.len()).ok()??;
    let (ip, at) = (quoted.ip()?, usize::from(quoted.l4_at));
    if !matches!(quoted.l4, L4::Udp { dst: proto::PORT_ROCE, .. }) {
        return None;
    }
    let head = *frame.get(at + BEFORE..end.min(frame.len()))?.first_chunk()?;
    Some(Undelivered { source: ip.src, destination: ip.dst, head })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(crate) mod tests {
    use super::*;
    use crate::base::header::NetworkHeader;
    use crate::net::frame::{self, FrameHeader};
    use packet::Mac;
    use packet::reply::{IcmpError, icmp_error};
    use packet::roce::cm::MAD_LEN;
    use std::net::Ipv6Addr;

    /// Makes the error that a router sends for a guest's frame with these bytes as UDP payload.
    pub(crate) fn answered(addresses: [&str; 3], payload: &[u8], error: IcmpError) -> Vec<u8> {
        let [source, destination, router] = addresses.map(|text| text.parse::<IpAddr>().unwrap());
        let gid = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let [source, destination]: [Ipv6Addr; 2] = [source, destination].map(gid);
        let header = NetworkHeader { source, destination, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let mut sent = vec![0; frame::len(&header, payload.len())];
        let headers = FrameHeader { mac: Mac([2, 0, 0, 0, 0, 1]), network: &header, source_port: 0xc001 };
        frame::write(&mut sent, &headers, payload).unwrap();
        let parsed = Headers::ethernet(&sent, 0, sent.len()).unwrap();
        let mut error_frame = vec![0; 2000];
        let mac = Mac([0, 0, 0x5e, 0, 1, 0]);
        let len = icmp_error(&mut error_frame, &sent, &parsed, error, mac, router);
        error_frame.truncate(len.unwrap());
        error_frame
    }

    #[test]
    fn the_head_of_what_can_not_be_delivered_is_found() {
        let payload: Vec<u8> = (0..=255).cycle().take(20 + MAD_LEN + 4).collect();
        for addresses in [["10.0.0.1", "10.0.0.2", "10.0.0.254"], ["fd00::1", "fd00::2", "fd00::fe"]] {
            let frame = answered(addresses, &payload, IcmpError::HostUnreachable);
            let found = read(&frame).unwrap().unwrap();
            assert_eq!([found.source, found.destination].map(|ip| ip.to_string()), addresses[..2]);
            assert_eq!(found.head[..], (20..48).collect::<Vec<u8>>());
            assert!(read(&answered(addresses, &payload, IcmpError::TimeExceeded)).unwrap().is_none());
            for len in 0..frame.len() {
                assert!(read(&frame[..len]).is_none(), "{len}");
            }
        }
    }

    /// An error with some bytes changed, cut off somewhere: what it tells of lies in it.
    #[test]
    fn any_icmp_message_is_read_or_left() {
        let payload: Vec<u8> = (0..=255).cycle().take(20 + MAD_LEN + 4).collect();
        let family = |addresses| answered(addresses, &payload, IcmpError::HostUnreachable);
        let frames = [["10.0.0.1", "10.0.0.2", "10.0.0.254"], ["fd00::1", "fd00::2", "fd00::fe"]].map(family);
        bolero::check!().with_type::<(bool, Vec<(u8, u8)>, u8)>().for_each(|(v6, changes, cut)| {
            let mut frame = frames[usize::from(*v6)].clone();
            for (at, value) in changes {
                frame[usize::from(*at)] = *value;
            }
            frame.truncate(frame.len() - usize::from(cut.saturating_sub(128)));
            if let Some(Some(told)) = read(&frame) {
                assert!(frame.windows(QUOTED).any(|part| part == told.head));
                assert_eq!(told.source.is_ipv4(), told.destination.is_ipv4());
            }
        });
    }
}
