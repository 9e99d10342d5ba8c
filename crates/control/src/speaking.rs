//! The host's announcements by BGP.

use config::{Bgp, Guest, Host, Index, Kind, Mode, Network, RouteName};
use ipnet::IpNet;
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// The configuration and announcements of this host's BGP speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speech {
    /// `[bgp]`.
    pub bgp: Bgp,
    /// The BGP identifier.
    pub router_id: Ipv4Addr,
    /// The addresses at which tunnels end, at most one of each family.
    pub tunnel_sources: Vec<IpAddr>,
    /// The networks that are spoken of, by number.
    pub networks: BTreeMap<u16, SpokenNetwork>,
}

/// A network that is spoken of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpokenNetwork {
    /// The MPLS label of its routes.
    pub label: u32,
    /// The VXLAN network identifier.
    pub vni: Option<u32>,
    /// The VXLAN network identifier of routed packets.
    pub l3vni: Option<u32>,
    /// Whether MAC addresses and floods are exchanged.
    pub evpn: bool,
    /// The route distinguisher.
    pub rd: RouteName,
    /// Route targets of the routes that it takes.
    pub import: Vec<RouteName>,
    /// Route targets of its own routes.
    pub export: Vec<RouteName>,
    /// With `l3vni`: more targets, of routes that it takes.
    pub l3_import: Vec<RouteName>,
    /// With `l3vni`: more targets, of its own routes.
    pub l3_export: Vec<RouteName>,
    /// The addresses of guests that are up, or with `evpn` the subnets of the gateways; the floating addresses of
    /// guests that are up; and the addresses that guests of other networks share.
    pub prefixes: BTreeSet<IpNet>,
    /// With `evpn`: the MAC addresses of guests that are there, alone and with each of their addresses.
    pub macs: BTreeSet<(Mac, Option<IpAddr>)>,
}

/// Returns what to say while these guests are up; nothing without `[bgp]`, or without a BGP identifier.
pub(crate) fn speech(host: &Host, index: &Index, is_up: impl Fn(&str) -> bool) -> Option<Speech> {
    let bgp = host.bgp.clone()?;
    let router_id = config::router_id(&bgp, index.tunnel_sources())?;
    let spoken = index.networks().values().filter_map(|network| {
        Some((network.vrf, of_network(&bgp, router_id, index.network_label(network)?, network)))
    });
    let mut networks: BTreeMap<u16, SpokenNetwork> = spoken.collect();
    for guest in index.guests().values().filter(|guest| guest.mode == Mode::Vrouter && is_up(&guest.name)) {
        let Some(mac) = guest.mac else { continue };
        for (network, addresses) in places(guest) {
            let vrf = index.networks().get(network).map(|network| network.vrf);
            let Some(network) = vrf.and_then(|vrf| networks.get_mut(&vrf)) else { continue };
            if network.evpn {
                network
                    .macs
                    .extend(addresses.iter().map(|address| (mac, Some(*address))).chain([(mac, None)]));
            } else {
                network.prefixes.extend(addresses.iter().copied().map(IpNet::from));
            }
        }
    }
    for nat in index.nats() {
        let vrf = index.networks().get(&nat.outside_network).map(|network| network.vrf);
        let Some(network) = vrf.and_then(|vrf| networks.get_mut(&vrf)) else { continue };
        let guest = index.owner(&nat.network, nat.inside).filter(|key| key.kind == Kind::Guest);
        if guest.is_some_and(|guest| is_up(&guest.name)) {
            network.prefixes.insert(IpNet::from(nat.outside));
        }
    }
    for addr in index.networks().values().flat_map(config::Network::shared_addresses) {
        let vrf = index.outside_of(addr).ok().map(|network| network.vrf);
        if let Some(network) = vrf.and_then(|vrf| networks.get_mut(&vrf)) {
            network.prefixes.insert(IpNet::from(addr));
        }
    }
    Some(Speech { bgp, router_id, tunnel_sources: index.tunnel_sources().to_vec(), networks })
}

fn of_network(bgp: &Bgp, router_id: Ipv4Addr, label: u32, network: &Network) -> SpokenNetwork {
    SpokenNetwork {
        label,
        vni: network.vni,
        l3vni: network.l3vni,
        evpn: network.evpn,
        rd: network.rd.unwrap_or(RouteName::Address(router_id, network.vrf)),
        import: bgp.import(network),
        export: bgp.export(network),
        l3_import: bgp.l3_import(network),
        l3_export: bgp.l3_export(network),
        prefixes: network.gateways.iter().filter(|_| network.evpn).map(IpNet::trunc).collect(),
        macs: BTreeSet::new(),
    }
}

/// Returns the networks of a guest, each with its addresses there.
fn places(guest: &Guest) -> impl Iterator<Item = (&str, &[IpAddr])> {
    let own = (guest.network.as_str(), &guest.addresses[..]);
    let vlans = guest.vlans.iter().map(|vlan| (vlan.network.as_str(), &vlan.addresses[..]));
    std::iter::once(own).chain(vlans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Document;

    const FILE: &str = r#"
[host]
name = "a"
[bgp]
as = 64512
[[bgp.peer]]
address = "198.51.100.9"
[[wire]]
name = "up0"
driver = "af-packet"
device = "e0"
addresses = ["192.0.2.1/24"]
[[network]]
name = "blue"
vrf = 1
gateways = ["10.1.1.254/24"]
[[network]]
name = "red"
vrf = 2
vni = 5002
gateways = ["10.2.2.254/24"]
evpn = true
export = ["64512:7"]
l3vni = 6002
[[network]]
name = "own"
vrf = 3
bgp = false
[[guest]]
name = "vm1"
network = "blue"
kind = "vhost"
mac = "02:00:00:00:00:01"
addresses = ["10.1.1.1", "fd00::1"]
vlans = [{ tag = 7, network = "red", addresses = ["10.2.2.1"] }, { tag = 8, network = "own" }]
[[nat]]
network = "blue"
inside = "10.1.1.1"
outside = "10.2.2.77"
outside_network = "red"
"#;

    #[test]
    fn guests_are_announced_while_they_are_there() {
        let Document { host, objects, .. } = config::parse(FILE).unwrap();
        let index = Index::new(&host, objects.iter().map(|item| &item.object));
        let text = |is_up: bool| {
            let speech = speech(&host, &index, |_| is_up).unwrap();
            assert_eq!(speech.router_id.to_string(), "192.0.2.1");
            let of = |network: &SpokenNetwork| {
                let names = |names: &[RouteName]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
                let prefixes: Vec<_> = network.prefixes.iter().map(ToString::to_string).collect();
                let (import, export) = (names(&network.import), names(&network.export));
                let macs = network.macs.len();
                let l3 = [names(&network.l3_import), names(&network.l3_export)].concat().join(" ");
                format!("{} {} {import:?} {export:?} {l3}{prefixes:?} {macs}", network.rd, network.label)
            };
            speech.networks.values().map(of).collect::<Vec<_>>()
        };
        let red = r#"192.0.2.1:2 100002 ["64512:5002"] ["64512:7"] 64512:6002 64512:6002["10.2.2.0/24""#;
        let blue = r#"192.0.2.1:1 100001 ["64512:1"] ["64512:1"]"#;
        assert_eq!(
            text(true),
            [format!(r#"{blue} ["10.1.1.1/32", "fd00::1/128"] 0"#), format!(r#"{red}, "10.2.2.77/32"] 2"#)]
        );
        assert_eq!(text(false), [format!("{blue} [] 0"), format!("{red}] 0")]);
    }
}
