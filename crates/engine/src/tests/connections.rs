//! The accounts of connections, and how others' connections affect a guest's own.

use super::harness::Host;
use super::world::{PROVIDER, WIRE, neighbours, tables};
use crate::testing::Packet;
use executor::FlowUse;
use mem::{Accepts, Offload};
use model::{FlowState, VifId};
use tables::FlowLimits;

fn host(connections: usize) -> Host {
    let limits = FlowLimits { connections, new_per_second: u32::MAX, ..FlowLimits::default() };
    Host::limited(&tables(), &neighbours(), Accepts::default(), 700, limits)
}

fn packet(text: &str) -> Packet {
    (model::text::parse(text).unwrap(), Offload::default())
}

fn from_tunnel(inner: &str) -> Packet {
    packet(&format!(
        "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1 / udp 50000 > {inner}"
    ))
}

/// Builds a packet from guest 2 to guest 1.
fn neighbourly(port: u16) -> Packet {
    packet(&format!(
        "eth 02:00:00:00:00:02 > 02:00:00:00:00:01 / ip4 10.1.1.2 > 10.1.1.1 / udp {port} > 53 / payload 9"
    ))
}

#[test]
fn a_flood_of_answered_pings_costs_other_guests_no_connection() {
    let mut host = host(1024);
    for id in 0..3000u16 {
        let asked = format!("6635 nosum / mpls 16 / ip4 10.9.0.7 > 10.1.1.1 / icmp echo {id} 1 / payload 8");
        host.run(WIRE, [from_tunnel(&asked)]);
        let answered = format!("ip4 10.1.1.1 > 10.9.0.7 / icmp reply {id} 1 / payload 8");
        let answered = packet(&format!("eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / {answered}"));
        host.run(VifId(1), [answered]);
        if id % 20 == 0 {
            let output = host.run(VifId(2), [neighbourly(1000 + id)]);
            assert_eq!(output.get(&VifId(1)).map(Vec::len), Some(1), "a connection after {id} pings");
        }
    }
    assert_eq!(host.shared.flows().len(), 1024);
    assert_eq!(host.drops(), [].into());
    assert_eq!(host.shared.flows().used_by(VifId(2)), FlowUse { opened: 150, ..FlowUse::default() });
    assert_eq!(host.shared.flows().used_by(VifId(1)).from_wire, 1024 - 150);
}

#[test]
fn connections_are_charged_to_senders_and_from_a_wire_to_receivers() {
    let mut host = host(1024);
    let mut charged = |ingress, sent| {
        let before = host.shared.flows().created();
        host.run(ingress, [sent]);
        assert_eq!(host.shared.flows().created(), before + 1, "it makes a connection");
        let flows = host.shared.flows();
        let found: Vec<_> = (0..64)
            .map(|vif| (vif, flows.used_by(VifId(vif))))
            .filter(|(_, used)| used.opened + used.from_wire > 0)
            .map(|(vif, used)| (vif, used.from_wire > 0))
            .collect();
        host.shared.flows().flush(0, &mut |_| true);
        found
    };
    let (own, wire) = (false, true);
    assert_eq!(charged(VifId(2), neighbourly(7)), [(2, own)]);
    let labelled =
        |label, to| format!("6635 nosum / mpls {label} / ip4 10.9.0.7 > {to} / udp 9 > 53 / payload 9");
    assert_eq!(charged(WIRE, from_tunnel(&labelled(17, "10.1.1.2"))), [(2, wire)]);
    let floating =
        "eth 02:cc:00:00:00:50 > 00:00:5e:00:01:00 vlan 7 / ip4 203.0.113.50 > 203.0.113.7 / udp 9 > 53";
    assert_eq!(charged(PROVIDER, packet(&format!("{floating} / payload 9"))), [(1, wire)]);
    // To all members, so to no single guest.
    let flooded = "4789 nosum / vxlan 5001 / eth 02:dd:00:00:00:09 > 02:dd:00:00:00:08";
    let flooded = format!("{flooded} / ip4 10.1.1.200 > 10.1.1.201 / udp 9 > 53 / payload 9");
    assert_eq!(charged(WIRE, from_tunnel(&flooded)), [(WIRE.0, wire)]);
    // Packets to and from a guest's verbs device count to the guest.
    let roce = "ip4 10.9.0.7 > 10.1.1.6 / udp 49152 > 4791 / payload 24";
    assert_eq!(charged(WIRE, from_tunnel(&format!("6635 nosum / mpls 19 / {roce}"))), [(6, wire)]);
    let roce = "ip4 10.1.1.6 > 10.9.0.7 / udp 49152 > 4791 / payload 24";
    let sent = packet(&format!("eth 02:00:00:00:00:06 > 00:00:5e:00:01:00 / {roce}"));
    assert_eq!(charged(VifId(7), sent), [(6, own)]);
}

#[test]
fn replies_that_came_before_the_request_do_not_hide_those_after_it() {
    let mut host = host(1024);
    let reply = || {
        packet(
            "eth 02:00:00:00:00:02 > 02:00:00:00:00:01 / ip4 10.1.1.2 > 10.1.1.1 / icmp reply 5 1 / payload 8",
        )
    };
    let request = packet(
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / icmp echo 5 1 / payload 8",
    );
    for _ in 0..3 {
        assert_eq!(host.run(VifId(2), [reply()]).get(&VifId(1)).map(Vec::len), Some(1));
    }
    assert_eq!(host.shared.flows().created(), 0, "nobody asked");
    host.run(VifId(1), [request]);
    for _ in 0..3 {
        assert_eq!(host.run(VifId(2), [reply()]).get(&VifId(1)).map(Vec::len), Some(1));
    }
    let mut states = Vec::new();
    host.shared.flows().for_each(0, &mut |flow| {
        states.push(flow.state);
        true
    });
    assert_eq!(states, [FlowState::Established]);
}
