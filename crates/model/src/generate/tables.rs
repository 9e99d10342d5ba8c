//! Random tables. Their address ranges are small, so that packets match.

use super::Rng;
use crate::snat::{ForwardedPort, Mapping, SharedAddress};
use crate::{
    Action, BridgeTarget, Change, FloatingAddress, Host, L2Gateway, MeterConfig, MeterId, Midstream,
    Modifier, Network, Nexthop, NexthopId, PortRange, Roles, Rule, RuleAction, RuleId, Services, Sharing,
    TcpPaths, Tunnel, Vif, VifId, VifKind, Vrf, WireAttachment, WireAttributes,
};
use ipnet::IpNet;
use packet::{Mac, TunnelKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Wires have the ids 1 and 2.
pub(super) const WIRES: u16 = 2;
/// The first guest's id.
const FIRST_GUEST: u16 = 10;
/// The first id of the verbs devices that guests have beside their ports. In the generated tables they follow all
/// other ids.
const FIRST_DEVICE: u16 = 30;
const FIRST_VLAN: u16 = 50;
/// A mirror on another host, and its network identifier.
const REMOTE_MIRROR: u16 = 70;
const MIRROR_VNI: u32 = 7777;
const METERS: u32 = 3;

/// Returns the address of a host in a network. Some host numbers belong to nobody.
pub(super) fn host4(vrf: u16, subnet: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(10, vrf as u8, subnet, host).into()
}

pub(super) fn host6(vrf: u16, host: u16) -> IpAddr {
    Ipv6Addr::new(0xfd00, vrf, 0, 0, 0, 0, 0, host).into()
}

/// A MAC that several guests may have.
pub(super) const SHARED_MAC: Mac = Mac([0, 0, 0x5e, 0, 1, 5]);

pub(super) fn mac(number: u16) -> Mac {
    let [a, b] = number.to_be_bytes();
    Mac([2, 0, 0, 0, a, b])
}

pub(super) fn floating(host: u8) -> IpAddr {
    Ipv4Addr::new(203, 0, 113, host).into()
}

/// Returns an address that guests share.
pub(super) fn shared4(number: u8) -> IpAddr {
    Ipv4Addr::new(198, 18, 0, number).into()
}

pub(super) fn shared6(number: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, number.into()).into()
}

/// Returns a remote tunnel endpoint: on the subnet of wire 1 or 2, or behind its router.
pub(super) fn remote(rng: &mut Rng) -> IpAddr {
    let host = 2 + rng.below(3) as u16;
    match rng.below(5) {
        0 => Ipv4Addr::new(198, 51, 100, host as u8).into(),
        1 => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, host).into(),
        wire => Ipv4Addr::new(192, 0, 1 + (wire % 2) as u8, host as u8).into(),
    }
}

/// Returns tables as a control plane would set them: every reference is valid.
#[must_use]
pub fn tables(rng: &mut Rng) -> Vec<Change> {
    let vrfs: Vec<u16> = (1..=1 + rng.below(3) as u16).collect();
    let guests: Vec<Vif> = (0..2 + rng.below(6) as u16).map(|n| guest(rng, FIRST_GUEST + n, &vrfs)).collect();
    let mut guests = guests;
    let devices = verbs_devices(rng, &mut guests);
    let vlans = trunks(rng, &mut guests, &vrfs);
    guests.extend(vlans);
    let mut networks: Vec<Network> = vrfs.iter().map(|vrf| network(rng, *vrf, &guests)).collect();
    let mut wires: Vec<Vif> = (1..=WIRES).map(|id| wire(rng, id)).collect();
    attach(rng, &mut networks, &mut wires);
    let nexthops = nexthops(rng, &vrfs, &guests);
    share(rng, &mut networks, &guests);
    for network in &mut networks {
        for (id, nexthop) in &nexthops {
            if matches!(nexthop, Nexthop::Tunnel(t) if t.kind == TunnelKind::Vxlan) && rng.percent(30) {
                network.flood.push(*id);
                if let Nexthop::Tunnel(tunnel) = nexthop {
                    network.overlay.vnis.push((tunnel.remote, tunnel.id));
                    network.overlay.vnis.sort_unstable();
                }
            }
        }
    }
    let ids: Vec<NexthopId> = nexthops.iter().map(|(id, _)| *id).collect();
    let mut others = Rng::new(rng.clone().next_u64());
    let down = |rng: &mut Rng| Change::SetDown { remote: remote(rng), is_down: true };
    let down: Vec<_> = (0..others.below(4)).map(|_| down(&mut others)).collect();
    let broken = |rng: &mut Rng| {
        let (remote, id) = (remote(rng), 1 + rng.below(usize::from(WIRES)) as u8);
        let hop = Ipv4Addr::new(192, 0, id, 254).into();
        Change::SetPathDown { remote, wire: VifId(id.into()), hop, is_down: true }
    };
    let broken: Vec<_> = (0..others.below(6)).map(|_| broken(&mut others)).collect();
    let mut host = Host { tunnel_bfd: others.percent(50), ..tunnel_sources(rng) };
    if others.percent(50) {
        // An address of no wire, which routers reach by all of them.
        let loopback = |source: &mut IpAddr| match source {
            IpAddr::V4(_) => *source = Ipv4Addr::new(198, 51, 100, 1).into(),
            IpAddr::V6(_) => {}
        };
        host.tunnel_source.iter_mut().for_each(loopback);
    }
    let watched = |rng: &mut Rng| Change::SetWatched { remote: remote(rng), is_watched: true };
    let watched: Vec<_> = (0..others.below(3)).map(|_| watched(&mut others)).collect();
    let mut changes = vec![Change::SetHost(host)];
    changes.extend((0..METERS).map(|id| Change::PutMeter(MeterId(id), meter(rng))));
    let vnis = networks.iter().flat_map(|n| n.vni.into_iter().chain(n.l3vni).map(|vni| (vni, n.vrf)));
    changes.extend(vnis.map(|(vni, vrf)| Change::PutVxlan { vni, vrf }));
    changes.extend(implied_routes(&networks, &guests, &nexthops));
    for vrf in &vrfs {
        changes.extend((0..rng.below(8)).map(|_| Change::PutRoute {
            vrf: Vrf(*vrf),
            prefix: prefix(rng, &vrfs),
            nexthop: rng.one(&ids),
        }));
        changes.extend((0..rng.below(4)).map(|_| Change::PutMac {
            vrf: Vrf(*vrf),
            mac: mac(rng.below(30) as u16),
            target: target(rng, &guests, &ids),
        }));
    }
    changes.extend((0..8).map(|n| Change::PutMpls { label: 100 + n, nexthop: rng.one(&ids) }));
    changes.extend((0..rng.below(4)).map(|n| Change::PutFloating(floating_address(rng, n as u8, &vrfs))));
    changes.extend((0..rng.below(20)).map(|n| Change::PutRule(rule(rng, n as u32, &vrfs, &guests))));
    changes.extend(networks.into_iter().map(Change::PutNetwork));
    let remote = vxlan_remotes(&nexthops).next().unwrap_or(IpAddr::from(Ipv4Addr::new(192, 0, 1, 2)));
    let tunnel = Tunnel { kind: TunnelKind::Vxlan, remote, id: MIRROR_VNI, mac: None };
    changes.push(Change::PutVif(blank(REMOTE_MIRROR, VifKind::Mirror(tunnel))));
    changes.extend(wires.into_iter().chain(guests).chain(devices).map(Change::PutVif));
    changes.extend(nexthops.into_iter().map(|(id, nexthop)| Change::PutNexthop(id, nexthop)));
    changes.extend(down.into_iter().chain(broken).chain(watched));
    changes
}

/// Returns the remotes that nexthops of VXLAN tunnels name.
fn vxlan_remotes(nexthops: &[(NexthopId, Nexthop)]) -> impl Iterator<Item = IpAddr> {
    nexthops.iter().filter_map(|(_, nexthop)| match nexthop {
        Nexthop::Tunnel(tunnel) if tunnel.kind == TunnelKind::Vxlan => Some(tunnel.remote),
        _ => None,
    })
}

fn tunnel_sources(rng: &mut Rng) -> Host {
    let v4 = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
    let v6 = IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1));
    let tunnel_source = [v4, v6].into_iter().filter(|_| rng.percent(60)).collect();
    // Remotes that nexthops may leave out, and some that no nexthop names.
    let tunnel_peers = [(Ipv4Addr::new(192, 0, 2, 0), 30), (Ipv4Addr::new(192, 0, 1, 0), 24)];
    let tunnel_peers = tunnel_peers.into_iter().filter(|_| rng.percent(50));
    let tunnel_peers = tunnel_peers.filter_map(|(addr, len)| IpNet::new(addr.into(), len).ok()).collect();
    let (udp6_zero_checksum, tunnel_fragments) = (rng.percent(50), rng.percent(25));
    let router_mac = rng.percent(50).then_some(Mac([0x06, 0x5e, 192, 0, 2, 1]));
    let host = Host { name: "host".into(), tunnel_source, tunnel_peers, router_mac, ..Host::default() };
    Host { udp6_zero_checksum, tunnel_fragments, ..host }
}

fn meter(rng: &mut Rng) -> MeterConfig {
    MeterConfig { bits_per_second: 8 << rng.below(30), burst_bytes: 100 << rng.below(16) }
}

fn blank(id: u16, kind: VifKind) -> Vif {
    Vif::new(VifId(id), &format!("vif{id}"), kind)
}

fn wire(rng: &mut Rng, id: u16) -> Vif {
    let v4 = Ipv4Addr::new(192, 0, id as u8, 1);
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, id, 0, 0, 0, 0, 1);
    let mut attributes = WireAttributes::default();
    attributes.addresses.extend(IpNet::new(v4.into(), 24));
    if rng.percent(70) {
        attributes.addresses.extend(IpNet::new(v6.into(), 64));
    }
    if rng.percent(70) {
        attributes.gateways.push(Ipv4Addr::new(192, 0, id as u8, 254).into());
    }
    Vif {
        mac: Some(mac(0x100 + id)),
        mtu: rng.one(&[9000, 1500, 600]),
        wire: Some(attributes),
        ..blank(id, VifKind::Wire)
    }
}

fn guest(rng: &mut Rng, id: u16, vrfs: &[u16]) -> Vif {
    let kind = rng.one(&[VifKind::Vhost, VifKind::Vhost, VifKind::Tap, VifKind::Rdma]);
    let vrf = rng.one(vrfs);
    let mut vif = Vif { vrf: Some(Vrf(vrf)), mtu: rng.one(&[1500, 9000, 700]), ..blank(id, kind) };
    if rng.percent(80) {
        vif.mac = Some(mac(id));
        vif.macs.extend(rng.percent(20).then_some(SHARED_MAC));
    }
    if rng.percent(80) {
        vif.addresses = vec![host4(vrf, 1 + (id % 2) as u8, id as u8), host6(vrf, id)];
    }
    if rng.percent(20) {
        vif.allowed.extend(IpNet::new(host4(vrf, 7, 0), 24));
    }
    if rng.percent(10) {
        let all = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        vif.allowed.extend(all.into_iter().filter_map(|addr| IpNet::new(addr, 0).ok()));
    }
    if rng.percent(20) {
        vif.roles = Roles { router: rng.percent(50), dhcp_server: rng.percent(50) };
    }
    vif.policy = rng.percent(60);
    vif.meter = rng.percent(15).then(|| MeterId(rng.below(METERS as usize) as u32));
    let mirror = if id.is_multiple_of(2) { FIRST_GUEST } else { REMOTE_MIRROR };
    vif.mirror = rng.percent(20).then_some(VifId(mirror));
    vif.dscp = rng.percent(20).then(|| rng.one(&[0, 10, 46]));
    vif
}

/// Gives some of the guests a verbs device beside their port.
fn verbs_devices(rng: &mut Rng, guests: &mut [Vif]) -> Vec<Vif> {
    let mut devices = Vec::new();
    for (vif, id) in guests.iter_mut().zip(FIRST_DEVICE..) {
        if vif.kind != VifKind::Rdma && rng.percent(30) {
            vif.rdma = Some(VifId(id));
            devices.push(Vif {
                id: VifId(id),
                name: format!("{}:rdma", vif.name).into(),
                kind: VifKind::Rdma,
                rdma: Some(vif.id),
                ..vif.clone()
            });
        }
    }
    devices
}

/// Gives some of the guests VLANs in networks other than their own.
fn trunks(rng: &mut Rng, guests: &mut [Vif], vrfs: &[u16]) -> Vec<Vif> {
    let mut vlans = Vec::new();
    for (vif, id) in guests.iter_mut().zip(FIRST_VLAN..) {
        let vrf = rng.one(vrfs);
        if vif.kind == VifKind::Rdma || vif.vrf == Some(Vrf(vrf)) || rng.percent(60) {
            continue;
        }
        vif.vlans.push((7, VifId(id)));
        vlans.push(Vif {
            id: VifId(id),
            name: format!("{}:7", vif.name).into(),
            vrf: Some(Vrf(vrf)),
            addresses: vif.addresses.iter().map(|_| host4(vrf, 2, id as u8)).take(1).collect(),
            allowed: Vec::new(),
            rdma: None,
            vlans: Vec::new(),
            trunk: Some((vif.id, 7)),
            ..vif.clone()
        });
    }
    vlans
}

fn network(rng: &mut Rng, vrf: u16, guests: &[Vif]) -> Network {
    let gateways = [(host4(vrf, 1, 254), 24), (host4(vrf, 2, 254), 24), (host6(vrf, 0xffff), 64)];
    let gateways = gateways.into_iter().filter(|_| rng.percent(75));
    let mut gateways: Vec<IpNet> = gateways.filter_map(|(addr, len)| IpNet::new(addr, len).ok()).collect();
    let metadata = rng.percent(50);
    gateways.extend(Services::METADATA.iter().filter(|_| metadata).map(|addr| IpNet::from(*addr)));
    let members = guests.iter().filter(|vif| vif.vrf == Some(Vrf(vrf))).map(|vif| vif.id).collect();
    Network {
        gateways,
        vni: rng.percent(70).then_some(5000 + u32::from(vrf)),
        l3vni: rng.percent(50).then_some(6000 + u32::from(vrf)),
        learning: rng.percent(70),
        mtu: rng.one(&[9000, 1500, 1450, 650]),
        default_action: action(rng),
        members,
        routed_outside: rng.percent(50),
        services: Services { dhcp: rng.percent(50), ra: rng.percent(50), dns: rng.percent(50), metadata },
        tcp: TcpPaths { midstream: midstream(rng), ..TcpPaths::default() },
        ..Network::new(Vrf(vrf), &format!("net{vrf}"))
    }
}

pub(super) fn midstream(rng: &mut Rng) -> Midstream {
    rng.one(&[Midstream::Never, Midstream::Ruled, Midstream::Reverse, Midstream::Reverse])
}

fn action(rng: &mut Rng) -> Action {
    rng.one(&[Action::Allow, Action::Allow, Action::Drop, Action::Reject])
}

/// Attaches some networks to wires, at most one to each wire and VLAN.
fn attach(rng: &mut Rng, networks: &mut [Network], wires: &mut [Vif]) {
    for network in networks {
        let wire = &mut wires[rng.below(usize::from(WIRES))];
        let Some(attributes) = wire.wire.as_mut().filter(|_| rng.percent(40)) else { continue };
        let vlan = rng.percent(50).then_some(network.vrf.0);
        if attributes.networks.iter().all(|(taken, _)| *taken != vlan) {
            attributes.networks.push((vlan, network.vrf));
            network.wire = Some(WireAttachment { vif: wire.id, vlan });
            network.overlay.l2_gateway =
                rng.one(&[L2Gateway::Unnamed, L2Gateway::Here, L2Gateway::Elsewhere]);
        }
    }
}

/// Has guests of some networks share addresses of others.
fn share(rng: &mut Rng, networks: &mut [Network], guests: &[Vif]) {
    let vrfs: Vec<Vrf> = networks.iter().map(|network| network.vrf).collect();
    for (n, network) in (0..).zip(networks) {
        if rng.percent(50) {
            continue;
        }
        let outside_vrf = rng.one(&vrfs);
        let addresses = [shared4(n), shared4(n + 100), shared6(n)].into_iter().filter(|_| rng.percent(70));
        let mut addresses: Vec<_> = addresses.map(|outside| SharedAddress { outside_vrf, outside }).collect();
        addresses.sort_unstable();
        let inside = guests.iter().filter(|vif| vif.vrf == Some(network.vrf)).flat_map(|vif| &vif.addresses);
        let mut forwards = Vec::new();
        for inside in inside {
            let of_family = addresses.iter().find(|shared| shared.outside.is_ipv4() == inside.is_ipv4());
            let Some(shared) = of_family else { continue };
            let (protocol, port, inside_port) =
                (rng.one(&[6, 17]), 1 + rng.below(59) as u16, 1 + rng.below(59) as u16);
            forwards.push(ForwardedPort {
                outside: shared.outside,
                protocol,
                port,
                inside: *inside,
                inside_port,
            });
        }
        forwards.sort_unstable();
        forwards.dedup_by_key(|forward| (forward.outside, forward.protocol, forward.port));
        let mapping = rng.one(&[Mapping::AddressAndPortDependent, Mapping::EndpointIndependent]);
        network.sharing = Sharing { addresses, ports: rng.one(&[2, 64, 512, 60_000]), forwards, mapping };
    }
}

fn nexthops(rng: &mut Rng, vrfs: &[u16], guests: &[Vif]) -> Vec<(NexthopId, Nexthop)> {
    let mut all = vec![Nexthop::Discard, Nexthop::Receive, Nexthop::Resolve { via: None }];
    all.push(Nexthop::Resolve { via: Some(host4(rng.one(vrfs), 1, rng.below(20) as u8)) });
    all.extend(vrfs.iter().map(|vrf| Nexthop::VrfTranslate { vrf: Vrf(*vrf) }));
    all.extend(guests.iter().map(|vif| Nexthop::Encap { vif: vif.id, mac: mac(vif.id.0) }));
    for _ in 0..4 + rng.below(4) {
        let kind = rng.one(&[TunnelKind::MplsUdp, TunnelKind::MplsGre, TunnelKind::Vxlan, TunnelKind::Vxlan]);
        let mac = rng.percent(30).then(|| mac(0x77));
        all.push(Nexthop::Tunnel(Tunnel { kind, remote: remote(rng), id: 100 + rng.below(8) as u32, mac }));
    }
    let single = all.len();
    for _ in 0..1 + rng.below(3) {
        let mut places = Vec::new();
        for _ in 0..1 + rng.below(4) {
            let weight = if rng.percent(30) { 1 + rng.below(5) } else { 1 };
            places.extend(std::iter::repeat_n(NexthopId(rng.below(single) as u32), weight));
        }
        all.push(Nexthop::Ecmp(places));
    }
    (0..).map(NexthopId).zip(all).collect()
}

/// Returns the routes to gateways, subnets and guests.
fn implied_routes(networks: &[Network], guests: &[Vif], nexthops: &[(NexthopId, Nexthop)]) -> Vec<Change> {
    let id_of = |wanted: &dyn Fn(&Nexthop) -> bool| {
        nexthops.iter().find(|(_, nexthop)| wanted(nexthop)).map(|(id, _)| *id)
    };
    let mut routes = Vec::new();
    for network in networks {
        for gateway in &network.gateways {
            let resolve = id_of(&|nexthop| *nexthop == Nexthop::Resolve { via: None });
            let receive = id_of(&|nexthop| *nexthop == Nexthop::Receive);
            routes.push((network.vrf, gateway.trunc(), resolve));
            routes.push((network.vrf, gateway.addr().into(), receive));
        }
    }
    for (vif, vrf) in guests.iter().filter_map(|vif| Some((vif, vif.vrf?))) {
        let encap = id_of(&|nexthop| matches!(nexthop, Nexthop::Encap { vif: to, .. } if *to == vif.id));
        routes.extend(vif.addresses.iter().map(|addr| (vrf, IpNet::from(*addr), encap)));
    }
    let put =
        |(vrf, prefix, nexthop): (_, _, Option<_>)| Some(Change::PutRoute { vrf, prefix, nexthop: nexthop? });
    routes.into_iter().filter_map(put).collect()
}

pub(super) fn prefix(rng: &mut Rng, vrfs: &[u16]) -> IpNet {
    let vrf = rng.one(vrfs);
    let (addr, len) = match rng.below(7) {
        0 => (IpAddr::from(Ipv4Addr::UNSPECIFIED), 0),
        1 => (Ipv6Addr::UNSPECIFIED.into(), 0),
        2 => (host4(vrf, 0, 0), 16),
        3 => (host4(vrf, 1 + rng.below(7) as u8, 0), 24),
        4 => (host4(vrf, 1 + rng.below(2) as u8, rng.below(20) as u8), 32),
        5 => (host6(vrf, rng.below(20) as u16), 128),
        _ => (host6(vrf, 0), 64),
    };
    IpNet::new(addr, len).map_or_else(|_| addr.into(), |prefix| prefix.trunc())
}

fn target(rng: &mut Rng, guests: &[Vif], ids: &[NexthopId]) -> BridgeTarget {
    match rng.below(3) {
        0 => BridgeTarget::Vif(rng.one(guests).id),
        1 => BridgeTarget::Vtep { remote: remote(rng), vni: 5001 + rng.below(3) as u32 },
        _ => BridgeTarget::Nexthop(rng.one(ids)),
    }
}

fn floating_address(rng: &mut Rng, number: u8, vrfs: &[u16]) -> FloatingAddress {
    let inside = rng.one(vrfs);
    let guest = FIRST_GUEST + rng.below(8) as u16;
    FloatingAddress {
        inside_vrf: Vrf(inside),
        inside: host4(inside, 1 + (guest % 2) as u8, guest as u8),
        outside_vrf: Vrf(rng.one(vrfs)),
        outside: floating(number + 1),
    }
}

fn rule(rng: &mut Rng, id: u32, vrfs: &[u16], guests: &[Vif]) -> Rule {
    let mut prefixes = |n: usize| (0..rng.below(n)).map(|_| prefix(rng, vrfs)).collect::<Vec<_>>();
    let (from, to) = (prefixes(3), prefixes(3));
    let protocol = rng.one(&[None, Some(1), Some(6), Some(17), Some(58)]);
    let first = rng.below(60) as u16;
    let ports = matches!(protocol, Some(6 | 17)) && rng.percent(50);
    Rule {
        id: RuleId(id),
        vrf: Vrf(rng.one(vrfs)),
        priority: rng.below(5) as u32,
        from,
        to,
        protocol,
        ports: ports.then(|| PortRange { first, last: first + rng.below(40) as u16 }),
        action: match rng.below(8) {
            0 => RuleAction::Modify(Modifier::Mirror(rng.one(guests).id)),
            1 => RuleAction::Modify(Modifier::Police(MeterId(rng.below(METERS as usize) as u32))),
            _ => RuleAction::End(action(rng)),
        },
    }
}
