//! The decisions that may become flows on the card: those that hold for every later packet with the same key.
//!
//! A decision follows from the tables and the packet. Each part of the packet that matters is in the key; or the card
//! asks the host about it (TCP flags that change a connection, fragments, ICMP errors, TTL, MTU); or the card looks it
//! up for each packet (destination MAC and label, which find the nexthop). When a table changes that matters,
//! [`crate::driver`] ends the affected flows. The keeper of connections tells the driver when they end.

use crate::compile::{Compiler, Hop, address_bits};
use crate::entries;
use crate::frame::{Frame, Key};
use crate::ovs::Origin;
use crate::registers::{Flow4, Flow6, NexthopKind, Path};
use model::{
    Action, Connection, Decision, Destination, DropReason, FlowChange, FlowKey, FlowState, Forward,
    GATEWAY_MAC, Lookup, Nat, Nexthop, PacketView, RuleMatch, RuleQuery, Tunnel, Verdict, Vif, VifId,
    VifKind, Vrf, ecmp_member, entropy_of,
};
use packet::{L4, TunnelKind, proto};
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    pub key: Key,
    pub verdict: FlowVerdict,
    /// The flow's connection, in the direction of the first packet. For a dropped flow, the connection that it would
    /// be.
    pub connection: Option<FlowKey>,
    /// Whether the flow depends on tables of other networks, and not only on the rules of its ingress network.
    pub far: bool,
    /// For a port of an Open vSwitch, the switch's flow from which this one was made.
    pub origin: Option<Origin>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlowVerdict {
    Forward {
        /// The flow's own nexthop; if `None`, the tables' is used.
        hop: Option<Hop>,
        nat: Nat,
        /// Whether packets keep their TTL. Packets that MPLS carries within a subnet do.
        keep_ttl: bool,
    },
    Drop(DropReason),
}

/// Returns the flow that a decision about a packet allows. `None` if it allows none, or the card would not look it up.
#[must_use]
pub fn flow<T: Lookup>(
    compiler: Compiler<'_, T>,
    packet: &PacketView<'_>,
    ingress: VifId,
    decision: &Decision,
) -> Option<Flow> {
    let vif = compiler.tables.vif(ingress)?;
    let frame = Frame::parse(packet.bytes, packet.len as usize, vif.kind == VifKind::Wire).ok()?;
    let effects = &decision.effects;
    let plain = !(frame.is_neighbour() || frame.is_roce() || frame.is_icmp_other());
    let more = !effects.meters.is_empty()
        || !effects.mirror_in.is_empty()
        || !effects.mirror_out.is_empty()
        || effects.fragment.is_some()
        || effects.neighbour.is_some()
        || effects.solicit.is_some();
    if !plain || more || vif.is_tagged() {
        return None;
    }
    if vif.takes_flows() {
        return crate::ovs::flow(compiler, packet, (vif, &frame), decision);
    }
    let (vrf, path) = compiler.network_of(vif, &frame)?;
    let flow = Candidate { compiler, vif, key: frame.key(compiler.vrf(vrf)?, path)?, frame: &frame, vrf };
    match &decision.verdict {
        Verdict::Forward(forward) => flow.forwarded(forward, effects.flow.as_ref()),
        // A reply has the same key as a request that is dropped.
        Verdict::Drop(reason) if !flow.is_icmp() => flow.dropped(*reason),
        _ => None,
    }
}

impl<T: Lookup> Compiler<'_, T> {
    /// Returns the network of a packet, and how the packet finds its nexthop.
    fn network_of(&self, vif: &Vif, frame: &Frame) -> Option<(Vrf, Path)> {
        let by_mac = || {
            let eth = frame.headers.eth.as_ref()?;
            // The card knows only one MAC of routers.
            if Some(eth.dst) == self.tables.host().router_mac {
                return None;
            }
            Some(if eth.dst == GATEWAY_MAC { Path::Routed } else { Path::Bridged })
        };
        match frame.outer {
            None => Some((vif.vrf?, by_mac()?)),
            Some(outer) if outer.kind == TunnelKind::Vxlan => {
                let vrf = self.tables.vxlan(outer.id)?;
                let is_routed =
                    self.tables.network(vrf).is_some_and(|network| network.l3vni == Some(outer.id));
                // The card knows no network by its `l3vni`.
                if is_routed { None } else { Some((vrf, by_mac()?)) }
            }
            Some(outer) => {
                let entry = self.label(outer.id)?;
                let path = if entry.hop.is_some() { Path::Labelled } else { Path::Routed };
                Some((Vrf(entry.vrf), path))
            }
        }
    }
}

/// A packet whose flow may move onto the card.
struct Candidate<'a, T> {
    compiler: Compiler<'a, T>,
    vif: &'a Vif,
    frame: &'a Frame,
    vrf: Vrf,
    key: Key,
}

impl<T: Lookup> Candidate<'_, T> {
    fn forwarded(&self, forward: &Forward, change: Option<&FlowChange>) -> Option<Flow> {
        let tables = self.compiler.tables;
        let keep_ttl = self.key.path != Path::Bridged && forward.ttl_decrement == 0;
        // To a guest of the same subnet: with a label, packets with this key keep their TTL; by VXLAN they lose one.
        let is_near = || {
            tables.network(self.vrf).is_some_and(|network| network.is_one_subnet(self.key.src, self.key.dst))
        };
        let routed_in = self.key.from_tunnel && self.key.path == Path::Routed && forward.encap.is_none();
        if routed_in && !keep_ttl && is_near() {
            return None;
        }
        let hop = match self.key.path {
            Path::Routed => match self.compiler.routed(self.vrf, self.key.dst)? {
                Hop::Host => return None,
                Hop::Flow => Some(self.own_hop(forward)?),
                _ => None,
            },
            Path::Bridged | Path::Labelled => None,
        };
        // The card knows only the checksums of common protocols.
        let unknown_sum = matches!(self.key.protocol, proto::DCCP | proto::UDP_LITE);
        if forward.nat != Nat::default() && (hop.is_none() || self.key.src.is_ipv6() || unknown_sum) {
            return None;
        }
        // The card translates no ports.
        if forward.nat.src_port.is_some() || forward.nat.dst_port.is_some() {
            return None;
        }
        let guest = self.vif.kind != VifKind::Wire;
        let to = if forward.encap.is_none() { tables.vif(forward.port) } else { None };
        let asked = guest && self.vif.policy || to.is_some_and(|vif| vif.policy);
        let connection = match change {
            Some(change) if asked => Some(self.steady(change)?),
            None if !asked => None,
            _ => return None,
        };
        if !asked {
            // The card looks the flow up in any case, so packets of others with this key must not need a decision
            // either.
            let labelled = self.key.path == Path::Labelled && to.is_some_and(|vif| self.compiler.asks(vif));
            let tracked = hop.is_some() || labelled || guest && self.vif.rdma.is_some();
            if !tracked || (guest || labelled) && self.guests().any(|vif| vif.policy) {
                return None;
            }
        }
        let elsewhere = |key: FlowKey| key.src.vrf != self.vrf || key.dst.vrf != self.vrf;
        let far = hop.is_some() || connection.is_some_and(elsewhere);
        Some(Flow {
            key: self.key,
            verdict: FlowVerdict::Forward { hop, nat: forward.nat, keep_ttl },
            connection,
            far,
            origin: None,
        })
    }

    /// Returns the connection, if further packets in this direction do not change it, and rules do nothing but let them
    /// pass.
    fn steady(&self, change: &FlowChange) -> Option<FlowKey> {
        let (connection, reply) = match *change {
            FlowChange::Create { connection, .. } => (connection, false),
            FlowChange::Update { connection, reply } => (connection, reply),
        };
        // The card does not distinguish ICMP replies from requests. Where a request may go, a reply may.
        if reply && self.is_icmp() {
            return None;
        }
        let steady = match self.frame.l4() {
            L4::Tcp { .. } => {
                let fins = Connection::FIN | Connection::REPLY_FIN;
                connection.state == FlowState::Established && connection.seen & fins == 0
            }
            _ => connection.after(reply) == connection,
        };
        let key = connection.original;
        let silent = [key.src.vrf, key.dst.vrf]
            .iter()
            .all(|vrf| self.compiler.tables.rules(*vrf, &query(&key)).modifiers.is_empty());
        (steady && silent).then_some(key)
    }

    /// Returns the flow for a drop by rules that depend only on the key. There must be no connection.
    fn dropped(&self, reason: DropReason) -> Option<Flow> {
        let tables = self.compiler.tables;
        let labelled = self.key.path == Path::Labelled;
        if self.guests().any(|vif| !vif.policy && (vif.rdma.is_some() || labelled && self.compiler.asks(vif)))
        {
            // The card would look up packets to which the rules do not apply.
            return None;
        }
        let key = self.inside()?;
        if tables.connection(&key, 0).is_some() {
            return None;
        }
        let matched = tables.rules(self.vrf, &query(&key));
        let by = if matched.rule.is_some() { DropReason::RuleDrop } else { DropReason::DefaultDrop };
        let silent = |matched: &RuleMatch| matched.action == Action::Drop && matched.modifiers.is_empty();
        // A segment in mid-stream also passes if the other direction may.
        let may_belong =
            key.protocol == proto::TCP && !silent(&tables.rules(self.vrf, &query(&key.reverse())));
        (silent(&matched) && by == reason && !may_belong).then_some(Flow {
            key: self.key,
            verdict: FlowVerdict::Drop(reason),
            connection: Some(key),
            far: false,
            origin: None,
        })
    }

    /// Returns the key of the connection, with the packet's addresses, if both ends are within the network.
    fn inside(&self) -> Option<FlowKey> {
        let (tables, src, dst) = (self.compiler.tables, self.key.src, self.key.dst);
        if self.key.from_tunnel {
            let back = tables.route(self.vrf, src).and_then(|route| tables.nexthop(route.nexthop));
            if matches!(back.as_deref(), Some(Nexthop::VrfTranslate { .. }))
                || tables.inside_of(self.vrf, src).is_some()
            {
                return None;
            }
        }
        if self.key.path == Path::Routed {
            match self.compiler.routed(self.vrf, dst)? {
                Hop::Tunnel { .. } => {}
                Hop::Guest { vif, .. } if tables.vif(vif)?.vrf == Some(self.vrf) => {}
                _ => return None,
            }
        }
        Some(FlowKey::new((self.vrf, src), (self.vrf, dst), self.key.protocol, self.key.ports))
    }

    fn is_icmp(&self) -> bool {
        matches!(self.frame.l4(), L4::Icmp { .. })
    }

    /// Iterates over the guests of the network whose packets the card might see.
    fn guests(&self) -> impl Iterator<Item = &Vif> {
        let vifs = self.compiler.attachments.keys().filter_map(|id| self.compiler.tables.vif(*id));
        vifs.filter(|vif| vif.vrf == Some(self.vrf))
    }

    /// Returns the hop by which a routed packet left, if the card can serve it.
    fn own_hop(&self, forward: &Forward) -> Option<Hop> {
        if forward.ethernet.is_some_and(|ethernet| ethernet.src != GATEWAY_MAC) {
            return None;
        }
        let mac = forward.ethernet.map(|ethernet| ethernet.dst);
        let hop = match &forward.encap {
            Some(encap) => {
                let tunnel = Tunnel { kind: encap.kind, remote: encap.dst, id: encap.id, mac };
                let entropy = entropy_of(&self.frame.headers);
                Hop::Tunnel {
                    tunnel,
                    vrf: last_network(self.compiler.tables, self.vrf, self.key.dst, entropy)?,
                }
            }
            None => Hop::Guest { vif: forward.port, mac: mac? },
        };
        let line = self.compiler.line(&hop);
        let served = line.kind == NexthopKind::Guest as u8 || line.kind == NexthopKind::Tunnel as u8;
        (served && line.port == self.compiler.attached(forward.port)?.port).then_some(hop)
    }
}

/// Most networks on a packet's path.
const MAX_NETWORKS: usize = 5;

/// Returns the network from which a packet leaves that is routed into other networks; its MTU applies. Routes like
/// `decide`.
fn last_network<T: Lookup>(tables: &T, vrf: Vrf, dst: IpAddr, entropy: u32) -> Option<Vrf> {
    let (mut vrf, mut dst) = (vrf, dst);
    for _ in 0..MAX_NETWORKS {
        match Destination::of(tables, tables.network(vrf)?, dst) {
            Destination::Gateway | Destination::Shared(_) => return None,
            Destination::Floating(inside_vrf, inside) => (vrf, dst) = (inside_vrf, inside),
            Destination::Routed => {
                let (_, nexthop) = ecmp_member(tables, tables.route(vrf, dst)?.nexthop, entropy)?;
                let Nexthop::VrfTranslate { vrf: next } = *nexthop else { return Some(vrf) };
                vrf = next;
            }
        }
    }
    None
}

/// Returns the fields of a connection on which rules match.
fn query(key: &FlowKey) -> RuleQuery {
    let ports = matches!(key.protocol, proto::TCP | proto::UDP | proto::SCTP);
    RuleQuery {
        src: key.src.addr,
        dst: key.dst.addr,
        protocol: key.protocol,
        dst_port: ports.then_some(key.dst.port),
    }
}

impl From<&Key> for entries::FlowEntry {
    /// Makes an entry with this key and no effect yet.
    fn from(key: &Key) -> Self {
        let (vrf, path, from_tunnel, protocol) = (key.vrf, key.path as u8, key.from_tunnel, key.protocol);
        let (sport, dport) = key.ports;
        match (key.src, key.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (src.to_bits(), dst.to_bits());
                Self::V4(Flow4 {
                    src,
                    dst,
                    sport,
                    dport,
                    protocol,
                    vrf,
                    path,
                    from_tunnel,
                    ..Flow4::default()
                })
            }
            (src, dst) => {
                let (src, dst) = (address_bits(src), address_bits(dst));
                Self::V6(Flow6 {
                    src,
                    dst,
                    sport,
                    dport,
                    protocol,
                    vrf,
                    path,
                    from_tunnel,
                    ..Flow6::default()
                })
            }
        }
    }
}
