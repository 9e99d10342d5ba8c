//! Random flows of Open vSwitch, and packets that meet them.

use super::{Packet, Rng};
use crate::ovs::{Action, Change, Flow, FlowId, Key, Match, Outer};
use crate::{
    NeighbourFound, NeighbourScope, Network, PacketView, Rule, RuleAction, RuleId, Tables, TcpPaths, Tunnel,
    Vif, VifId, VifKind, Vrf, WireAttributes, text,
};
use ipnet::IpNet;
use packet::{Mac, TunnelKind, proto};
use std::net::IpAddr;
use std::sync::Arc;

/// The ports that [`ovs_ports`] makes. The id of each port's OVS side is 10 higher.
pub const OVS_PORTS: [VifId; 4] = [VifId(1), VifId(2), VifId(3), VifId(4)];

/// The wire of the underlay, which no Open vSwitch programs.
pub const UNDERLAY: VifId = VifId(30);
const UNDERLAY_MAC: &str = "02:aa:00:00:00:01";

/// The remotes of tunnels. The next hop to the last one is unknown.
const REMOTES: [&str; 3] = ["192.0.2.2", "2001:db8::2", "192.0.2.3"];

/// Returns ports that an Open vSwitch programs: guests and a wire, some with an MTU that not all packets fit.
#[must_use]
pub fn ovs_ports(rng: &mut Rng) -> Vec<crate::Change> {
    let mut vifs = Vec::new();
    for id in OVS_PORTS {
        let side = VifId(id.0 + 10);
        let kind = rng.one(&[VifKind::Vhost, VifKind::Tap, VifKind::Wire]);
        let wire = (kind == VifKind::Wire).then(Default::default);
        let mtu = rng.one(&[1500, 1500, 9000, 100]);
        vifs.push(Vif { ovs: Some(side), mtu, wire, ..Vif::new(id, &format!("port{id}"), kind) });
        vifs.push(Vif { ovs: Some(id), ..Vif::new(side, &format!("port{id}:ovs"), VifKind::Ovs) });
    }
    vifs.into_iter().map(crate::Change::PutVif).collect()
}

/// Returns the ports of [`ovs_ports`], with tunnels in place of the first two, and the wire of the underlay.
#[must_use]
pub fn tunnelled_ovs_ports(rng: &mut Rng) -> Vec<crate::Change> {
    let mut changes = ovs_ports(rng);
    for change in &mut changes {
        if let crate::Change::PutVif(vif) = change
            && OVS_PORTS[..2].contains(&vif.id)
        {
            (vif.kind, vif.wire) = (VifKind::Tunnel(tunnel(rng)), None);
        }
    }
    let addresses = ["192.0.2.1/24", "2001:db8::1/64"].map(|net| net.parse().ok());
    let addresses = addresses.into_iter().flatten().collect();
    changes.push(crate::Change::PutVif(Vif {
        mac: UNDERLAY_MAC.parse().ok(),
        mtu: rng.one(&[1600, 1600, 1600, 180]),
        wire: Some(WireAttributes { addresses, ..Default::default() }),
        ..Vif::new(UNDERLAY, "underlay", VifKind::Wire)
    }));
    changes
}

/// Returns the known neighbours on the underlay.
#[must_use]
pub fn ovs_neighbours() -> Vec<NeighbourFound> {
    let known = REMOTES[..2].iter().filter_map(|addr| addr.parse().ok());
    let mac = Mac([2, 0xbb, 0, 0, 0, 2]);
    known.map(|addr| NeighbourFound { scope: NeighbourScope::Wire(UNDERLAY), addr, mac }).collect()
}

fn tunnel(rng: &mut Rng) -> Tunnel {
    let [v4, v6, unknown] = REMOTES;
    let remote = rng
        .one(&[v4, v4, v4, v4, v6, v6, v6, unknown])
        .parse()
        .unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    let kind = rng.one(&[TunnelKind::Vxlan, TunnelKind::Geneve]);
    Tunnel { kind, remote, id: if rng.percent(90) { 77 } else { 78 }, mac: None }
}

/// Returns the ports of [`ovs_ports`], most guests of which obey the rules of one of two networks.
#[must_use]
pub fn ruled_ovs_ports(rng: &mut Rng) -> Vec<crate::Change> {
    let mut changes = ovs_ports(rng);
    for change in &mut changes {
        if let crate::Change::PutVif(vif) = change
            && vif.takes_flows()
            && matches!(vif.kind, VifKind::Vhost | VifKind::Tap)
        {
            vif.rules = rng.one(&[None, Some(Vrf(1)), Some(Vrf(1)), Some(Vrf(1)), Some(Vrf(2))]);
        }
    }
    changes.extend(RULED.map(|vrf| crate::Change::PutNetwork(network(rng, vrf))));
    changes.extend((0..rng.below(6)).map(|id| crate::Change::PutRule(rule(rng, id as u32))));
    changes
}

/// The networks whose rules guests obey.
const RULED: [Vrf; 2] = [Vrf(1), Vrf(2)];

fn network(rng: &mut Rng, vrf: Vrf) -> Network {
    Network {
        default_action: rng.one(&[crate::Action::Allow, crate::Action::Drop]),
        tcp: TcpPaths { midstream: super::tables::midstream(rng), ..TcpPaths::default() },
        ..Network::new(vrf, &format!("net{vrf}"))
    }
}

fn rule(rng: &mut Rng, id: u32) -> Rule {
    let to: Option<IpAddr> = rng.one(&V4).parse().ok();
    let ends = |rng: &mut Rng| rng.one(&[crate::Action::Allow, crate::Action::Drop, crate::Action::Reject]);
    Rule {
        id: RuleId(id),
        vrf: rng.one(&RULED),
        priority: id,
        from: Vec::new(),
        to: if rng.percent(50) { to.map(IpNet::from).into_iter().collect() } else { Vec::new() },
        protocol: rng.one(&[None, Some(1), Some(6), Some(17)]),
        ports: None,
        action: RuleAction::End(ends(rng)),
    }
}

const MACS: [&str; 4] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:01:01", "ff:ff:ff:ff:ff:ff"];
const V4: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.128.0.1"];
const V6: [&str; 3] = ["fd00::1", "fd00::2", "fd00:1::1"];
const PORTS: [u16; 4] = [53, 80, 1000, 0x8050];

/// Returns a packet with few possible values, so that flows are often shared.
#[must_use]
pub fn ovs_packet(rng: &mut Rng) -> Packet {
    let mut ports = OVS_PORTS.to_vec();
    ports.push(VifId(11));
    let text = inside(rng);
    let mut frame = text::parse(&text).unwrap_or_default();
    if rng.percent(5) {
        frame.truncate(proto::ETHERNET_LEN + rng.below(60));
    }
    Packet { ingress: rng.one(&ports), frame, gso_size: None }
}

/// Returns a packet like [`ovs_packet`], in a tunnel half of the time.
#[must_use]
pub fn tunnelled_ovs_packet(rng: &mut Rng) -> Packet {
    if rng.percent(50) {
        return ovs_packet(rng);
    }
    let text = format!("{} / {}", outside(rng), inside(rng));
    let mut frame = text::parse(&text).unwrap_or_default();
    if rng.percent(20) {
        damage(rng, &mut frame);
    }
    Packet { ingress: UNDERLAY, frame, gso_size: None }
}

/// Changes bytes of a frame in a tunnel, or of the tunnel's own headers, or cuts the frame.
fn damage(rng: &mut Rng, frame: &mut Vec<u8>) {
    const OUTER: usize = proto::ETHERNET_LEN + proto::IPV4_LEN;
    for _ in 0..rng.below(4) {
        let at = OUTER + rng.below(frame.len().saturating_sub(OUTER).clamp(1, 90));
        let value = rng.one(&[0, 1, 0x3f, 0x40, 0x45, 0x60, 0x7f, 0x80, 0xff]);
        frame.get_mut(at).into_iter().for_each(|byte| *byte = value);
    }
    if rng.percent(20) {
        frame.truncate(OUTER + rng.below(frame.len()));
    }
}

/// Returns the headers of a tunnel's packet.
fn outside(rng: &mut Rng) -> String {
    let Tunnel { kind, remote, id, .. } = tunnel(rng);
    let (ip, own) = if remote.is_ipv4() { ("ip4", "192.0.2.1") } else { ("ip6", "2001:db8::1") };
    let tos = rng.one(&[0, 0, 0, 1, 2, 3, 0xb8]);
    let sum = if rng.percent(if remote.is_ipv4() { 70 } else { 10 }) { " nosum" } else { "" };
    let udp = format!("{ip} {remote} > {own} tos {tos} / udp {}", 50_000 + rng.below(9));
    let inner = match (kind, rng.below(8)) {
        (TunnelKind::Geneve, 0) => format!("6081{sum} / hex 0200655800004d000102000100000000"),
        (TunnelKind::Geneve, 1) => format!("6081{sum} / hex 0240655800004d000102800100000000"),
        (TunnelKind::Geneve, _) => format!("6081{sum} / geneve {id}"),
        _ => format!("4789{sum} / vxlan {id}"),
    };
    format!("eth 02:bb:00:00:00:02 > {UNDERLAY_MAC} / {udp} > {inner}")
}

/// Returns a frame, in a tunnel or not.
fn inside(rng: &mut Rng) -> String {
    let (src, dst) = (rng.one(&MACS[..3]), rng.one(&MACS));
    let tags =
        ["", "", "", "", " vlan 5", " vlan 6", " vlan 0xa005", " svlan 5", " vlan 5 vlan 6", " vlan 0"];
    let tags = rng.one(&tags);
    let rest = match rng.below(12) {
        0 => "payload 46".to_owned(),
        1 => format!("arp request {} at {src} for {}", rng.one(&V4), rng.one(&V4)),
        2..=4 => layers(rng, "ip6", &V6),
        _ => layers(rng, "ip4", &V4),
    };
    format!("eth {src} > {dst}{tags} / {rest}")
}

fn layers(rng: &mut Rng, ip: &str, addresses: &[&str]) -> String {
    let (src, dst) = (rng.one(addresses), rng.one(addresses));
    let (ttl, tos) = (rng.one(&[64, 64, 63, 3, 1]), rng.one(&[0, 0, 1, 2, 0x28]));
    let fragment = rng.one(&["", "", "", "", "", "", "", "", " id 7 more", " id 7 frag 40"]);
    let later = fragment.ends_with("40");
    let (sport, dport) = (rng.one(&PORTS), rng.one(&PORTS));
    let payload: usize = rng.one(&[0, 1, 5, 60, 200]);
    let l4 = match rng.below(10) {
        _ if later => {
            return format!("{ip} {src} > {dst} ttl {ttl} tos {tos}{fragment} proto 17 / payload 24");
        }
        0 if ip == "ip4" => format!("icmp {} 1 1", rng.one(&["echo", "reply"])),
        0 => format!("icmp6 {} 1 1", rng.one(&["echo", "reply"])),
        1 => format!("sctp {sport} > {dport}"),
        2..=5 => {
            let flags = rng.one(&["A", "A", "PA", "S", "FA", "AE", "UA"]);
            format!("tcp {sport} > {dport} {flags}")
        }
        6 => format!("udp {sport} > {dport}{}", if ip == "ip4" { " nosum" } else { "" }),
        _ => format!("udp {sport} > {dport}"),
    };
    let payload = if fragment.is_empty() { payload } else { payload.next_multiple_of(8).max(8) };
    format!("{ip} {src} > {dst} ttl {ttl} tos {tos}{fragment} / {l4} / payload {payload}")
}

/// Returns a change of the flows in these tables. `next` is the number of the next flow.
#[must_use]
pub fn ovs_change(rng: &mut Rng, tables: &Tables, next: &mut u64) -> Change {
    let port = rng.one(&OVS_PORTS);
    let there: Vec<FlowId> = tables.ovs_flows_of(port).map(|flow| flow.id).collect();
    match rng.below(20) {
        0 => Change::Flush { port },
        1..=7 if !there.is_empty() => Change::Remove { port, id: rng.one(&there) },
        // A number that is not the highest is against the rules, but must do no harm.
        8 if !there.is_empty() => {
            let id = rng.one(&there).0.saturating_sub(1);
            Change::Add(Arc::new(flow(rng, id, port)))
        }
        _ => {
            *next += 1;
            Change::Add(Arc::new(flow(rng, *next, port)))
        }
    }
}

fn flow(rng: &mut Rng, id: u64, port: VifId) -> Flow {
    let is_mark = rng.percent(8);
    let mut actions = if is_mark { vec![Action::Mark] } else { Vec::new() };
    for _ in 0..if is_mark { 0 } else { rng.below(6) } {
        let next = action(rng);
        let wraps = matches!(next, Action::Encap(_));
        if wraps && port == COARSE {
            continue;
        }
        actions.push(next);
        actions.extend((wraps && rng.percent(80)).then(|| output(rng)));
    }
    let matching = matching(rng, port == COARSE);
    Flow { id: FlowId(id), counter: (id % 64) as u32, port, matching, actions }
}

/// A port whose flows neither look at addresses and ports nor put tunnel headers in front.
const COARSE: VifId = OVS_PORTS[3];

/// Returns a match on some fields of a packet, on some of them in part.
fn matching(rng: &mut Rng, coarse: bool) -> Match {
    let near = text::parse(&inside(rng)).unwrap_or_default();
    let key = PacketView::parse(&near, near.len() as u32, None).ok();
    let key = key.and_then(|view| Key::of(&view)).unwrap_or_default();
    let mut mask = Key::default();
    let all = rng.percent(10);
    let mut some = |percent| all || rng.percent(percent);
    let [dst, src, kind, tag, tag_kind] = [some(40), some(20), some(60), some(20), some(5)];
    let [ip_src, ip_dst, proto, tos, ttl, fragment] =
        [some(20), some(30), some(40), some(10), some(12), some(30)];
    let [sport, dport, flags] = [some(15), some(30), some(12)];
    let part = rng.percent(20);
    let number = |is: bool, part_mask: u64| match (is, part) {
        (false, _) => 0,
        (true, true) => part_mask,
        (true, false) => u64::MAX,
    };
    let mac = |is: bool| {
        let bytes = number(is, 0xffff_ffff_ff00).to_be_bytes();
        Mac([bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
    };
    (mask.eth_dst, mask.eth_src) = (mac(dst), mac(src));
    (mask.eth_type, mask.vlan_type) = (number(kind, 0xff00) as u16, number(tag_kind, 0xffff) as u16);
    mask.vlan_tci = number(tag, Key::TAGGED.into()) as u16;
    let address = |is: bool| u128::from(number(is, !0xff)) | if is { u128::MAX << 64 } else { 0 };
    (mask.ip_src, mask.ip_dst) = (address(ip_src), address(ip_dst));
    (mask.ip_proto, mask.ip_tos) = (number(proto, 0xf0) as u8, number(tos, 3) as u8);
    (mask.ip_ttl, mask.ip_fragment) = (number(ttl, 0x40) as u8, number(fragment, 1) as u8 & 3);
    (mask.l4_src, mask.l4_dst) = (number(sport, 0xfff0) as u16, number(dport, 0x8000) as u16);
    mask.tcp_flags = number(flags, 0x12) as u8;
    if coarse {
        (mask.ip_src, mask.ip_dst, mask.l4_src, mask.l4_dst) = (0, 0, 0, 0);
    }
    Match::new(&key, &mask)
}

fn action(rng: &mut Rng) -> Action {
    let mac = |rng: &mut Rng| rng.one(&MACS).parse().unwrap_or_default();
    let address = |rng: &mut Rng| -> IpAddr {
        let text = if rng.percent(75) { rng.one(&V4) } else { rng.one(&V6) };
        text.parse().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST))
    };
    match rng.below(24) {
        0 => Action::Drop,
        1 => Action::SetMacSrc(mac(rng)),
        2 => Action::SetMacDst(mac(rng)),
        3 => Action::SetIpSrc(address(rng)),
        4 => Action::SetIpDst(address(rng)),
        5 => Action::SetTtl(rng.one(&[0, 1, 62, 255])),
        6 => Action::SetDscp(rng.one(&[0, 10, 46])),
        7 => Action::SetPortSrc(rng.one(&PORTS)),
        8 => Action::SetPortDst(rng.one(&PORTS)),
        9 | 10 => Action::PushVlan { service: rng.percent(30) },
        11 => Action::SetVlanVid(rng.one(&[5, 7, 4094])),
        12 => Action::SetVlanPcp(rng.one(&[0, 7])),
        13 | 14 => Action::PopVlan,
        15 | 16 => encap(rng).map_or(Action::Drop, Action::Encap),
        _ => output(rng),
    }
}

/// Returns an output to one of the ports, or to one that does not exist.
fn output(rng: &mut Rng) -> Action {
    let [a, b, c, d] = OVS_PORTS;
    Action::Output(rng.one(&[a, a, b, b, c, c, d, d, VifId(9)]))
}

fn encap(rng: &mut Rng) -> Option<Outer> {
    let eth = "eth 02:aa:00:00:00:01 > 02:bb:00:00:00:02";
    let (v4, v6) = ("ip4 192.0.2.1 > 192.0.2.2 df", "ip6 2001:db8::1 > 2001:db8::2");
    let sum = rng.one(&[" nosum", ""]);
    let text = match rng.below(5) {
        0 => format!("{eth} / {v4} / udp 0 > 4789{sum} / vxlan 5001"),
        1 => format!("{eth} / {v6} / udp 0 > 4789 nosum / vxlan 5001"),
        2 => format!("{eth} / {v4} tos 3 / udp 0 > 6081{sum} / hex 0240655800138900010280010a000001"),
        3 => format!("{eth} / {v4} proto 47 / hex 2000655800000007"),
        _ => format!("{eth} / {v6} proto 47 / hex 00006558"),
    };
    Outer::new(&text::parse(&text).ok()?).ok()
}
