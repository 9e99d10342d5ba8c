//! A host with some of everything, and packets that it might see.

use ipnet::IpNet;
use model::generate::Rng;
use model::{
    Action, BridgeTarget, Change, FloatingAddress, Host, MeterConfig, MeterId, Modifier, NeighbourFound,
    NeighbourScope, Network, Nexthop, NexthopId, PortRange, Rule, RuleAction, RuleId, Tunnel, Vif, VifId,
    VifKind, Vrf, WireAttachment, WireAttributes,
};
use packet::{Mac, TunnelKind};
use std::net::IpAddr;

pub const WIRE: VifId = VifId(10);
pub const PROVIDER: VifId = VifId(11);
pub const MIRROR: VifId = VifId(5);
/// The verbs device of guest 6.
const VERBS: VifId = VifId(7);
fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn mac(text: &str) -> Mac {
    text.parse().unwrap()
}

fn guest(id: u16, vrf: u16, addresses: &[&str]) -> Vif {
    Vif {
        vrf: Some(Vrf(vrf)),
        mac: Some(Mac([2, 0, 0, 0, 0, id as u8])),
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        policy: true,
        ..Vif::new(VifId(id), &format!("vm{id}"), VifKind::Vhost)
    }
}

/// Returns guest 6, which has a policer, a mirror and a verbs device.
fn small() -> Vif {
    let mut vif = guest(6, 1, &["10.1.1.6", "fd00:1::6"]);
    (vif.mtu, vif.mirror, vif.meter) = (1000, Some(MIRROR), Some(MeterId(1)));
    vif.rdma = Some(VERBS);
    vif
}

fn wire(id: VifId, mac: &str, wire: WireAttributes) -> Vif {
    Vif {
        mac: Some(self::mac(mac)),
        mtu: 1600,
        wire: Some(wire),
        ..Vif::new(id, &format!("up{id}"), VifKind::Wire)
    }
}

fn network(vrf: u16, gateways: &[&str], vni: u32, members: &[u16]) -> Network {
    Network {
        gateways: gateways.iter().map(|g| net(g)).collect(),
        vni: Some(vni),
        learning: true,
        members: members.iter().map(|m| VifId(*m)).collect(),
        ..Network::new(Vrf(vrf), &format!("net{vrf}"))
    }
}

fn tunnel(kind: TunnelKind, remote: &str, id: u32) -> Nexthop {
    Nexthop::Tunnel(Tunnel { kind, remote: ip(remote), id, mac: None })
}

pub fn route(vrf: u16, prefix: &str, nexthop: u32) -> Change {
    Change::PutRoute { vrf: Vrf(vrf), prefix: net(prefix), nexthop: NexthopId(nexthop) }
}

pub fn rule(id: u32, vrf: u16, priority: u32, ports: (u16, u16), action: RuleAction) -> Change {
    Change::PutRule(Rule {
        id: RuleId(id),
        vrf: Vrf(vrf),
        priority,
        from: Vec::new(),
        to: Vec::new(),
        protocol: Some(packet::proto::UDP),
        ports: Some(PortRange { first: ports.0, last: ports.1 }),
        action,
    })
}

/// Returns the change that sets the host, which also accepts tunnel packets from these peers.
fn host(peers: &[&str]) -> Change {
    Change::SetHost(Host {
        name: "a".into(),
        tunnel_source: vec![ip("192.0.2.1"), ip("2001:db8::1")],
        tunnel_peers: peers.iter().map(|peer| net(peer)).collect(),
        ..Host::default()
    })
}

pub fn tables() -> Vec<Change> {
    let mut changes = vec![host(&[])];
    changes.push(Change::PutMeter(
        MeterId(1),
        MeterConfig { bits_per_second: 1_000_000_000_000, burst_bytes: 1_000_000_000 },
    ));
    changes.extend(interfaces());
    changes.extend(nexthops());
    changes.extend(entries());
    changes
}

fn interfaces() -> Vec<Change> {
    let mut learned = guest(3, 1, &[]);
    (learned.mac, learned.policy) = (None, false);
    let verbs = Vif { id: VERBS, kind: VifKind::Rdma, rdma: Some(VifId(6)), ..small() };
    let verbs_only = Vif { kind: VifKind::Rdma, ..guest(8, 1, &["10.1.1.8", "fd00:1::8"]) };
    let underlay = WireAttributes {
        addresses: vec![net("192.0.2.1/24"), net("2001:db8::1/64")],
        gateways: vec![ip("192.0.2.254")],
        ..WireAttributes::default()
    };
    let provider = WireAttributes { networks: vec![(Some(7), Vrf(3))], ..WireAttributes::default() };
    let mut outside = network(3, &["203.0.113.254/24"], 5003, &[]);
    outside.wire = Some(WireAttachment { vif: PROVIDER, vlan: Some(7) });
    let mut blue = network(1, &["10.1.1.254/24", "fd00:1::ffff/64"], 5001, &[1, 2, 3, 5, 6, 8]);
    blue.flood = vec![NexthopId(24)];
    vec![
        Change::PutVif(guest(1, 1, &["10.1.1.1", "fd00:1::1"])),
        Change::PutVif(guest(2, 1, &["10.1.1.2", "fd00:1::2"])),
        Change::PutVif(learned),
        Change::PutVif(guest(4, 2, &["10.2.2.4", "fd00:2::4"])),
        Change::PutVif(guest(MIRROR.0, 1, &["10.1.1.5"])),
        Change::PutVif(small()),
        Change::PutVif(verbs),
        Change::PutVif(verbs_only),
        Change::PutVif(wire(WIRE, "02:aa:00:00:00:01", underlay)),
        Change::PutVif(wire(PROVIDER, "02:aa:00:00:00:02", provider)),
        Change::PutNetwork(blue),
        Change::PutNetwork(network(2, &["10.2.2.254/24", "fd00:2::ffff/64"], 5002, &[4])),
        Change::PutNetwork(outside),
    ]
}

fn nexthops() -> Vec<Change> {
    let encap = |id: u16| Nexthop::Encap { vif: VifId(id), mac: Mac([2, 0, 0, 0, 0, id as u8]) };
    let all = [
        (1, encap(1)),
        (2, encap(2)),
        (4, encap(4)),
        (6, encap(6)),
        (8, encap(8)),
        (9, Nexthop::Receive),
        (20, tunnel(TunnelKind::MplsUdp, "192.0.2.2", 100)),
        (21, tunnel(TunnelKind::MplsGre, "192.0.2.2", 101)),
        (22, tunnel(TunnelKind::Vxlan, "192.0.2.3", 5001)),
        (23, tunnel(TunnelKind::MplsUdp, "2001:db8::2", 102)),
        (24, tunnel(TunnelKind::Vxlan, "2001:db8::2", 5001)),
        (25, tunnel(TunnelKind::MplsUdp, "192.0.2.99", 103)), // does not answer
        (30, Nexthop::Ecmp(vec![NexthopId(20), NexthopId(21), NexthopId(23)])),
        (31, Nexthop::VrfTranslate { vrf: Vrf(2) }),
        (32, Nexthop::VrfTranslate { vrf: Vrf(1) }),
        (33, Nexthop::VrfTranslate { vrf: Vrf(3) }),
        (34, Nexthop::Resolve { via: None }),
        (35, Nexthop::Discard),
    ];
    all.into_iter().map(|(id, nexthop)| Change::PutNexthop(NexthopId(id), nexthop)).collect()
}

fn entries() -> Vec<Change> {
    let mut changes = vec![
        route(1, "10.1.1.1/32", 1),
        route(1, "10.1.1.2/32", 2),
        route(1, "10.1.1.6/32", 6),
        route(1, "10.1.1.8/32", 8),
        route(1, "fd00:1::1/128", 1),
        route(1, "fd00:1::2/128", 2),
        route(2, "10.2.2.4/32", 4),
        route(2, "fd00:2::4/128", 4),
        route(1, "10.2.2.0/24", 31),
        route(1, "fd00:2::/64", 31),
        route(2, "10.1.1.0/24", 32),
        route(2, "fd00:1::/64", 32),
        route(1, "10.9.0.0/24", 20),
        route(1, "10.9.1.0/24", 21),
        route(1, "10.9.2.0/24", 22),
        route(1, "10.9.3.0/24", 23),
        route(1, "10.9.4.0/24", 30),
        route(1, "10.9.5.0/24", 25),
        route(1, "10.9.6.0/24", 35),
        route(1, "fd00:9::/64", 30),
        route(1, "fd00:9:1::/64", 24),
        route(1, "203.0.113.0/24", 33),
        route(3, "203.0.113.0/24", 34),
        Change::PutFloating(FloatingAddress {
            inside_vrf: Vrf(1),
            inside: ip("10.1.1.1"),
            outside_vrf: Vrf(3),
            outside: ip("203.0.113.7"),
        }),
        route(3, "203.0.113.7/32", 32),
        Change::PutVxlan { vni: 5001, vrf: Vrf(1) },
        Change::PutVxlan { vni: 5002, vrf: Vrf(2) },
        Change::PutMac {
            vrf: Vrf(1),
            mac: mac("02:00:00:00:00:33"),
            target: BridgeTarget::Nexthop(NexthopId(22)),
        },
        rule(1, 1, 10, (666, 666), RuleAction::End(Action::Drop)),
        rule(2, 1, 20, (667, 667), RuleAction::End(Action::Reject)),
        rule(3, 1, 30, (700, 720), RuleAction::Modify(Modifier::Mirror(MIRROR))),
        rule(4, 1, 40, (710, 730), RuleAction::Modify(Modifier::Police(MeterId(1)))),
        rule(5, 2, 10, (80, 90), RuleAction::End(Action::Allow)),
    ];
    for (label, nexthop) in [(16, 1), (17, 2), (18, 4), (19, 6)] {
        changes.push(Change::PutMpls { label, nexthop: NexthopId(nexthop) });
    }
    changes
}

pub fn neighbours() -> Vec<NeighbourFound> {
    let on_wire = |addr: &str, last| NeighbourFound {
        scope: NeighbourScope::Wire(WIRE),
        addr: ip(addr),
        mac: Mac([2, 0xbb, 0, 0, 0, last]),
    };
    vec![
        on_wire("192.0.2.2", 2),
        on_wire("192.0.2.3", 3),
        on_wire("192.0.2.254", 254),
        on_wire("2001:db8::2", 2),
        NeighbourFound {
            scope: NeighbourScope::Network(Vrf(3)),
            addr: ip("203.0.113.50"),
            mac: mac("02:cc:00:00:00:50"),
        },
    ]
}

pub fn some_change(random: &mut Rng) -> Vec<Change> {
    let v = random.below(11);
    vec![match v {
        0 => route(1, "10.9.0.0/24", [20, 21, 23, 30, 35][random.below(5)]),
        1 => route(1, "10.9.4.0/24", [20, 22, 23, 30][random.below(4)]),
        2 => rule(1, 1, 10, (660 + random.below(10) as u16, 670), RuleAction::End(Action::Drop)),
        3 => rule(6, 1, 5, (1000, 1000 + random.below(6) as u16), RuleAction::End(Action::Reject)),
        4 => Change::PutNexthop(
            NexthopId(20),
            tunnel(
                TunnelKind::MplsUdp,
                ["192.0.2.2", "192.0.2.3"][random.below(2)],
                100 + random.below(3) as u32,
            ),
        ),
        5 => {
            let mut vm = guest(2, 1, &["10.1.1.2", "fd00:1::2"]);
            (vm.mtu, vm.policy) = ([1500, 600][random.below(2)], random.percent(50));
            Change::PutVif(vm)
        }
        6 => {
            let rdma = random.percent(50).then_some(VERBS);
            Change::PutVif(Vif { rdma, ..small() })
        }
        // Remotes come and go.
        8 => Change::PutNexthop(
            NexthopId(22),
            tunnel(TunnelKind::Vxlan, ["192.0.2.2", "192.0.2.3"][random.below(2)], 5001),
        ),
        9 => host([&["192.0.2.64/26", "2001:db8::60/124"][..], &[]][random.below(2)]),
        7 => Change::PutMpls { label: 16, nexthop: NexthopId([1, 2, 4][random.below(3)]) },
        _ => route(1, "fd00:9::/64", [30, 23, 24, 20][random.below(4)]),
    }]
}

/// Returns a packet as text, and its ingress.
pub fn some_packet(random: &mut Rng) -> (VifId, String) {
    let vif = match random.below(10) {
        0..=5 => VifId([1, 1, 2, 3, 4, 6, 7, 8][random.below(8)]),
        6..=8 => WIRE,
        _ => PROVIDER,
    };
    let text = match vif {
        WIRE => from_wire(random),
        PROVIDER => from_provider(random),
        VERBS => from_guest(random, 6),
        VifId(id) => from_guest(random, id),
    };
    (vif, text)
}

fn from_guest(r: &mut Rng, id: u16) -> String {
    let vrf = if id == 4 { 2 } else { 1 };
    let flood = r.percent(25);
    let dst_mac = r.one(&[
        "00:00:5e:00:01:00",
        "00:00:5e:00:01:00",
        "02:00:00:00:00:01",
        "02:00:00:00:00:02",
        "02:00:00:00:00:06",
        "02:00:00:00:00:08",
        "02:00:00:00:00:33",
        "00:00:5e:00:01:00",
        "02:00:00:00:00:33",
        if flood { "02:00:00:00:00:77" } else { "00:00:5e:00:01:00" },
        if flood { "ff:ff:ff:ff:ff:ff" } else { "02:00:00:00:00:02" },
    ]);
    let src_mac = if r.percent(3) { "02:00:00:00:00:99".into() } else { format!("02:00:00:00:00:0{id}") };
    let tag =
        if r.percent(6) { r.one(&[" vlan 9", " vlan 0", " vlan 0xe000 vlan 0", " svlan 9"]) } else { "" };
    let eth = format!("eth {src_mac} > {dst_mac}{tag}");
    if r.percent(4) {
        let target = r.one(&["10.1.1.254", "10.1.1.2", "10.1.1.77", "10.9.0.1"]);
        return format!("{eth} / arp request 10.{vrf}.{vrf}.{id} at {src_mac} for {target}");
    }
    let v6 = r.percent(33);
    let src = if v6 { format!("fd00:{vrf}::{id}") } else { format!("10.{vrf}.{vrf}.{id}") };
    let dst = if v6 {
        r.one(&[
            "fd00:1::1",
            "fd00:1::2",
            "fd00:1::6",
            "fd00:2::4",
            "fd00:9::7",
            "fd00:9:1::7",
            "fd00:1::ffff",
            "fd00:77::1",
        ])
    } else {
        r.one(&[
            "10.1.1.1",
            "10.1.1.2",
            "10.1.1.6",
            "10.1.1.8",
            "10.2.2.4",
            "10.9.0.7",
            "10.9.1.7",
            "10.9.2.7",
            "10.9.3.7",
            "10.9.4.7",
            "10.9.4.8",
            "10.9.5.7",
            "10.9.6.7",
            "10.1.1.254",
            "203.0.113.50",
            "203.0.113.60",
            "8.8.8.8",
        ])
    };
    format!("{eth} / {}", inner(r, &src, dst, v6))
}

fn inner(r: &mut Rng, src: &str, dst: &str, v6: bool) -> String {
    let ttl = r.one(&["64", "64", "64", "64", "64", "64", "64", "64", "64", "64", "2", "1", "3", "255"]);
    let tos = r.one(&["", "", "", " tos 2", " tos 3", " tos 184"]);
    let df = if !v6 && r.percent(50) { " df" } else { "" };
    let fragment = if r.percent(3) { [" more", " frag 1480"][r.below(2)] } else { "" };
    let id = if fragment.is_empty() { "" } else { " id 9" };
    let ip = if v6 { "ip6" } else { "ip4" };
    let len = [0, 1, 16, 100, 200, 700, 1300, 1452, 1600][r.below(9)];
    let len = if fragment.contains("more") { 1480 } else { len };
    let payload = if len == 0 { String::new() } else { format!(" / payload {len}") };
    let sport = 1000 + r.below(4);
    let dport = [53, 666, 667, 705, 715, 725, 1001, 1003, 4791, 4791, 4789, 68, 546][r.below(13)];
    let proto = if fragment.is_empty() && r.percent(5) { r.one(&[" proto 50", " proto 47"]) } else { "" };
    let l4 = match if proto.is_empty() { r.below(12) } else { 12 } {
        0..=4 => format!("udp {sport} > {dport}"),
        5..=8 => {
            let flags = ["A", "A", "A", "A", "PA", "S", "SA", "FA", "R"][r.below(9)];
            let [seq, ack] = [(); 2].map(|()| if r.percent(85) { 1 } else { r.one(&[0, 2, 900, 5_000_000]) });
            format!("tcp {sport} > {dport} {flags} seq {seq} ack {ack} win {}", r.one(&[0, 2000, 65_535]))
        }
        // ESP, or GRE that carries something else.
        _ if !proto.is_empty() => "hex 2000080000000001".into(),
        9 => format!("sctp {sport} > {dport}"),
        10 if v6 => format!("icmp6 echo {sport} 1"),
        10 => format!("icmp echo {sport} 1"),
        _ if v6 => format!("icmp6 reply {sport} 1"),
        _ => format!("icmp reply {sport} 1"),
    };
    format!("{ip} {src} > {dst} ttl {ttl}{tos}{id}{df}{fragment}{proto} / {l4}{payload}")
}

fn from_wire(r: &mut Rng) -> String {
    let eth = "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01";
    let v6_outside = r.percent(33);
    let tos = r.one(&["", "", "", " tos 1", " tos 3"]);
    let outer = if v6_outside {
        let from = r.one(&["2001:db8::2", "2001:db8::2", "2001:db8::2", "2001:db8::66"]);
        format!("ip6 {from} > 2001:db8::1{tos}")
    } else {
        format!("ip4 {} > 192.0.2.1{tos}", r.one(&["192.0.2.2", "192.0.2.2", "192.0.2.3", "192.0.2.66"]))
    };
    let sum = if v6_outside && r.percent(80) { "" } else { " nosum" };
    let v6 = r.percent(33);
    let src = if v6 { "fd00:9::7" } else { r.one(&["10.9.0.7", "10.9.4.7", "10.9.1.7"]) };
    let dst = if v6 {
        r.one(&["fd00:1::1", "fd00:1::2", "fd00:2::4"])
    } else {
        r.one(&["10.1.1.1", "10.1.1.2", "10.1.1.6", "10.2.2.4"])
    };
    let label = [16, 16, 17, 18, 19, 99][r.below(6)];
    let sport = 50_000 + r.below(3);
    let pad = if r.percent(25) { " / pad 6" } else { "" };
    match r.below(8) {
        0..=2 => format!(
            "{eth} / {outer} / udp {sport} > 6635{sum} / mpls {label} / {}{pad}",
            inner(r, src, dst, v6)
        ),
        3..=4 => format!("{eth} / {outer} / gre / mpls {label} / {}{pad}", inner(r, src, dst, v6)),
        5..=6 => {
            let vni = [5001, 5001, 5002, 77][r.below(4)];
            let to = r.one(&[
                "02:00:00:00:00:01",
                "02:00:00:00:00:02",
                "00:00:5e:00:01:00",
                "00:00:5e:00:01:00",
                "ff:ff:ff:ff:ff:ff",
            ]);
            let from = r.one(&["02:dd:00:00:00:01", "02:dd:00:00:00:02"]);
            let frame = format!("eth {from} > {to} / {}", inner(r, src, dst, v6));
            format!("{eth} / {outer} / udp {sport} > 4789{sum} / vxlan {vni} / {frame}{pad}")
        }
        _ => format!("{eth} / ip4 192.0.2.2 > 192.0.2.1 / icmp echo 7 1 / payload 56"),
    }
}

fn from_provider(r: &mut Rng) -> String {
    let vlan = r.one(&["vlan 7", "vlan 7", "vlan 7", "vlan 8"]);
    let to = r.one(&["00:00:5e:00:01:00", "00:00:5e:00:01:00", "00:00:5e:00:01:00", "ff:ff:ff:ff:ff:ff"]);
    let src = r.one(&["203.0.113.50", "198.51.100.9"]);
    format!("eth 02:cc:00:00:00:50 > {to} {vlan} / {}", inner(r, src, "203.0.113.7", false))
}
