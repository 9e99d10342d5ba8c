//! The flows of an Open vSwitch that may go onto the card.
//!
//! The card compares a packet's addresses, protocol and ports, its port on the card, and both MACs
//! ([`Hop::Unchanged`]). The host decides about tagged packets and fragments. So an entry of the card stands for all
//! packets of a flow that agree in these fields. The flow must look at no other field. An older flow that takes some of
//! those packets must look at no other field either. The flow must send the packets unchanged to one other port.

use crate::compile::{Attachment, Compiler, Hop, VRFS};
use crate::flows::{Flow, FlowVerdict};
use crate::frame::Frame;
use crate::registers::{self, NexthopKind, Path};
use model::ovs::{self, Action, FlowId};
use model::{Decision, Lookup, Nat, PacketView, Verdict, Vif, VifId, VifKind};
use packet::{L4, proto};

/// The reasons why a flow of an Open vSwitch stays on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stays {
    /// The flow's packets come in by a wire.
    Wire,
    /// One of the flow's ports has a rate, rules or a mirror, or does not exist.
    Port,
    /// The flow is not of whole, untagged IP packets to one receiver.
    Kind,
    /// The flow looks at a field that the card does not compare.
    Match,
    /// The flow drops packets.
    Drop,
    /// The flow sends to several ports, or back.
    Outputs,
    /// The flow changes packets, or puts them into a tunnel.
    Changes,
    /// Open vSwitch forwards the packets itself.
    Mark,
}

impl Stays {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Port => "port",
            Self::Kind => "kind",
            Self::Match => "match",
            Self::Drop => "drop",
            Self::Outputs => "outputs",
            Self::Changes => "changes",
            Self::Mark => "mark",
        }
    }
}

/// The flow of an Open vSwitch from which a flow on the card was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub port: VifId,
    pub id: FlowId,
    /// Number of the flow's counter.
    pub counter: u32,
}

/// Returns whether the card can serve a port, and frames can leave by it through the card.
pub(crate) fn is_plain(vif: &Vif) -> bool {
    let served = matches!(vif.kind, VifKind::Vhost | VifKind::Tap | VifKind::Wire);
    served && vif.takes_flows() && vif.mirror.is_none() && vif.rules.is_none() && !vif.is_tagged()
}

/// Makes the line of a port. The host handles all packets of a wire, or of a port with a rate.
pub(crate) fn port(vif: &Vif, at: Attachment) -> Option<registers::Port> {
    let served = is_plain(vif) && vif.kind != VifKind::Wire && vif.meter.is_none();
    let port = registers::Port { valid: true, policy: true, exact: true, ..Default::default() };
    served.then_some(registers::Port { vrf: VRFS + at.port, ..port })
}

/// Returns a mask of the bits of a packet that the card does not compare, or that differ between packets of one of its
/// flows.
fn free(icmp: bool) -> ovs::Key {
    let l4 = if icmp { u16::MAX } else { 0 };
    ovs::Key {
        ip_tos: u8::MAX,
        ip_ttl: u8::MAX,
        tcp_flags: u8::MAX,
        l4_src: l4,
        l4_dst: l4,
        ..ovs::Key::default()
    }
}

/// Returns the reason why a flow stays on the host, whatever its packets; `None` if its packets may go onto the card.
pub fn stays<T: Lookup>(tables: &T, flow: &ovs::Flow) -> Option<Stays> {
    let port = |id: VifId| tables.vif(id).filter(|vif| is_plain(vif));
    match tables.vif(flow.port) {
        Some(vif) if vif.kind == VifKind::Wire => return Some(Stays::Wire),
        Some(vif) if is_plain(vif) && vif.meter.is_none() => {}
        _ => return Some(Stays::Port),
    }
    let (key, mask) = (flow.matching.key(), flow.matching.mask());
    let ip = [proto::ETHERTYPE_IPV4, proto::ETHERTYPE_IPV6];
    let other = mask.eth_type == u16::MAX && !ip.contains(&key.eth_type);
    if other || key.vlan_tci & ovs::Key::TAGGED != 0 || key.ip_fragment != 0 || key.eth_dst.is_group() {
        return Some(Stays::Kind);
    }
    let icmp = mask.ip_proto == u8::MAX && [proto::ICMP, proto::ICMPV6].contains(&key.ip_proto);
    if flow.matching.looks_at(&free(icmp)) {
        return Some(Stays::Match);
    }
    match flow.actions.as_slice() {
        [Action::Mark] => Some(Stays::Mark),
        [Action::Output(to)] if port(*to).is_none() => Some(Stays::Port),
        [Action::Output(to)] => (*to == flow.port).then_some(Stays::Outputs),
        actions => Some(match actions.iter().filter(|action| matches!(action, Action::Output(_))).count() {
            0 => Stays::Drop,
            1 => Stays::Changes,
            _ => Stays::Outputs,
        }),
    }
}

/// Returns the card's flow for a packet from a port of an Open vSwitch, if the decision about the packet allows one.
pub(crate) fn flow<T: Lookup>(
    compiler: Compiler<'_, T>,
    packet: &PacketView<'_>,
    (vif, frame): (&Vif, &Frame),
    decision: &Decision,
) -> Option<Flow> {
    let effects = &decision.effects;
    let Verdict::Outputs(outputs) = &decision.verdict else { return None };
    let [output] = outputs.as_slice() else { return None };
    let eth = frame.headers.eth.as_ref()?;
    if effects.flow.is_some() || effects.once || !output.changes_nothing() || !eth.tags.is_empty() {
        return None;
    }
    let icmp = matches!(frame.l4(), L4::Icmp { .. });
    let found = compiler.tables.ovs_flow_of_all(vif.id, &ovs::Key::of(packet)?, &free(icmp))?;
    if effects.ovs_counter != Some(found.counter) || stays(compiler.tables, found).is_some() {
        return None;
    }
    let at = compiler.attached(vif.id)?;
    let line = port(vif, at)?;
    let hop = Hop::Unchanged { vif: output.port, src: eth.src, dst: eth.dst };
    let served = compiler.line(&hop).kind == NexthopKind::Guest as u8;
    Some(Flow {
        key: frame.key(line.vrf, Path::Bridged)?,
        verdict: FlowVerdict::Forward { hop: Some(hop), nat: Nat::default(), keep_ttl: false },
        connection: None,
        far: false,
        origin: Some(Origin { port: vif.id, id: found.id, counter: found.counter }),
    })
    .filter(|_| served)
}
