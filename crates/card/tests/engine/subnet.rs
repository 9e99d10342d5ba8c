//! Packets by MPLS between guests of one subnet keep their TTL; all others that are routed lose one.

use super::lockstep::Lockstep;
use super::weather::Weather;
use card::expect::Outcome;
use card::registers::Punt;
use model::generate::{Packet, Rng};
use model::vectors::Case;
use model::{Verdict, text};

const WORLD: &str = "\
    host 192.0.2.1\n\
    wire up0 mac 02:aa:00:00:00:01 address 192.0.2.1/24 mtu 9000\n\
    network blue vrf 1 gateway 10.1.1.254/24 gateway fd00:1::ffff/64\n\
    network red vrf 2 gateway 10.2.1.254/24 gateway 10.2.2.254/24 gateway fd00:2::ffff/64 vni 5002\n\
    guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 address fd00:1::1\n\
    guest vm2 in red mac 02:00:00:00:00:02 address 10.2.1.2 address fd00:2::2 policy\n\
    rule red 10 allow\n\
    label 101 > guest vm1\n\
    label 102 > guest vm2\n\
    label 202 > network red\n\
    route blue 10.1.1.128/25 > mpls-over-udp 192.0.2.2 17\n\
    route blue 10.9.0.0/16 > mpls-over-udp 192.0.2.2 17\n\
    route blue fd00:1::8000/113 > mpls-over-gre 192.0.2.2 17\n\
    route red 10.2.1.128/25 > mpls-over-udp 192.0.2.2 18\n\
    route red 10.2.1.2/32 > guest vm2\n\
    neighbour up0 192.0.2.2 at 02:bb:00:00:00:02\n\
    case any\n\
    in vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / payload 46\n";

const VM1: &str = "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00";
const VM2: &str = "eth 02:00:00:00:00:02 > 00:00:5e:00:01:00";
const UNDERLAY: &str = "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1";

/// A packet: the sender, the headers before the TTL, and whether its TTL stays the same.
struct Way(&'static str, String, bool);

fn ways() -> Vec<Way> {
    let label = |label| format!("{UNDERLAY} / udp 50000 > 6635 nosum / mpls {label}");
    let vxlan = format!(
        "{UNDERLAY} / udp 50000 > 4789 nosum / vxlan 5002 / eth 02:00:00:00:00:77 > 00:00:5e:00:01:00"
    );
    vec![
        Way("vm1", format!("{VM1} / ip4 10.1.1.1 > 10.1.1.200"), true),
        Way("vm1", format!("{VM1} / ip6 fd00:1::1 > fd00:1::8001"), true),
        Way("vm1", format!("{VM1} / ip4 10.1.1.1 > 10.9.0.1"), false),
        Way("vm2", format!("{VM2} / ip4 10.2.1.2 > 10.2.1.200"), true),
        // To a guest whose connections are not tracked.
        Way("up0", format!("{} / ip4 10.1.1.200 > 10.1.1.1", label(101)), true),
        Way("up0", format!("{} / ip6 fd00:1::8001 > fd00:1::1", label(101)), true),
        Way("up0", format!("{} / ip4 10.9.0.1 > 10.1.1.1", label(101)), false),
        // To a guest whose connections are tracked.
        Way("up0", format!("{} / ip4 10.2.1.200 > 10.2.1.2", label(102)), true),
        Way("up0", format!("{} / ip4 10.2.2.200 > 10.2.1.2", label(102)), false),
        Way("up0", format!("{} / ip4 10.2.1.201 > 10.2.1.2", label(202)), true),
        Way("up0", format!("{} / ip6 fd00:2::8001 > fd00:2::2", label(102)), true),
        Way("up0", format!("{vxlan} / ip4 10.2.2.201 > 10.2.1.2"), false),
    ]
}

fn packet(case: &mut Case, way: &Way, ttl: u8) -> Packet {
    let frame = text::parse(&format!("{} ttl {ttl} / udp 7 > 8 / payload 40", way.1)).unwrap();
    Packet { ingress: case.setup.vif_id(way.0), frame, gso_size: None }
}

/// Checks that the card forwards a packet as `decide` says. Returns by how much its TTL falls.
fn cost(bench: &mut Lockstep, packet: &Packet) -> u8 {
    let Some(Verdict::Forward(said)) = bench.host.decide(packet).map(|decision| decision.verdict) else {
        panic!("{packet:?}")
    };
    match bench.host.outcome(packet) {
        Outcome::Forward { forward, .. } => {
            assert_eq!(forward.ttl_decrement, said.ttl_decrement, "{packet:?}");
            forward.ttl_decrement
        }
        other => panic!("{other:?}: {packet:?}"),
    }
}

#[test]
fn packets_by_mpls_within_a_subnet_keep_their_ttl() {
    let (mut bench, mut case) = Lockstep::of(WORLD);
    let mut packets = Vec::new();
    for way in ways() {
        let [low, high] = [1, 64].map(|ttl| packet(&mut case, &way, ttl));
        bench.host.hosted(&high);
        assert_eq!(cost(&mut bench, &high), u8::from(!way.2), "{}", way.1);
        if way.2 {
            assert_eq!(cost(&mut bench, &low), 0);
        } else {
            assert!(matches!(bench.host.outcome(&low), Outcome::Punt(Punt::Ttl)), "{}", way.1);
        }
        packets.extend([bench.prepare(&low), bench.prepare(&high)]);
    }
    for weather in [Weather::calm(), Weather::new(3, 80, 80, 20)] {
        bench.host.card().weather = weather;
        bench.round(&mut Rng::new(1), &packets, 2000);
    }
}

#[test]
fn the_same_flow_by_vxlan_is_routed() {
    let (mut bench, mut case) = Lockstep::of(WORLD);
    let by = |front: &str| Way("up0", format!("{UNDERLAY} / {front} / ip4 10.2.1.201 > 10.2.1.2"), false);
    let vxlan = by("udp 50000 > 4789 nosum / vxlan 5002 / eth 02:00:00:00:00:77 > 00:00:5e:00:01:00");
    let [vxlan, label] =
        [vxlan, by("udp 50000 > 6635 nosum / mpls 202")].map(|way| packet(&mut case, &way, 9));
    // A flow for packets in VXLAN would also apply to packets with a label, and decrement their TTL.
    bench.host.hosted(&vxlan);
    assert_eq!(bench.host.outcome(&label), Outcome::Punt(Punt::FlowMiss));
    bench.host.hosted(&label);
    assert_eq!([&label, &vxlan].map(|packet| cost(&mut bench, packet)), [0, 1]);
    let packets = [&label, &vxlan].map(|packet| bench.prepare(packet));
    bench.round(&mut Rng::new(2), &packets, 500);
}
