//! Text to bytes.

use super::{MOST_LAYERS, MOST_TAGS, TextError};
use packet::build::{self, Ipv4, Ipv6};
use packet::{Arp, Mac, WriteError, checksum, proto, roce};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

type Bytes = Result<Vec<u8>, TextError>;

/// The words of a layer, front to back.
pub(super) struct Words<'t> {
    layer: &'t str,
    left: Vec<&'t str>,
}

impl<'t> Words<'t> {
    fn new(layer: &'t str) -> Self {
        Self { layer, left: layer.split_whitespace().rev().collect() }
    }

    pub(super) fn error(&self, what: impl Display) -> TextError {
        TextError { layer: self.layer.into(), what: what.to_string() }
    }

    pub(super) fn word(&mut self) -> Result<&'t str, TextError> {
        self.left.pop().ok_or_else(|| self.error("ends too early"))
    }

    fn value<V: FromStr>(&mut self) -> Result<V, TextError> {
        let word = self.word()?;
        word.parse().map_err(|_| self.error(format!("'{word}' is not understood")))
    }

    /// Reads a number, decimal, or hexadecimal after 0x.
    pub(super) fn number(&mut self) -> Result<u32, TextError> {
        let number = self.long()?;
        u32::try_from(number).map_err(|_| self.error(format!("{number} is too large")))
    }

    fn long(&mut self) -> Result<u64, TextError> {
        let word = self.word()?;
        let parsed = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        parsed.map_err(|_| self.error(format!("'{word}' is not a number")))
    }

    /// Reads a number that follows its name.
    pub(super) fn named(&mut self, name: &str) -> Result<u64, TextError> {
        self.must(name)?;
        self.long()
    }

    /// Reads a number of bytes, at most as many as an IP packet holds.
    fn count(&mut self) -> Result<usize, TextError> {
        let count = self.number()?;
        u16::try_from(count).map(usize::from).map_err(|_| self.error(format!("{count} bytes are too many")))
    }

    pub(super) fn must(&mut self, expected: &str) -> Result<(), TextError> {
        if self.word()? == expected { Ok(()) } else { Err(self.error(format!("'{expected}' expected"))) }
    }

    /// Takes the next word if it is this one. Returns whether it was.
    pub(super) fn has(&mut self, expected: &str) -> bool {
        self.left.pop_if(|word| *word == expected).is_some()
    }

    pub(super) fn option(&mut self, name: &str) -> Result<Option<u32>, TextError> {
        if self.has(name) { self.number().map(Some) } else { Ok(None) }
    }

    /// Reads `A > B`.
    fn pair<V: FromStr>(&mut self) -> Result<(V, V), TextError> {
        let first = self.value()?;
        self.must(">")?;
        Ok((first, self.value()?))
    }

    fn end(self) -> Result<(), TextError> {
        match self.left.last() {
            Some(word) => Err(self.error(format!("'{word}' is not understood"))),
            None => Ok(()),
        }
    }
}

/// The facts that a layer must know of the layer around it.
#[derive(Clone, Copy)]
struct Around {
    addresses: Option<(IpAddr, IpAddr)>,
}

pub(super) fn frame(text: &str) -> Bytes {
    let mut layers: Vec<&str> = text.split(" / ").map(str::trim).take(MOST_LAYERS + 1).collect();
    if let Some(layer) = layers.get(MOST_LAYERS) {
        let what = format!("a packet has at most {MOST_LAYERS} layers");
        return Err(TextError { layer: (*layer).into(), what });
    }
    let mut ends = Vec::new();
    while let Some(last) = layers.pop_if(|layer| layer.starts_with("pad ") || layer.starts_with("cut ")) {
        ends.push(last);
    }
    let mut frame = encode(&layers, Around { addresses: None })?;
    for end in ends.into_iter().rev() {
        let mut words = Words::new(end);
        let pad = words.word()? == "pad";
        let count = words.count()?;
        words.end()?;
        if pad { frame.resize(frame.len() + count, 0) } else { frame.truncate(count) }
    }
    Ok(frame)
}

fn encode(layers: &[&str], around: Around) -> Bytes {
    let Some((layer, inner)) = layers.split_first() else { return Ok(Vec::new()) };
    let mut words = Words::new(layer);
    let name = words.word()?;
    let out = match name {
        "eth" => ethernet(&mut words, inner)?,
        "arp" => followed_by(arp(&mut words)?, inner, around)?,
        "ip4" => ip4(&mut words, inner)?,
        "ip6" => ip6(&mut words, inner)?,
        "udp" | "tcp" | "sctp" | "icmp" | "icmp6" | "ns" | "na" => l4(name, &mut words, inner, around)?,
        "gre" | "mpls" | "vxlan" | "geneve" => tunnel(name, &mut words, inner)?,
        "roce" => super::roce::encode(&mut words, &encode(inner, around)?)?,
        "payload" => followed_by((0..words.count()?).map(|i| i as u8).collect(), inner, around)?,
        "hex" => followed_by(hex(&mut words)?, inner, around)?,
        _ => return Err(words.error("no such layer")),
    };
    words.end()?;
    Ok(out)
}

fn followed_by(mut bytes: Vec<u8>, inner: &[&str], around: Around) -> Bytes {
    bytes.append(&mut encode(inner, around)?);
    Ok(bytes)
}

/// Writes a header with a builder of crate `packet`, then appends the content.
fn with_header(
    len: usize,
    inside: &[u8],
    write: impl FnOnce(&mut [u8]) -> Result<usize, WriteError>,
) -> Vec<u8> {
    let mut out = vec![0; len];
    // The buffer is as long as the header, and nothing else can fail.
    let written = write(&mut out).unwrap_or(0);
    out.truncate(written);
    out.extend_from_slice(inside);
    out
}

fn name_of(layer: &str) -> &str {
    layer.split_whitespace().next().unwrap_or_default()
}

fn ethernet(words: &mut Words<'_>, inner: &[&str]) -> Bytes {
    let (src, dst) = words.pair::<Mac>()?;
    let mut tags = Vec::new();
    loop {
        if let Some(vlan) = words.option("vlan")? {
            tags.push((proto::ETHERTYPE_VLAN, vlan as u16));
        } else if let Some(vlan) = words.option("svlan")? {
            tags.push((proto::ETHERTYPE_QINQ, vlan as u16));
        } else {
            break;
        }
    }
    if tags.len() > MOST_TAGS {
        return Err(words.error(format!("a packet has at most {MOST_TAGS} tags")));
    }
    let ethertype = match inner.first().map(|layer| name_of(layer)) {
        Some("ip4") => proto::ETHERTYPE_IPV4,
        Some("ip6") => proto::ETHERTYPE_IPV6,
        Some("arp") => proto::ETHERTYPE_ARP,
        Some("mpls") => proto::ETHERTYPE_MPLS,
        _ => 0x88b5, // IEEE 802 local experimental
    };
    let ethertype = words.option("type")?.map_or(ethertype, |number| number as u16);
    let mut inside = encode(inner, Around { addresses: None })?;
    let mut next = ethertype;
    for (tpid, tci) in tags.iter().rev() {
        inside = with_header(proto::VLAN_LEN, &inside, |out| build::vlan(out, *tci, next));
        next = *tpid;
    }
    Ok(with_header(proto::ETHERNET_LEN, &inside, |out| build::ethernet(out, dst, src, next)))
}

fn arp(words: &mut Words<'_>) -> Bytes {
    let request = words.word()? == "request";
    let sender: Ipv4Addr = words.value()?;
    words.must("at")?;
    let sender_mac: Mac = words.value()?;
    words.must(if request { "for" } else { "to" })?;
    let target: Ipv4Addr = words.value()?;
    let target_mac = if words.has("at") { words.value()? } else { Mac::default() };
    let body = Arp { request, sender_mac, sender, target_mac, target };
    Ok(with_header(proto::ARP_LEN, &[], |out| build::arp(out, &body)))
}

/// Returns the protocol number of an IP packet's content.
fn protocol(inner: &[&str]) -> u8 {
    match inner.first().map(|layer| name_of(layer)) {
        Some("udp") => proto::UDP,
        Some("tcp") => proto::TCP,
        Some("sctp") => proto::SCTP,
        Some("icmp") => proto::ICMP,
        Some("icmp6" | "ns" | "na") => proto::ICMPV6,
        Some("gre") => proto::GRE,
        _ => 253, // experiments (RFC 3692)
    }
}

fn ip4(words: &mut Words<'_>, inner: &[&str]) -> Bytes {
    let (src, dst) = words.pair::<Ipv4Addr>()?;
    let ttl = words.option("ttl")?.unwrap_or(64) as u8;
    let tos = words.option("tos")?.unwrap_or(0) as u8;
    let id = words.option("id")?.unwrap_or(0) as u16;
    let dont_fragment = words.has("df");
    let offset = words.option("frag")?.unwrap_or(0) as u16;
    let more = words.has("more");
    let protocol = words.option("proto")?.map_or_else(|| protocol(inner), |number| number as u8);
    let inside = encode(inner, Around { addresses: Some((src.into(), dst.into())) })?;
    let len = words.option("len")?.map_or(inside.len() + proto::IPV4_LEN, |len| len as usize) as u16;
    let ip = Ipv4 { src, dst, protocol, ttl, tos, id, dont_fragment, len };
    let mut out = with_header(proto::IPV4_LEN, &inside, |out| build::ipv4(out, &ip));
    let fragment = u16::from_be_bytes([out[6], out[7]]) | offset >> 3 | if more { 0x2000 } else { 0 };
    out[6..8].copy_from_slice(&fragment.to_be_bytes());
    out[10..12].copy_from_slice(&[0, 0]);
    let sum = checksum::sum(&out[..proto::IPV4_LEN]).finish() ^ u16::from(words.has("badsum"));
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    put_icrc(&mut out, inner);
    Ok(out)
}

/// Puts the ICRC, which covers the IP header, at the end of an IP packet that has one.
fn put_icrc(packet: &mut [u8], inner: &[&str]) {
    if !matches!(inner, [udp, within, ..] if name_of(udp) == "udp" && name_of(within) == "roce") {
        return;
    }
    if let Some((covered, place)) = packet.split_last_chunk_mut()
        && let Some(icrc) = roce::icrc(covered)
    {
        *place = icrc;
    }
}

fn ip6(words: &mut Words<'_>, inner: &[&str]) -> Bytes {
    let (src, dst) = words.pair::<Ipv6Addr>()?;
    let hop_limit = words.option("ttl")?.unwrap_or(64) as u8;
    let traffic_class = words.option("tos")?.unwrap_or(0) as u8;
    let flow_label = words.option("flow")?.unwrap_or(0);
    let id = words.option("id")?;
    let offset = words.option("frag")?.unwrap_or(0) as u16;
    let more = words.has("more");
    let mut next_header = words.option("proto")?.map_or_else(|| protocol(inner), |number| number as u8);
    let mut inside = encode(inner, Around { addresses: Some((src.into(), dst.into())) })?;
    if let Some(id) = id {
        let mut header = vec![next_header, 0];
        header.extend((offset | u16::from(more)).to_be_bytes());
        header.extend(id.to_be_bytes());
        header.append(&mut inside);
        (inside, next_header) = (header, proto::FRAGMENT);
    }
    let payload_len = words.option("len")?.map_or(inside.len(), |len| len as usize) as u16;
    let ip = Ipv6 { src, dst, next_header, hop_limit, traffic_class, flow_label, payload_len };
    let mut out = with_header(proto::IPV6_LEN, &inside, |out| build::ipv6(out, &ip));
    put_icrc(&mut out, inner);
    Ok(out)
}

fn l4(name: &str, words: &mut Words<'_>, inner: &[&str], around: Around) -> Bytes {
    let inside = encode(inner, around)?;
    let (mut out, protocol) = match name {
        "udp" => udp(words, &inside)?,
        "tcp" => tcp(words, &inside)?,
        "sctp" => sctp(words, &inside)?,
        "icmp" => icmp(words, &inside, proto::ICMP)?,
        "icmp6" => icmp(words, &inside, proto::ICMPV6)?,
        _ => nd(name == "ns", words)?,
    };
    let summed = protocol != proto::SCTP && !words.has("nosum");
    let (wrong, partial) = (words.has("badsum"), words.has("partial"));
    let sum = match (words.option("sum")?, around.addresses) {
        (Some(sum), _) if protocol == proto::SCTP => sum.to_be_bytes().to_vec(),
        (Some(sum), _) => (sum as u16).to_be_bytes().to_vec(),
        (None, Some((src, dst))) if summed => match partial {
            true => checksum::pseudo_header(src, dst, protocol, out.len() as u32).fold(),
            false => checksum::l4(src, dst, protocol, &out) ^ u16::from(wrong) << 8,
        }
        .to_be_bytes()
        .to_vec(),
        _ => Vec::new(),
    };
    let at = sum_at(protocol);
    out[at..at + sum.len()].copy_from_slice(&sum);
    Ok(out)
}

/// Returns where the checksum is in a header of a protocol.
pub(super) const fn sum_at(protocol: u8) -> usize {
    match protocol {
        proto::TCP => 16,
        proto::UDP => 6,
        proto::SCTP => 8,
        _ => 2,
    }
}

/// A segment without its checksum, and its protocol.
type Segment = Result<(Vec<u8>, u8), TextError>;

fn udp(words: &mut Words<'_>, inside: &[u8]) -> Segment {
    let (src, dst) = words.pair::<u16>()?;
    let len = words.option("len")?.map_or(inside.len() + proto::UDP_LEN, |len| len as usize) as u16;
    Ok((with_header(proto::UDP_LEN, inside, |out| build::udp(out, src, dst, len, 0)), proto::UDP))
}

/// The letters of TCP's flags, from the lowest bit on.
pub(super) const TCP_FLAGS: &str = "FSRPAUEC";

fn tcp(words: &mut Words<'_>, inside: &[u8]) -> Segment {
    let (src, dst) = words.pair::<u16>()?;
    let letters = words.left.pop_if(|word| word.chars().all(|c| TCP_FLAGS.contains(c))).unwrap_or("");
    let flags = letters.chars().filter_map(|c| TCP_FLAGS.find(c)).fold(0, |flags, bit| flags | 1_u8 << bit);
    let mut out = Vec::with_capacity(proto::TCP_LEN + inside.len());
    out.extend(src.to_be_bytes());
    out.extend(dst.to_be_bytes());
    out.extend(words.option("seq")?.unwrap_or(0).to_be_bytes());
    out.extend(words.option("ack")?.unwrap_or(0).to_be_bytes());
    let window = words.option("win")?.unwrap_or(0) as u16;
    let options = tcp_options(words)?;
    let header_words = (proto::TCP_LEN + options.len()) / 4;
    out.extend([(header_words as u8) << 4, flags]);
    out.extend(window.to_be_bytes());
    out.extend([0; 4]);
    out.extend(options);
    out.extend_from_slice(inside);
    Ok((out, proto::TCP))
}

/// Reads TCP options, which must fill whole words of four bytes.
fn tcp_options(words: &mut Words<'_>) -> Bytes {
    const MOST: usize = 40;
    let mut options = Vec::new();
    if let Some(mss) = words.option("mss")? {
        options.extend([2, 4]);
        options.extend((mss as u16).to_be_bytes());
    }
    if let Some(shift) = words.option("scale")? {
        options.extend([1, 3, 3, shift as u8]);
    }
    if words.has("options") {
        options.extend(hex(words)?);
    }
    if options.len() % 4 != 0 || options.len() > MOST {
        return Err(words.error("TCP options are whole words, ten at most"));
    }
    Ok(options)
}

fn sctp(words: &mut Words<'_>, inside: &[u8]) -> Segment {
    let (src, dst) = words.pair::<u16>()?;
    let mut out = Vec::from(src.to_be_bytes());
    out.extend(dst.to_be_bytes());
    out.extend([0; 8]);
    out.extend_from_slice(inside);
    Ok((out, proto::SCTP))
}

fn icmp(words: &mut Words<'_>, inside: &[u8], protocol: u8) -> Segment {
    let (request, reply) = if protocol == proto::ICMP { (8, 0) } else { (128, 129) };
    let echo = if words.has("echo") { Some(request) } else { words.has("reply").then_some(reply) };
    let (kind, code, rest) = match echo {
        Some(kind) => (kind, 0, words.number()? << 16 | words.number()? & 0xffff),
        None => {
            let (kind, code) = (words.number()? as u8, words.number()? as u8);
            (kind, code, if words.left.is_empty() { 0 } else { words.number()? })
        }
    };
    let mut out = vec![kind, code, 0, 0];
    out.extend(rest.to_be_bytes());
    out.extend_from_slice(inside);
    Ok((out, protocol))
}

/// The letters of an advertisement's flags and their bits (RFC 4861, 4.4).
pub(super) const ND_FLAGS: [(char, u8); 3] = [('r', 0x80), ('s', 0x40), ('o', 0x20)];

fn nd(solicitation: bool, words: &mut Words<'_>) -> Segment {
    let target: Ipv6Addr = words.value()?;
    let mac = if words.has("at") { Some(words.value::<Mac>()?) } else { None };
    let is_flags = |word: &mut &str| word.chars().all(|c| ND_FLAGS.iter().any(|(letter, _)| *letter == c));
    let flags = if solicitation { "" } else { words.left.pop_if(is_flags).unwrap_or("") };
    let flags =
        ND_FLAGS.iter().filter(|(letter, _)| flags.contains(*letter)).fold(0, |all, (_, bit)| all | bit);
    let kind = if solicitation { proto::ND_SOLICITATION } else { proto::ND_ADVERTISEMENT };
    let mut out = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    out.extend(target.octets());
    if let Some(mac) = mac {
        out.extend([if solicitation { 1 } else { 2 }, 1]);
        out.extend(mac.0);
    }
    Ok((out, proto::ICMPV6))
}

fn tunnel(name: &str, words: &mut Words<'_>, inner: &[&str]) -> Bytes {
    let inside = encode(inner, Around { addresses: None })?;
    Ok(match name {
        "gre" => with_header(proto::GRE_LEN, &inside, |out| build::gre(out, proto::ETHERTYPE_MPLS)),
        "mpls" => {
            let label = words.number()?;
            let ttl = words.option("ttl")?.unwrap_or(64) as u8;
            let class = words.option("tc")?.unwrap_or(0) as u8;
            let bottom = !words.has("more");
            with_header(proto::MPLS_LEN, &inside, |out| build::mpls(out, label, class, bottom, ttl))
        }
        "geneve" => {
            let vni = words.number()?;
            with_header(proto::VXLAN_LEN, &inside, |out| build::geneve(out, vni))
        }
        _ => {
            let vni = words.number()?;
            with_header(proto::VXLAN_LEN, &inside, |out| build::vxlan(out, vni))
        }
    })
}

fn hex(words: &mut Words<'_>) -> Bytes {
    let digits = words.left.pop().unwrap_or_default();
    let byte = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    bytes.ok_or_else(|| words.error("pairs of hexadecimal digits expected"))
}
