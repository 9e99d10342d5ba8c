//! Tunnel headers.

use crate::Encap;
use packet::build::{self, Ipv4, Ipv6};
use packet::{TunnelKind, WriteError, checksum, entropy_port, proto};
use std::net::IpAddr;

/// TTL of outer IP headers and of labels. To the packets inside, a tunnel is one hop (RFC 3443, pipe).
const TTL: u8 = 64;

/// Returns the length of the headers before a tunnel's payload, from the outer Ethernet header on, bytes.
#[must_use]
pub const fn encap_len(encap: &Encap) -> usize {
    proto::ETHERNET_LEN + ip_len(encap) + encap.kind.header_len()
}

const fn ip_len(encap: &Encap) -> usize {
    if encap.dst.is_ipv4() { proto::IPV4_LEN } else { proto::IPV6_LEN }
}

/// Writes the headers of a tunnel: outer Ethernet, IP, UDP or GRE, MPLS, VXLAN or Geneve. `payload` is the length in
/// bytes of the payload that follows them in `frame`.
///
/// IPv4 gets Don't Fragment, unless tunnel packets may be fragmented, and no UDP checksum (RFC 7348, RFC 7510); IPv6 gets a checksum (RFC 8200, 8.1).
///
/// # Errors
/// [`WriteError::TooShort`], also for more than fits an IP packet; [`WriteError::Mismatch`] for outer addresses of two
/// families.
pub fn write_encap(frame: &mut [u8], encap: &Encap, payload: usize) -> Result<usize, WriteError> {
    let total = encap.kind.header_len() + payload;
    let ethertype = if encap.dst.is_ipv4() { proto::ETHERTYPE_IPV4 } else { proto::ETHERTYPE_IPV6 };
    let mut at = build::ethernet(frame, encap.dst_mac, encap.src_mac, ethertype)?;
    at += write_ip(&mut frame[at..], encap, total)?;
    let transport_at = at;
    let udp_len = u16::try_from(total).map_err(|_| WriteError::TooShort)?;
    let sport = entropy_port(encap.entropy);
    at += match encap.kind {
        TunnelKind::MplsUdp => build::udp(&mut frame[at..], sport, proto::PORT_MPLS, udp_len, 0)?,
        TunnelKind::Vxlan => build::udp(&mut frame[at..], sport, proto::PORT_VXLAN, udp_len, 0)?,
        TunnelKind::Geneve => build::udp(&mut frame[at..], sport, proto::PORT_GENEVE, udp_len, 0)?,
        TunnelKind::MplsGre => build::gre(&mut frame[at..], proto::ETHERTYPE_MPLS)?,
    };
    at += match encap.kind {
        TunnelKind::MplsUdp | TunnelKind::MplsGre => build::mpls(&mut frame[at..], encap.id, 0, true, TTL)?,
        TunnelKind::Vxlan => build::vxlan(&mut frame[at..], encap.id)?,
        TunnelKind::Geneve => build::geneve(&mut frame[at..], encap.id)?,
    };
    if encap.dst.is_ipv6() && encap.kind != TunnelKind::MplsGre {
        let datagram = frame.get_mut(transport_at..transport_at + total).ok_or(WriteError::TooShort)?;
        let checksum = checksum::l4(encap.src, encap.dst, proto::UDP, datagram);
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    Ok(at)
}

fn write_ip(out: &mut [u8], encap: &Encap, payload: usize) -> Result<usize, WriteError> {
    let protocol = if encap.kind == TunnelKind::MplsGre { proto::GRE } else { proto::UDP };
    let len16 = |len| u16::try_from(len).map_err(|_| WriteError::TooShort);
    match (encap.src, encap.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let len = len16(proto::IPV4_LEN + payload)?;
            let (tos, dont_fragment) = (encap.tos, encap.dont_fragment);
            let ip = Ipv4 { src, dst, protocol, ttl: TTL, tos, id: 0, dont_fragment, len };
            build::ipv4(out, &ip)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let flow_label = encap.entropy & 0xf_ffff;
            let payload_len = len16(payload)?;
            let (next_header, hop_limit, traffic_class) = (protocol, TTL, encap.tos);
            let ip = Ipv6 { src, dst, next_header, hop_limit, traffic_class, flow_label, payload_len };
            build::ipv6(out, &ip)
        }
        _ => Err(WriteError::Mismatch),
    }
}
