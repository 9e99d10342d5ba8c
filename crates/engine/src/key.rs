//! The fast parse: recognises packets whose decision may be cached, and makes their cache key.
//!
//! It accepts only what `packet`'s parser accepts, and of that only the common forms: unfragmented IPv4 without
//! options or IPv6 without extension headers, plain or in one tunnel from a wire, except ICMP other than echo.
//! Everything else takes the slow path, as does whatever `decide` examines per packet: expiring TTLs, and the TCP
//! flags that change a connection's state.

use crate::contexts::{self, Context};
use crate::template::Template;
use model::{Endpoint, FlowKey, Vrf};
use packet::{TunnelKind, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Packets with a TTL or hop limit up to this always take the slow path: a packet is routed at most twice.
pub(crate) const LOW_TTL: u8 = 2;

/// The fields that distinguish flows of one context: protocol, traffic class and flags (upper half of the
/// first word), addresses, and ports (lower half of the last word, whose upper half belongs to the cache).
/// Coarse keys have neither addresses nor ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key(pub [u64; 6]);

impl Key {
    /// Puts the key into the context with the number `context`.
    #[inline(always)]
    pub fn set_context(&mut self, context: u32) {
        self.0[0] = self.0[0] & !0xffff_ffff | u64::from(context);
    }

    /// Returns whether it equals `other`. The words in which most different keys differ are compared first.
    #[inline(always)]
    pub const fn is(&self, other: &Self) -> bool {
        let ([about, a, b, c, d, ports], o) = (self.0, &other.0);
        (a ^ o[1]) | (ports ^ o[5]) == 0 && (about ^ o[0]) | (b ^ o[2]) | (c ^ o[3]) | (d ^ o[4]) == 0
    }

    #[inline(always)]
    pub const fn make_coarse(&mut self) {
        let Self([about, ..]) = *self;
        *self = Self([about, 0, 0, 0, 0, 0]);
    }

    /// Returns the connection of a packet that stays within `vrf`, without address translation; only for TCP
    /// and UDP.
    pub fn flow(&self, vrf: Vrf) -> Option<FlowKey> {
        let [about, a, b, c, d, ports] = self.0;
        let protocol = (about >> 32) as u8;
        let (src, dst): (IpAddr, IpAddr) = if about & FLAG_V6 == 0 {
            (Ipv4Addr::from_bits(a as u32).into(), Ipv4Addr::from_bits((a >> 32) as u32).into())
        } else {
            let join = |high: u64, low: u64| Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
            (join(a, b).into(), join(c, d).into())
        };
        let end = |addr, port| Endpoint { vrf, addr, port };
        matches!(protocol, proto::TCP | proto::UDP).then(|| FlowKey {
            src: end(src, (ports >> 16) as u16),
            dst: end(dst, ports as u16),
            protocol,
        })
    }

    /// Returns the number of its context; 0 before one is set.
    #[inline(always)]
    pub const fn context(&self) -> u32 {
        self.0[0] as u32
    }
}

/// A packet that the fast parse accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fast {
    pub key: Key,
    /// Offsets of the parts of the (inner) packet.
    pub at: Layout,
    /// Length that counts against MTUs: that of the IP packet, or of one segment of a large send.
    pub mtu_len: u16,
    pub ttl: u8,
    /// End of the packet in the tunnel, as an offset in the frame; 0 without a tunnel.
    pub tunnel_end: u32,
    /// For a tunnel packet whose outer headers were parsed: the end of the UDP header if it has a checksum, otherwise
    /// 0.
    pub summed_at: u16,
}

impl Fast {
    /// Returns where the part that is kept of the frame of `len` bytes ends: the padding of links is removed
    /// with their headers.
    #[inline(always)]
    pub fn end(&self, len: usize, template: &Template) -> usize {
        if template.strip == 0 {
            len
        } else if template.keeps_ip {
            usize::from(self.at.l3) + usize::from(self.at.ip_len)
        } else {
            self.tunnel_end as usize
        }
    }
}

/// Offsets of the innermost packet's headers, in bytes from the frame's first byte, and their kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the L4 header.
    pub l4: u16,
    /// Offset just past the L4 header.
    pub l4_end: u16,
    pub ip_len: u16,
    pub protocol: u8,
    pub v6: bool,
    /// Whether it came out of a tunnel.
    pub tunnelled: bool,
}

/// The outer headers of a tunnel packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub kind: TunnelKind,
    /// Offset in the frame of the tunnel's own header, after UDP's or GRE's.
    pub at: usize,
    /// Offset in the frame at which the packet in the tunnel ends.
    pub end: usize,
    pub ecn: u8,
}

/// A GRE header without options before an MPLS label stack (RFC 4023).
const GRE_MPLS: [u8; proto::GRE_LEN] = [0, 0, 0x88, 0x47];

/// In place of ports, for GRE with a different header: such a tunnel does not end here.
const OTHER_GRE: u32 = 1;

/// Returns whether more of IPv6's headers follow a header with this number (RFC 8200, 4; RFC 4302).
#[inline(always)]
const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        proto::HOP_BY_HOP | proto::ROUTING | proto::FRAGMENT | proto::AH | proto::DESTINATION_OPTIONS
    )
}

const FLAG_V6: u64 = 1 << 48;
const FLAG_ICMP_REPLY: u64 = 1 << 49;
const OUTER_ECN_SHIFT: u32 = 50;
const MPLS_TC_SHIFT: u32 = 52;
const LACKS_CHECKSUM_SHIFT: u32 = 55;
const ICMP_CODE_SHIFT: u32 = 56;
/// Above a network identifier: the options' length in bytes, a multiple of four less than 256.
const GENEVE_OPTIONS_SHIFT: u32 = 24;

/// Parses the frame of `len` bytes that starts with `head` into `fast`; the context goes into `context` instead of the
/// key. `wire`: tunnels may end here. `None` if the packet is not for the fast path.
#[inline(always)]
pub(crate) fn parse(
    head: &[u8],
    len: usize,
    wire: bool,
    context: &mut Context,
    fast: &mut Fast,
) -> Option<()> {
    let (l3, v6) = ethernet(head, 0, context)?;
    network(head, l3, len, v6, fast)?;
    if wire && let Some(kind) = tunnel_kind(fast) {
        return tunnel(head, kind, context, fast);
    }
    Some(())
}

/// Parses the Ethernet header at `at`. Returns the offset of the IP header and whether it is version 6.
#[inline(always)]
fn ethernet(head: &[u8], at: usize, context: &mut Context) -> Option<(usize, bool)> {
    let eth: &[u8; 14] = head.get(at..)?.first_chunk()?;
    context.set_macs(contexts::macs(eth));
    let l3 = at + proto::ETHERNET_LEN;
    match be16(eth, 12) {
        proto::ETHERTYPE_IPV4 => Some((l3, false)),
        proto::ETHERTYPE_IPV6 => Some((l3, true)),
        proto::ETHERTYPE_VLAN => {
            let tag: &[u8; 4] = head.get(l3..)?.first_chunk()?;
            context.set_tag(be16(tag, 0));
            match be16(tag, 2) {
                proto::ETHERTYPE_IPV4 => Some((l3 + proto::VLAN_LEN, false)),
                proto::ETHERTYPE_IPV6 => Some((l3 + proto::VLAN_LEN, true)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Parses the IP packet at `at`, in a frame or payload that ends at `end`.
#[inline(always)]
fn network(head: &[u8], at: usize, end: usize, v6: bool, fast: &mut Fast) -> Option<()> {
    if v6 {
        ipv6(head, at, fast)?
    } else {
        ipv4(head, at, fast)?
    };
    let ip_end = at + usize::from(fast.at.ip_len);
    if ip_end > end || fast.ttl <= LOW_TTL {
        return None;
    }
    transport(head, ip_end, fast)
}

#[inline(always)]
fn ipv4(head: &[u8], at: usize, fast: &mut Fast) -> Option<()> {
    let ip: &[u8; proto::IPV4_LEN] = head.get(at..)?.first_chunk()?;
    let fragment = be16(ip, 6) & 0x3fff != 0;
    let src = be32(ip, 12);
    let forbidden = src >> 28 == 0xe || src >> 24 == 127 || src == u32::MAX;
    if ip[0] != 0x45 || fragment || forbidden || !header_sum_is_right(ip) {
        return None;
    }
    let ip_len = be16(ip, 2);
    let addresses = u64::from(src) | u64::from(be32(ip, 16)) << 32;
    let l4 = (at + proto::IPV4_LEN) as u16;
    fast.key = Key([u64::from(ip[9]) << 32 | u64::from(ip[1]) << 40, addresses, 0, 0, 0, 0]);
    fast.at = Layout { l3: at as u16, l4, l4_end: l4, ip_len, protocol: ip[9], v6: false, tunnelled: false };
    (fast.mtu_len, fast.ttl, fast.tunnel_end) = (ip_len, ip[8], 0);
    Some(())
}

#[inline(always)]
fn header_sum_is_right(ip: &[u8; proto::IPV4_LEN]) -> bool {
    let (words, _) = ip.as_chunks::<4>();
    let sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum == 0xffff
}

#[inline(always)]
fn ipv6(head: &[u8], at: usize, fast: &mut Fast) -> Option<()> {
    let ip: &[u8; proto::IPV6_LEN] = head.get(at..)?.first_chunk()?;
    let word = be32(ip, 0);
    let src = [be64(ip, 8), be64(ip, 16)];
    let ip_len = u16::try_from(proto::IPV6_LEN + usize::from(be16(ip, 4))).ok()?;
    if word >> 28 != 6 || ip[8] == 0xff || src == [0, 1] {
        return None;
    }
    let fields = FLAG_V6 | u64::from(ip[6]) << 32 | u64::from((word >> 20) as u8) << 40;
    let l4 = (at + proto::IPV6_LEN) as u16;
    fast.key = Key([fields, src[0], src[1], be64(ip, 24), be64(ip, 32), 0]);
    fast.at = Layout { l3: at as u16, l4, l4_end: l4, ip_len, protocol: ip[6], v6: true, tunnelled: false };
    (fast.mtu_len, fast.ttl, fast.tunnel_end) = (ip_len, ip[7], 0);
    Some(())
}

/// Parses the L4 header of the packet that ends at `end`: ports go into the key.
#[inline(always)]
fn transport(head: &[u8], end: usize, fast: &mut Fast) -> Option<()> {
    let at = usize::from(fast.at.l4);
    let l4 = head.get(at..end.min(head.len()))?;
    let start: &[u8; 8] = l4.first_chunk()?;
    let mut ports = be32(start, 0);
    let header_len = match fast.at.protocol {
        proto::UDP => {
            let len = usize::from(be16(start, 4));
            if len < proto::UDP_LEN || len > end - at {
                return None;
            }
            proto::UDP_LEN
        }
        proto::TCP => {
            let tcp: &[u8; proto::TCP_LEN] = l4.first_chunk()?;
            let header_len = usize::from(tcp[12] >> 4) * 4;
            let moves = tcp[13] & (proto::TCP_SYN | proto::TCP_FIN | proto::TCP_RST) != 0;
            if header_len < proto::TCP_LEN || header_len > l4.len() || moves {
                return None;
            }
            header_len
        }
        proto::SCTP => l4.first_chunk::<{ proto::SCTP_LEN }>().map(|_| proto::SCTP_LEN)?,
        proto::GRE => {
            ports = if *l4.first_chunk()? == GRE_MPLS { 0 } else { OTHER_GRE };
            proto::GRE_LEN
        }
        proto::ICMP if !fast.at.v6 => {
            ports = echo(start, proto::ICMP_ECHO_REQUEST, proto::ICMP_ECHO_REPLY, fast)?;
            proto::ICMP_LEN
        }
        proto::ICMPV6 if fast.at.v6 => {
            ports = echo(start, proto::ICMPV6_ECHO_REQUEST, proto::ICMPV6_ECHO_REPLY, fast)?;
            proto::ICMP_LEN
        }
        protocol if fast.at.v6 && is_extension(protocol) => return None,
        proto::ICMP | proto::ICMPV6 => return None,
        // Such a packet is identified by its addresses alone.
        _ => {
            ports = 0;
            0
        }
    };
    fast.key.0[5] = u64::from(ports);
    fast.at.l4_end = (at + header_len) as u16;
    Some(())
}

#[inline(always)]
pub(crate) fn tcp_flags(head: &[u8], fast: &Fast) -> u8 {
    let flags = head.get(usize::from(fast.at.l4) + 13).copied().unwrap_or(0);
    if fast.at.protocol == proto::TCP { flags } else { 0 }
}

/// Returns the identifier of an echo message, and puts the message's code into the key.
#[inline(always)]
fn echo(icmp: &[u8; 8], request: u8, reply: u8, fast: &mut Fast) -> Option<u32> {
    if icmp[0] == reply {
        fast.key.0[0] |= FLAG_ICMP_REPLY;
    } else if icmp[0] != request {
        return None;
    }
    fast.key.0[0] |= u64::from(icmp[1]) << ICMP_CODE_SHIFT;
    Some(be16(icmp, 4).into())
}

#[inline(always)]
fn tunnel_kind(outer: &Fast) -> Option<TunnelKind> {
    match (outer.at.protocol, outer.key.0[5] as u16) {
        (proto::UDP, proto::PORT_VXLAN) => Some(TunnelKind::Vxlan),
        (proto::UDP, proto::PORT_GENEVE) => Some(TunnelKind::Geneve),
        (proto::UDP, proto::PORT_MPLS) => Some(TunnelKind::MplsUdp),
        (proto::GRE, 0) => Some(TunnelKind::MplsGre),
        _ => None,
    }
}

/// Parses the packet inside the one in `fast`, and replaces the outer one with it.
#[inline]
fn tunnel(head: &[u8], kind: TunnelKind, context: &mut Context, fast: &mut Fast) -> Option<()> {
    let (end, sum) = match kind {
        TunnelKind::MplsGre => (usize::from(fast.at.l3) + usize::from(fast.at.ip_len), None),
        _ => {
            let udp: &[u8; 8] = head.get(usize::from(fast.at.l4)..)?.first_chunk()?;
            (usize::from(fast.at.l4) + usize::from(be16(udp, 4)), Some(be16(udp, 6)))
        }
    };
    let lacks_checksum = fast.at.v6 && sum == Some(0);
    let summed_at = if sum.is_some_and(|sum| sum != 0) { fast.at.l4_end } else { 0 };
    if context.is_tagged() {
        return None;
    }
    let (src, dst) = outer_addresses(fast);
    // In a context, IPv4 addresses are mapped ones.
    if fast.at.v6 && src.to_ipv4_mapped().is_some() {
        return None;
    }
    context.enter(kind, src, dst);
    let ecn = (fast.key.0[0] >> 40) as u8 & packet::ecn::ECN_MASK;
    inner(head, &Outer { kind, at: fast.at.l4_end.into(), end, ecn }, context, fast)?;
    fast.key.0[0] |= u64::from(lacks_checksum) << LACKS_CHECKSUM_SHIFT;
    fast.summed_at = summed_at;
    Some(())
}

/// Parses the packet inside `outer`, whose tunnel `context` has entered.
#[inline]
pub(crate) fn inner(head: &[u8], outer: &Outer, context: &mut Context, fast: &mut Fast) -> Option<()> {
    let &Outer { kind, at, end, ecn } = outer;
    let shim: &[u8; 8] = head.get(at..)?.first_chunk()?;
    let (id, traffic_class) = match kind {
        TunnelKind::Vxlan => (vxlan(head, at, shim, end, context, fast)?, 0),
        TunnelKind::Geneve => (geneve(head, at, shim, end, context, fast)?, 0),
        TunnelKind::MplsUdp | TunnelKind::MplsGre => mpls(head, at, shim, end, fast)?,
    };
    context.set_id(id);
    fast.key.0[0] |= u64::from(ecn) << OUTER_ECN_SHIFT | traffic_class << MPLS_TC_SHIFT;
    fast.at.tunnelled = true;
    fast.tunnel_end = end as u32;
    Some(())
}

#[inline(always)]
fn vxlan(
    head: &[u8],
    at: usize,
    shim: &[u8; 8],
    end: usize,
    context: &mut Context,
    fast: &mut Fast,
) -> Option<u32> {
    const VNI_VALID: u8 = 0x08;
    if shim[0] & VNI_VALID == 0 {
        return None;
    }
    framed(head, at + proto::VXLAN_LEN, end, context, fast)?;
    Some(be32(shim, 4) >> 8)
}

#[inline(always)]
fn geneve(
    head: &[u8],
    at: usize,
    shim: &[u8; 8],
    end: usize,
    context: &mut Context,
    fast: &mut Fast,
) -> Option<u32> {
    if !packet::takes_geneve(shim) {
        return None;
    }
    let options = packet::geneve_options(shim);
    framed(head, at + proto::VXLAN_LEN + options, end, context, fast)?;
    Some(be32(shim, 4) >> 8 | (options as u32) << GENEVE_OPTIONS_SHIFT)
}

/// Parses the frame in a tunnel.
#[inline(always)]
fn framed(head: &[u8], at: usize, end: usize, context: &mut Context, fast: &mut Fast) -> Option<()> {
    let (l3, v6) = ethernet(head, at, context)?;
    network(head, l3, end, v6, fast)
}

#[inline(always)]
fn mpls(head: &[u8], at: usize, shim: &[u8; 8], end: usize, fast: &mut Fast) -> Option<(u32, u64)> {
    const BOTTOM: u32 = 0x100;
    let entry = be32(shim, 0);
    let v6 = match shim[4] >> 4 {
        4 => false,
        6 => true,
        _ => return None,
    };
    if entry & BOTTOM == 0 || entry as u8 <= LOW_TTL {
        return None;
    }
    network(head, at + proto::MPLS_LEN, end, v6, fast)?;
    Some((entry >> 12, u64::from(entry >> 9 & 7)))
}

#[inline(always)]
fn outer_addresses(outer: &Fast) -> (Ipv6Addr, Ipv6Addr) {
    let [_, a, b, c, d, _] = outer.key.0;
    if outer.at.v6 {
        let join = |high: u64, low: u64| Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        (join(a, b), join(c, d))
    } else {
        let mapped = |bits: u64| Ipv4Addr::from_bits(bits as u32).to_ipv6_mapped();
        (mapped(a), mapped(a >> 32))
    }
}

#[inline(always)]
const fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
const fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
const fn be64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    (be32(bytes, at) as u64) << 32 | be32(bytes, at + 4) as u64
}

// The path is given because the benchmark includes this file as its own.
#[cfg(test)]
#[path = "key/tests.rs"]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
