//! Flows in words.

use super::{Action, Flow, Key, Match, Outer};
use crate::Names;
use packet::{Mac, proto};
use std::fmt::{Display, Formatter, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl Display for Match {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(&fields(self.key(), self.mask()))
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let v4 = self.eth_type == proto::ETHERTYPE_IPV4;
        let mut seen = Self {
            eth_dst: Mac::BROADCAST,
            eth_src: Mac::BROADCAST,
            eth_type: u16::MAX,
            vlan_tci: Self::TAGGED,
            ..Self::default()
        };
        if self.vlan_tci != 0 {
            (seen.vlan_type, seen.vlan_tci) = (u16::MAX, u16::MAX);
        }
        if v4 || self.eth_type == proto::ETHERTYPE_IPV6 {
            let address = if v4 { u32::MAX.into() } else { u128::MAX };
            (seen.ip_src, seen.ip_dst) = (address, address);
            (seen.ip_proto, seen.ip_tos, seen.ip_ttl, seen.ip_fragment) = (u8::MAX, u8::MAX, u8::MAX, 3);
        }
        if matches!(self.ip_proto, proto::TCP | proto::UDP | proto::SCTP | proto::ICMP | proto::ICMPV6) {
            (seen.l4_src, seen.l4_dst) = (u16::MAX, u16::MAX);
        }
        if self.ip_proto == proto::TCP {
            seen.tcp_flags = u8::MAX;
        }
        f.write_str(&fields(self, &seen))
    }
}

/// Returns in words the fields of `key` that `mask` covers, in the order in which they lie in packets.
fn fields(key: &Key, mask: &Key) -> String {
    let mut out = String::new();
    let mut add = |name: &str, text: Option<String>| {
        if let Some(text) = text {
            let comma = if out.is_empty() { "" } else { ", " };
            // Writing to a string can't fail.
            let _ = write!(out, "{comma}{name} {text}");
        }
    };
    add("eth_src", mac(key.eth_src, mask.eth_src));
    add("eth_dst", mac(key.eth_dst, mask.eth_dst));
    add("vlan", tag(key.vlan_tci, mask.vlan_tci));
    add("vlan_type", hex(key.vlan_type, mask.vlan_type, u16::MAX));
    add("eth_type", hex(key.eth_type, mask.eth_type, u16::MAX));
    let v4 = key.eth_type == proto::ETHERTYPE_IPV4;
    add("ip_src", address(key.ip_src, mask.ip_src, v4));
    add("ip_dst", address(key.ip_dst, mask.ip_dst, v4));
    add("ip_proto", number(key.ip_proto.into(), mask.ip_proto.into(), u8::MAX.into()));
    add("ip_tos", hex(key.ip_tos.into(), mask.ip_tos.into(), u8::MAX.into()));
    add("ip_ttl", number(key.ip_ttl.into(), mask.ip_ttl.into(), u8::MAX.into()));
    add("ip_frag", fragment(key.ip_fragment, mask.ip_fragment));
    let icmp = matches!(key.ip_proto, proto::ICMP | proto::ICMPV6);
    let [src, dst] = if icmp { ["icmp_type", "icmp_code"] } else { ["port_src", "port_dst"] };
    add(src, number(key.l4_src, mask.l4_src, u16::MAX));
    add(dst, number(key.l4_dst, mask.l4_dst, u16::MAX));
    add("tcp_flags", hex(key.tcp_flags.into(), mask.tcp_flags.into(), u8::MAX.into()));
    if out.is_empty() { "all".to_owned() } else { out }
}

fn mac(key: Mac, mask: Mac) -> Option<String> {
    match mask {
        mask if mask.is_zero() => None,
        Mac::BROADCAST => Some(key.to_string()),
        mask => Some(format!("{key}/{mask}")),
    }
}

fn tag(key: u16, mask: u16) -> Option<String> {
    let (vid, pcp) = (mask & 0xfff, mask >> 13);
    if mask == 0 {
        return None;
    }
    if mask & Key::TAGGED != 0 && key & Key::TAGGED == 0 {
        return Some("none".to_owned());
    }
    let vid = match vid {
        0 => "any".to_owned(),
        0xfff => (key & 0xfff).to_string(),
        mask => format!("{}/{mask:#x}", key & 0xfff),
    };
    let pcp = if pcp == 0 { String::new() } else { format!(" priority {}", key >> 13) };
    Some(vid + &pcp)
}

fn hex(key: u16, mask: u16, all: u16) -> Option<String> {
    match mask {
        0 => None,
        mask if mask == all => Some(format!("{key:#x}")),
        mask => Some(format!("{key:#x}/{mask:#x}")),
    }
}

fn number(key: u16, mask: u16, all: u16) -> Option<String> {
    match mask {
        0 => None,
        mask if mask == all => Some(key.to_string()),
        mask => Some(format!("{key}/{mask:#x}")),
    }
}

fn fragment(key: u8, mask: u8) -> Option<String> {
    let text = match (mask & Key::FRAGMENT != 0, mask & Key::LATER != 0) {
        (false, false) => return None,
        (true, _) if key & Key::FRAGMENT == 0 => "no",
        (_, true) if key & Key::LATER != 0 => "later",
        (_, true) => "not_later",
        (true, false) => "yes",
    };
    Some(text.to_owned())
}

fn address(key: u128, mask: u128, v4: bool) -> Option<String> {
    let text = |bits: u128| -> IpAddr {
        if v4 { Ipv4Addr::from_bits(bits as u32).into() } else { Ipv6Addr::from_bits(bits).into() }
    };
    let (width, ones) = if v4 { (32, (mask as u32).leading_ones()) } else { (128, mask.leading_ones()) };
    match mask {
        0 => None,
        _ if ones == width => Some(text(key).to_string()),
        mask if ones == mask.count_ones() => Some(format!("{}/{ones}", text(key))),
        mask => Some(format!("{}/{}", text(key), text(mask))),
    }
}

impl Action {
    /// Returns the match and the actions in words.
    #[must_use]
    pub fn words(&self, names: &dyn Names) -> String {
        match self {
            Self::Output(vif) => format!("output {}", names.vif(*vif)),
            Self::Drop => "drop".to_owned(),
            Self::Mark => "mark for OVS".to_owned(),
            Self::SetMacSrc(mac) => format!("set eth_src {mac}"),
            Self::SetMacDst(mac) => format!("set eth_dst {mac}"),
            Self::SetIpSrc(addr) => format!("set ip_src {addr}"),
            Self::SetIpDst(addr) => format!("set ip_dst {addr}"),
            Self::SetTtl(ttl) => format!("set ip_ttl {ttl}"),
            Self::SetDscp(dscp) => format!("set dscp {dscp}"),
            Self::SetPortSrc(port) => format!("set port_src {port}"),
            Self::SetPortDst(port) => format!("set port_dst {port}"),
            Self::PushVlan { service: false } => "push vlan".to_owned(),
            Self::PushVlan { service: true } => "push service vlan".to_owned(),
            Self::SetVlanVid(vid) => format!("set vlan {vid}"),
            Self::SetVlanPcp(pcp) => format!("set vlan priority {pcp}"),
            Self::PopVlan => "pop vlan".to_owned(),
            Self::Encap(outer) => outer.to_string(),
        }
    }
}

impl Display for Outer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        /// UDP port of Geneve (RFC 8926).
        const PORT_GENEVE: u16 = 6081;
        let bytes = self.bytes();
        let port = bytes.get(self.l4() + 2..self.l4() + 4).map_or(0, |p| u16::from_be_bytes([p[0], p[1]]));
        let kind = match (self.is_udp(), port) {
            (false, _) => "gre".to_owned(),
            (true, proto::PORT_VXLAN) => "vxlan".to_owned(),
            (true, PORT_GENEVE) => "geneve".to_owned(),
            (true, port) => format!("udp port {port}"),
        };
        let ip = &bytes[proto::ETHERNET_LEN..self.l4()];
        let (src, dst): (IpAddr, IpAddr) = if self.is_v6() {
            let at = |at: usize| ip[at..].first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |a| (*a).into());
            (at(8).into(), at(24).into())
        } else {
            let at = |at: usize| ip[at..].first_chunk::<4>().map_or(Ipv4Addr::UNSPECIFIED, |a| (*a).into());
            (at(12).into(), at(16).into())
        };
        write!(f, "encap {kind} {src} > {dst}")
    }
}

impl Flow {
    /// Returns the flow's actions in words.
    #[must_use]
    pub fn actions_in_words(&self, names: &dyn Names) -> String {
        let actions: Vec<_> = self.actions.iter().map(|action| action.words(names)).collect();
        if actions.is_empty() { "drop".to_owned() } else { actions.join(", ") }
    }
}
