//! Decisions in words.

use crate::{
    Action, Decision, Effects, Encap, Forward, Modifier, NeighbourScope, Nexthop, Reply, ReplyKind,
    RuleMatch, Tunnel, Verdict,
};
use packet::{IcmpError, TunnelKind};
use std::fmt::{Display, Formatter, Result};

/// The name of an action, as configured.
pub(super) const fn action(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Drop => "drop",
        Action::Reject => "reject",
    }
}

/// The name of an encapsulation, as configured.
const fn tunnel_kind(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::MplsUdp => "mpls-over-udp",
        TunnelKind::MplsGre => "mpls-over-gre",
        TunnelKind::Vxlan => "vxlan",
    }
}

const fn id_name(kind: TunnelKind) -> &'static str {
    if matches!(kind, TunnelKind::Vxlan) { "vni" } else { "label" }
}

impl Display for Tunnel {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} to {} {} {}", tunnel_kind(self.kind), self.remote, id_name(self.kind), self.id)
    }
}

impl Display for Nexthop {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Discard => f.write_str("discard"),
            Self::Receive => f.write_str("receive"),
            Self::Encap { vif, mac } => write!(f, "encap {mac} to vif {vif}"),
            Self::Tunnel(tunnel) => tunnel.fmt(f),
            Self::VrfTranslate { vrf } => write!(f, "to network {vrf}"),
            Self::Resolve { via: Some(via) } => write!(f, "resolve via {via}"),
            Self::Resolve { via: None } => f.write_str("resolve"),
            Self::Ecmp(members) => write!(f, "ecmp of {} nexthops", members.len()),
        }
    }
}

impl Display for RuleMatch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (id, modifier) in &self.modifiers {
            match modifier {
                Modifier::Mirror(vif) => write!(f, "rule {id} mirror to vif {vif}, ")?,
                Modifier::Police(meter) => write!(f, "rule {id} police by meter {meter}, ")?,
            }
        }
        match self.rule {
            Some(id) => write!(f, "rule {id} {}", action(self.action)),
            None => write!(f, "default {}", action(self.action)),
        }
    }
}

impl Display for NeighbourScope {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Wire(id) => write!(f, "vif {id}"),
            Self::Network(vrf) => write!(f, "network {vrf}"),
        }
    }
}

impl Display for Encap {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (kind, id) = (tunnel_kind(self.kind), id_name(self.kind));
        write!(f, "{kind} {} > {} {id} {}", self.src, self.dst, self.id)
    }
}

impl Display for Forward {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "vif {}", self.port)?;
        if let Some(ecn) = self.ecn {
            write!(f, ", ecn {ecn}")?;
        }
        if self.ttl_decrement > 0 {
            write!(f, ", ttl -{}", self.ttl_decrement)?;
        }
        if let Some(src) = self.nat.src {
            write!(f, ", source {src}")?;
        }
        if let Some(dst) = self.nat.dst {
            write!(f, ", destination {dst}")?;
        }
        if let Some(mss) = self.mss {
            write!(f, ", mss {mss}")?;
        }
        if let Some(eth) = &self.ethernet {
            write!(f, ", ethernet {} > {}", eth.src, eth.dst)?;
        }
        for _ in 0..self.pop_tags {
            f.write_str(", pop vlan")?;
        }
        if let Some(vlan) = self.push_vlan {
            write!(f, ", push vlan {vlan}")?;
        }
        match &self.encap {
            Some(encap) => write!(f, ", {encap}"),
            None => Ok(()),
        }
    }
}

impl Display for Reply {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match &self.kind {
            ReplyKind::Arp { mac } => write!(f, "arp: at {mac}")?,
            ReplyKind::NeighbourAdvertisement { mac, .. } => write!(f, "neighbour advertisement: at {mac}")?,
            ReplyKind::Echo => f.write_str("echo")?,
            ReplyKind::IcmpError { src, error } => write!(f, "icmp from {src}: {}", icmp_error(*error))?,
            ReplyKind::TcpReset => f.write_str("tcp reset")?,
        }
        write!(f, ", to {}", self.forward)
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

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Forward(forward) => write!(f, "forward to {forward}"),
            Self::Flood(flood) => {
                write!(f, "flood network {}", flood.vrf)?;
                flood.to.iter().try_for_each(|forward| write!(f, "; to {forward}"))
            }
            Self::Reply(reply) => {
                if let Some(reason) = reply.dropped {
                    write!(f, "drop {reason}; ")?;
                }
                write!(f, "reply {reply}")
            }
            Self::Hold { scope, addr } => write!(f, "hold for neighbour {addr} of {scope}"),
            Self::Consumed => f.write_str("consumed"),
            Self::Drop(reason) => write!(f, "drop {reason}"),
        }
    }
}

impl Display for Effects {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(learn) = &self.learn {
            write!(f, "; learn {} in network {}", learn.mac, learn.vrf)?;
        }
        if let Some(found) = &self.neighbour {
            write!(f, "; neighbour {} of {} at {}", found.addr, found.scope, found.mac)?;
        }
        match &self.flow {
            Some(crate::FlowChange::Create { connection, .. }) => {
                write!(f, "; new flow, {}", connection.state)?
            }
            Some(crate::FlowChange::Update { connection, .. }) => write!(f, "; flow {}", connection.state)?,
            None => {}
        }
        if self.fragment.is_some() {
            f.write_str("; ports kept for later fragments")?;
        }
        for (meter, reason) in &self.meters {
            write!(f, "; meter {meter} ({reason})")?;
        }
        for copy in self.mirror_in.iter().chain(&self.mirror_out) {
            write!(f, "; copy to vif {copy}")?;
        }
        match &self.solicit {
            Some((scope, addr)) => write!(f, "; solicit {addr} of {scope}"),
            None => Ok(()),
        }
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
