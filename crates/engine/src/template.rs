//! How a flow's packets are rewritten, compiled: a [`Forward`] with prebuilt new headers.
//!
//! The only part of a single flow in a template are outside addresses, so flows to one next hop share one. A translated
//! port is beside it.

use model::{Cut, Encap, Forward, Nat, VifId, ovs};
use packet::{TunnelKind, build, proto};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Room for the longest new headers (Ethernet, IPv6, UDP, VXLAN, Ethernet with a tag; or those of Open vSwitch), a
/// multiple of the size of a move.
const MAX_PREFIX: usize = ovs::MAX_OUTER;
/// Room that suffices for most headers, including VXLAN over IPv4.
const SHORT_PREFIX: usize = 64;

const TTL: u8 = 64;

const MAX_TAGS: usize = ovs::MAX_PUSHED * proto::VLAN_LEN;

/// The part of a packet's own headers that is edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Nothing,
    /// The IP header.
    Ip,
    /// Fields, as a flow of Open vSwitch says.
    Fields,
}

/// One of a packet's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// A compiled [`Forward`].
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub port: VifId,
    /// Bytes stripped from the front.
    pub strip: u16,
    /// New traffic class of the IP header.
    pub tos: Option<u8>,
    pub ttl_decrement: u8,
    /// Translation of addresses. That of quoted packets is beside it: only packets that no cache knows have some.
    pub src: Option<IpAddr>,
    pub dst: Option<IpAddr>,
    /// The port that is translated: that of one flow, which has it beside the template.
    pub ported: Option<Side>,
    pub mss: Option<u16>,
    /// Tags to push into a kept Ethernet header, as they lie there; their first bytes, and how many.
    tags: [u8; MAX_TAGS],
    tags_len: u8,
    /// Edits besides these, done before headers are put in front.
    pub edit: Edit,
    /// Number of tags to remove from a kept Ethernet header.
    pub pop_tags: u8,
    /// Whether the kept bytes begin with the IP header rather than an Ethernet header.
    pub keeps_ip: bool,
    /// The tunnel that packets go through.
    pub tunnel: Option<OuterHeaders>,
    unchanged: bool,
    /// The new headers, at the end of this room.
    prefix: [u8; MAX_PREFIX],
    prefix_len: u8,
}

#[derive(Clone, Copy)]
pub(crate) struct Rewrite<'a> {
    pub template: &'a Template,
    /// Fields that a flow of Open vSwitch sets.
    pub fields: Option<&'a ovs::Edits>,
    /// Translation of addresses and ports.
    pub nat: Nat,
    /// Flow entropy for the tunnel; 0 without one.
    pub entropy: u32,
    /// Fragmentation, if the packet is too big.
    pub cut: Option<Cut>,
}

impl<'a> Rewrite<'a> {
    /// Describes the rewrite that `forward` demands; `template` must be compiled from it.
    pub fn of(forward: &Forward, template: &'a Template) -> Self {
        let cut = forward.cut.filter(|_| template.keeps_ip);
        Self { template, fields: None, nat: forward.nat, entropy: forward.entropy(), cut }
    }

    /// Describes the rewrite that `output` demands; `template` must be compiled from it.
    pub fn of_output(output: &'a ovs::Output, template: &'a Template) -> Self {
        let fields = (template.edit == Edit::Fields).then_some(&output.edits);
        Self { template, fields, nat: Nat::default(), entropy: output.entropy(), cut: None }
    }

    /// Returns what a flow's entry keeps beside the template: the translated port, or the entropy. `None` if there is more.
    pub const fn beside(&self) -> Option<u32> {
        match (self.nat.src_port, self.nat.dst_port) {
            (None, None) => Some(self.entropy),
            (Some(port), None) | (None, Some(port)) if self.template.tunnel.is_none() => Some(port as u32),
            _ => None,
        }
    }
}

/// The outer headers in a prefix, in which all lengths are still zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OuterHeaders {
    /// Over IPv6.
    pub v6: bool,
    /// With UDP; else GRE.
    pub udp: bool,
    /// With a UDP checksum, which covers the payload.
    pub sum: bool,
    /// Without Don't Fragment: each packet has an identification of its own.
    pub numbered: bool,
}

impl OuterHeaders {
    /// Offset of the outer IP header from the outer Ethernet header's first byte.
    pub const IP: usize = proto::ETHERNET_LEN;

    /// Returns the offset of the header after the outer IP header.
    pub const fn l4(self) -> usize {
        Self::IP + if self.v6 { proto::IPV6_LEN } else { proto::IPV4_LEN }
    }
}

impl Template {
    /// Compiles a decision to forward.
    pub fn new(forward: &Forward) -> Self {
        let mpls = |encap: &Encap| !encap.kind.has_ethernet();
        let mut template = Self {
            port: forward.port,
            strip: forward.strip,
            tos: forward.tos,
            ttl_decrement: forward.ttl_decrement,
            src: forward.nat.src,
            dst: forward.nat.dst,
            ported: match (forward.nat.src_port, forward.nat.dst_port) {
                (Some(_), _) => Some(Side::Source),
                (None, Some(_)) => Some(Side::Destination),
                (None, None) => None,
            },
            mss: forward.mss,
            tags: [0; MAX_TAGS],
            tags_len: 0,
            edit: Edit::Nothing,
            pop_tags: forward.pop_tags,
            keeps_ip: forward.ethernet.is_some() || forward.encap.as_ref().is_some_and(mpls),
            tunnel: None,
            unchanged: *forward == Forward::unchanged(forward.port),
            prefix: [0; MAX_PREFIX],
            prefix_len: 0,
        };
        if let Some(encap) = &forward.encap {
            template.put_encap(encap);
        }
        let mut push = forward.push_vlan;
        if let Some(eth) = &forward.ethernet {
            let outer = template.tunnel.is_none().then(|| push.take()).flatten();
            let first = if outer.is_some() { proto::ETHERTYPE_VLAN } else { eth.ethertype };
            template.put(|out| build::ethernet(out, eth.dst, eth.src, first));
            if let Some(vlan) = outer {
                template.put(|out| build::vlan(out, vlan, eth.ethertype));
            }
        }
        if let Some(vlan) = push {
            template.push_tag([proto::ETHERTYPE_VLAN.to_be_bytes(), vlan.to_be_bytes()].as_flattened());
        }
        if template.edits_ip() {
            template.edit = Edit::Ip;
        }
        template.align_prefix();
        template
    }

    /// Compiles an output of a flow of Open vSwitch, except for the fields that it sets.
    #[cold]
    #[inline(never)]
    pub fn of_output(output: &ovs::Output) -> Self {
        let mut template = Self::new(&Forward { strip: output.strip, ..Forward::unchanged(output.port) });
        let edits = &output.edits;
        template.unchanged = output.changes_nothing();
        template.pop_tags = edits.popped;
        edits.tag_bytes().for_each(|tag| template.push_tag(&tag));
        if edits.changes_fields() {
            template.edit = Edit::Fields;
        }
        if let Some(wrap) = &output.wrap {
            template.put_wrap(&wrap.outer);
            template.align_prefix();
        }
        template
    }

    /// Moves the new headers from the start to the end of their room.
    fn align_prefix(&mut self) {
        let len = usize::from(self.prefix_len);
        self.prefix.copy_within(..len, MAX_PREFIX - len);
    }

    /// Copies the new headers into `buffer` so that they end at `end`, by moves of fixed size, which also overwrite
    /// bytes before them. Returns where they start.
    #[inline(always)]
    pub fn put_prefix(&self, buffer: &mut [u8], end: usize) -> Option<usize> {
        let len = usize::from(self.prefix_len);
        if len <= SHORT_PREFIX {
            let short: &[u8; SHORT_PREFIX] = self.prefix.last_chunk()?;
            buffer.get_mut(..end)?.last_chunk_mut().map(|to| *to = *short)?;
        } else {
            buffer.get_mut(..end)?.last_chunk_mut().map(|to| *to = self.prefix)?;
        }
        Some(end - len)
    }

    pub const fn changes_nothing(&self) -> bool {
        self.unchanged
    }

    /// Returns the headers to put in front. Lengths, and the fields that depend on them, are not set yet.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix[MAX_PREFIX - usize::from(self.prefix_len)..]
    }

    /// Returns by how many bytes a packet grows.
    pub fn grown(&self) -> isize {
        let popped = usize::from(self.pop_tags) * proto::VLAN_LEN;
        (self.prefix().len() + self.tags().len()) as isize - (usize::from(self.strip) + popped) as isize
    }

    pub const fn edits_ip(&self) -> bool {
        self.tos.is_some()
            || self.ttl_decrement > 0
            || self.src.is_some()
            || self.dst.is_some()
            || self.mss.is_some()
    }

    /// Returns the tags to push into a kept Ethernet header, as they lie there.
    #[inline(always)]
    pub fn tags(&self) -> &[u8] {
        &self.tags[..usize::from(self.tags_len)]
    }

    fn put(&mut self, header: impl FnOnce(&mut [u8]) -> Result<usize, packet::WriteError>) {
        // A prefix has room for every combination of headers.
        self.prefix_len += header(&mut self.prefix[usize::from(self.prefix_len)..]).unwrap_or(0) as u8;
    }

    fn push_tag(&mut self, tag: &[u8]) {
        // There is room for as many as a decision pushes.
        let end = usize::from(self.tags_len) + tag.len();
        if let Some(room) = self.tags.get_mut(self.tags_len.into()..end) {
            room.copy_from_slice(tag);
            self.tags_len = end as u8;
        }
    }

    fn put_wrap(&mut self, outer: &ovs::Outer) {
        self.put(|out| {
            let bytes = outer.bytes();
            out.get_mut(..bytes.len())
                .map(|out| out.copy_from_slice(bytes))
                .ok_or(packet::WriteError::TooShort)?;
            Ok(bytes.len())
        });
        let (v6, udp, sum) = (outer.is_v6(), outer.is_udp(), outer.has_sum());
        self.tunnel = Some(OuterHeaders { v6, udp, sum, numbered: false });
    }

    fn put_encap(&mut self, encap: &Encap) {
        let udp = encap.kind != TunnelKind::MplsGre;
        let protocol = if udp { proto::UDP } else { proto::GRE };
        let tos = encap.tos;
        match (encap.src, encap.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                self.put(|out| build::ethernet(out, encap.dst_mac, encap.src_mac, proto::ETHERTYPE_IPV4));
                let (id, dont_fragment, len) = (0, encap.dont_fragment, 0);
                let ip = build::Ipv4 { src, dst, protocol, ttl: TTL, tos, id, dont_fragment, len };
                self.put(|out| build::ipv4(out, &ip));
                self.tunnel = Some(OuterHeaders { v6: false, udp, sum: false, numbered: !dont_fragment });
            }
            (src, dst) => {
                let v6 = |addr| match addr {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                self.put(|out| build::ethernet(out, encap.dst_mac, encap.src_mac, proto::ETHERTYPE_IPV6));
                let ip = build::Ipv6 {
                    src: v6(src),
                    dst: v6(dst),
                    next_header: protocol,
                    hop_limit: TTL,
                    traffic_class: tos,
                    flow_label: 0,
                    payload_len: 0,
                };
                self.put(|out| build::ipv6(out, &ip));
                self.tunnel = Some(OuterHeaders { v6: true, udp, sum: udp, numbered: false });
            }
        }
        match encap.kind {
            TunnelKind::MplsUdp => {
                self.put(|out| build::udp(out, 0, proto::PORT_MPLS, 0, 0));
                self.put(|out| build::mpls(out, encap.id, 0, true, TTL));
            }
            TunnelKind::MplsGre => {
                self.put(|out| build::gre(out, proto::ETHERTYPE_MPLS));
                self.put(|out| build::mpls(out, encap.id, 0, true, TTL));
            }
            TunnelKind::Vxlan => {
                self.put(|out| build::udp(out, 0, proto::PORT_VXLAN, 0, 0));
                self.put(|out| build::vxlan(out, encap.id));
            }
            TunnelKind::Geneve => {
                self.put(|out| build::udp(out, 0, proto::PORT_GENEVE, 0, 0));
                self.put(|out| build::geneve(out, encap.id));
            }
        }
    }

    /// Returns everything that distinguishes templates.
    fn identity(&self) -> impl Hash + PartialEq + '_ {
        let l4 = (self.src, self.dst, self.ported, self.mss);
        let fields = (
            self.port,
            self.strip,
            self.tos,
            self.ttl_decrement,
            u64::from_ne_bytes(self.tags),
            self.pop_tags,
        );
        (fields, l4, self.keeps_ip, self.tunnel, self.prefix())
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Template {}

impl Hash for Template {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}
