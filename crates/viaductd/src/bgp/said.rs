//! Configuration and announcements of the speaker, from those of the host.

use super::moves::Moves;
use bgp::{
    Announcement, Config, Encapsulation, Family, Import, Label, Link, Mobility, Nlri, PeerConfig,
    RangeConfig, Rd, RouteTarget, Speaker, VrfId,
};
use config::{BgpFamily, ImportUnicast, Password, RouteName, TunnelKind};
use control::{Speech, SpokenNetwork};
use ipnet::IpNet;
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

/// Seconds without a message after which a peer is taken for dead.
const HOLD_TIME: u16 = 90;
/// LOCAL_PREF of the host's routes: the usual value.
const PREFERENCE: u32 = 100;

pub(super) fn config(speech: &Speech, restarted: bool) -> Config {
    Config {
        asn: speech.bgp.asn,
        router_id: speech.router_id,
        own: speech.tunnel_sources.clone(),
        hold_time: HOLD_TIME,
        restarted,
        encapsulations: vec![Encapsulation::MplsUdp, Encapsulation::MplsGre, Encapsulation::Vxlan],
    }
}

const fn encapsulation(kind: TunnelKind) -> Encapsulation {
    match kind {
        TunnelKind::MplsOverUdp => Encapsulation::MplsUdp,
        TunnelKind::MplsOverGre => Encapsulation::MplsGre,
        TunnelKind::Vxlan => Encapsulation::Vxlan,
    }
}

const fn family(family: BgpFamily) -> Family {
    match family {
        BgpFamily::Vpnv4 => Family::Vpnv4,
        BgpFamily::Vpnv6 => Family::Vpnv6,
        BgpFamily::Evpn => Family::Evpn,
        BgpFamily::Rtc => Family::Rtc,
        BgpFamily::Ipv4Unicast => Family::Ipv4Unicast,
        BgpFamily::Ipv6Unicast => Family::Ipv6Unicast,
    }
}

pub(super) fn peers(bgp: &config::Bgp) -> Vec<PeerConfig> {
    bgp.peers.iter().map(peer).collect()
}

pub(super) fn ranges(bgp: &config::Bgp) -> Vec<RangeConfig> {
    let range = |range: &config::BgpRange| RangeConfig {
        range: range.prefix,
        max_peers: range.max_peers.into(),
        peer: peer(&range.peer),
    };
    bgp.ranges.iter().map(range).collect()
}

fn peer(peer: &config::BgpPeer) -> PeerConfig {
    // VXLAN carries no labels.
    let is_spoken = |family: &BgpFamily| {
        peer.encapsulation != TunnelKind::Vxlan || !matches!(family, BgpFamily::Vpnv4 | BgpFamily::Vpnv6)
    };
    PeerConfig {
        address: peer.address,
        port: peer.port,
        asn: peer.asn,
        families: peer.families.iter().copied().filter(is_spoken).map(family).collect(),
        encapsulation: encapsulation(peer.encapsulation),
        passive: peer.passive,
        password: number(peer),
        restart_time: peer.graceful_restart,
        max_routes: peer.max_prefixes as usize,
    }
}

/// Returns a number that changes with what sockets need: a connection keeps the password and the hops that it began
/// with.
fn number(peer: &config::BgpPeer) -> u64 {
    let mut hasher = DefaultHasher::new();
    (peer.password.as_ref().map(Password::text), peer.ttl_security).hash(&mut hasher);
    hasher.finish()
}

pub(super) fn imports(speech: &Speech) -> Vec<Import> {
    let import = |(vrf, network): (&u16, &SpokenNetwork)| {
        let of = |names: &[RouteName]| names.iter().filter_map(target).collect::<Vec<_>>();
        let macs = if network.evpn { of(&network.import) } else { Vec::new() };
        let routes = [of(&network.import), of(&network.l3_import)].concat();
        let link = network.unicast.as_ref();
        let link = link.map(|(which, addresses)| Link {
            addresses: addresses.clone(),
            all: *which == ImportUnicast::All,
        });
        Import { vrf: VrfId::from(*vrf), routes, macs, link }
    };
    speech.networks.iter().map(import).collect()
}

/// Returns the routes that the host has.
pub(super) fn announcements(speech: &Speech) -> BTreeMap<Nlri, Announcement> {
    let of_networks = speech.networks.values().flat_map(|network| of_network(speech, network));
    let ways = speech.outside.iter().filter_map(|(address, outside)| Some((*address, outside.via.ok()?)));
    of_networks.chain(ways.map(by_wire)).collect()
}

/// Returns the plain route to an address that is reached by a wire.
fn by_wire((address, next_hop): (IpAddr, IpAddr)) -> (Nlri, Announcement) {
    let announcement = Announcement {
        next_hop,
        label: Label::None,
        routed: None,
        targets: Vec::new(),
        router_mac: None,
        mobility: None,
        preference: PREFERENCE,
    };
    (Nlri::Unicast { prefix: address.into() }, announcement)
}

/// Returns the numbers of networks by their distinguishers.
pub(super) fn distinguishers(speech: &Speech) -> BTreeMap<Rd, u16> {
    let of = |(vrf, network): (&u16, &SpokenNetwork)| Some((distinguisher(&network.rd)?, *vrf));
    speech.networks.iter().filter_map(of).collect()
}

/// Numbers the moves of MAC addresses that came up on this host and were announced by others (RFC 7432, 7.7): all of
/// them, and the hosts where they were, then send there. A number stays as long as the address is announced. Addresses
/// that move too often are left out.
pub(super) fn number_moves(
    speech: &Speech,
    announcements: &mut BTreeMap<Nlri, Announcement>,
    said: &BTreeMap<Nlri, Announcement>,
    (speaker, moves, now): (&Speaker, &mut Moves, Duration),
) {
    let networks = distinguishers(speech);
    let number = |(nlri, its): (&Nlri, &Announcement)| match nlri {
        Nlri::Mac { rd, mac, .. } => Some(((*rd, *mac), its.mobility)),
        _ => None,
    };
    let known: BTreeMap<(Rd, Mac), Option<Mobility>> = said.iter().filter_map(number).collect();
    let mut numbers: BTreeMap<(Rd, Mac), Option<Option<Mobility>>> = BTreeMap::new();
    let mut here = BTreeSet::new();
    announcements.retain(|nlri, announcement| {
        let Nlri::Mac { rd, mac, .. } = nlri else { return true };
        let Some(vrf) = networks.get(rd).map(|vrf| VrfId::from(*vrf)) else { return true };
        here.insert((vrf, *mac));
        let mut new = || moves.number((vrf, *mac), speaker.next_sequence(vrf, *mac), now);
        let number = numbers.entry((*rd, *mac)).or_insert_with(|| match known.get(&(*rd, *mac)) {
            Some(number) => Some(*number),
            None => new(),
        });
        announcement.mobility = number.unwrap_or_default();
        number.is_some()
    });
    moves.note(|place| here.contains(place));
}

fn of_network(speech: &Speech, network: &SpokenNetwork) -> Vec<(Nlri, Announcement)> {
    let (Some(rd), Some(next_hop)) = (distinguisher(&network.rd), speech.tunnel_sources.first().copied())
    else {
        return Vec::new();
    };
    let targets = |names: &[RouteName]| names.iter().filter_map(target).collect::<Vec<_>>();
    let by = |label| Announcement {
        next_hop,
        label,
        routed: None,
        targets: targets(&network.export),
        router_mac: None,
        mobility: None,
        preference: PREFERENCE,
    };
    let Some(vni) = network.vni.filter(|_| network.evpn) else {
        let vpn = |prefix: &IpNet| (Nlri::Vpn { rd, prefix: *prefix }, by(Label::Mpls(network.label)));
        return network.prefixes.iter().map(vpn).collect();
    };
    let bridged = by(Label::Vni(vni));
    let routed = Announcement {
        router_mac: Some(config::router_mac(speech.router_id)),
        targets: [targets(&network.export), targets(&network.l3_export)].concat(),
        ..by(Label::Vni(network.l3vni.unwrap_or(vni)))
    };
    let prefix = |prefix: &IpNet| (Nlri::Prefix { rd, prefix: *prefix }, routed.clone());
    let mac = |(mac, address): &(Mac, Option<IpAddr>)| {
        // An address is announced as a route as well: it has both VNIs (RFC 9135, 5.2).
        let both = Announcement { label: bridged.label, routed: network.l3vni, ..routed.clone() };
        let is_route = address.is_some() && network.l3vni.is_some();
        let announcement = if is_route { both } else { bridged.clone() };
        (Nlri::Mac { rd, mac: *mac, address: *address }, announcement)
    };
    let flood = (Nlri::Flood { rd, originator: next_hop }, bridged.clone());
    let prefixes = network.prefixes.iter().map(prefix);
    prefixes.chain(network.macs.iter().map(mac)).chain([flood]).collect()
}

/// Parses a name, whose text has the same form there.
pub(super) fn distinguisher(name: &RouteName) -> Option<Rd> {
    name.to_string().parse().ok()
}

fn target(name: &RouteName) -> Option<RouteTarget> {
    name.to_string().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_network_with_an_l3vni_is_announced_with_both_numbers() {
        let names = |text: &str| vec![text.parse::<RouteName>().unwrap()];
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let network = |l3vni: Option<u32>| SpokenNetwork {
            name: "blue".to_owned(),
            label: 100_001,
            vni: Some(5001),
            l3vni,
            evpn: true,
            rd: "192.0.2.1:1".parse().unwrap(),
            import: names("64512:5001"),
            export: names("64512:5001"),
            unicast: None,
            l3_import: l3vni.map_or(Vec::new(), |_| names("64512:6001")),
            l3_export: l3vni.map_or(Vec::new(), |_| names("64512:6001")),
            prefixes: ["10.1.1.0/24".parse().unwrap()].into(),
            macs: [(mac, None), (mac, Some("10.1.1.1".parse().unwrap()))].into(),
        };
        let of = |l3vni| {
            let file = "[host]\nname = \"a\"\n[bgp]\nas = 64512\nrouter_id = \"192.0.2.1\"\n[[bgp.peer]]\naddress = \"192.0.2.9\"";
            let bgp = config::parse(file).unwrap().host.bgp.unwrap();
            let networks = [(1, network(l3vni))].into();
            let tunnel_sources = vec!["192.0.2.1".parse().unwrap()];
            let (router_id, outside) = ([192, 0, 2, 1].into(), BTreeMap::new());
            let speech = Speech { bgp, router_id, tunnel_sources, networks, outside };
            let [imported] = imports(&speech).try_into().unwrap();
            let show = |(nlri, its): (Nlri, Announcement)| {
                let kind = match nlri {
                    Nlri::Mac { address, .. } if address.is_some() => "address",
                    Nlri::Mac { .. } => "mac",
                    Nlri::Flood { .. } => "flood",
                    _ => "prefix",
                };
                let Label::Vni(vni) = its.label else { panic!("{nlri:?} has no VNI") };
                let is_routed = its.router_mac == Some(Mac([6, 0x5e, 192, 0, 2, 1]));
                (kind, (vni, its.routed, its.targets.len(), is_routed))
            };
            let all: BTreeMap<_, _> = announcements(&speech).into_iter().map(show).collect();
            (all, imported.routes.len(), imported.macs.len())
        };
        let alone = (5001, None, 1, false);
        let both = [
            ("address", (5001, Some(6001), 2, true)),
            ("flood", alone),
            ("mac", alone),
            ("prefix", (6001, None, 2, true)),
        ];
        assert_eq!(of(Some(6001)), (both.into(), 2, 1));
        let bridged =
            [("address", alone), ("flood", alone), ("mac", alone), ("prefix", (5001, None, 1, true))];
        assert_eq!(of(None), (bridged.into(), 1, 1));
    }

    #[test]
    fn names_are_the_same_in_the_file_and_in_messages() {
        for text in ["64512:4294967295", "192.0.2.1:65535", "4200000000:7"] {
            let name: RouteName = text.parse().unwrap();
            assert_eq!(distinguisher(&name).unwrap().to_string(), text);
            assert_eq!(target(&name).unwrap().to_string(), text);
        }
        for text in ["4200000000:65536", "192.0.2.1:65536", "64512", "64512:x"] {
            assert!(text.parse::<RouteName>().is_err() && text.parse::<Rd>().is_err(), "{text}");
        }
    }
}
