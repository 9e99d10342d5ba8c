//! Decisions in words.

use crate::ovs::Output;
use crate::{
    Action, Cut, Decision, DropReason, Effects, Encap, Forward, Modifier, NeighbourScope, Nexthop, Reply,
    ReplyKind, RuleId, RuleMatch, Service, Tunnel, Verdict, VifId, Vrf, weights,
};
use packet::{IcmpError, TunnelKind};
use std::fmt::{Display, Formatter, Result};

/// Returns the name of an action, as configured.
pub(super) const fn action(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Drop => "drop",
        Action::Reject => "reject",
    }
}

/// Returns the name of an encapsulation, as configured.
const fn tunnel_kind(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::MplsUdp => "mpls-over-udp",
        TunnelKind::MplsGre => "mpls-over-gre",
        TunnelKind::Vxlan => "vxlan",
        TunnelKind::Geneve => "geneve",
    }
}

const fn id_name(kind: TunnelKind) -> &'static str {
    if kind.has_ethernet() { "vni" } else { "label" }
}

impl Tunnel {
    /// Returns the name of the encapsulation, as configured.
    #[must_use]
    pub const fn encapsulation(&self) -> &'static str {
        tunnel_kind(self.kind)
    }
}

impl Display for Tunnel {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} to {} {} {}", self.encapsulation(), self.remote, id_name(self.kind), self.id)
    }
}

/// The names of interfaces and networks.
pub trait Names {
    /// Returns an interface's name.
    fn vif(&self, id: VifId) -> String;
    /// Returns a network's name, for texts that already say "network".
    fn network(&self, vrf: Vrf) -> String;
}

/// Gives numbers as names.
#[derive(Clone, Copy, Debug)]
pub struct Numbers;

impl Names for Numbers {
    fn vif(&self, id: VifId) -> String {
        format!("vif {id}")
    }

    fn network(&self, vrf: Vrf) -> String {
        vrf.to_string()
    }
}

/// Implements `Display`, with numbers as names, for types that have `words`.
macro_rules! displayed {
    ($($type:ty),*) => {
        $(impl Display for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.write_str(&self.words(&Numbers))
            }
        })*
    };
}

displayed!(Nexthop, RuleMatch, Verdict);

impl Nexthop {
    /// Returns the nexthop's action, in words.
    #[must_use]
    pub fn words(&self, names: &dyn Names) -> String {
        match self {
            Self::Discard => "discard".to_owned(),
            Self::Receive => "receive".to_owned(),
            Self::Encap { vif, mac } => format!("encap {mac} to {}", names.vif(*vif)),
            Self::Tunnel(tunnel) => tunnel.to_string(),
            Self::VrfTranslate { vrf } => format!("to network {}", names.network(*vrf)),
            Self::Resolve { via: Some(via) } => format!("resolve via {via}"),
            Self::Resolve { via: None } => "resolve".to_owned(),
            Self::Ecmp(places) => {
                let weights = weights(places);
                let text = format!("ecmp of {} nexthops", weights.len());
                if weights.len() == places.len() {
                    return text;
                }
                let weights: Vec<String> = weights.iter().map(|(_, weight)| weight.to_string()).collect();
                format!("{text} with weights {}", weights.join(", "))
            }
        }
    }
}

impl RuleMatch {
    /// Returns the matching rules and their actions, in words.
    pub(super) fn words(&self, names: &dyn Names) -> String {
        let modifier = |(id, modifier): &(RuleId, Modifier)| match modifier {
            Modifier::Mirror(vif) => format!("rule {id} mirror to {}", names.vif(*vif)),
            Modifier::Police(meter) => format!("rule {id} police by meter {meter}"),
        };
        let last = match self.rule {
            Some(id) => format!("rule {id} {}", action(self.action)),
            None => format!("default {}", action(self.action)),
        };
        self.modifiers.iter().map(modifier).chain([last]).collect::<Vec<_>>().join(", ")
    }
}

impl NeighbourScope {
    fn words(self, names: &dyn Names) -> String {
        match self {
            Self::Wire(id) => names.vif(id),
            Self::Network(vrf) => format!("network {}", names.network(vrf)),
        }
    }
}

impl Display for Encap {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (kind, id) = (tunnel_kind(self.kind), id_name(self.kind));
        write!(f, "{kind} {} > {} {id} {}", self.src, self.dst, self.id)
    }
}

impl Forward {
    fn words(&self, names: &dyn Names) -> String {
        let mut words = vec![names.vif(self.port)];
        words.extend(self.tos.map(|tos| format!("dscp {}, ecn {}", tos >> 2, tos & packet::ecn::ECN_MASK)));
        words.extend((self.ttl_decrement > 0).then(|| format!("ttl -{}", self.ttl_decrement)));
        words.extend(self.nat.src.map(|src| format!("source {src}")));
        words.extend(self.nat.dst.map(|dst| format!("destination {dst}")));
        words.extend(self.nat.quoted.map(|dst| format!("destination {dst} of the quoted packet")));
        words.extend(self.mss.map(|mss| format!("mss {mss}")));
        words.extend(self.cut.map(|cut| match cut {
            Cut::Packet(mtu) => format!("in fragments of {mtu} bytes at most"),
            Cut::Tunnel(mtu) => format!("in fragments of the tunnel packet of {mtu} bytes at most"),
        }));
        words.extend(self.ethernet.as_ref().map(|eth| format!("ethernet {} > {}", eth.src, eth.dst)));
        words.extend((0..self.pop_tags).map(|_| "pop vlan".to_owned()));
        words.extend(self.push_vlan.map(|vlan| format!("push vlan {vlan}")));
        words.extend(self.encap.as_ref().map(ToString::to_string));
        words.join(", ")
    }
}

impl Output {
    fn words(&self, names: &dyn Names) -> String {
        let mut words = vec![names.vif(self.port)];
        words.extend(self.edits.words());
        words.extend(self.wrap.as_ref().map(|wrap| wrap.outer.to_string()));
        words.join(", ")
    }
}

impl Reply {
    fn words(&self, names: &dyn Names) -> String {
        let what = match &self.kind {
            ReplyKind::Arp { mac } => format!("arp: at {mac}"),
            ReplyKind::NeighbourAdvertisement { mac, .. } => format!("neighbour advertisement: at {mac}"),
            ReplyKind::Echo { .. } => "echo".to_owned(),
            ReplyKind::IcmpError { src, error } => format!("icmp from {src}: {}", icmp_error(*error)),
            ReplyKind::TcpReset => "tcp reset".to_owned(),
        };
        format!("{what}, to {}", self.forward.words(names))
    }
}

fn icmp_error(error: IcmpError) -> String {
    match error {
        IcmpError::TimeExceeded => "time exceeded".into(),
        IcmpError::TooBig { mtu } => format!("too big, mtu {mtu}"),
        IcmpError::NoRoute => "no route".into(),
        IcmpError::HostUnreachable => "host unreachable".into(),
        IcmpError::PortUnreachable => "port unreachable".into(),
        IcmpError::AdminProhibited => "prohibited".into(),
    }
}

impl Verdict {
    /// Returns the kind: `forward`, `flood`, `reply`, `hold`, `reassemble`, `serve`, `drop` or `consumed`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) | Self::Outputs(_) => "forward",
            Self::Flood(_) => "flood",
            Self::Reply(_) => "reply",
            Self::Hold { .. } => "hold",
            Self::Drop(_) => "drop",
            Self::Reassemble => "reassemble",
            Self::Serve { .. } => "serve",
            Self::Consumed => "consumed",
        }
    }

    /// Returns the reason, if the packet is dropped.
    #[must_use]
    pub const fn reason(&self) -> Option<DropReason> {
        match self {
            Self::Drop(reason) => Some(*reason),
            Self::Reply(reply) => reply.dropped,
            _ => None,
        }
    }

    /// Returns the interfaces by which the packet, or the answer to it, leaves.
    #[must_use]
    pub fn egress(&self) -> Vec<VifId> {
        match self {
            Self::Reply(reply) => vec![reply.forward.port],
            other => {
                let ports = other.deliveries().iter().map(|forward| forward.port);
                ports.chain(other.outputs().iter().map(|output| output.port)).collect()
            }
        }
    }

    /// Returns the verdict in words, one line for each action.
    #[must_use]
    pub fn lines(&self, names: &dyn Names) -> Vec<String> {
        match self {
            Self::Forward(forward) => vec![format!("forward to {}", forward.words(names))],
            Self::Flood(flood) => {
                let to = flood.to.iter().map(|forward| format!("to {}", forward.words(names)));
                [format!("flood network {}", names.network(flood.vrf))].into_iter().chain(to).collect()
            }
            Self::Outputs(_) => {
                self.outputs().iter().map(|output| format!("forward to {}", output.words(names))).collect()
            }
            Self::Reply(reply) => {
                let dropped = reply.dropped.map(|reason| format!("drop {reason}"));
                dropped.into_iter().chain([format!("reply {}", reply.words(names))]).collect()
            }
            Self::Hold { scope, addr } => {
                vec![format!("hold for neighbour {addr} of {}", scope.words(names))]
            }
            Self::Reassemble => vec!["hold for the other fragments of the tunnel packet".to_owned()],
            Self::Serve { service, .. } => vec![format!("serve by {service}")],
            Self::Consumed => vec!["consumed".to_owned()],
            Self::Drop(reason) => vec![format!("drop {reason}")],
        }
    }

    fn words(&self, names: &dyn Names) -> String {
        self.lines(names).join("; ")
    }
}

impl Display for Service {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Dhcp => "dhcp",
            Self::Dhcpv6 => "dhcpv6",
            Self::Router => "ra",
            Self::Dns => "dns",
            Self::Metadata => "metadata",
            Self::Bfd => "bfd",
        })
    }
}

impl Effects {
    /// Returns the effects in words, one line for each.
    #[must_use]
    pub fn lines(&self, names: &dyn Names) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(
            self.learn
                .as_ref()
                .map(|learn| format!("learn {} in network {}", learn.mac, names.network(learn.vrf))),
        );
        lines.extend(self.neighbour.as_ref().map(|found| {
            format!("neighbour {} of {} at {}", found.addr, found.scope.words(names), found.mac)
        }));
        lines.extend(self.flow.as_ref().map(|flow| match flow {
            crate::FlowChange::Create { connection, .. } => {
                format!("creates a connection (state {})", connection.state)
            }
            crate::FlowChange::Update { connection, .. } => format!("flow {}", connection.state),
        }));
        lines.extend(self.fragment.is_some().then(|| "ports kept for later fragments".to_owned()));
        lines.extend(self.meters.iter().map(|(meter, reason)| format!("meter {meter} ({reason})")));
        let copies = self.mirror_in.iter().chain(&self.mirror_out);
        lines.extend(copies.map(|copy| format!("copy to {}", names.vif(*copy))));
        let solicit = self.solicit.as_ref();
        lines.extend(solicit.map(|(scope, addr)| format!("solicit {addr} of {}", scope.words(names))));
        lines
    }
}

impl Display for Effects {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.lines(&Numbers).iter().try_for_each(|line| write!(f, "; {line}"))
    }
}

impl Display for crate::FlowState {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::New => "new",
            Self::Established => "established",
            Self::Closing => "closing",
            Self::Closed => "closed",
        })
    }
}

impl Display for Decision {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}{}", self.verdict, self.effects)
    }
}
