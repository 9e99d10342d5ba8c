//! Bytes to text.

use super::encode::{ND_FLAGS, TCP_FLAGS};
use super::{MOST_SHOWN, MOST_TAGS};
use packet::{Mac, checksum, proto, roce};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most bytes behind the headers that [`describe`] shows.
const MOST_BYTES: usize = 32;
/// Most zeros behind a frame that are told as such.
const MOST_PADDING: usize = 63;

/// Returns the text that describes a frame. The text always parses to the same frame.
#[must_use]
pub fn show(frame: &[u8]) -> String {
    let shown = [Sums::Right, Sums::Partial, Sums::Told].into_iter().find_map(|sums| {
        let mut layers = Layers { texts: Vec::new(), sums };
        ethernet(frame, &mut layers);
        let text = layers.texts.join(" / ");
        let bytes = super::parse(&text).ok()?;
        let rest = frame.strip_prefix(&bytes[..])?;
        match rest.len() {
            0 => Some(text),
            pad @ 1..=MOST_PADDING if rest.iter().all(|byte| *byte == 0) => {
                Some(format!("{text} / pad {pad}"))
            }
            _ => None,
        }
    });
    // Bytes that the layers can't express.
    shown.unwrap_or_else(|| hex(frame))
}

/// Returns the text that describes a frame of `len` bytes, of which `head` are the first. The text parses to a frame
/// with the same headers; of a long payload, it has the length alone.
#[must_use]
pub fn describe(head: &[u8], len: usize) -> String {
    if head.len() < proto::ETHERNET_LEN {
        return hex(head);
    }
    let mut whole = head.to_vec();
    whole.resize(len.clamp(head.len(), head.len() + usize::from(u16::MAX)), 0);
    let text = show(&whole);
    if text.starts_with("hex ") {
        return hex(head);
    }
    let is_long = |layer: &str| layer.starts_with("hex ") && layer.len() > "hex ".len() + 2 * MOST_BYTES;
    let shorten = |layer: &str| match is_long(layer) {
        true => format!("payload {}", (layer.len() - "hex ".len()) / 2),
        false => layer.to_owned(),
    };
    let mut layers: Vec<_> = text.split(" / ").map(shorten).collect();
    if head.len() < whole.len() {
        layers.push(format!("cut {}", head.len()));
    }
    layers.join(" / ")
}

/// How layers tell their checksums.
#[derive(Clone, Copy)]
enum Sums {
    /// Not at all: they are right.
    Right,
    /// As `partial` where a device shall complete them.
    Partial,
    /// As numbers.
    Told,
}

struct Layers {
    texts: Vec<String>,
    sums: Sums,
}

impl Layers {
    fn push(&mut self, text: String) {
        self.texts.push(text);
    }

    fn len(&self) -> usize {
        self.texts.len()
    }

    /// Appends the words of the checksum in the L4 header at `at` of an IP packet.
    fn sum(&self, text: &mut String, packet: &[u8], at: usize, protocol: u8) {
        let (segment, sum_at) = (&packet[at..], super::encode::sum_at(protocol));
        match self.sums {
            Sums::Right => {}
            Sums::Partial => {
                let ends: (IpAddr, IpAddr) = match packet[0] >> 4 {
                    4 => (v4(packet, 12).into(), v4(packet, 16).into()),
                    _ => (v6(packet, 8).into(), v6(packet, 24).into()),
                };
                let sum = checksum::pseudo_header(ends.0, ends.1, protocol, segment.len() as u32).fold();
                if matches!(protocol, proto::TCP | proto::UDP) && be16(segment, sum_at) == sum {
                    text.push_str(" partial");
                }
            }
            Sums::Told if protocol == proto::SCTP => {
                let _ = write!(text, " sum {:#010x}", be32(segment, sum_at));
            }
            Sums::Told => {
                let _ = write!(text, " sum {:#06x}", be16(segment, sum_at));
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("hex "), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn raw(bytes: &[u8], layers: &mut Layers) {
    if bytes.is_empty() {
        return;
    }
    let pattern = bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8);
    layers.push(if pattern { format!("payload {}", bytes.len()) } else { hex(bytes) });
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

fn mac(bytes: &[u8], at: usize) -> Mac {
    Mac(bytes.get(at..at + 6).and_then(|b| b.try_into().ok()).unwrap_or_default())
}

fn v4(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(be32(bytes, at))
}

fn v6(bytes: &[u8], at: usize) -> Ipv6Addr {
    let octets: [u8; 16] = bytes.get(at..at + 16).and_then(|b| b.try_into().ok()).unwrap_or_default();
    octets.into()
}

/// Appends ` name value` unless the value is the default.
fn option(text: &mut String, name: &str, value: u32, default: u32) {
    if value != default {
        let _ = write!(text, " {name} {value}");
    }
}

fn ethernet(bytes: &[u8], layers: &mut Layers) {
    if bytes.len() < proto::ETHERNET_LEN || layers.len() >= MOST_SHOWN {
        return raw(bytes, layers);
    }
    let mut text = format!("eth {} > {}", mac(bytes, 6), mac(bytes, 0));
    let mut at = 12;
    for _ in 0..MOST_TAGS {
        let Some(name) = tag_name(be16(bytes, at)).filter(|_| bytes.len() >= at + 6) else { break };
        let _ = write!(text, " {name} {}", be16(bytes, at + 2));
        at += proto::VLAN_LEN;
    }
    let (ethertype, inside) = (be16(bytes, at), &bytes[at + 2..]);
    let known = [proto::ETHERTYPE_IPV4, proto::ETHERTYPE_IPV6, proto::ETHERTYPE_ARP, 0x88b5];
    if !known.contains(&ethertype) {
        let _ = write!(text, " type {ethertype:#06x}");
    }
    layers.push(text);
    match ethertype {
        proto::ETHERTYPE_IPV4 | proto::ETHERTYPE_IPV6 => network(inside, layers),
        proto::ETHERTYPE_ARP if inside.len() >= proto::ARP_LEN => arp(inside, layers),
        _ => raw(inside, layers),
    }
}

/// Returns the word for a tag with this EtherType.
fn tag_name(ethertype: u16) -> Option<&'static str> {
    match ethertype {
        proto::ETHERTYPE_VLAN => Some("vlan"),
        proto::ETHERTYPE_QINQ => Some("svlan"),
        _ => None,
    }
}

fn arp(bytes: &[u8], layers: &mut Layers) {
    let (sender, sender_mac, target) = (v4(bytes, 14), mac(bytes, 8), v4(bytes, 24));
    let mut text = if be16(bytes, 6) == 1 {
        format!("arp request {sender} at {sender_mac} for {target}")
    } else {
        format!("arp reply {sender} at {sender_mac} to {target}")
    };
    if !mac(bytes, 18).is_zero() {
        let _ = write!(text, " at {}", mac(bytes, 18));
    }
    layers.push(text);
}

fn network(bytes: &[u8], layers: &mut Layers) {
    match bytes.first().map(|byte| byte >> 4).filter(|_| layers.len() < MOST_SHOWN) {
        Some(4) if bytes.len() >= proto::IPV4_LEN => ip4(bytes, layers),
        Some(6) if bytes.len() >= proto::IPV6_LEN => ip6(bytes, layers),
        _ => raw(bytes, layers),
    }
}

fn ip4(bytes: &[u8], layers: &mut Layers) {
    let mut text = format!("ip4 {} > {}", v4(bytes, 12), v4(bytes, 16));
    option(&mut text, "ttl", bytes[8].into(), 64);
    option(&mut text, "tos", bytes[1].into(), 0);
    option(&mut text, "id", be16(bytes, 4).into(), 0);
    let fragment = be16(bytes, 6);
    if fragment & 0x4000 != 0 {
        text.push_str(" df");
    }
    let offset = u32::from(fragment & 0x1fff) * 8;
    option(&mut text, "frag", offset, 0);
    if fragment & 0x2000 != 0 {
        text.push_str(" more");
    }
    let len = usize::from(be16(bytes, 2)).clamp(proto::IPV4_LEN, bytes.len());
    transport(bytes[9], offset == 0, (&bytes[..len], proto::IPV4_LEN), text, layers);
}

fn ip6(bytes: &[u8], layers: &mut Layers) {
    let mut text = format!("ip6 {} > {}", v6(bytes, 8), v6(bytes, 24));
    option(&mut text, "ttl", bytes[7].into(), 64);
    option(&mut text, "tos", be32(bytes, 0) >> 20 & 0xff, 0);
    option(&mut text, "flow", be32(bytes, 0) & 0xf_ffff, 0);
    let len = (usize::from(be16(bytes, 4)) + proto::IPV6_LEN).min(bytes.len());
    let (packet, inside) = (&bytes[..len], &bytes[proto::IPV6_LEN..len]);
    if bytes[6] == proto::FRAGMENT && inside.len() >= 8 {
        let _ = write!(text, " id {}", be32(inside, 4));
        let offset = u32::from(be16(inside, 2) & !7);
        option(&mut text, "frag", offset, 0);
        if inside[3] & 1 != 0 {
            text.push_str(" more");
        }
        return transport(inside[0], offset == 0, (packet, proto::IPV6_LEN + 8), text, layers);
    }
    transport(bytes[6], true, (packet, proto::IPV6_LEN), text, layers);
}

/// Completes the IP layer's text with the protocol, and continues with the content at an offset of the IP
/// packet.
fn transport(protocol: u8, first: bool, (packet, at): (&[u8], usize), mut text: String, layers: &mut Layers) {
    let inside = &packet[at..];
    let min = match protocol {
        proto::UDP | proto::ICMP | proto::ICMPV6 => proto::UDP_LEN,
        proto::TCP => proto::TCP_LEN,
        proto::SCTP => proto::SCTP_LEN,
        proto::GRE => proto::GRE_LEN,
        _ => usize::MAX,
    };
    if !first || inside.len() < min {
        option(&mut text, "proto", protocol.into(), 253);
        layers.push(text);
        return raw(inside, layers);
    }
    layers.push(text);
    match protocol {
        proto::UDP => udp(packet, at, layers),
        proto::TCP => tcp(packet, at, layers),
        proto::SCTP => {
            let mut text = format!("sctp {} > {}", be16(inside, 0), be16(inside, 2));
            layers.sum(&mut text, packet, at, protocol);
            layers.push(text);
            raw(&inside[proto::SCTP_LEN..], layers);
        }
        proto::GRE => {
            layers.push("gre".into());
            mpls(&inside[proto::GRE_LEN..], layers);
        }
        _ => icmp(packet, at, protocol, layers),
    }
}

fn udp(packet: &[u8], at: usize, layers: &mut Layers) {
    let bytes = &packet[at..];
    let (dst, len) = (be16(bytes, 2), be16(bytes, 4));
    let mut text = format!("udp {} > {dst}", be16(bytes, 0));
    option(&mut text, "len", len.into(), bytes.len() as u32);
    if be16(bytes, 6) == 0 {
        text.push_str(" nosum");
    } else {
        layers.sum(&mut text, packet, at, proto::UDP);
    }
    layers.push(text);
    let inside = &bytes[proto::UDP_LEN..];
    match dst {
        proto::PORT_MPLS => mpls(inside, layers),
        proto::PORT_VXLAN if inside.len() >= proto::VXLAN_LEN => {
            layers.push(format!("vxlan {}", be32(inside, 4) >> 8));
            ethernet(&inside[proto::VXLAN_LEN..], layers);
        }
        proto::PORT_GENEVE if inside.starts_with(&[0, 0, 0x65, 0x58]) && inside.len() >= proto::VXLAN_LEN => {
            layers.push(format!("geneve {}", be32(inside, 4) >> 8));
            ethernet(&inside[proto::VXLAN_LEN..], layers);
        }
        // With a wrong ICRC, headers can't describe the packet.
        proto::PORT_ROCE if roce::has_right_icrc(packet) => match roce::parse(inside) {
            Ok(datagram) => {
                let (layer, payload) = super::roce::show(&datagram);
                layers.push(layer);
                raw(payload, layers);
            }
            Err(_) => raw(inside, layers),
        },
        _ => raw(inside, layers),
    }
}

fn mpls(bytes: &[u8], layers: &mut Layers) {
    if bytes.len() < proto::MPLS_LEN || layers.len() >= MOST_SHOWN {
        return raw(bytes, layers);
    }
    let entry = be32(bytes, 0);
    let mut text = format!("mpls {}", entry >> 12);
    option(&mut text, "ttl", entry & 0xff, 64);
    option(&mut text, "tc", entry >> 9 & 7, 0);
    let bottom = entry & 0x100 != 0;
    if !bottom {
        text.push_str(" more");
    }
    layers.push(text);
    if bottom { network(&bytes[4..], layers) } else { mpls(&bytes[4..], layers) }
}

fn tcp(packet: &[u8], at: usize, layers: &mut Layers) {
    let bytes = &packet[at..];
    let mut text = format!("tcp {} > {}", be16(bytes, 0), be16(bytes, 2));
    let flags: String =
        TCP_FLAGS.chars().enumerate().filter(|(bit, _)| bytes[13] >> bit & 1 != 0).map(|(_, c)| c).collect();
    if !flags.is_empty() {
        let _ = write!(text, " {flags}");
    }
    option(&mut text, "seq", be32(bytes, 4), 0);
    option(&mut text, "ack", be32(bytes, 8), 0);
    option(&mut text, "win", be16(bytes, 14).into(), 0);
    let inside = &bytes[proto::TCP_LEN..];
    let len = usize::from(bytes[12] >> 4) * 4;
    let (mut options, inside) =
        inside.split_at_checked(len.saturating_sub(proto::TCP_LEN)).unwrap_or((&[], inside));
    if let [2, 4, high, low, rest @ ..] = options {
        let _ = write!(text, " mss {}", u16::from_be_bytes([*high, *low]));
        options = rest;
    }
    if let [1, 3, 3, shift, rest @ ..] = options {
        let _ = write!(text, " scale {shift}");
        options = rest;
    }
    if !options.is_empty() {
        let _ = write!(text, " options {}", hex(options).trim_start_matches("hex "));
    }
    layers.sum(&mut text, packet, at, proto::TCP);
    layers.push(text);
    raw(inside, layers);
}

fn icmp(packet: &[u8], at: usize, protocol: u8, layers: &mut Layers) {
    let (bytes, is_v6) = (&packet[at..], protocol == proto::ICMPV6);
    let name = if is_v6 { "icmp6" } else { "icmp" };
    let (kind, code, rest) = (bytes[0], bytes[1], be32(bytes, 4));
    let inside = &bytes[proto::ICMP_LEN..];
    let echo = |word| format!("{name} {word} {} {}", rest >> 16, rest & 0xffff);
    if is_v6 && matches!(kind, proto::ND_SOLICITATION | proto::ND_ADVERTISEMENT) && inside.len() >= 16 {
        return nd(kind == proto::ND_SOLICITATION, packet, at, layers);
    }
    let (mut text, is_echo) = match (is_v6, kind) {
        (false, 8) | (true, 128) => (echo("echo"), true),
        (false, 0) | (true, 129) => (echo("reply"), true),
        _ if rest != 0 || matches!(layers.sums, Sums::Told) => {
            (format!("{name} {kind} {code} {rest}"), false)
        }
        _ => (format!("{name} {kind} {code}"), false),
    };
    layers.sum(&mut text, packet, at, protocol);
    layers.push(text);
    if is_echo { raw(inside, layers) } else { network(inside, layers) }
}

fn nd(solicitation: bool, packet: &[u8], at: usize, layers: &mut Layers) {
    let bytes = &packet[at..];
    let mut text = format!("{} {}", if solicitation { "ns" } else { "na" }, v6(bytes, 8));
    if bytes.len() > 24 {
        let _ = write!(text, " at {}", mac(bytes, 26));
    }
    let flags: String =
        ND_FLAGS.iter().filter(|(_, bit)| bytes[4] & bit != 0).map(|(letter, _)| letter).collect();
    if !flags.is_empty() {
        let _ = write!(text, " {flags}");
    }
    layers.sum(&mut text, packet, at, proto::ICMPV6);
    layers.push(text);
}
