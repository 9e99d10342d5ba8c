//! A model of the card: determines what it does with a packet, according to the lines in its tables. It is `rtl/pipe`
//! in Rust, for tests of the driver and of the card.

mod counts;
mod hold;
mod lookup;
mod memory;
mod windows;

pub use counts::Counts;
pub use hold::Holding;
pub use memory::{Memory, Sizes, Write};
pub use windows::Windows;

use crate::frame::Frame;
use crate::hold::Hold;
use crate::registers::{FlowAction, LabelKind, Nexthop, NexthopKind, Path, Port, Punt, Vrf};
use lookup::FlowLine;
use model::{Encap, EthernetRewrite, Forward, GATEWAY_MAC, Nat, VifId, entropy_of};
use packet::{Ethernet, L4, Mac, TunnelKind, ecn_encap, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The fate of a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Punt(Punt),
    /// The card drops it, for this reason in the numbering of `model::DropReason`.
    Drop(u8),
    Forward {
        /// The rewrite; `port` is a number of the card.
        forward: Forward,
        egress: u8,
        /// Counter of the packet's flow, if one was looked up.
        index: Option<u32>,
    },
}

/// Returns the fate of the frame of `len` bytes that came in by `port`, without regard to budgets ([`Windows`]).
#[must_use]
pub fn outcome(memory: &Memory, port: u16, bytes: &[u8], len: usize) -> Outcome {
    classify(memory, port, bytes, len)
        .and_then(|packet| verdict(memory, &packet))
        .unwrap_or_else(Outcome::Punt)
}

/// Returns the counter of the flow to which a dropped packet belongs.
#[must_use]
pub fn dropped_flow(memory: &Memory, port: u16, bytes: &[u8], len: usize) -> Option<u32> {
    let packet = classify(memory, port, bytes, len).ok()?;
    let way = find(memory, &packet).ok()?;
    way.flow.filter(|_| way.tracked).map(|flow| flow.index)
}

/// Returns the hold group whose release the frame's flow waits for, if any.
#[must_use]
pub fn held(memory: &Memory, port: u16, bytes: &[u8], len: usize) -> Option<Hold> {
    let packet = classify(memory, port, bytes, len).ok()?;
    Hold::of_action(flow_of(memory, &packet).ok()??.action)
}

struct Packet {
    frame: Frame,
    number: u16,
    port: Port,
    vrf: u16,
    line: Vrf,
    path: Path,
    /// Number of the nexthop of its label.
    labelled: u32,
}

/// Classifies a frame, like `rtl/pipe/classify.sv`.
fn classify(memory: &Memory, number: u16, bytes: &[u8], len: usize) -> Result<Packet, Punt> {
    let port = memory.port(number);
    if !memory.enabled() || !port.valid || port.host {
        return Err(Punt::HostPort);
    }
    let frame = Frame::parse(bytes, len, port.is_wire)?;
    let (vrf, labelled) = network(memory, &port, &frame)?;
    let line = memory.vrf(vrf);
    if !line.valid {
        return Err(Punt::NoVrf);
    }
    if frame.is_neighbour() {
        return Err(Punt::Neighbour);
    }
    if !port.is_wire {
        check_sender(&port, &frame)?;
        if port.check_addresses {
            check_message(&frame)?;
        }
    }
    if frame.is_roce() {
        return Err(Punt::Verbs);
    }
    let path = match &frame.headers.eth {
        Some(eth) if eth.dst.is_group() => return Err(Punt::Group),
        Some(eth) if is_the_hosts(eth, port.exact) => return Err(Punt::Vlan),
        Some(eth) if eth.dst == GATEWAY_MAC => Path::Routed,
        Some(_) => Path::Bridged,
        None if labelled.is_some() => Path::Labelled,
        None => Path::Routed,
    };
    if path != Path::Bridged {
        let ip = frame.headers.ip().ok_or(Punt::NotIp)?;
        if !is_routable(ip.src) || !is_routable(ip.dst) {
            return Err(Punt::NotRoutable);
        }
    }
    Ok(Packet { frame, number, port, vrf, line, path, labelled: labelled.unwrap_or_default() })
}

/// Returns whether the card punts a frame because of its tags. An outer priority tag must be removed, and frames to the
/// gateway may have no tag. From an exact port, no frame may have a tag or go to the gateway.
fn is_the_hosts(eth: &Ethernet, exact: bool) -> bool {
    let priority = eth.tags.first().is_some_and(|tag| tag.is_priority());
    let (routed, tagged) = (eth.dst == GATEWAY_MAC, !eth.tags.is_empty());
    priority || routed && tagged || exact && (routed || tagged)
}

/// Finds the network of a packet, and the nexthop of its label.
fn network(memory: &Memory, port: &Port, frame: &Frame) -> Result<(u16, Option<u32>), Punt> {
    let Some(outer) = &frame.outer else { return Ok((port.vrf, None)) };
    if bits(outer.mac) != port.mac || !owns(port, outer.dst) {
        return Err(Punt::NotForUs);
    }
    if !memory.is_remote(outer.src) {
        return Err(Punt::UnknownRemote);
    }
    if outer.kind == TunnelKind::Vxlan {
        return Ok((memory.vni(outer.id).ok_or(Punt::UnknownVni)?, None));
    }
    let label = memory.label(outer.id);
    match label.kind {
        kind if kind == LabelKind::Nexthop as u8 => Ok((label.vrf, Some(label.nexthop))),
        kind if kind == LabelKind::Vrf as u8 => Ok((label.vrf, None)),
        _ => Err(Punt::UnknownLabel),
    }
}

/// Checks that a guest may send from this packet's source.
fn check_sender(port: &Port, frame: &Frame) -> Result<(), Punt> {
    let src = frame.headers.eth.as_ref().map_or_else(Mac::default, |eth| eth.src);
    let own = !port.check_mac || bits(src) == port.mac;
    if !own || src.is_group() || src.is_zero() || src == GATEWAY_MAC {
        return Err(Punt::MacSpoofed);
    }
    let Some(ip) = frame.headers.ip().filter(|_| port.check_addresses) else { return Ok(()) };
    if owns(port, ip.src) { Ok(()) } else { Err(Punt::AddressSpoofed) }
}

/// Punts packets from a guest with checked sources that may be messages which only routers or DHCP servers may send.
fn check_message(frame: &Frame) -> Result<(), Punt> {
    match frame.l4() {
        _ if frame.headers.ip().is_none() => Err(Punt::NotIp),
        _ if frame.is_fragment() => Err(Punt::Fragment),
        _ if frame.is_icmp_other() => Err(Punt::Icmp),
        L4::Udp { dst: 68 | 546, .. } => Err(Punt::Dhcp),
        _ => Ok(()),
    }
}

/// Finds the packet's flow, if its generation is valid.
fn flow_of(memory: &Memory, packet: &Packet) -> Result<Option<FlowLine>, Punt> {
    let Some(key) = packet.frame.key(packet.vrf, packet.path) else { return Ok(None) };
    Ok(memory.flow(&key)?.filter(|flow| flow.generation == packet.line.generation))
}

/// The results of the tables for a packet.
struct Way {
    flow: Option<FlowLine>,
    /// The flow, if its own nexthop replaces that of the tables.
    own: Option<FlowLine>,
    hop: Nexthop,
    /// Whether the packet's connection is tracked.
    tracked: bool,
}

fn find(memory: &Memory, packet: &Packet) -> Result<Way, Punt> {
    let frame = &packet.frame;
    let flow = flow_of(memory, packet)?;
    let own = flow.filter(|flow| flow.forwards() && flow.has_nexthop);
    let hop = memory.nexthop(match (own, packet.path) {
        (Some(flow), _) => flow.nexthop,
        (None, Path::Bridged) => {
            let dst = frame.headers.eth.as_ref().map_or_else(Mac::default, |eth| eth.dst);
            let missed = if packet.port.exact { Punt::FlowMiss } else { Punt::BridgeMiss };
            memory.bridge(packet.vrf, dst)?.filter(|_| !packet.port.exact).ok_or(missed)?.nexthop
        }
        (None, Path::Routed) => {
            let ip = frame.headers.ip().ok_or(Punt::NotIp)?;
            memory.route(packet.vrf, &packet.line, ip.dst)?.ok_or(Punt::RouteMiss)?
        }
        (None, Path::Labelled) => packet.labelled,
    })?;
    if packet.port.exact && !frame.headers.eth.as_ref().is_some_and(|eth| is_between(eth, &hop)) {
        return Err(Punt::FlowMiss);
    }
    Ok(Way { flow, own, hop, tracked: packet.port.policy || hop.policy || own.is_some() })
}

/// Returns whether a frame from an exact port has the MACs of its flow's nexthop.
fn is_between(eth: &Ethernet, hop: &Nexthop) -> bool {
    bits(eth.dst) == hop.mac && bits(eth.src) == hop.outer_src_mac
}

/// Decides, like `rtl/pipe/verdict.sv`.
fn verdict(memory: &Memory, packet: &Packet) -> Result<Outcome, Punt> {
    let frame = &packet.frame;
    let (source, way) = (check_source(memory, packet), find(memory, packet));
    if source == Err(Punt::MemoryError) || matches!(way, Err(Punt::MemoryError)) {
        return Err(Punt::MemoryError);
    }
    source?;
    let Way { flow, own, hop, tracked } = way?;
    match NexthopKind::ALL.get(usize::from(hop.kind)) {
        Some(NexthopKind::Discard) => return Ok(Outcome::Drop(hop.id as u8)),
        Some(NexthopKind::Flow) => return Err(Punt::FlowMiss),
        Some(NexthopKind::Guest | NexthopKind::Tunnel) => {}
        _ => return Err(Punt::Nexthop),
    }
    if tracked && let Some(reason) = check_flow(frame, flow)? {
        return Ok(Outcome::Drop(reason));
    }
    let hop_costs = costs_a_hop(packet, flow.filter(|_| tracked));
    check_exit(packet, &hop, hop_costs)?;
    let nat = own.map_or_else(Nat::default, |flow| flow.nat);
    let header_len = frame.headers.ip().map_or(0, |ip| ip.header_len);
    if nat != Nat::default() && usize::from(header_len) != proto::IPV4_LEN {
        return Err(Punt::Nat);
    }
    let index = flow.filter(|_| tracked).map(|flow| flow.index);
    Ok(Outcome::Forward { forward: rewrite(packet, &hop, nat, hop_costs), egress: hop.egress, index })
}

/// Checks that the source MAC is known to be where the packet came from, if the network learns.
fn check_source(memory: &Memory, packet: &Packet) -> Result<(), Punt> {
    let Some(eth) = &packet.frame.headers.eth else { return Ok(()) };
    if !packet.line.learning || eth.src == GATEWAY_MAC || !packet.port.is_wire && packet.port.check_mac {
        return Ok(());
    }
    let known = memory.bridge(packet.vrf, eth.src)?.ok_or(Punt::Learn)?;
    let (at_tunnel, at) = match packet.frame.outer.map(|outer| outer.src) {
        None => (false, Some(packet.number.into())),
        Some(IpAddr::V4(src)) => (true, Some(src.to_bits())),
        Some(IpAddr::V6(_)) => (true, None),
    };
    let at_home = known.at_tunnel == at_tunnel && at == Some(known.at);
    if known.fixed || at_home { Ok(()) } else { Err(Punt::Learn) }
}

/// Checks a tracked packet's flow. Returns `None` if it lets the packet pass, or else the reason for which it is
/// dropped.
fn check_flow(frame: &Frame, flow: Option<FlowLine>) -> Result<Option<u8>, Punt> {
    const CHANGES: u8 = proto::TCP_FIN | proto::TCP_SYN | proto::TCP_RST;
    if frame.headers.ip().is_none() {
        return Err(Punt::NotIp);
    }
    if frame.is_fragment() {
        return Err(Punt::Fragment);
    }
    if frame.is_icmp_other() {
        return Err(Punt::Icmp);
    }
    let flow = flow.ok_or(Punt::FlowMiss)?;
    match FlowAction::ALL.get(usize::from(flow.action)) {
        _ if flow.forwards() => {}
        Some(FlowAction::Drop) => return Ok(Some(flow.nexthop as u8)),
        _ => return Err(Punt::FlowHost),
    }
    match frame.l4() {
        L4::Tcp { flags, .. } if flags & CHANGES != 0 => Err(Punt::FlowTcp),
        _ => Ok(None),
    }
}

/// Returns whether the packet's TTL is decremented. For routed packets it is, unless their flow says otherwise. Packets
/// in VXLAN have the same flows as packets with a label that stands for a network, but their TTL is always decremented.
fn costs_a_hop(packet: &Packet, flow: Option<FlowLine>) -> bool {
    let vxlan = packet.port.is_wire && packet.frame.headers.eth.is_some();
    packet.path != Path::Bridged && (vxlan || flow.is_none_or(|flow| !flow.keep_ttl))
}

/// Checks that a packet may leave by this nexthop: port, TTL and MTU.
fn check_exit(packet: &Packet, hop: &Nexthop, hop_costs: bool) -> Result<(), Punt> {
    let frame = &packet.frame;
    let bridged = packet.path == Path::Bridged;
    let tunnel = hop.kind == NexthopKind::Tunnel as u8;
    if bridged && (hop.port == packet.number || packet.port.is_wire && tunnel) {
        return Err(Punt::SamePort);
    }
    if hop_costs && frame.headers.ip().is_some_and(|ip| ip.ttl <= 1) {
        return Err(Punt::Ttl);
    }
    let tags = frame.headers.eth.as_ref().map_or(0, |eth| eth.tags.len());
    let room = hop.mtu.wrapping_sub(if bridged && tunnel { 4 * tags as u16 } else { 0 });
    if frame.mtu_len() > room.into() {
        return Err(Punt::Mtu);
    }
    Ok(())
}

fn rewrite(packet: &Packet, hop: &Nexthop, nat: Nat, hop_costs: bool) -> Forward {
    let (headers, tos) = (&packet.frame.headers, packet.frame.tos);
    let bridged = packet.path == Path::Bridged;
    let tunnel = hop.kind == NexthopKind::Tunnel as u8;
    let kind = [TunnelKind::MplsUdp, TunnelKind::MplsGre, TunnelKind::Vxlan][usize::from(hop.tunnel).min(2)];
    let v6 = headers.ip().is_some_and(|ip| ip.src.is_ipv6());
    let ethernet = EthernetRewrite {
        dst: mac(hop.mac),
        src: GATEWAY_MAC,
        ethertype: if v6 { proto::ETHERTYPE_IPV6 } else { proto::ETHERTYPE_IPV4 },
    };
    Forward {
        port: VifId(hop.port),
        strip: if bridged { headers.at } else { headers.l3_at },
        tos: headers.ip().filter(|ip| ip.tos != tos).map(|_| tos),
        ttl_decrement: hop_costs.into(),
        nat,
        mss: None,
        cut: None,
        ethernet: (!bridged && (!tunnel || kind == TunnelKind::Vxlan)).then_some(ethernet),
        push_vlan: None,
        pop_tags: 0,
        encap: tunnel.then(|| Encap {
            kind,
            id: hop.id,
            src: address(hop.outer_v6, hop.outer_src),
            dst: address(hop.outer_v6, hop.outer_dst),
            src_mac: mac(hop.outer_src_mac),
            dst_mac: mac(hop.outer_dst_mac),
            entropy: entropy_of(headers),
            tos: tos & !packet::ecn::ECN_MASK | ecn_encap(tos),
            dont_fragment: true,
        }),
    }
}

fn owns(port: &Port, addr: IpAddr) -> bool {
    let v4 = [port.address4_0, port.address4_1];
    let v6 = [port.address6_0, port.address6_1];
    match addr {
        IpAddr::V4(addr) => v4[..port.addresses4.min(2).into()].contains(&addr.to_bits()),
        IpAddr::V6(addr) => v6[..port.addresses6.min(2).into()].contains(&addr.to_bits()),
    }
}

/// Returns whether routers forward packets from and to an address.
fn is_routable(addr: IpAddr) -> bool {
    let common = addr.is_multicast() || addr.is_unspecified() || addr.is_loopback();
    !common
        && match addr {
            IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        }
}

fn bits(mac: Mac) -> u64 {
    crate::compile::mac_bits(mac)
}

fn mac(bits: u64) -> Mac {
    let [_, _, mac @ ..] = bits.to_be_bytes();
    Mac(mac)
}

fn address(v6: bool, bits: u128) -> IpAddr {
    if v6 { Ipv6Addr::from_bits(bits).into() } else { Ipv4Addr::from_bits(bits as u32).into() }
}
