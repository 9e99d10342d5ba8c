//! `decide`: what happens to a packet. Start here; each step is a file.
//!
//! ```text
//! guest ── spoof ──┐                      ┌── neighbour: ARP and ND, answered or bridged
//!                  │                      ├── serve: to a service of the network
//!                  ├── switch ── MAC? ────┼── bridge ──────────┬── policy ── egress ── Forward, Flood
//! wire ── decap ───┤                      └── route ── nexthop ┘
//!                  └── label ───────────────────────────┘
//! ```
//!
//! Ports that an Open vSwitch programs are apart from all this: see [`ovs`].
//!
//! A step that stops a packet returns a [`Stop`]; [`reply`] turns it into a drop, a hold, or an answer to the sender.

mod bridge;
mod egress;
mod guard;
mod ingress;
mod neighbour;
mod ovs;
mod policy;
mod related;
mod reply;
mod route;
mod serve;
mod share;
mod spoof;
mod underlay;
mod wire;

pub(crate) use egress::segment_size;
pub(crate) use reply::on_port;

use crate::{
    Decision, DropReason, Effects, Forward, GATEWAY_MAC, L2Gateway, Lookup, NeighbourScope, Network,
    PacketView, Reply, Seconds, Verdict, Vif, VifId, VifKind, copy_to, mirror,
};
use packet::{Fragment, Headers, IcmpError, Ip, L4, Mac, ParseError, Tag, entropy, entropy_l2, proto};
use std::net::IpAddr;

/// Decides what happens to a packet that came in on `ingress`, according to these tables. A pure function: all changes
/// to the tables are in the effects.
#[must_use]
pub fn decide<T: Lookup>(tables: &T, packet: &PacketView<'_>, ingress: VifId, now: Seconds) -> Decision {
    let mut walk = Walk::new(tables, packet, ingress, now);
    let verdict = match walk.enter() {
        Ok(verdict) => verdict,
        Err(Stop::Hold { scope, addr }) => Verdict::Hold { scope, addr },
        Err(Stop::Drop(reason) | Stop::Refuse(_, reason) | Stop::Reset(reason)) => Verdict::Drop(reason),
        Err(Stop::Echo) => Verdict::Drop(DropReason::VerbsOnly),
    };
    walk.effects.restrict(&verdict, ingress, |id| tables.vif(id).and_then(|vif| vif.rdma));
    let Effects { mirror_in, mirror_out, solicit, .. } = &mut walk.effects;
    if solicit.is_none() && !(mirror_in.is_empty() && mirror_out.is_empty()) {
        *solicit = mirror::missing(tables, &packet.headers, mirror_in.iter().chain(&*mirror_out));
    }
    Decision { verdict, effects: walk.effects }
}

/// Returns the deliveries of this host's own frame into a network, as if from `origin`: to one MAC, or to all
/// members. The gateway does not reach the attached wire so, because it has a different MAC there. Also
/// returns an unknown neighbour without which a delivery is missing.
pub(crate) fn bridge_own<T: Lookup>(
    tables: &T,
    network: &Network,
    origin: Origin<'_>,
    packet: &PacketView<'_>,
) -> (Vec<Forward>, Option<(NeighbourScope, IpAddr)>) {
    let (headers, end) = (packet.headers.clone(), packet.len as usize);
    let tos = headers.ip().map_or(0, |ip| ip.tos);
    let frame = Frame { headers, end, origin, network, tos, foreign_tags: 0 };
    let mut walk = Walk::new(tables, packet, VifId(0), 0);
    let Some(eth) = &frame.headers.eth else { return (Vec::new(), None) };
    let (mut to, mut missing) = match walk.bridge(&frame, eth) {
        Ok(Verdict::Flood(flood)) => (flood.to, walk.effects.solicit),
        Ok(Verdict::Forward(forward)) => (vec![forward], None),
        Err(Stop::Hold { scope, addr }) => (Vec::new(), Some((scope, addr))),
        _ => (Vec::new(), None),
    };
    let delivered = !to.is_empty();
    let mirrors = &walk.effects.mirror_out;
    missing = missing.or(mirror::missing(tables, &packet.headers, mirrors));
    for &mirror in mirrors {
        if delivered && to.iter().all(|forward| forward.port != mirror) {
            to.extend(copy_to(tables, &packet.headers, mirror, &Forward::unchanged(mirror)));
        }
    }
    (to, missing)
}

/// A packet on its way through the tables.
struct Walk<'a, T> {
    tables: &'a T,
    packet: &'a PacketView<'a>,
    ingress: VifId,
    now: Seconds,
    effects: Effects,
    /// The translation of a packet by an address that guests share.
    bound: Option<share::Bound>,
    /// Whether the packet's connection is tracked although rules do not apply to it.
    unruled: bool,
}

/// The result of most steps: where the packet goes, or why it stops.
type Outcome = Result<Verdict, Stop>;

/// Why a packet stops.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// Dropped.
    Drop(DropReason),
    /// Dropped; its sender is informed by ICMP where that is possible.
    Refuse(IcmpError, DropReason),
    /// Dropped; its sender gets a TCP reset.
    Reset(DropReason),
    /// A ping to a guest that is only a verbs device: answered on the guest's behalf.
    Echo,
    /// Waits for a neighbour.
    Hold { scope: NeighbourScope, addr: IpAddr },
}

impl From<DropReason> for Stop {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

impl From<ParseError> for Stop {
    fn from(error: ParseError) -> Self {
        Self::Drop(error.into())
    }
}

/// A tenant's packet, without the tunnel in which it came.
struct Frame<'a> {
    headers: Headers,
    /// Offset of the end of the packet, bytes.
    end: usize,
    origin: Origin<'a>,
    /// The network that the packet is in.
    network: &'a Network,
    /// The packet's new traffic class.
    tos: u8,
    /// The number of tags, from the outermost on, that are not the tenant's and are removed: the tag of the
    /// VLAN in which the packet came, and priority tags.
    foreign_tags: u8,
}

/// The sender of a tenant's packet.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// A guest of this host.
    Guest(&'a Vif),
    /// A wire the network is attached to.
    Attached { wire: &'a Vif, vlan: Option<u16> },
    /// Another host, which sent it with this VNI or label.
    Tunnel { remote: IpAddr, id: u32 },
    /// The network's gateway.
    Gateway,
}

impl Origin<'_> {
    /// Returns the port through which the sender is reached.
    fn port(&self) -> Option<VifId> {
        match self {
            Self::Guest(vif) | Self::Attached { wire: vif, .. } => Some(vif.id),
            Self::Tunnel { .. } | Self::Gateway => None,
        }
    }

    /// Returns whether a frame of this origin may be flooded to a network's tunnels: a frame from a tunnel
    /// may not (split horizon).
    const fn may_flood_tunnels(&self, network: &Network) -> bool {
        match self {
            Self::Guest(_) | Self::Gateway => network.bridges_tunnels(),
            Self::Attached { .. } => {
                network.wire.is_none() || matches!(network.overlay.l2_gateway, L2Gateway::Here)
            }
            Self::Tunnel { .. } => false,
        }
    }

    fn is_guest(&self) -> bool {
        matches!(self, Self::Guest(_))
    }

    /// Returns whether the sender is behind this interface, or behind the same guest's other interface.
    fn is_of(&self, vif: &Vif) -> bool {
        let other = matches!(self, Self::Guest(own) if own.rdma == Some(vif.id));
        other || self.port() == Some(vif.id)
    }

    /// Returns whether the sender is a verbs device. All packets of such a device are routed, because it
    /// knows no neighbours.
    fn is_verbs(&self) -> bool {
        matches!(self, Self::Guest(vif) if vif.kind == VifKind::Rdma)
    }

    /// Returns whether rules apply because of the sender. Among senders, only guests have rules.
    fn policy(&self) -> bool {
        matches!(self, Self::Guest(vif) if vif.policy)
    }
}

impl Frame<'_> {
    /// Returns the gateway's MAC on the side from which the frame came: on an attached wire, one of this
    /// host's own.
    fn gateway_mac(&self) -> Mac {
        match self.origin {
            Origin::Attached { wire, .. } => wire.mac.unwrap_or(GATEWAY_MAC),
            Origin::Guest(_) | Origin::Tunnel { .. } | Origin::Gateway => GATEWAY_MAC,
        }
    }

    /// Returns whether a MAC is the gateway's on the side from which the frame came. Hosts on a wire may know
    /// the anycast MAC too.
    fn is_gateways(&self, mac: Mac) -> bool {
        mac == GATEWAY_MAC || mac == self.gateway_mac()
    }

    /// Returns the tenant's own VLAN tags.
    fn tags(&self) -> &[Tag] {
        let tags = self.headers.eth.as_ref().map_or(&[][..], |eth| &eth.tags);
        tags.get(self.foreign_tags.into()..).unwrap_or_default()
    }

    /// Returns whether the packet is RoCEv2 that a verbs device accepts: not a fragment, and not in a
    /// tenant's own VLAN.
    fn is_roce(&self) -> bool {
        let whole = self.headers.ip().is_some_and(|ip| ip.fragment == Fragment::Whole);
        whole && is_roce(&self.headers.l4) && self.tags().is_empty()
    }

    fn entropy(&self) -> u32 {
        entropy_of(&self.headers)
    }

    /// Returns the new traffic class, if it is not the packet's own.
    fn new_tos(&self) -> Option<u8> {
        self.headers.ip().filter(|ip| ip.tos != self.tos).map(|_| self.tos)
    }
}

fn is_roce(l4: &L4) -> bool {
    matches!(l4, L4::Udp { dst: proto::PORT_ROCE, .. })
}

/// Counts the tags to remove from a frame: `own` tags of the VLAN in which it came, and the priority tags
/// after them.
fn foreign_tags(headers: &Headers, own: usize) -> u8 {
    let tags = headers.eth.as_ref().map_or(&[][..], |eth| &eth.tags);
    let behind = tags.iter().skip(own).take_while(|tag| tag.is_priority()).count();
    (own + behind) as u8
}

/// Returns the entropy hash of a tenant's packet: a hash of addresses and ports. If the packets of the flow
/// do not all have the same ports (fragments; RoCEv2, whose flows are address pairs), only the addresses
/// count. If the packet isn't IP, the MACs count.
#[must_use]
pub fn entropy_of(headers: &Headers) -> u32 {
    let Some(ip) = headers.ip() else {
        let eth = headers.eth.as_ref();
        return eth.map_or(0, |eth| entropy_l2(eth.src, eth.dst, eth.ethertype));
    };
    let (sport, dport) = entropy_ports(headers, ip);
    entropy(ip.src, ip.dst, ip.protocol, sport, dport)
}

/// Returns the entropy hash of the packets that go in the direction opposite to this IP packet.
fn entropy_back(headers: &Headers, ip: &Ip) -> u32 {
    let (sport, dport) = match entropy_ports(headers, ip) {
        ports @ (0, proto::PORT_ROCE) => ports,
        (sport, dport) => (dport, sport),
    };
    entropy(ip.dst, ip.src, ip.protocol, sport, dport)
}

/// Returns the ports that count for entropy.
fn entropy_ports(headers: &Headers, ip: &Ip) -> (u16, u16) {
    match headers.l4 {
        _ if ip.fragment != Fragment::Whole => (0, 0),
        L4::Udp { dst: proto::PORT_ROCE, .. } => (0, proto::PORT_ROCE),
        _ => headers.ports(),
    }
}

impl<'a, T: Lookup> Walk<'a, T> {
    fn new(tables: &'a T, packet: &'a PacketView<'a>, ingress: VifId, now: Seconds) -> Self {
        Self { tables, packet, ingress, now, effects: Effects::default(), bound: None, unruled: false }
    }

    /// Forwards a tenant's packet. If a step stops the packet, answers its sender.
    fn tenant(&mut self, frame: &Frame<'a>) -> Outcome {
        self.switch(frame).or_else(|stop| Ok(self.stopped(frame, stop)))
    }

    /// Returns the hash by which a packet that ends at `end` chooses among equal paths. An ICMP error goes where the
    /// packets go that the sender of the quoted packet gets: several hosts may share its address (RFC 7690).
    fn choice(&self, headers: &Headers, end: usize) -> u32 {
        let quoted = headers.quoted(self.packet.bytes, end).ok().flatten();
        let refused = quoted.as_ref().and_then(|quoted| Some((quoted, quoted.ip()?)));
        match (headers.ip(), refused) {
            (Some(ip), Some((quoted, refused))) if refused.src == ip.dst => entropy_back(quoted, refused),
            _ => entropy_of(headers),
        }
    }
}

impl Effects {
    /// Removes the effects that a verdict does not allow. `other` returns the second interface of a guest
    /// that has two.
    fn restrict(&mut self, verdict: &Verdict, ingress: VifId, other: impl Fn(VifId) -> Option<VifId>) {
        let deliveries = match verdict {
            Verdict::Reply(reply) => std::slice::from_ref(&reply.forward),
            other => other.deliveries(),
        };
        if !matches!(verdict, Verdict::Forward(_) | Verdict::Flood(_) | Verdict::Outputs(_)) {
            self.flow = None;
            // Fragments of a ping are answered if the first one was.
            if !matches!(verdict, Verdict::Reply(Reply { dropped: None, .. })) {
                self.fragment = None;
            }
        }
        if deliveries.is_empty() {
            self.mirror_out.clear();
        }
        if matches!(verdict, Verdict::Hold { .. }) {
            self.meters.clear();
            self.mirror_in.clear();
            self.rules.clear();
            self.crossings = None;
            self.nexthop = None;
        }
        if self.mirror_in.is_empty() && self.mirror_out.is_empty() {
            return;
        }
        // Nobody gets a copy of a packet that it sends or receives itself.
        let own = |copy| {
            let is = |port| port == copy || other(port) == Some(copy);
            is(ingress) || deliveries.iter().any(|forward| is(forward.port))
        };
        self.mirror_in.retain(|copy| !own(*copy));
        self.mirror_out.retain(|copy| !own(*copy));
        // Nobody gets two copies of a frame that leaves as it came.
        if deliveries.first().is_some_and(Forward::keeps_frame) {
            let Self { mirror_in, mirror_out, .. } = self;
            mirror_out.retain(|copy| !mirror_in.contains(copy));
        }
    }
}

/// Appends a value unless the list contains it or is full.
fn push_new<V: PartialEq, const N: usize>(list: &mut arrayvec::ArrayVec<V, N>, value: V) {
    if !list.contains(&value) {
        let _ = list.try_push(value);
    }
}
