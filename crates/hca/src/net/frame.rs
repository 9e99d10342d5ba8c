//! RoCE packets in Ethernet frames, as a guest's port sends and receives them.

use crate::base::header::{NetworkHeader, is_group};
use packet::roce::{self, ICRC_LEN};
use packet::{Headers, L4, Mac, WriteError, build, neighbour, proto};
use std::net::{IpAddr, Ipv6Addr};

/// The MAC of the vRouter, which routes packets (RFC 5798's virtual router MAC).
const ROUTER: Mac = Mac([0, 0, 0x5e, 0, 1, 0]);

/// Returns the destination MAC of packets to an address: the group's (RFC 1112, 6.4; RFC 2464, 7), or the
/// vRouter's.
fn mac_towards(destination: Ipv6Addr) -> Mac {
    match destination.to_ipv4_mapped().map(|v4| v4.octets()) {
        _ if !is_group(destination) => ROUTER,
        Some([_, b, c, d]) => Mac([0x01, 0, 0x5e, b & 0x7f, c, d]),
        None => neighbour::multicast_mac(destination),
    }
}

/// Returns the length of a frame with this network header and UDP payload, bytes.
pub(crate) const fn len(header: &NetworkHeader, payload: usize) -> usize {
    proto::ETHERNET_LEN + header.len() + proto::UDP_LEN + payload
}

/// The fields that a sender chooses in the headers of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHeader<'a> {
    /// The source MAC.
    pub mac: Mac,
    pub network: &'a NetworkHeader,
    /// The UDP source port.
    pub source_port: u16,
}

/// Writes a frame. Its UDP payload has room for the ICRC at its end.
pub(crate) fn write(frame: &mut [u8], headers: &FrameHeader<'_>, payload: &[u8]) -> Result<(), WriteError> {
    let FrameHeader { mac, network: header, source_port } = *headers;
    let ethertype = if header.is_v4() { proto::ETHERTYPE_IPV4 } else { proto::ETHERTYPE_IPV6 };
    let ip_at = build::ethernet(frame, mac_towards(header.destination), mac, ethertype)?;
    let udp_len = proto::UDP_LEN + payload.len();
    let udp_at = ip_at + header.write(&mut frame[ip_at..], udp_len)?;
    // No checksum: the ICRC covers more (IBTA A17.4.5.1).
    let at = udp_at + build::udp(&mut frame[udp_at..], source_port, proto::PORT_ROCE, udp_len as u16, 0)?;
    frame[at..].copy_from_slice(payload);
    let end = frame.len() - ICRC_LEN;
    if let Some(icrc) = roce::icrc(&frame[ip_at..end]) {
        frame[end..].copy_from_slice(&icrc);
    }
    Ok(())
}

/// Parses a RoCE frame. Returns the network header, the offsets of IP and UDP header, and the packet's end. `None`
/// if the frame has no whole RoCE packet.
pub(crate) fn datagram(frame: &[u8]) -> Option<(NetworkHeader, usize, usize, usize)> {
    let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
    let ip = headers.ip()?;
    if !matches!(headers.l4, L4::Udp { dst: proto::PORT_ROCE, .. }) {
        return None;
    }
    let (ip_at, udp_at) = (usize::from(ip.at), usize::from(headers.l4_at));
    let end = ip_at + ip.len as usize;
    let udp_len = frame.get(udp_at + 4..udp_at + 6).map(|len| u16::from_be_bytes([len[0], len[1]]))?;
    if end > frame.len() || udp_at + usize::from(udp_len) != end || end < udp_at + proto::UDP_LEN {
        return None;
    }
    let gid = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let head = &frame[ip_at..];
    let is_v4 = head[0] >> 4 == 4;
    let header = NetworkHeader {
        source: gid(ip.src),
        destination: gid(ip.dst),
        traffic_class: if is_v4 { head[1] } else { head[0] << 4 | head[1] >> 4 },
        hop_limit: if is_v4 { head[8] } else { head[7] },
        flow_label: if is_v4 { 0 } else { u32::from_be_bytes([0, head[1] & 15, head[2], head[3]]) },
    };
    Some((header, ip_at, udp_at, end))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn header(v4: bool) -> NetworkHeader {
        let address = |n: u8| match v4 {
            true => std::net::Ipv4Addr::new(10, 0, 0, n).to_ipv6_mapped(),
            false => format!("fd00::{n}").parse().unwrap(),
        };
        NetworkHeader {
            source: address(1),
            destination: address(2),
            traffic_class: 0x6a,
            hop_limit: 9,
            flow_label: 0,
        }
    }

    #[test]
    fn what_is_sent_can_be_received() {
        for v4 in [true, false] {
            let bytes: Vec<u8> = (0..101).collect();
            let mut frame = vec![0; if v4 { 14 + 20 } else { 14 + 40 } + 8 + bytes.len()];
            let mac = Mac([2, 0, 0, 0, 0, 1]);
            let headers = FrameHeader { mac, network: &header(v4), source_port: 0xc001 };
            write(&mut frame, &headers, &bytes).unwrap();
            let (found, ip_at, udp_at, end) = datagram(&frame).unwrap();
            assert_eq!((found, end), (header(v4), frame.len()));
            assert!(roce::has_right_icrc(&frame[ip_at..end]));
            assert_eq!(frame[udp_at + 8..end - 4], bytes[..97]);
            for len in 0..frame.len() {
                assert!(datagram(&frame[..len]).is_none(), "{len}");
            }
        }
    }

    #[test]
    fn groups_have_macs_of_their_own() {
        for (destination, mac) in [
            ("::ffff:239.129.2.3", "01:00:5e:01:02:03"),
            ("ff0e::1:2", "33:33:00:01:00:02"),
            ("::ffff:10.0.0.2", "00:00:5e:00:01:00"),
            ("fd00::2", "00:00:5e:00:01:00"),
        ] {
            assert_eq!(mac_towards(destination.parse().unwrap()).to_string(), mac);
        }
    }
}
