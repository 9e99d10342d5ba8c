//! The result of `packet`'s parser for a frame, in the card's terms.

use card::registers::{Punt, Tunnel as Encapsulation};
use packet::{
    Ethernet, Fragment, Headers, Ip, L3, L4, Mac, ParseError, Tunnel, TunnelKind, ecn_decap, proto,
};
use std::net::IpAddr;

/// A frame that `packet` accepts.
#[derive(Default)]
pub struct Accepted {
    /// The fields of `header_t` that matter.
    pub fields: Vec<(&'static str, u128)>,
    /// Reasons for which the card may still leave it to the host.
    pub stricter: Vec<Punt>,
}

/// Parses a guest's frame from its first `window` bytes.
pub fn guest(frame: &[u8], window: usize) -> Result<Accepted, Punt> {
    let headers = Headers::ethernet(head(frame, window), 0, frame.len()).map_err(punt)?;
    let mut accepted = Accepted::default();
    accepted.tenant(&headers, 0, frame.len());
    accepted.fields.push(("tunnelled", 0));
    accepted.tos(&headers, headers.ip().map_or(0, |ip| ip.tos));
    Ok(accepted)
}

/// Parses a frame that a wire received.
pub fn wire(frame: &[u8], window: usize) -> Result<Accepted, Punt> {
    let bytes = head(frame, window);
    let outer = Headers::ethernet(bytes, 0, frame.len()).map_err(punt)?;
    let (eth, ip) = underlay(&outer)?;
    if matches!(outer.l4, packet::L4::Udp { dst: packet::proto::PORT_GENEVE, .. }) {
        return Err(Punt::NotForUs);
    }
    let tunnel = packet::tunnel(bytes, &outer, frame.len()).map_err(punt)?.ok_or(Punt::NotForUs)?;
    let inner = if tunnel.kind == TunnelKind::Vxlan {
        Headers::ethernet(bytes, tunnel.inner_at, tunnel.inner_end)
    } else {
        label(bytes, &tunnel)?;
        Headers::network(bytes, tunnel.inner_at, tunnel.inner_end)
    };
    if tunnel.lacks_checksum {
        return Err(Punt::OuterChecksumMissing);
    }
    let inner = inner.map_err(punt)?;
    let tos = match inner.ip() {
        Some(ip) => ecn_decap(ip.tos, tunnel.outer_tos).map_err(|_| Punt::Ecn)?,
        None => 0,
    };
    let mut accepted = Accepted::default();
    accepted.tenant(&inner, tunnel.inner_at, tunnel.inner_end);
    accepted.tos(&inner, tos);
    accepted.outer(eth, ip, &tunnel);
    accepted.stricter_outside(bytes, &outer, ip, &tunnel);
    Ok(accepted)
}

fn head(frame: &[u8], window: usize) -> &[u8] {
    &frame[..frame.len().min(window)]
}

/// Checks the headers of a possible tunnel packet like `decide` does.
fn underlay(outer: &Headers) -> Result<(&Ethernet, &Ip), Punt> {
    let eth = outer.eth.as_ref().ok_or(Punt::EthernetTruncated)?;
    if is_neighbour(outer) {
        return Err(Punt::Neighbour);
    }
    if !eth.tags.is_empty() {
        return Err(Punt::NotForUs);
    }
    let ip = outer.ip().ok_or(Punt::NotForUs)?;
    if matches!(ip.protocol, proto::UDP | proto::GRE) && ip.fragment != Fragment::Whole {
        return Err(Punt::OuterFragment);
    }
    Ok((eth, ip))
}

/// Checks a label. Fails with the reason why `decide` refuses it.
fn label(bytes: &[u8], tunnel: &Tunnel) -> Result<(), Punt> {
    if !tunnel.bottom {
        return Err(Punt::LabelStack);
    }
    if tunnel.mpls_ttl == 0 {
        return Err(Punt::Ttl);
    }
    match bytes.get(tunnel.inner_at).map(|byte| byte >> 4) {
        Some(4 | 6) => Ok(()),
        _ => Err(Punt::TunnelPayload),
    }
}

fn is_neighbour(headers: &Headers) -> bool {
    let solicited = headers.ip().is_some_and(|ip| ip.src.is_ipv6() && ip.fragment == Fragment::Whole)
        && matches!(headers.l4, L4::Icmp { kind: proto::ND_ROUTER_SOLICITATION..=proto::ND_REDIRECT, .. });
    matches!(headers.l3, L3::Arp(_)) || solicited
}

impl Accepted {
    /// Adds the fields of the tenant's packet except its traffic class.
    fn tenant(&mut self, headers: &Headers, start: usize, stop: usize) {
        self.fields.extend([
            ("start", start as u128),
            ("stop", stop as u128),
            ("has_ethernet", headers.eth.is_some().into()),
            ("l3_at", headers.l3_at.into()),
            ("neighbour", is_neighbour(headers).into()),
        ]);
        if let Some(eth) = &headers.eth {
            self.fields.extend([
                ("mac_dst", mac(eth.dst)),
                ("mac_src", mac(eth.src)),
                ("ethertype", eth.ethertype.into()),
                ("tags", eth.tags.len() as u128),
                ("priority_tag", eth.tags.first().is_some_and(|tag| tag.is_priority()).into()),
            ]);
        }
        self.fields.push(("ip", headers.ip().is_some().into()));
        let Some(ip) = headers.ip() else { return self.l4(headers, true, false) };
        if ip.src.is_ipv6() && usize::from(ip.header_len) > proto::IPV6_LEN {
            self.stricter.push(Punt::Ipv6Extension);
        }
        let fragment = ip.fragment != Fragment::Whole;
        self.fields.extend([
            ("v6", ip.src.is_ipv6().into()),
            ("header_len", ip.header_len.into()),
            ("ip_len", ip.len.into()),
            ("src", address(ip.src)),
            ("dst", address(ip.dst)),
            ("protocol", ip.protocol.into()),
            ("ttl", ip.ttl.into()),
            ("fragment", fragment.into()),
        ]);
        self.l4(headers, fragment, ip.src.is_ipv6());
    }

    fn l4(&mut self, headers: &Headers, untold: bool, v6: bool) {
        let kind = |kind| if v6 { matches!(kind, 128 | 129) } else { matches!(kind, 0 | 8) };
        let (l4, echo, flags) = match headers.l4 {
            _ if untold => (0, false, 0),
            L4::Other => (0, false, 0),
            L4::Tcp { flags, .. } => (1, false, flags),
            L4::Udp { .. } => (2, false, 0),
            L4::Sctp { .. } => (3, false, 0),
            L4::Icmp { kind: number, .. } => (4, kind(number), 0),
        };
        let (sport, dport) = if untold { (0, 0) } else { headers.ports() };
        self.fields.extend([
            ("l4", l4),
            ("icmp_echo", echo.into()),
            ("tcp_flags", flags.into()),
            ("sport", sport.into()),
            ("dport", dport.into()),
        ]);
    }

    /// Adds the traffic class of the packet that is sent on.
    fn tos(&mut self, headers: &Headers, tos: u8) {
        let changed = headers.ip().is_some_and(|ip| ip.tos != tos);
        self.fields.push(("new_tos", changed.into()));
        if headers.ip().is_some() {
            self.fields.push(("tos", tos.into()));
        }
    }

    fn outer(&mut self, eth: &Ethernet, ip: &Ip, tunnel: &Tunnel) {
        let kind = match tunnel.kind {
            TunnelKind::MplsUdp => Encapsulation::MplsUdp,
            TunnelKind::MplsGre => Encapsulation::MplsGre,
            TunnelKind::Vxlan => Encapsulation::Vxlan,
            TunnelKind::Geneve => unreachable!("the card leaves it to the host"),
        };
        self.fields.extend([
            ("outer_mac", mac(eth.dst)),
            ("tunnelled", 1),
            ("tunnel", kind as u128),
            ("id", tunnel.id.into()),
            ("label_ttl", tunnel.mpls_ttl.into()),
            ("outer_v6", ip.src.is_ipv6().into()),
            ("outer_src", address(ip.src)),
            ("outer_dst", address(ip.dst)),
        ]);
    }

    /// Adds the reasons for which the card may be stricter outside the tenant's packet: extension headers, options of
    /// GRE, explicit nulls above the label.
    fn stricter_outside(&mut self, bytes: &[u8], outer: &Headers, ip: &Ip, tunnel: &Tunnel) {
        if ip.src.is_ipv6() && usize::from(ip.header_len) > proto::IPV6_LEN {
            self.stricter.push(Punt::Ipv6Extension);
        }
        let at = usize::from(outer.l4_at);
        let optional = tunnel.kind == TunnelKind::MplsGre && bytes[at] & 0xb0 != 0;
        let label_at = at + if tunnel.kind == TunnelKind::MplsGre { 4 } else { 8 };
        if optional {
            self.stricter.push(Punt::TunnelMalformed);
        } else if tunnel.kind != TunnelKind::Vxlan && bytes[label_at + 2] & 1 == 0 {
            self.stricter.push(Punt::LabelStack);
        }
    }
}

fn mac(mac: Mac) -> u128 {
    mac.0.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn punt(error: ParseError) -> Punt {
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
