//! Writers of single headers. Each writes at the start of a buffer and returns how many bytes it wrote.

use crate::{Arp, Mac, WriteError, checksum, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Writes a header whose length is known.
pub(crate) fn put<const N: usize>(out: &mut [u8], header: [u8; N]) -> Result<usize, WriteError> {
    *out.first_chunk_mut().ok_or(WriteError::TooShort)? = header;
    Ok(N)
}

/// Writes an Ethernet header.
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn ethernet(out: &mut [u8], dst: Mac, src: Mac, ethertype: u16) -> Result<usize, WriteError> {
    let mut header = [0; proto::ETHERNET_LEN];
    header[..6].copy_from_slice(&dst.0);
    header[6..12].copy_from_slice(&src.0);
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
    put(out, header)
}

/// Writes tag control information and the EtherType after it. The header before it announces the tag:
/// [`proto::ETHERTYPE_VLAN`] or [`proto::ETHERTYPE_QINQ`].
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn vlan(out: &mut [u8], tci: u16, ethertype: u16) -> Result<usize, WriteError> {
    let ([a, b], [c, d]) = (tci.to_be_bytes(), ethertype.to_be_bytes());
    put(out, [a, b, c, d])
}

/// Writes an ARP body for IPv4 over Ethernet (RFC 826).
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn arp(out: &mut [u8], arp: &Arp) -> Result<usize, WriteError> {
    let mut body = [0; proto::ARP_LEN];
    body[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, if arp.request { 1 } else { 2 }]);
    body[8..14].copy_from_slice(&arp.sender_mac.0);
    body[14..18].copy_from_slice(&arp.sender.octets());
    body[18..24].copy_from_slice(&arp.target_mac.0);
    body[24..].copy_from_slice(&arp.target.octets());
    put(out, body)
}

/// An IPv4 header without options, of a packet that isn't fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Identification; meaningless with Don't Fragment (RFC 6864).
    pub id: u16,
    /// Don't Fragment.
    pub dont_fragment: bool,
    /// Length of the whole packet, header included, bytes.
    pub len: u16,
}

/// Writes an IPv4 header with its checksum.
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn ipv4(out: &mut [u8], ip: &Ipv4) -> Result<usize, WriteError> {
    let mut header = [0; proto::IPV4_LEN];
    header[0] = 0x45;
    header[1] = ip.tos;
    header[2..4].copy_from_slice(&ip.len.to_be_bytes());
    header[4..6].copy_from_slice(&ip.id.to_be_bytes());
    header[6] = if ip.dont_fragment { 0x40 } else { 0 };
    header[8] = ip.ttl;
    header[9] = ip.protocol;
    header[12..16].copy_from_slice(&ip.src.octets());
    header[16..].copy_from_slice(&ip.dst.octets());
    let checksum = checksum::sum(&header).finish();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    put(out, header)
}

/// An IPv6 header without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits (RFC 6437).
    pub flow_label: u32,
    /// Length of everything after this header, bytes.
    pub payload_len: u16,
}

/// Writes an IPv6 header.
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn ipv6(out: &mut [u8], ip: &Ipv6) -> Result<usize, WriteError> {
    let mut header = [0; proto::IPV6_LEN];
    let word = 6 << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&word.to_be_bytes());
    header[4..6].copy_from_slice(&ip.payload_len.to_be_bytes());
    header[6] = ip.next_header;
    header[7] = ip.hop_limit;
    header[8..24].copy_from_slice(&ip.src.octets());
    header[24..].copy_from_slice(&ip.dst.octets());
    put(out, header)
}

/// Writes a UDP header. `len` counts the header too; `checksum` is 0 for none.
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn udp(out: &mut [u8], src: u16, dst: u16, len: u16, checksum: u16) -> Result<usize, WriteError> {
    let mut header = [0; proto::UDP_LEN];
    header[..2].copy_from_slice(&src.to_be_bytes());
    header[2..4].copy_from_slice(&dst.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6..].copy_from_slice(&checksum.to_be_bytes());
    put(out, header)
}

/// Returns a frame with a UDP datagram that no router has passed on yet, of network control (RFC 4594). Each pair is from
/// and to.
///
/// # Errors
/// [`WriteError::Mismatch`] if the addresses are of two families; [`WriteError::TooShort`] if the payload is too long.
pub fn datagram(
    macs: (Mac, Mac),
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    payload: &[u8],
) -> Result<Vec<u8>, WriteError> {
    const NETWORK_CONTROL: u8 = 48 << 2;
    const HOPS: u8 = 255;
    const IP: usize = proto::ETHERNET_LEN;
    let length = |bytes: usize| u16::try_from(bytes).map_err(|_| WriteError::TooShort);
    let len = length(proto::UDP_LEN + payload.len())?;
    let (ethertype, ip_len) = match addresses.0 {
        IpAddr::V4(_) => (proto::ETHERTYPE_IPV4, proto::IPV4_LEN),
        IpAddr::V6(_) => (proto::ETHERTYPE_IPV6, proto::IPV6_LEN),
    };
    let at = IP + ip_len;
    let mut frame = vec![0; at + usize::from(len)];
    ethernet(&mut frame, macs.1, macs.0, ethertype)?;
    match addresses {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let (protocol, ttl, tos) = (proto::UDP, HOPS, NETWORK_CONTROL);
            let len = length(proto::IPV4_LEN + usize::from(len))?;
            ipv4(&mut frame[IP..], &Ipv4 { src, dst, protocol, ttl, tos, id: 0, dont_fragment: true, len })?
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (next_header, hop_limit, traffic_class) = (proto::UDP, HOPS, NETWORK_CONTROL);
            let ip =
                Ipv6 { src, dst, next_header, hop_limit, traffic_class, flow_label: 0, payload_len: len };
            ipv6(&mut frame[IP..], &ip)?
        }
        _ => return Err(WriteError::Mismatch),
    };
    udp(&mut frame[at..], ports.0, ports.1, len, 0)?;
    frame[at + proto::UDP_LEN..].copy_from_slice(payload);
    let sum = checksum::l4(addresses.0, addresses.1, proto::UDP, &frame[at..]);
    frame[at + 6..at + proto::UDP_LEN].copy_from_slice(&sum.to_be_bytes());
    Ok(frame)
}

/// Writes a GRE header without optional fields (RFC 2784). `protocol_type` is an EtherType.
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn gre(out: &mut [u8], protocol_type: u16) -> Result<usize, WriteError> {
    let [a, b] = protocol_type.to_be_bytes();
    put(out, [0, 0, a, b])
}

/// Writes an MPLS label stack entry (RFC 3032): `label` has 20 bits, `traffic_class` 3 (RFC 5462).
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn mpls(
    out: &mut [u8],
    label: u32,
    traffic_class: u8,
    bottom: bool,
    ttl: u8,
) -> Result<usize, WriteError> {
    let entry = label << 12 | u32::from(traffic_class & 7) << 9 | u32::from(bottom) << 8 | u32::from(ttl);
    put(out, entry.to_be_bytes())
}

/// Writes a VXLAN header (RFC 7348): `vni` has 24 bits.
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn vxlan(out: &mut [u8], vni: u32) -> Result<usize, WriteError> {
    let [a, b, c, d] = (vni << 8).to_be_bytes();
    put(out, [0x08, 0, 0, 0, a, b, c, d])
}

/// Writes a Geneve header without options, before an Ethernet frame (RFC 8926): `vni` has 24 bits.
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn geneve(out: &mut [u8], vni: u32) -> Result<usize, WriteError> {
    let [a, b] = proto::ETHERTYPE_TEB.to_be_bytes();
    let [c, d, e, f] = (vni << 8).to_be_bytes();
    put(out, [0, 0, a, b, c, d, e, f])
}
