//! Workers on hosts: their configuration and packets.

use super::worker::{PACKETS, Worker, ingress};
use crate::common::host::{
    GATEWAY, GUEST, WIRE, clients, frames, frames_of, guest, neighbour, net, packet, tables, tunnel,
};
use model::vectors::{Step, load};
use model::{
    Action, Change, Nexthop, NexthopId, PortRange, Rule, RuleAction, RuleId, TunnelKind, Vif, VifId, VifKind,
    Vrf, ovs,
};
use packet::{Mac, proto};

#[derive(Clone, Copy)]
pub enum Policy {
    /// Forwarded without rules.
    NoRules,
    /// Forwarded by a rule, with its connection tracked.
    Stateful,
    /// Dropped by a rule.
    Denied,
}

/// Bytes of a packet, as Ethernet counts them without the FCS: 64 with it.
const LEN: usize = 60;
/// Rules of the network before the one that matches the packets.
const OTHER_RULES: u16 = 31;
/// The label or VXLAN network identifier with which the other host sends.
const ID: u32 = 16;

/// Returns a worker that forwards UDP flows of small packets from guest to guest.
pub fn between_guests(policy: Policy, flows: usize) -> Worker {
    let mut changes = tables();
    match policy {
        Policy::NoRules => {
            changes.extend([1, 2].map(|id| Change::PutVif(Vif { policy: false, ..guest(id) })));
        }
        Policy::Stateful => changes.extend(rules(Action::Allow)),
        Policy::Denied => changes.extend(rules(Action::Drop)),
    }
    Worker::new(&changes, &neighbour(), ingress(VifId(1), false), frames(GUEST, flows, LEN))
}

/// Returns a worker with open TCP connections between guests, which a rule allows; the clients send data, and
/// each segment follows the last one.
pub fn tcp_between_guests(flows: usize) -> Worker {
    let mut changes = tables();
    changes.push(rule(1000, "10.1.0.0/24", 53, Action::Allow, proto::TCP));
    let (client, server) = (ingress(VifId(1), false), ingress(VifId(2), false));
    let to_server = |text: &str| frames_of(GUEST, flows, &|port| format!("tcp {port} > 53 {text}"));
    let mut worker = Worker::new(&changes, &neighbour(), client, to_server("S seq 999 win 60000 scale 7"));
    worker.forward(flows, None);
    worker.receives(
        server,
        answers_of(flows, &|port| format!("tcp 53 > {port} SA seq 4999 ack 1000 win 60000 scale 7")),
    );
    worker.forward(flows, None);
    let data = LEN - 54;
    let segment =
        |n: usize| to_server(&format!("A seq {} ack 5000 win 1000 / payload {data}", 1000 + n * data));
    worker.receives(client, (0..3 * PACKETS / flows).flat_map(segment).collect());
    worker
}

/// Returns the frames with which the second guest answers these flows.
fn answers_of(flows: usize, upper: &dyn Fn(usize) -> String) -> Vec<Vec<u8>> {
    let frame = |(near, port)| {
        packet(&format!("eth {GUEST} > 02:00:00:00:00:01 / ip4 10.1.0.2 > {near} / {}", upper(port)))
    };
    clients(flows).map(frame).collect()
}

/// The flows of an Open vSwitch between two guests.
#[derive(Clone, Copy)]
pub enum Megaflows {
    /// One that looks at no field.
    One,
    /// One for each source port.
    Each,
}

/// Returns a worker that forwards UDP flows of small packets between guests, programmed by an Open vSwitch.
pub fn under_ovs(megaflows: Megaflows, flows: usize) -> Worker {
    let vif = |id, ovs, kind| {
        Change::PutVif(Vif { kind, ovs: Some(VifId(ovs)), vrf: None, policy: false, ..guest(id) })
    };
    let ports = [1, 2].map(|id| [vif(id, id + 10, VifKind::Vhost), vif(id + 10, id, VifKind::Ovs)]);
    let ports = ports.as_flattened();
    let mut worker = Worker::new(ports, &neighbour(), ingress(VifId(1), false), frames(GUEST, flows, LEN));
    let (mask, count) = match megaflows {
        Megaflows::One => (ovs::Key::default(), 1),
        Megaflows::Each => (ovs::Key { l4_src: u16::MAX, ..ovs::Key::default() }, flows),
    };
    let flow = |(n, (_, sport)): (usize, (String, usize))| ovs::Flow {
        id: ovs::FlowId(n as u64 + 1),
        counter: n as u32,
        port: VifId(1),
        matching: ovs::Match::new(&ovs::Key { l4_src: sport as u16, ..ovs::Key::default() }, &mask),
        actions: vec![ovs::Action::Output(VifId(2))],
    };
    worker.program(clients(flows).take(count).enumerate().map(flow));
    worker
}

/// Returns a worker that forwards UDP flows of small packets from an Open vSwitch to a guest.
pub fn from_ovs(flows: usize) -> Worker {
    let mut worker = under_ovs(Megaflows::One, flows);
    worker.receives(ingress(VifId(12), false), frames(GUEST, flows, LEN));
    worker.program(std::iter::empty());
    worker
}

/// Returns a worker that forwards UDP flows of small packets to a guest with a shaper.
pub fn into_shaper(flows: usize) -> Worker {
    let mut worker = between_guests(Policy::NoRules, flows);
    worker.shape(VifId(2));
    worker
}

/// Returns a worker that forwards UDP flows of small packets of a guest with a DSCP.
pub fn with_dscp(flows: usize) -> Worker {
    let mut changes = tables();
    changes.extend([1, 2].map(|id| Change::PutVif(Vif { policy: false, dscp: Some(46), ..guest(id) })));
    Worker::new(&changes, &neighbour(), ingress(VifId(1), false), frames(GUEST, flows, LEN))
}

/// Returns a worker that forwards UDP flows of small packets of a guest behind an address that guests share.
pub fn behind_shared_address(flows: usize) -> Worker {
    let text = format!("eth 02:00:00:00:00:01 > {GATEWAY} / ip4 10.1.1.1 > 203.0.113.1");
    let tables = format!(
        "network blue vrf 1 gateway 10.1.1.254/24\n\
         network public vrf 9 gateway 203.0.113.254/24\n\
         guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 policy\n\
         guest out in public mac 02:00:00:00:09:01 address 203.0.113.1\n\
         route blue 0.0.0.0/0 > network public\n\
         snat blue = public 203.0.113.5 ports 1024\n\
         case tables\n\
         in vm1 {text} / udp 1 > 2\n"
    );
    let case = load(&tables).expect("the tables").remove(0);
    let Some(Step::Apply(changes)) = case.steps.first() else { panic!("tables") };
    let frame = |flow| packet(&format!("{text} / udp {} > 53 nosum / payload 18", 1000 + flow));
    Worker::new(changes, &neighbour(), ingress(VifId(1), false), (0..flows).map(frame).collect())
}

pub fn into_tunnel(kind: TunnelKind, flows: usize) -> Worker {
    let mut changes = tables();
    changes.push(tunnel(kind));
    Worker::new(&changes, &neighbour(), ingress(VifId(1), false), frames(GATEWAY, flows, LEN))
}

pub fn out_of_tunnel(kind: TunnelKind, flows: usize) -> Worker {
    let to_guest = Nexthop::Encap { vif: VifId(2), mac: Mac([2, 0, 0, 0, 0, 2]) };
    let mut changes = tables();
    changes.push(Change::PutNexthop(NexthopId(2), to_guest));
    changes.push(Change::PutMpls { label: ID, nexthop: NexthopId(2) });
    changes.push(Change::PutVxlan { vni: ID, vrf: Vrf(1) });
    let frames = (0..flows).map(|flow| tunnelled(kind, flow)).collect();
    Worker::new(&changes, &neighbour(), ingress(WIRE, true), frames)
}

/// Returns a packet of a flow as the other host sends it.
fn tunnelled(kind: TunnelKind, flow: usize) -> Vec<u8> {
    let inner = format!("ip4 10.9.0.2 > 10.1.0.2 / udp {} > 53 nosum / payload 18", 1000 + flow);
    let (port, carried) = match kind {
        TunnelKind::Vxlan => (4789, format!("vxlan {ID} / eth 02:dd:00:00:00:01 > {GUEST} / {inner}")),
        _ => (6635, format!("mpls {ID} / {inner}")),
    };
    let text = format!(
        "eth 02:00:00:00:01:02 > 02:00:00:00:00:0a / ip4 192.0.2.2 > 192.0.2.1 / udp {} > {port} nosum / {carried}",
        50_000 + flow % 16
    );
    model::text::parse(&text).expect("a packet")
}

/// Returns rules of which the last one decides.
fn rules(action: Action) -> impl Iterator<Item = Change> {
    let others = (1..=OTHER_RULES)
        .map(|n| rule(u32::from(n), &format!("10.1.{n}.0/24"), 1000 + n, Action::Drop, proto::UDP));
    others.chain([rule(1000, "10.1.0.0/24", 53, action, proto::UDP)])
}

fn rule(id: u32, to: &str, port: u16, action: Action, protocol: u8) -> Change {
    Change::PutRule(Rule {
        id: RuleId(id),
        vrf: Vrf(1),
        priority: id,
        from: vec![net("10.1.0.0/16")],
        to: vec![net(to)],
        protocol: Some(protocol),
        ports: Some(PortRange { first: port, last: port }),
        action: RuleAction::End(action),
    })
}
