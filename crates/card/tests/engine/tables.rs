//! Tables with too many entries in one place, and with too many entries in all.

use super::both::PIPES;
use super::lockstep::{Lockstep, Prepared};
use super::weather::Weather;
use crate::host::SECRET;
use card::cuckoo::Entry;
use card::entries;
use card::frame::Frame;
use card::hash::choices;
use card::registers::{Path, Punt, Table};
use card::sim::place;
use model::generate::{Packet, Rng};
use model::{BridgeTarget, Change, NexthopId, VifId, Vrf, text};
use packet::Mac;
use std::net::{IpAddr, Ipv6Addr};

const WORLD: &str = "\
    network blue vrf 1 gateway 10.1.1.254/24 gateway fd00:1::ffff/64\n\
    network red vrf 2\n\
    guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 address fd00:1::1 policy\n\
    guest vm2 in blue mac 02:00:00:00:00:02 address 10.1.1.2 address fd00:1::2\n\
    guest one in red mac 02:00:00:00:02:01 address 10.2.1.1\n\
    guest other in red mac 02:00:00:00:02:02 address 10.2.1.2\n\
    case any\n\
    in vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / payload 46\n";
/// Interfaces, numbered as in `WORLD`.
const VM1: VifId = VifId(1);
const ONE: VifId = VifId(3);
const OTHER: VifId = VifId(4);

fn frame(ingress: VifId, text: &str) -> Packet {
    Packet { ingress, frame: text::parse(text).unwrap(), gso_size: None }
}

/// Makes a packet of a flow that only its ports distinguish.
fn datagram((sport, dport): (u16, u16)) -> Packet {
    let ip = "ip4 10.1.1.1 > 10.1.1.2";
    frame(
        VM1,
        &format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / {ip} / udp {sport} > {dport} / payload 30"),
    )
}

fn buckets(ports: (u16, u16), bits: u32) -> [u32; 2] {
    places(&datagram(ports), bits)
}

fn places(packet: &Packet, bits: u32) -> [u32; 2] {
    let key = Frame::parse(&packet.frame, packet.frame.len(), false).unwrap().key(1, Path::Bridged).unwrap();
    choices(&entries::FlowEntry::from(&key).key(), &SECRET).map(|choice| choice & ((1 << bits) - 1))
}

/// Returns the ports of `count` flows for whose first buckets `of` returns the same value.
fn alike<V: PartialEq>(bits: u32, count: usize, of: impl Fn(u32) -> V) -> Vec<(u16, u16)> {
    let wanted = of(buckets((1, 1), bits)[0]);
    let all = (1..=u16::MAX).flat_map(|sport| (1000..5000).map(move |dport| (sport, dport)));
    all.filter(|ports| of(buckets(*ports, bits)[0]) == wanted).take(count).collect()
}

/// Lets the host see packets of some flows, and then sends them in any order, with packets of unknown flows.
fn flood(bench: &mut Lockstep, flows: &[(u16, u16)]) {
    let known: Vec<_> = flows.iter().map(|ports| datagram(*ports)).collect();
    known.iter().for_each(|packet| bench.host.hosted(packet));
    among_others(bench, &known);
}

/// Sends packets of flows that are on the card in any order, with packets of unknown flows.
fn among_others(bench: &mut Lockstep, known: &[Packet]) {
    let mut rng = Rng::new(1);
    let known: Vec<Prepared> = known.iter().map(|packet| bench.prepare(packet)).collect();
    assert!(known.iter().all(Prepared::is_served), "all flows find room");
    let unknown: Vec<Prepared> = (0..200).map(|n| bench.prepare(&datagram((5000, 30_000 + n)))).collect();
    assert!(unknown.iter().all(|packet| packet.punt() == Some(Punt::FlowMiss)));
    for weather in [Weather::calm(), Weather::new(5, 90, 70, 30)] {
        bench.host.card().weather = weather;
        for _ in 0..3000 {
            let some = if rng.percent(70) { &known } else { &unknown };
            let packet = rng.one(some);
            bench.feed(&packet);
        }
        bench.drain();
    }
}

#[test]
fn flows_that_share_a_bucket_or_a_place_in_a_cache() {
    let mut bench = Lockstep::of(WORLD).0;
    let bits = bench.host.driver.commands().identity().flow_buckets;
    // More flows than fit a bucket: some move to their other buckets.
    flood(&mut bench, &alike(bits, 8, |bucket| bucket));
    // Flows in one channel and in one place of its cache: each look-up is a read.
    flood(
        &mut bench,
        &alike(bits, 100, |bucket| {
            let (channel, line) = place(bucket, 4 * PIPES);
            (channel, line % 512)
        }),
    );
    // All flows in one channel.
    flood(&mut bench, &alike(bits, 200, |bucket| place(bucket, 4 * PIPES).0));
}

#[test]
fn flows_in_the_stash_instead_of_their_buckets() {
    let mut bench = Lockstep::of(WORLD).0;
    let bits = bench.host.driver.commands().identity().flow_buckets;
    let ip6 = "ip6 fd00:1::1 > fd00:1::2";
    let v6 =
        |port| format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / {ip6} / udp {port} > 9 / payload 30");
    let packets: Vec<_> = (1..=10).flat_map(|port| [datagram((port, 9)), frame(VM1, &v6(port))]).collect();
    packets.iter().for_each(|packet| bench.host.hosted(packet));
    // Flows go into the stash as the driver would write them if their buckets had no room; the last four stay there.
    for (number, packet) in (0..16).zip(&packets) {
        let bucket = places(packet, bits)[0] << 1;
        let lines = [bucket, bucket | 1].map(|line| bench.line::<32>(Table::Flow, line));
        assert_ne!(lines[0], [0; 32], "it is in its first bucket");
        let commands = bench.host.driver.commands();
        commands.write(Table::Stash, number, lines.as_flattened()).unwrap();
        commands.write(Table::Flow, bucket, &[0; 32]).unwrap();
        commands.write(Table::Flow, bucket | 1, &[0; 32]).unwrap();
    }
    among_others(&mut bench, &packets);
    // Two places are cleared; two flows replace others, IPv4 after IPv6 and the reverse.
    for (from, to) in [(0, 0), (1, 1), (2, 5), (3, 4)] {
        let line: [u8; 64] = bench.line(Table::Stash, from);
        bench.host.driver.commands().write(Table::Stash, to, &line).unwrap();
        bench.host.driver.commands().write(Table::Stash, from, &[0; 64]).unwrap();
    }
    let (known, gone): (Vec<_>, Vec<_>) =
        packets.into_iter().partition(|packet| bench.prepare(packet).is_served());
    assert_eq!(gone.len(), 4);
    among_others(&mut bench, &known);
    let gone: Vec<_> = gone.iter().map(|packet| bench.prepare(packet)).collect();
    bench.round(&mut Rng::new(7), &gone, 300);
}

#[test]
fn macs_beyond_the_bridge_tables_room_are_the_hosts() {
    let mut bench = Lockstep::of(WORLD).0;
    let mac = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        Mac([2, 0x77, 0, a, b, c])
    };
    let room = 4 << bench.host.driver.commands().identity().bridge_lines;
    let put = |number| Change::PutMac { vrf: Vrf(2), mac: mac(number), target: BridgeTarget::Vif(OTHER) };
    let changes: Vec<_> = (0..room + 200).map(put).collect();
    assert!(bench.host.apply(&changes));
    let mut packets = Vec::new();
    for number in (0..room + 200).step_by(37).chain(room..room + 200) {
        let to = mac(number);
        let packet =
            frame(ONE, &format!("eth 02:00:00:00:02:01 > {to} / ip4 10.2.1.1 > 10.2.1.9 / udp 1 > 2"));
        packets.push(bench.prepare(&packet));
    }
    let left: Vec<_> = packets.iter().filter(|packet| packet.punt() == Some(Punt::BridgeMiss)).collect();
    assert!(left.len() >= 100 && left.len() < packets.len(), "{} of {}", left.len(), packets.len());
    bench.round(&mut Rng::new(2), &packets, 4000);
}

#[test]
fn a_network_with_more_routes_than_fit_is_the_hosts_and_no_other() {
    let mut bench = Lockstep::of(WORLD).0;
    let room = 2 << bench.host.driver.commands().identity().route6_lines;
    let put = |number: u128| Change::PutRoute {
        vrf: Vrf(1),
        prefix: IpAddr::from(Ipv6Addr::from_bits(0xfd00_0001 << 96 | 1 << 64 | number)).into(),
        nexthop: NexthopId(1),
    };
    let inside = frame(
        VM1,
        "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip6 fd00:1::1 > fd00:1::2 / udp 1 > 2 / payload 20",
    );
    let outside = frame(
        ONE,
        "eth 02:00:00:00:02:01 > 02:00:00:00:02:02 / ip4 10.2.1.1 > 10.2.1.2 / udp 1 > 2 / payload 20",
    );
    let packets = [&inside, &outside].map(|packet| bench.prepare(packet));
    assert!(packets[0].punt() != Some(Punt::NoVrf));
    bench.round(&mut Rng::new(3), &packets, 500);
    let changes: Vec<_> = (0..room + 10).map(put).collect();
    assert!(bench.host.apply(&changes));
    let packets = [&inside, &outside].map(|packet| bench.prepare(packet));
    assert_eq!(packets[0].punt(), Some(Punt::NoVrf));
    assert!(packets[1].is_served());
    bench.round(&mut Rng::new(4), &packets, 500);
}
