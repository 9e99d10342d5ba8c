//! How fast packets pass the box. With plain memory: what the engine's own memory allows is measured without the box.

use super::rounds::Rounds;
use crate::host::port_of;
use card::expect::Outcome;
use card::sim::Sent;
use model::generate::Packet;
use model::vectors::{Step, load};
use std::fmt::Write as _;

/// Bytes of a beat, and of the metadata in front of each packet from or to the host.
const BEAT: usize = 64;
/// Bytes of IPv4, UDP and MPLS around a guest's frame; its Ethernet header is replaced.
const TUNNEL: usize = 32;
/// Bytes of a guest's frame before its payload: Ethernet, IPv4, UDP.
const HEADERS: usize = 42;
const FLOWS: usize = 16;
const PACKETS: usize = 400;
/// The fraction of the rate that the beats allow which must be reached. It is the engine's goal without the box.
const GOAL: f64 = 0.98;

/// Returns text with packets of guests' frames of a size in both directions, and the tables that they need.
fn workload(size: usize) -> String {
    let mut text = "
host 192.0.2.1
wire up0 mac 02:aa:00:00:00:01 address 192.0.2.1/24 mtu 9000
network blue vrf 1 gateway 10.1.1.254/24
guest unattached in blue mac 02:00:00:00:00:09 address 10.1.1.9
guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 mtu 1504
label 100 > guest vm1
route blue 10.1.1.3/32 > mpls-over-udp 192.0.2.2 100
neighbour up0 192.0.2.2 at 02:bb:00:00:00:02

case both directions
"
    .to_owned();
    let payload = size - HEADERS;
    for port in 1000..1000 + FLOWS {
        writeln!(
            text,
            "in vm1 eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.1.1.3 / udp {port} > 53 / \
             payload {payload}\n  drop no_route\n\
             in up0 eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1 / \
             udp 50000 > 6635 nosum / mpls 100 / ip4 10.1.1.3 > 10.1.1.1 / udp 53 > {port} / \
             payload {payload}\n  drop no_route"
        )
        .unwrap();
    }
    text
}

/// Returns the packets of each direction, after the host has seen a packet of each flow.
fn set_up(size: usize) -> (Rounds, [Vec<Packet>; 2]) {
    let mut rounds = Rounds::empty();
    let mut packets = [Vec::new(), Vec::new()];
    for step in load(&workload(size)).unwrap().remove(0).steps {
        match step {
            Step::Apply(changes) => assert!(rounds.host.apply(&changes)),
            Step::Learn(effects) => rounds.host.effects(&effects, 0),
            Step::Packet(packet) => {
                let packet = Packet { ingress: packet.ingress, frame: packet.frame, gso_size: None };
                rounds.host.hosted(&packet);
                packets[usize::from(port_of(packet.ingress) == super::shell::WIRE)].push(packet);
            }
            step => panic!("{step:?}"),
        }
    }
    (rounds, packets)
}

/// Measures the packets per clock in each direction: down to the wire, up to the host.
fn rates(size: usize) -> [f64; 2] {
    let (mut rounds, packets) = set_up(size);
    for packet in packets.iter().flatten() {
        let outcome = rounds.host.outcome(packet);
        assert!(matches!(outcome, Outcome::Forward { .. }), "{outcome:?}");
    }
    let sim = &mut rounds.host.card().sim;
    for number in 0..PACKETS {
        for (input, packets) in packets.iter().enumerate() {
            let packet = &packets[number % FLOWS];
            sim.send(
                input,
                Sent { port: port_of(packet.ingress), direct: None, bytes: packet.frame.clone() },
            );
        }
    }
    let mut came = [Vec::new(), Vec::new()];
    while came.iter().any(|came| came.len() < PACKETS) {
        sim.tick();
        for (output, came) in came.iter_mut().enumerate() {
            while let Some(received) = sim.receive(output) {
                assert!(received.punt.is_none(), "{received:?}");
                came.push(received.cycles.1);
            }
        }
        assert!(sim.cycle() < 200_000, "packets are missing: {:?}", came.map(|came| came.len()));
    }
    let rate = |came: &[u64]| {
        let counted = &came[PACKETS / 4..];
        (counted.len() - 1) as f64 / (counted[counted.len() - 1] - counted[0]) as f64
    };
    [rate(&came[1]), rate(&came[0])]
}

#[test]
fn as_many_packets_pass_as_their_beats_allow() {
    for size in [64_usize, 65, 96, 97, 128, 256, 512, 1518] {
        // From or to the host with metadata, on the wire with a tunnel.
        let beats = (1 + size.div_ceil(BEAT)).max((size + TUNNEL).div_ceil(BEAT));
        let [down, up] = rates(size);
        let limit = 1.0 / beats as f64;
        println!(
            "{size:4} bytes, {beats:2} beats: {:.1} and {:.1} Mpps of {:.1}, {:.1} and {:.1} %",
            250.0 * down,
            250.0 * up,
            250.0 * limit,
            100.0 * down / limit,
            100.0 * up / limit
        );
        assert!(down.min(up) >= GOAL * limit, "{size} bytes: {down} and {up} packets a clock of {limit}");
    }
}
