//! A packet as the card's parser sees it: the tenant's packet without its tunnel, or the reason why the card doesn't
//! handle it. The parser in hardware is `rtl/parse`.

use crate::registers::{Path, Punt};
use packet::{Fragment, Headers, L4, Mac, ParseError, TunnelKind, ecn_decap, proto};
use std::net::IpAddr;

/// Bytes of a packet that the parser examines: its first two beats.
const WINDOW: usize = 128;

/// The tunnel in which a packet came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    pub mac: Mac,
    /// Source address: the other host.
    pub src: IpAddr,
    /// Destination address: this host.
    pub dst: IpAddr,
    pub kind: TunnelKind,
    /// Label or VNI.
    pub id: u32,
}

/// A tenant's packet.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The headers. Their offsets count in the original frame.
    pub headers: Headers,
    /// Offset of the packet's end, in bytes.
    pub stop: usize,
    pub outer: Option<Outer>,
    /// New traffic class of the packet (RFC 6040).
    pub tos: u8,
}

impl Frame {
    /// Parses a frame of `len` bytes from a guest or a wire, whose first bytes are `bytes`.
    ///
    /// # Errors
    /// If the card punts the packet: the reason.
    pub fn parse(bytes: &[u8], len: usize, wire: bool) -> Result<Self, Punt> {
        let headers = near(bytes, |bytes| Headers::ethernet(bytes, 0, len))?;
        let frame = if wire {
            Self::decapsulated(bytes, &headers, len)?
        } else {
            let tos = headers.ip().map_or(0, |ip| ip.tos);
            Self { headers, stop: len, outer: None, tos }
        };
        match extended(&frame.headers) {
            true => Err(Punt::Ipv6Extension),
            false => Ok(frame),
        }
    }

    fn decapsulated(bytes: &[u8], outer: &Headers, len: usize) -> Result<Self, Punt> {
        let window = window(bytes);
        if extended(outer) {
            return Err(Punt::Ipv6Extension);
        }
        if is_neighbour(outer) {
            return Err(Punt::Neighbour);
        }
        let (Some(eth), Some(ip)) = (&outer.eth, outer.ip()) else { return Err(Punt::NotForUs) };
        if !eth.tags.is_empty() {
            return Err(Punt::NotForUs);
        }
        if ip.fragment != Fragment::Whole && matches!(ip.protocol, proto::UDP | proto::GRE) {
            return Err(Punt::OuterFragment);
        }
        // The card does not know Geneve.
        if matches!(outer.l4, L4::Udp { dst: proto::PORT_GENEVE, .. }) {
            return Err(Punt::NotForUs);
        }
        let tunnel = packet::tunnel(window, outer, len).map_err(refusal)?.ok_or(Punt::NotForUs)?;
        if !tunnel.bottom {
            return Err(Punt::LabelStack);
        }
        // Optional fields of GRE, and explicit nulls above the label.
        if tunnel.inner_at != usize::from(outer.l4_at) + tunnel.kind.header_len() {
            return Err(Punt::TunnelMalformed);
        }
        let headers = if tunnel.kind == TunnelKind::Vxlan {
            near(bytes, |bytes| Headers::ethernet(bytes, tunnel.inner_at, tunnel.inner_end))
        } else {
            if tunnel.mpls_ttl == 0 {
                return Err(Punt::Ttl);
            }
            if !matches!(window.get(tunnel.inner_at).map(|byte| byte >> 4), Some(4 | 6)) {
                return Err(Punt::TunnelPayload);
            }
            near(bytes, |bytes| Headers::network(bytes, tunnel.inner_at, tunnel.inner_end))
        };
        if tunnel.lacks_checksum {
            return Err(Punt::OuterChecksumMissing);
        }
        let headers = headers?;
        let tos = match headers.ip() {
            Some(inner) => ecn_decap(inner.tos, tunnel.outer_tos).map_err(|_| Punt::Ecn)?,
            None => 0,
        };
        let outer = Outer { mac: eth.dst, src: ip.src, dst: ip.dst, kind: tunnel.kind, id: tunnel.id };
        Ok(Self { headers, stop: tunnel.inner_end, outer: Some(outer), tos })
    }

    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.headers.ip().is_some_and(|ip| ip.fragment != Fragment::Whole)
    }

    /// Returns whether the packet is ARP, or neighbour discovery.
    #[must_use]
    pub fn is_neighbour(&self) -> bool {
        is_neighbour(&self.headers)
    }

    /// Returns the L4 header, which the card does not see in fragments.
    #[must_use]
    pub fn l4(&self) -> L4 {
        if self.is_fragment() { L4::Other } else { self.headers.l4 }
    }

    /// Returns whether the packet is ICMP other than an echo.
    #[must_use]
    pub fn is_icmp_other(&self) -> bool {
        let L4::Icmp { kind, .. } = self.l4() else { return false };
        let v6 = self.headers.ip().is_some_and(|ip| ip.src.is_ipv6());
        let echo = if v6 {
            [proto::ICMPV6_ECHO_REQUEST, proto::ICMPV6_ECHO_REPLY]
        } else {
            [proto::ICMP_ECHO_REQUEST, proto::ICMP_ECHO_REPLY]
        };
        !echo.contains(&kind)
    }

    #[must_use]
    pub fn is_roce(&self) -> bool {
        matches!(self.l4(), L4::Udp { dst: proto::PORT_ROCE, .. })
    }

    /// Returns the length that counts against an MTU, in bytes.
    #[must_use]
    pub fn mtu_len(&self) -> usize {
        self.headers
            .ip()
            .map_or_else(|| self.stop.saturating_sub(self.headers.l3_at.into()), |ip| ip.len as usize)
    }

    /// Returns the packet's key in the flow table, in this network, if it has one.
    #[must_use]
    pub fn key(&self, vrf: u16, path: Path) -> Option<Key> {
        let ip = self.headers.ip().filter(|_| !self.is_fragment())?;
        let ports = self.headers.ports();
        let from_tunnel = self.outer.is_some();
        Some(Key { vrf, path, from_tunnel, src: ip.src, dst: ip.dst, protocol: ip.protocol, ports })
    }
}

fn extended(headers: &Headers) -> bool {
    headers.ip().is_some_and(|ip| ip.src.is_ipv6() && usize::from(ip.header_len) != proto::IPV6_LEN)
}

/// The key of a flow: its packets agree in these fields, as the card sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Network of the packet on arrival, as the card numbers it.
    pub vrf: u16,
    pub path: Path,
    /// Whether the packet came from another host.
    pub from_tunnel: bool,
    /// Source address in the packet, before any translation.
    pub src: IpAddr,
    /// Destination address in the packet, before any translation.
    pub dst: IpAddr,
    pub protocol: u8,
    /// Source and destination port. The identifier of an ICMP echo serves as both.
    pub ports: (u16, u16),
}

/// Returns the punt reason for an error of `packet`'s parser.
#[must_use]
pub const fn refusal(error: ParseError) -> Punt {
    match error {
        ParseError::EthernetTruncated => Punt::EthernetTruncated,
        ParseError::TooManyTags => Punt::TooManyTags,
        ParseError::ArpMalformed => Punt::Neighbour,
        ParseError::IpTruncated => Punt::IpTruncated,
        ParseError::IpHeader => Punt::IpHeader,
        ParseError::IpLength => Punt::IpLength,
        ParseError::IpChecksum => Punt::IpChecksum,
        ParseError::IpSource => Punt::IpSource,
        ParseError::Ipv6Extension => Punt::Ipv6Extension,
        ParseError::Fragment => Punt::Fragment,
        ParseError::L4Malformed => Punt::L4Malformed,
        ParseError::HeaderTooLong => Punt::HeaderTooLong,
        ParseError::TunnelMalformed | ParseError::TunnelRefused => Punt::TunnelMalformed,
    }
}

fn is_neighbour(headers: &Headers) -> bool {
    let arp = headers.eth.as_ref().is_some_and(|eth| eth.ethertype == proto::ETHERTYPE_ARP);
    let solicits = proto::ND_ROUTER_SOLICITATION..=proto::ND_REDIRECT;
    let nd = matches!(headers.l4, L4::Icmp { kind, .. } if solicits.contains(&kind));
    let v6 = headers.ip().is_some_and(|ip| ip.src.is_ipv6() && ip.fragment == Fragment::Whole);
    arp || nd && v6
}

fn window(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(WINDOW)]
}

/// Parses headers, which must lie within the window, except for TCP's options and the body of neighbour discovery.
fn near(bytes: &[u8], parse: impl Fn(&[u8]) -> Result<Headers, ParseError>) -> Result<Headers, Punt> {
    match parse(window(bytes)) {
        Err(ParseError::HeaderTooLong) => {
            let headers = parse(bytes).map_err(refusal)?;
            let fixed = match headers.l4 {
                L4::Tcp { .. } => proto::TCP_LEN,
                L4::Icmp { .. } => proto::ICMP_LEN,
                _ => return Err(Punt::HeaderTooLong),
            };
            let fits = usize::from(headers.l4_at) + fixed <= WINDOW;
            if fits { Ok(headers) } else { Err(Punt::HeaderTooLong) }
        }
        parsed => parsed.map_err(refusal),
    }
}
