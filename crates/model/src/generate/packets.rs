//! Random packets, most of which the guests and remotes of the given tables could send.

use super::Rng;
use super::tables::{SHARED_MAC, floating, host4, host6, mac, remote, shared4, shared6};
use crate::snat::Block;
use crate::{GATEWAY_MAC, Lookup, Tables, Vif, VifId, VifKind, text};
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A packet that comes in.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The interface by which it comes in.
    pub ingress: VifId,
    /// The frame.
    pub frame: Vec<u8>,
    /// TCP payload bytes per segment, if the frame is a large send.
    pub gso_size: Option<u16>,
}

/// Returns the frames by which the underlay and the tenants announce themselves beforehand: without them,
/// most packets to tunnels wait for neighbours.
#[must_use]
pub fn warm_up(rng: &mut Rng, tables: &Tables) -> Vec<Packet> {
    let mut all = Vec::new();
    for vif in tables.vifs() {
        let Some(wire) = &vif.wire else { continue };
        let Some(own) = vif.mac else { continue };
        for host in [2, 3, 4, 254] {
            let subnets = wire.addresses.iter().filter(|_| rng.percent(85));
            all.extend(subnets.map(|subnet| {
                let sender = match subnet.addr() {
                    IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() - 1 + host)),
                    IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() - 1 + u128::from(host))),
                };
                let text = announcement(mac(0x200 + host as u16), own, sender, subnet.addr());
                made(vif.id, &text)
            }));
        }
    }
    for vif in tables.vifs().filter(|vif| vif.vrf.is_some()) {
        let own = vif.mac.unwrap_or_else(|| mac(vif.id.0));
        let addresses = vif.addresses.iter().filter(|_| rng.percent(50));
        all.extend(
            addresses
                .filter(|_| vif.trunk.is_none())
                .map(|addr| made(vif.id, &announcement(own, GATEWAY_MAC, *addr, *addr))),
        );
    }
    all
}

/// Returns an ARP reply or advertisement.
fn announcement(own: Mac, to: Mac, sender: IpAddr, target: IpAddr) -> String {
    match sender {
        IpAddr::V4(_) => format!("eth {own} > {to} / arp reply {sender} at {own} to {target} at {to}"),
        IpAddr::V6(_) => {
            format!("eth {own} > {to} / ip6 {sender} > {target} ttl 255 / na {sender} at {own} s")
        }
    }
}

/// Returns a frame from text. Texts written here always parse unless their addresses are of two families;
/// those give an empty frame, which must do no harm either.
fn made(ingress: VifId, text: &str) -> Packet {
    Packet { ingress, frame: text::parse(text).unwrap_or_default(), gso_size: None }
}

/// Returns a packet for these tables.
#[must_use]
pub fn packet(rng: &mut Rng, tables: &Tables) -> Packet {
    let vifs: Vec<&Vif> = tables.vifs().filter(|vif| !matches!(vif.kind, VifKind::Mirror(_))).collect();
    let vif = rng.one(&vifs);
    let text =
        if vif.kind == VifKind::Wire { from_wire(rng, tables, vif) } else { from_guest(rng, tables, vif) };
    let ingress = vif.trunk.map_or(vif.id, |(port, _)| port);
    let mut packet = made(ingress, &text);
    if text.contains("/ tcp") && rng.percent(10) {
        packet.gso_size = Some(rng.one(&[536, 1448, 8000]));
    }
    spoil(rng, &mut packet.frame);
    packet
}

/// Flips, cuts or appends some bytes of some frames.
fn spoil(rng: &mut Rng, frame: &mut Vec<u8>) {
    match rng.below(30) {
        0 if !frame.is_empty() => {
            for _ in 0..=rng.below(3) {
                let at = rng.below(frame.len());
                frame[at] ^= 1 << rng.below(8);
            }
        }
        1 => frame.truncate(rng.below(frame.len() + 1)),
        2 => frame.extend(std::iter::repeat_n(0, rng.below(20))),
        _ => {}
    }
}

fn from_guest(rng: &mut Rng, tables: &Tables, vif: &Vif) -> String {
    let own = match vif.mac {
        Some(_) if rng.percent(5) => SHARED_MAC,
        Some(mac) if !rng.percent(3) => mac,
        _ => mac(vif.id.0),
    };
    let vrf = vif.vrf.map_or(1, |vrf| vrf.0);
    let dst = destination(rng, tables, vrf);
    let addresses: Vec<_> = vif.addresses.iter().filter(|addr| addr.is_ipv4() == dst.is_ipv4()).collect();
    let src = match addresses.as_slice() {
        [own] if !rng.percent(4) => **own,
        _ => any_host(rng, vrf, dst.is_ipv4()),
    };
    let text = frame(rng, tables, own, vrf, src, dst);
    match vif.trunk {
        Some((_, vlan)) => text.replacen(" /", &format!(" vlan {vlan} /"), 1),
        None => text,
    }
}

/// Returns a tenant's frame.
fn frame(rng: &mut Rng, tables: &Tables, own: Mac, vrf: u16, src: IpAddr, dst: IpAddr) -> String {
    let to = destination_mac(rng, tables, dst);
    let tags = match rng.below(25) {
        0 => " vlan 7".into(),
        1 => format!(" vlan {vrf}"),
        2 => " vlan 7 vlan 9".into(),
        3 => " vlan 0".into(),
        4 => rng
            .one(&[" vlan 0xe000 vlan 0", " vlan 0 vlan 7", " vlan 7 vlan 0", " svlan 7", " svlan 0"])
            .into(),
        _ => String::new(),
    };
    match rng.below(18) {
        16 | 17 => shared(rng, tables, own, (vrf, src)),
        0 => format!("eth {own} > {to}{tags} / payload 46"),
        13 => asked(rng, own, src),
        14 => format!("eth {own} > {to}{tags} / {}", guarded(rng, own, src, dst)),
        15 => format!("eth {own} > {to}{tags} / {}", link_local(rng, own)),
        1 => question(rng, own, src, dst, &tags),
        2 => announcement(own, rng.one(&[GATEWAY_MAC, to]), src, dst),
        _ => format!("eth {own} > {to}{tags} / {}", ip(rng, src, dst)),
    }
}

/// Returns a packet to or from outside by an address that guests share, or one that looks like that. Ports and hosts are
/// so few that one often answers another.
fn shared(rng: &mut Rng, tables: &Tables, own: Mac, (vrf, src): (u16, IpAddr)) -> String {
    let guests: Vec<&Vif> = tables.vifs().filter(|vif| !vif.addresses.is_empty()).collect();
    let (Some(guest), true) = ((!guests.is_empty()).then(|| rng.one(&guests)), vrf > 0) else {
        return format!("eth {own} > {GATEWAY_MAC} / payload 46");
    };
    let addr = rng.one(&guest.addresses);
    let name = |addr: IpAddr| if addr.is_ipv4() { "ip4" } else { "ip6" };
    let icmp = if src.is_ipv4() { "icmp" } else { "icmp6" };
    let inside = 1000 + rng.below(4) as u16;
    let block = guest.vrf.and_then(|vrf| tables.network(vrf)).and_then(|network| {
        let outside_vrf = network.sharing.addresses.first()?.outside_vrf;
        Block::of(&network.sharing, addr, outside_vrf)
    });
    let Some(block) = block.filter(|block| rng.percent(50) && block.outside.is_ipv4() == src.is_ipv4())
    else {
        let l4 = match rng.below(3) {
            0 => format!("{icmp} echo {inside} 1"),
            1 => format!("tcp {inside} > 7 {}", rng.one(&["S seq 5", "A seq 6 ack 8"])),
            _ => format!("udp {inside} > 7"),
        };
        return format!("eth {own} > {GATEWAY_MAC} / {} {src} > {addr} / {l4} / payload 20", name(src));
    };
    let port = block.candidates(inside).next().unwrap_or(block.ports.first);
    let (outside, name) = (block.outside, name(src));
    let l4 = match rng.below(5) {
        0 => format!("{icmp} reply {port} 1 / payload 20"),
        1 => format!("tcp 7 > {port} {} / payload 20", rng.one(&["SA seq 7 ack 6", "A seq 8 ack 26"])),
        2 if src.is_ipv4() => format!("icmp 3 1 / ip4 {outside} > {src} / udp {port} > 7 / payload 8"),
        2 => format!("icmp6 1 0 / ip6 {outside} > {src} / tcp {port} > 7 S seq 5"),
        _ => format!("udp 7 > {port} / payload 20"),
    };
    format!("eth {own} > {GATEWAY_MAC} / {name} {src} > {outside} / {l4}")
}

/// Returns a question to a service of the network.
fn asked(rng: &mut Rng, own: Mac, src: IpAddr) -> String {
    if rng.percent(40) {
        let src = rng.one(&[own.link_local().to_string(), "::".to_owned()]);
        return match rng.below(2) {
            0 => format!(
                "eth {own} > 33:33:00:00:00:02 / ip6 {src} > ff02::2 ttl 255 / icmp6 133 0 / payload 4"
            ),
            _ => {
                format!("eth {own} > 33:33:00:01:00:02 / ip6 {src} > ff02::1:2 / udp 546 > 547 / payload 40")
            }
        };
    }
    if rng.percent(30) {
        let (dst, port) = (rng.one(&["169.254.169.254", "10.1.1.254"]), rng.one(&[80, 53, 22]));
        let to = rng.one(&[GATEWAY_MAC, GATEWAY_MAC, own]);
        let src = if src.is_ipv4() { src.to_string() } else { "10.1.1.1".to_owned() };
        return format!("eth {own} > {to} / ip4 {src} > {dst} / tcp 40000 > {port} S seq 100");
    }
    let (to, dst) = rng.one(&[(Mac::BROADCAST, "255.255.255.255"), (GATEWAY_MAC, "10.1.1.254")]);
    let src =
        rng.one(&["0.0.0.0".to_owned(), if src.is_ipv4() { src.to_string() } else { "10.1.1.1".to_owned() }]);
    format!("eth {own} > {to} / ip4 {src} > {dst} / udp 68 > {} / payload 240", rng.one(&[67, 67, 69]))
}

/// Returns a message of a router or DHCP server, or one that looks like that.
fn guarded(rng: &mut Rng, own: Mac, src: IpAddr, dst: IpAddr) -> String {
    let v4 = dst.is_ipv4();
    let name = if v4 { "ip4" } else { "ip6" };
    match rng.below(6) {
        5 => format!("{name} {src} > {dst} / {}", too_big(rng, dst, src)),
        0 => format!("{name} {src} > {dst} / udp 67 > 68 / payload 240"),
        1 => format!("{name} {src} > {dst} id 3 more / udp 547 > 546 / payload 64"),
        2 if v4 => format!("{name} {src} > {dst} / icmp 5 1 / ip4 {dst} > {src} / udp 1 > 2"),
        2 => format!("{name} {src} > {dst} ttl 255 / icmp6 137 0 / payload 32"),
        3 if v4 => format!("{name} {src} > {dst} ttl 1 / icmp 9 0 / payload 8"),
        3 => format!("ip6 {} > ff02::1 ttl 255 / icmp6 134 0 / payload 12", own.link_local()),
        _ if v4 => {
            let dst = rng.one(&[dst, Ipv4Addr::new(192, 0, 2, 3).into()]);
            let tunnel = rng.one(&["udp 50000 > 6635 nosum", "gre"]);
            format!("ip4 {src} > {dst} / {tunnel} / mpls 100 / ip4 10.0.0.1 > 10.0.0.2 / udp 1 > 2")
        }
        _ => format!("ip6 {src} > {dst} / udp 50000 > 4789 / vxlan 5001 / eth {own} > {own} / payload 20"),
    }
}

/// Returns what a router says about a tunnel packet from `src` to `dst` that is too big.
fn too_big(rng: &mut Rng, src: IpAddr, dst: IpAddr) -> String {
    let mtu = rng.one(&[0, 576, 1280, 1400]);
    let sum = if rng.percent(20) { " badsum" } else { "" };
    match dst {
        IpAddr::V4(_) => {
            format!("icmp 3 4 {mtu}{sum} / ip4 {src} > {dst} df len 1480 / udp 50000 > 6635 len 1460 nosum")
        }
        IpAddr::V6(_) => {
            format!("icmp6 2 0 {mtu}{sum} / ip6 {src} > {dst} len 1460 / udp 50000 > 4789 len 1460")
        }
    }
}

/// Returns a packet from and to link-local addresses, not all of them the sender's.
fn link_local(rng: &mut Rng, own: Mac) -> String {
    let another = mac(10 + rng.below(8) as u16);
    let other = rng.one(&[own, own, another, GATEWAY_MAC]).link_local();
    let src = rng.one(&[other, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 5)]);
    let to = mac(10 + rng.below(8) as u16).link_local();
    match rng.below(5) {
        0 => format!("ip6 {src} > ff02::1 ttl 255 / na {src} at {own} {}", rng.one(&["o", "so", "ro"])),
        3 => format!("ip6 :: > {to} / udp 1 > 2 / payload 20"),
        1 => format!("ip6 :: > ff02::1:ff00:1 ttl 255 / ns {src}"),
        2 => format!("ip6 {src} > ff02::1 ttl 255 id 7 more / na {src} at {own} o"),
        _ => format!("ip6 {src} > {to} / udp 1 > 2 / payload 20"),
    }
}

fn question(rng: &mut Rng, own: Mac, src: IpAddr, dst: IpAddr, tags: &str) -> String {
    let to = rng.one(&[Mac::BROADCAST, GATEWAY_MAC]);
    match dst {
        IpAddr::V4(_) => {
            let src = if rng.percent(15) { Ipv4Addr::UNSPECIFIED.into() } else { src };
            format!("eth {own} > {to}{tags} / arp request {src} at {own} for {dst}")
        }
        IpAddr::V6(v6) => {
            let group = packet::neighbour::solicited_node(v6);
            let to = packet::neighbour::multicast_mac(group);
            if rng.percent(20) {
                return format!("eth {own} > {to}{tags} / ip6 :: > {group} ttl 255 / ns {dst}");
            }
            format!("eth {own} > {to}{tags} / ip6 {src} > {group} ttl 255 / ns {dst} at {own}")
        }
    }
}

/// Returns a destination that a guest of a network might use.
fn destination(rng: &mut Rng, tables: &Tables, vrf: u16) -> IpAddr {
    let guests: Vec<IpAddr> = tables.vifs().flat_map(|vif| vif.addresses.iter().copied()).collect();
    let gateways: Vec<IpAddr> =
        tables.networks().flat_map(|network| network.gateways.iter().map(|gateway| gateway.addr())).collect();
    match rng.below(12) {
        0 if !gateways.is_empty() => rng.one(&gateways),
        1 => floating(1 + rng.below(4) as u8),
        2 => Ipv4Addr::new(198, 51, 100, 1).into(),
        11 if rng.percent(50) => rng.one(&[shared4(0), shared4(1), shared4(100), shared6(0)]),
        3 => rng.one(&[
            Ipv4Addr::BROADCAST.into(),
            IpAddr::from([224, 0, 0, 5]),
            host4(vrf, 1, 255),
            IpAddr::from([169, 254, 1, 1]),
            IpAddr::from([0xff02, 0, 0, 0, 0, 0, 0, 1]),
            IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 5]),
        ]),
        4 | 5 => {
            let v4 = rng.percent(60);
            any_host(rng, vrf, v4)
        }
        _ if !guests.is_empty() => rng.one(&guests),
        _ => any_host(rng, vrf, true),
    }
}

fn any_host(rng: &mut Rng, vrf: u16, v4: bool) -> IpAddr {
    let vrf = if rng.percent(80) { vrf } else { 1 + rng.below(3) as u16 };
    let host = rng.below(20) as u16;
    if v4 { host4(vrf, rng.one(&[1, 2, 7]), host as u8) } else { host6(vrf, host) }
}

fn destination_mac(rng: &mut Rng, tables: &Tables, dst: IpAddr) -> Mac {
    let owner = tables.vifs().find(|vif| vif.addresses.contains(&dst)).and_then(|vif| vif.mac);
    match rng.below(10) {
        0..=4 => GATEWAY_MAC,
        5 if rng.percent(50) => SHARED_MAC,
        5 => mac(rng.below(30) as u16),
        6 => rng.one(&[Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 5]), Mac([1, 0x80, 0xc2, 0, 0, 0])]),
        _ => owner.unwrap_or(GATEWAY_MAC),
    }
}

fn ip(rng: &mut Rng, src: IpAddr, dst: IpAddr) -> String {
    let name = if dst.is_ipv4() { "ip4" } else { "ip6" };
    let ttl = rng.one(&[64, 64, 64, 64, 255, 2, 1, 0]);
    let tos = rng.one(&[0, 0, 0, 0xb8, 1, 2, 3]);
    let fragment = match (rng.below(20), dst.is_ipv4()) {
        (0, _) => format!(" id {} more", rng.below(4)),
        (1, true) => format!(" id {} frag 64 proto {}", rng.below(4), rng.one(&[1, 17])),
        (1, false) => format!(" id {} frag 64 proto {}", rng.below(4), rng.one(&[6, 58])),
        (2..=6, true) => " df".into(),
        _ => String::new(),
    };
    let inside = if fragment.contains("frag") { "payload 32".into() } else { transport(rng, dst) };
    format!("{name} {src} > {dst} ttl {ttl} tos {tos}{fragment} / {inside}")
}

fn transport(rng: &mut Rng, to: IpAddr) -> String {
    let v4 = to.is_ipv4();
    let (sport, dport) = (1000 + rng.below(4), rng.below(60));
    let len = rng.one(&[0, 8, 64, 64, 600, 1480, 2000]);
    let icmp = if v4 { "icmp" } else { "icmp6" };
    match rng.below(16) {
        0 => format!("{icmp} echo {sport} 1 / payload {len}"),
        1 => format!("{icmp} reply {sport} 1 / payload {len}"),
        2 => {
            // Mostly about a packet of the receiver. If that went to somebody else than the sender, this is a router.
            let src = if rng.percent(70) { to } else { any_host(rng, 1, v4) };
            let dst = any_host(rng, 1, v4);
            let error = if v4 { "icmp 3 1 / ip4" } else { "icmp6 1 0 / ip6" };
            format!("{error} {src} > {dst} / udp {dport} > {sport} / payload 8")
        }
        3 => format!("sctp {sport} > {dport} / payload {len}"),
        4 if rng.percent(50) => format!("udp {sport} > 4791 / payload 64"),
        4 => format!(
            "udp {sport} > 4791 nosum / roce rc write-only > 17 psn {sport} va 0x1000 rkey 0x77 dma 65 / payload 65"
        ),
        5 => format!("udp {sport} > {dport} nosum / payload {len}"),
        6 => "payload 64".into(),
        7..=10 => {
            let flags = rng.one(&["S", "SA", "A", "A", "A", "PA", "FA", "RA", "R"]);
            // Both directions, so that connections get replies. Most numbers are close together, as in one stream.
            let (sport, dport) = if rng.percent(50) { (sport, dport) } else { (dport, sport) };
            let mut near = || if rng.percent(95) { 7 + rng.below(2) as u32 } else { rng.next_u64() as u32 };
            let (seq, ack) = (near(), near());
            let window = rng.one(&[0, 500, 9000, 65_535]);
            let scale = if flags.contains('S') && rng.percent(50) { " scale 2" } else { "" };
            format!("tcp {sport} > {dport} {flags} seq {seq} ack {ack} win {window}{scale} / payload {len}")
        }
        _ if rng.percent(40) => format!("udp {dport} > {sport} / payload {len}"),
        _ => format!("udp {sport} > {dport} / payload {len}"),
    }
}

fn from_wire(rng: &mut Rng, tables: &Tables, vif: &Vif) -> String {
    let own = vif.mac.unwrap_or_default();
    let peer = mac(0x200 + 2 + rng.below(3) as u16);
    let vrf = 1 + rng.below(3) as u16;
    let sources = &tables.host().tunnel_source;
    let addresses = vif.wire.iter().flat_map(|wire| wire.addresses.iter().map(|subnet| subnet.addr()));
    let ours: Vec<IpAddr> = sources.iter().copied().chain(addresses).collect();
    let us = rng.one(&ours);
    let from = loop {
        let remote = remote(rng);
        if remote.is_ipv4() == us.is_ipv4() {
            break remote;
        }
    };
    let name = if us.is_ipv4() { "ip4" } else { "ip6" };
    let tos = rng.one(&[0, 0, 0, 0xb8, 1, 2, 3]);
    let sum = if rng.percent(30) { " nosum" } else { "" };
    let underlay = format!("eth {peer} > {own} / {name} {from} > {us} tos {tos}");
    let (src, dst) = (destination(rng, tables, vrf), destination(rng, tables, vrf));
    let inner_mac = mac(0x300 + rng.below(4) as u16);
    match rng.below(16) {
        0 => {
            let icmp = if us.is_ipv4() { "icmp" } else { "icmp6" };
            format!("{underlay} / {icmp} echo 1 1 / payload 56")
        }
        1 => question(rng, peer, from, us, ""),
        2 if rng.percent(30) => announcement(peer, own, from, us).replace(&format!(" at {peer} s"), " s"),
        2 => announcement(peer, own, from, us),
        3 if rng.percent(50) => format!("{underlay} / {}", too_big(rng, us, from)),
        3 => format!("{underlay} / {}", transport(rng, us)),
        4..=7 => {
            // A network attached to the wire.
            let vlan = if rng.percent(50) { format!(" vlan {vrf}") } else { String::new() };
            let to = destination_mac(rng, tables, dst);
            let src = if src.is_ipv4() == dst.is_ipv4() { src } else { dst };
            if rng.percent(20) {
                return question(rng, inner_mac, src, dst, &vlan);
            }
            format!("eth {inner_mac} > {to}{vlan} / {}", ip(rng, src, dst))
        }
        8..=11 => {
            let label = 100 + rng.below(9);
            let ttl = rng.one(&[64, 64, 64, 1, 0]);
            let more = if rng.percent(3) { " more / mpls 7" } else { "" };
            let src = any_host(rng, vrf, dst.is_ipv4());
            let inner = ip(rng, src, dst);
            let outer = if rng.percent(70) { format!("udp 50000 > 6635{sum}") } else { "gre".into() };
            format!("{underlay} / {outer} / mpls {label} ttl {ttl}{more} / {inner}")
        }
        _ => {
            let src = any_host(rng, vrf, dst.is_ipv4());
            let inner = frame(rng, tables, inner_mac, vrf, src, dst);
            let (vni, router) = (rng.one(&[5000, 5000, 6000]) + vrf, tables.host().router_mac);
            let inner = match router.filter(|_| rng.percent(50)) {
                Some(router) => inner.replace(&format!("> {GATEWAY_MAC}"), &format!("> {router}")),
                None => inner,
            };
            format!("{underlay} / udp 50000 > 4789{sum} / vxlan {vni} / {inner}")
        }
    }
}
