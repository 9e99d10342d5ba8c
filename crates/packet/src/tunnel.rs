//! Tunnels that end here: MPLS over UDP (RFC 7510), MPLS over GRE (RFC 4023), VXLAN (RFC 7348), Geneve (RFC 8926).

use crate::parse::{Window, be16, be32};
use crate::{Fragment, Headers, L4, ParseError, checksum, proto};
use arrayvec::ArrayVec;

/// The encapsulation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TunnelKind {
    /// MPLS over UDP, port 6635.
    MplsUdp,
    /// MPLS over GRE.
    MplsGre,
    /// VXLAN, port 4789.
    Vxlan,
    /// Geneve with Ethernet inside, port 6081.
    Geneve,
}

impl TunnelKind {
    /// Returns the length of the headers between the outer IP header and the payload, bytes, without optional
    /// fields.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::MplsUdp => proto::UDP_LEN + proto::MPLS_LEN,
            Self::MplsGre => proto::GRE_LEN + proto::MPLS_LEN,
            Self::Vxlan | Self::Geneve => proto::UDP_LEN + proto::VXLAN_LEN,
        }
    }

    /// Returns whether the payload is an Ethernet frame; else it is an IP packet.
    #[must_use]
    pub const fn has_ethernet(self) -> bool {
        matches!(self, Self::Vxlan | Self::Geneve)
    }

    /// Returns how much of the underlay's MTU a tunnel takes, bytes: the outer IP header and the headers
    /// after it. VXLAN and Geneve also carry an Ethernet header.
    #[must_use]
    pub const fn overhead(self, v6: bool) -> usize {
        (if v6 { proto::IPV6_LEN } else { proto::IPV4_LEN }) + self.header_len()
    }
}

/// An encapsulation header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The kind of encapsulation.
    pub kind: TunnelKind,
    /// The network identifier of VXLAN or Geneve, or the top label after explicit nulls above it are popped.
    pub id: u32,
    /// The label stack from `id` on, top first; empty for VXLAN and Geneve.
    pub labels: ArrayVec<u32, 4>,
    /// Whether `id` is the bottom of the label stack; true without a stack. Only then does `id` alone
    /// determine the payload.
    pub bottom: bool,
    /// TTL of the outermost label; without a label, the TTL of the outer IP header.
    pub mpls_ttl: u8,
    /// Traffic class of the outermost label (RFC 5462); 0 without a label.
    pub mpls_tc: u8,
    /// Traffic class of the outer IP header: DSCP and ECN.
    pub outer_tos: u8,
    /// Whether the outer UDP checksum is zero over IPv6. RFC 8200, 8.1 forbids that unless the receiver
    /// allows it (RFC 6935, 5).
    pub lacks_checksum: bool,
    /// Offset of the inner packet, bytes: an Ethernet header for VXLAN and Geneve, usually an IP header for MPLS.
    pub inner_at: usize,
    /// Offset just past the inner packet, bytes: the `len` to parse it with.
    pub inner_end: usize,
}

/// Returns the encapsulation in the packet `outer` that was parsed from `bytes` and `len`, or `None` if there
/// is none.
///
/// Fragments are not parsed: a tunnel packet must be reassembled first. A GRE checksum is verified. It covers
/// the payload, so the whole packet must be at hand if it has one.
///
/// # Errors
/// [`ParseError::TunnelMalformed`], [`ParseError::TunnelRefused`], or [`ParseError::HeaderTooLong`] if
/// `bytes` holds too little.
pub fn tunnel(bytes: &[u8], outer: &Headers, len: usize) -> Result<Option<Tunnel>, ParseError> {
    let Some(ip) = outer.ip().filter(|ip| ip.fragment == Fragment::Whole) else { return Ok(None) };
    let at = usize::from(outer.l4_at);
    let packet = Window::new(bytes, len).until(usize::from(ip.at) + ip.len as usize);
    let mut tunnel = Tunnel {
        kind: TunnelKind::Vxlan,
        id: 0,
        labels: ArrayVec::new(),
        bottom: true,
        mpls_ttl: ip.ttl,
        mpls_tc: 0,
        outer_tos: ip.tos,
        lacks_checksum: false,
        inner_at: 0,
        inner_end: packet.end(),
    };
    match outer.l4 {
        L4::Udp { dst: proto::PORT_VXLAN, .. } => {
            let packet = datagram(packet, at)?;
            vxlan(packet, at + proto::UDP_LEN, &mut tunnel)?;
        }
        L4::Udp { dst: proto::PORT_GENEVE, .. } => {
            let packet = datagram(packet, at)?;
            geneve(packet, at + proto::UDP_LEN, &mut tunnel)?;
        }
        L4::Udp { dst: proto::PORT_MPLS, .. } => {
            let packet = datagram(packet, at)?;
            mpls(packet, at + proto::UDP_LEN, TunnelKind::MplsUdp, &mut tunnel)?;
        }
        L4::Other if ip.protocol == proto::GRE => {
            let Some(payload) = gre(packet, at)? else { return Ok(None) };
            mpls(packet, payload, TunnelKind::MplsGre, &mut tunnel)?;
        }
        _ => return Ok(None),
    }
    if tunnel.kind != TunnelKind::MplsGre && ip.src.is_ipv6() {
        let head: &[u8; proto::UDP_LEN] = packet.read(at, ParseError::TunnelMalformed)?;
        tunnel.lacks_checksum = be16(head, 6) == 0;
    }
    Ok(Some(tunnel))
}

/// Returns the UDP datagram at `at`, which may end before its IP packet does.
fn datagram(packet: Window<'_>, at: usize) -> Result<Window<'_>, ParseError> {
    let head: &[u8; proto::UDP_LEN] = packet.read(at, ParseError::TunnelMalformed)?;
    Ok(packet.until(at + usize::from(be16(head, 4))))
}

fn vxlan(packet: Window<'_>, at: usize, tunnel: &mut Tunnel) -> Result<(), ParseError> {
    const VNI_VALID: u8 = 0x08;
    let head: &[u8; proto::VXLAN_LEN] = packet.read(at, ParseError::TunnelMalformed)?;
    if head[0] & VNI_VALID == 0 {
        return Err(ParseError::TunnelMalformed);
    }
    tunnel.id = be32(head, 4) >> 8;
    tunnel.inner_at = at + proto::VXLAN_LEN;
    tunnel.inner_end = packet.end();
    Ok(())
}

/// Returns whether Viaduct accepts a Geneve header: one of version 0, before an Ethernet frame, without the
/// bits for control packets and for critical options, because Viaduct knows no critical option (RFC 8926,
/// 3.4). Other options are skipped.
#[must_use]
#[inline(always)]
pub const fn takes_geneve(head: &[u8; proto::VXLAN_LEN]) -> bool {
    const CONTROL_OR_CRITICAL: u8 = 0xc0;
    let [first, flags, a, b, ..] = *head;
    first >> 6 == 0 && flags & CONTROL_OR_CRITICAL == 0 && u16::from_be_bytes([a, b]) == proto::ETHERTYPE_TEB
}

/// Returns the length of a Geneve header's options, bytes.
#[must_use]
#[inline(always)]
pub const fn geneve_options(head: &[u8; proto::VXLAN_LEN]) -> usize {
    (head[0] & 0x3f) as usize * 4
}

fn geneve(packet: Window<'_>, at: usize, tunnel: &mut Tunnel) -> Result<(), ParseError> {
    let head: &[u8; proto::VXLAN_LEN] = packet.read(at, ParseError::TunnelMalformed)?;
    if !takes_geneve(head) {
        return Err(ParseError::TunnelRefused);
    }
    tunnel.kind = TunnelKind::Geneve;
    tunnel.id = be32(head, 4) >> 8;
    tunnel.inner_at = at + proto::VXLAN_LEN + geneve_options(head);
    tunnel.inner_end = packet.end();
    Ok(())
}

fn mpls(packet: Window<'_>, at: usize, kind: TunnelKind, tunnel: &mut Tunnel) -> Result<(), ParseError> {
    const BOTTOM: u32 = 0x100;
    let mut at = at;
    let top: &[u8; proto::MPLS_LEN] = packet.read(at, ParseError::TunnelMalformed)?;
    tunnel.kind = kind;
    tunnel.mpls_ttl = top[3];
    tunnel.mpls_tc = top[2] >> 1 & 7;
    let mut popped = 0;
    loop {
        let entry = be32(packet.read::<4>(at, ParseError::TunnelMalformed)?, 0);
        let (label, bottom) = (entry >> 12, entry & BOTTOM != 0);
        at += proto::MPLS_LEN;
        let null = matches!(label, proto::MPLS_EXPLICIT_NULL_V4 | proto::MPLS_EXPLICIT_NULL_V6);
        if null && !bottom && tunnel.labels.is_empty() && popped < tunnel.labels.capacity() {
            // An explicit null above another label only says that a label follows (RFC 4182).
            popped += 1;
        } else {
            tunnel.labels.try_push(label).map_err(|_| ParseError::TunnelMalformed)?;
        }
        if bottom {
            break;
        }
    }
    tunnel.id = tunnel.labels[0];
    tunnel.bottom = tunnel.labels.len() == 1;
    tunnel.inner_at = at;
    tunnel.inner_end = packet.end();
    Ok(())
}

/// Returns the offset of the payload of the GRE header at `at`, or `None` if the payload isn't MPLS.
fn gre(packet: Window<'_>, at: usize) -> Result<Option<usize>, ParseError> {
    /// Checksum and reserved field present (RFC 2784).
    const CHECKSUM: u16 = 0x8000;
    /// Key and sequence number present (RFC 2890).
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    /// Routing, strict route and recursion bits of RFC 1701, and the version: a receiver of RFC 2784 discards
    /// them.
    const REFUSED: u16 = 0x4000 | 0x0c00 | 0x0007;

    let head: &[u8; proto::GRE_LEN] = packet.read(at, ParseError::TunnelMalformed)?;
    let flags = be16(head, 0);
    if be16(head, 2) != proto::ETHERTYPE_MPLS {
        return Ok(None);
    }
    if flags & REFUSED != 0 {
        return Err(ParseError::TunnelMalformed);
    }
    if flags & CHECKSUM != 0 {
        let all = packet.slice(at, packet.end() - at, ParseError::TunnelMalformed)?;
        if checksum::sum(all).fold() != 0xffff {
            return Err(ParseError::TunnelMalformed);
        }
    }
    let optional = (flags & (CHECKSUM | KEY | SEQUENCE)).count_ones() as usize * 4;
    Ok(Some(at + proto::GRE_LEN + optional))
}
