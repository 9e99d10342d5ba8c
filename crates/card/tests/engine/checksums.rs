//! UDP tunnels over IPv6: their checksum precedes the payload that it covers.

use super::lockstep::{Lockstep, Prepared};
use super::weather::Weather;
use model::generate::{Packet, Rng};
use model::text;
use model::vectors::Case;

const WORLD: &str = "\
    host 192.0.2.1 2001:db8::1\n\
    wire up0 mac 02:aa:00:00:00:01 address 192.0.2.1/24 address 2001:db8::1/64 mtu 9000\n\
    network blue vrf 1 gateway 10.1.1.254/24 gateway fd00:1::ffff/64 vni 5001\n\
    network public vrf 9 gateway 203.0.113.254/24\n\
    network far vrf 3\n\
    guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 address fd00:1::1\n\
    guest vm2 in blue mac 02:00:00:00:00:02 address 10.1.1.2 address fd00:1::2 policy\n\
    guest vm3 in blue mac 02:00:00:00:00:03 address 10.1.1.3 address fd00:1::3\n\
    guest vm4 in blue mac 02:00:00:00:00:04\n\
    rule blue 10 allow\n\
    label 200 > network far\n\
    route far 10.1.4.0/24 > mpls-over-udp 2001:db8::2 1048575\n\
    route far fd00:4::/64 > mpls-over-udp 2001:db8::2 17\n\
    route far fd00:5::/64 > vxlan 2001:db8::2 16777215 mac 02:cc:00:00:00:01\n\
    route blue 10.1.4.0/24 > mpls-over-udp 2001:db8::2 1048575\n\
    route blue 10.1.5.0/24 > vxlan 2001:db8::2 5001 mac 02:cc:00:00:00:01\n\
    route blue fd00:4::/64 > mpls-over-udp 2001:db8::2 17\n\
    route blue fd00:5::/64 > vxlan 2001:db8::2 16777215 mac 02:cc:00:00:00:01\n\
    route blue 10.1.6.0/24 > mpls-over-udp 192.0.2.2 18\n\
    mac blue 02:00:00:00:00:33 > vxlan 2001:db8::2 5001\n\
    route blue 0.0.0.0/0 > network public\n\
    nat blue 10.1.1.2 = public 203.0.113.7\n\
    route public 198.51.100.0/25 > mpls-over-udp 2001:db8::2 33\n\
    route public 198.51.100.128/25 > vxlan 2001:db8::2 5009 mac 02:cc:00:00:00:02\n\
    neighbour up0 2001:db8::2 at 02:bb:00:00:00:02\n\
    case any\n\
    in vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / payload 46\n";

/// The ways into a tunnel: the sender, and the headers before the payload.
const WAYS: [(&str, &str); 14] = [
    ("vm1", "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.1.4.1 tos 1 / udp 1 > 2"),
    ("vm1", "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.1.5.1 / tcp 1 > 2 A"),
    ("vm1", "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip6 fd00:1::1 > fd00:4::1 / udp 1 > 2"),
    ("vm1", "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip6 fd00:1::1 > fd00:5::1 ttl 2 / tcp 1 > 2 A"),
    ("vm1", "eth 02:00:00:00:00:01 > 02:00:00:00:00:33 / ip4 10.1.1.1 > 10.1.1.33 / udp 1 > 2"),
    ("vm1", "eth 02:00:00:00:00:01 > 02:00:00:00:00:33 vlan 5 / ip6 fd00:1::1 > fd00:1::33 / udp 1 > 2"),
    ("vm4", "eth 02:00:00:00:00:04 > 02:00:00:00:00:33 vlan 5 vlan 6"),
    ("vm2", "eth 02:00:00:00:00:02 > 00:00:5e:00:01:00 / ip4 10.1.1.2 > 198.51.100.1 / udp 1 > 2"),
    ("vm2", "eth 02:00:00:00:00:02 > 00:00:5e:00:01:00 / ip4 10.1.1.2 > 198.51.100.2 / udp 1 > 2 nosum"),
    ("vm2", "eth 02:00:00:00:00:02 > 00:00:5e:00:01:00 / ip4 10.1.1.2 > 198.51.100.200 / icmp echo 1 2"),
    ("up0", "MPLS / ip4 10.1.1.77 > 10.1.4.1 tos 2 / udp 1 > 2"),
    ("up0", "MPLS / ip6 fd00:1::77 > fd00:5::1 tos 2 / udp 1 > 2"),
    ("up0", "MPLS / ip6 fd00:1::77 > fd00:4::1 tos 1 / tcp 1 > 2 A"),
    ("up0", "VXLAN / ip4 10.1.1.77 > 10.1.5.1 tos 1 / udp 1 > 2"),
];
/// The headers of a packet from a wire that was marked for congestion on its way.
const MPLS: &str = "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1 tos 3 / udp 50000 > 6635 / mpls 200";
const VXLAN: &str = "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip6 2001:db8::2 > 2001:db8::1 tos 3 / udp 50000 > 4789 / vxlan 5001 / eth 02:00:00:00:00:77 > 00:00:5e:00:01:00";

struct Bench {
    lockstep: Lockstep,
    case: Case,
}

impl Bench {
    fn new() -> Self {
        let (lockstep, case) = Lockstep::of(WORLD);
        Self { lockstep, case }
    }

    fn packet(&mut self, way: usize, payload: usize) -> Packet {
        let (from, front) = WAYS[way];
        let front = front.replace("MPLS", MPLS).replace("VXLAN", VXLAN);
        let frame = text::parse(&format!("{front} / payload {payload}")).unwrap();
        Packet { ingress: self.case.setup.vif_id(from), frame, gso_size: None }
    }

    /// Prepares a packet once the host has seen its flow. It must go into a tunnel with a checksum.
    fn prepared(&mut self, packet: &Packet) -> Prepared {
        if self.lockstep.prepare(packet).punt().is_some() {
            self.lockstep.host.hosted(packet);
        }
        let prepared = self.lockstep.prepare(packet);
        assert!(prepared.is_checksummed(), "{:?}: {packet:?}", prepared.punt());
        prepared
    }
}

#[test]
fn payloads_of_every_length_and_with_anything_behind_them() {
    let mut bench = Bench::new();
    let mut rng = Rng::new(4);
    let mut packets = Vec::new();
    for way in 0..WAYS.len() {
        for payload in (0..150).chain((150..8800).step_by(1237)) {
            let mut packet = bench.packet(way, payload);
            if rng.percent(30) {
                // Padding of the link.
                let size = packet.frame.len() + rng.below(100);
                packet.frame.resize_with(size, || rng.next_u64() as u8);
            }
            packets.push(bench.prepared(&packet));
        }
    }
    for weather in [Weather::calm(), Weather::new(3, 70, 100, 10), Weather::new(4, 100, 40, 0)] {
        bench.lockstep.host.card().weather = weather;
        for n in (1..packets.len()).rev() {
            packets.swap(n, rng.below(n + 1));
        }
        packets.iter().for_each(|packet| bench.lockstep.feed(packet));
        bench.lockstep.drain();
    }
    assert_eq!(bench.lockstep.counts.checksummed, 3 * packets.len());
}

#[test]
fn the_largest_packets_find_room_while_their_payload_is_summed() {
    let mut bench = Bench::new();
    let mut rng = Rng::new(5);
    let near = "eth 02:00:00:00:00:01 > 02:00:00:00:00:03 / ip4 10.1.1.1 > 10.1.1.3 / udp 1 > 2 / payload 2";
    let ingress = bench.case.setup.vif_id("vm1");
    let near = bench.lockstep.prepare(&Packet { ingress, frame: text::parse(near).unwrap(), gso_size: None });
    let mut packets = vec![near];
    for way in [0, 3, 10] {
        for size in [65_535, 65_472, 65_473, 9014] {
            let mut packet = bench.packet(way, 8700);
            packet.frame.resize_with(size, || rng.next_u64() as u8);
            packets.push(bench.prepared(&packet));
        }
    }
    for weather in [Weather::calm(), Weather::new(6, 80, 80, 20)] {
        bench.lockstep.host.card().weather = weather;
        for _ in 0..100 {
            let packet = if rng.percent(50) { &packets[0] } else { &packets[rng.below(packets.len())] };
            bench.lockstep.feed(packet);
        }
        bench.lockstep.drain();
    }
    assert!(bench.lockstep.counts.checksummed > 60);
}

#[test]
fn small_packets_leave_at_full_rate() {
    const PACKETS: u64 = 2000;
    let mut bench = Bench::new();
    // One beat that becomes two, routed into MPLS; and three, bridged into VXLAN.
    for (way, beats) in [(0, 2), (4, 3)] {
        let packet = bench.packet(way, 22);
        let packet = bench.prepared(&packet);
        let before = bench.lockstep.counts.clocks;
        (0..PACKETS).for_each(|_| bench.lockstep.feed(&packet));
        bench.lockstep.drain();
        let clocks = bench.lockstep.counts.clocks - before;
        assert!(clocks < beats * PACKETS + 400, "{clocks} clocks");
    }
}
