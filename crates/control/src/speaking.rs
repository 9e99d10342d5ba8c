//! The host's announcements by BGP.

use config::{Bgp, Guest, Host, ImportUnicast, Index, Kind, Mode, Network, RouteName};
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
    /// The addresses that are reached by wires.
    pub outside: BTreeMap<IpAddr, Outside>,
}

/// An address that is reached by a wire, for guests of other networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The network with the wire.
    pub vrf: u16,
    /// The host's address there, to which others send packets for it.
    pub via: Result<IpAddr, NoWay>,
}

/// Why an address that is reached by a wire can't be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// Nobody could tell which one is meant.
    #[error("another network with a wire has the address, too: write `bgp = false` in one of the two")]
    Twice,
    /// There is no next hop.
    #[error("its network needs an address in `gateways` to which others can send")]
    Gateway,
}

/// A network that is spoken of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpokenNetwork {
    /// The name.
    pub name: String,
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
    /// The plain routes that it takes, and the host's own addresses, with subnets, where the routers are.
    pub unicast: Option<(ImportUnicast, Vec<IpNet>)>,
    /// With `l3vni`: more targets, of routes that it takes.
    pub l3_import: Vec<RouteName>,
    /// With `l3vni`: more targets, of its own routes.
    pub l3_export: Vec<RouteName>,
    /// The addresses of guests that are up, or with `evpn` the subnets of the gateways; the floating addresses of
    /// guests that are up; and the addresses that guests of other networks share, of which one is up.
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
    let mut inhabited = BTreeSet::new();
    for guest in index.guests().values().filter(|guest| guest.mode == Mode::Vrouter && is_up(&guest.name)) {
        for (network, addresses) in places(guest) {
            inhabited.insert(network);
            let vrf = index.networks().get(network).map(|network| network.vrf);
            if let Some(network) = vrf.and_then(|vrf| networks.get_mut(&vrf)) {
                network.add(guest, addresses);
            }
        }
    }
    let mut outside = BTreeMap::new();
    for (network, addr) in outside_addresses(index, &inhabited, is_up) {
        let Some(spoken) = networks.get_mut(&network.vrf) else { continue };
        spoken.prefixes.insert(IpNet::from(addr));
        if network.wire.is_some() {
            let entry = outside.entry(addr).and_modify(|known: &mut Outside| known.via = Err(NoWay::Twice));
            entry.or_insert_with(|| Outside {
                vrf: network.vrf,
                via: own_address(network, addr).ok_or(NoWay::Gateway),
            });
        }
    }
    Some(Speech { bgp, router_id, tunnel_sources: index.tunnel_sources().to_vec(), networks, outside })
}

/// Returns the addresses, each with its network, that stand for guests of other networks: floating addresses of guests
/// that are up, and those that the guests of inhabited networks share.
fn outside_addresses<'a>(
    index: &'a Index,
    inhabited: &'a BTreeSet<&str>,
    is_up: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (&'a Network, IpAddr)> {
    let floating = index.nats().iter().filter_map(move |nat| {
        let guest = index.owner(&nat.network, nat.inside).filter(|key| key.kind == Kind::Guest)?;
        is_up(&guest.name).then_some((index.networks().get(&nat.outside_network)?, nat.outside))
    });
    let sharing = index.networks().values().filter(|network| inhabited.contains(network.name.as_str()));
    let shared = sharing.flat_map(Network::shared_addresses);
    floating.chain(shared.filter_map(|addr| Some((index.outside_of(addr).ok()?, addr))))
}

/// Returns the host's own address in a network, to which others send packets for another address: of its family, or for
/// IPv4 also of IPv6 (RFC 8950).
fn own_address(network: &Network, addr: IpAddr) -> Option<IpAddr> {
    let usable = |own: &IpAddr| !matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
    let mut all = network.gateways.iter().map(IpNet::addr).filter(usable);
    all.clone().find(|own| own.is_ipv4() == addr.is_ipv4()).or_else(|| all.find(IpAddr::is_ipv6))
}

impl SpokenNetwork {
    /// Adds a guest that is up, with its addresses in the network.
    fn add(&mut self, guest: &Guest, addresses: &[IpAddr]) {
        let Some(mac) = guest.mac else { return };
        if self.evpn {
            self.macs.extend(addresses.iter().map(|address| (mac, Some(*address))).chain([(mac, None)]));
        } else {
            self.prefixes.extend(addresses.iter().copied().map(IpNet::from));
        }
    }
}

fn of_network(bgp: &Bgp, router_id: Ipv4Addr, label: u32, network: &Network) -> SpokenNetwork {
    SpokenNetwork {
        name: network.name.clone(),
        label,
        vni: network.vni,
        l3vni: network.l3vni,
        evpn: network.evpn,
        rd: network.rd.unwrap_or(RouteName::Address(router_id, network.vrf)),
        import: bgp.import(network),
        export: bgp.export(network),
        unicast: network.import_unicast.map(|which| (which, network.gateways.clone())),
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

    const BY_WIRES: &str = r#"
[[network]]
name = "public"
vrf = 7
gateways = ["203.0.113.254/24", "203.0.113.253/24", "fe80::1/64", "2001:db8::ffff/64"]
wire = "up0"
vlan = 7
[[network]]
name = "public6"
vrf = 8
gateways = ["2001:db8:8::ffff/64"]
wire = "up0"
vlan = 8
[[network]]
name = "green"
vrf = 4
gateways = ["10.4.4.254/24"]
snat = ["203.0.113.5"]
[[guest]]
name = "vm2"
network = "green"
kind = "vhost"
mac = "02:00:00:00:00:02"
addresses = ["10.4.4.1"]
[[forward]]
network = "green"
outside = "203.0.113.5"
protocol = "tcp"
port = 80
to = { guest = "vm2", port = 80 }
[[nat]]
network = "blue"
inside = "fd00::1"
outside = "2001:db8::77"
outside_network = "public"
[[route]]
network = "public"
prefix = "198.18.0.0/24"
to = "drop"
[[route]]
network = "public6"
prefix = "198.18.0.0/24"
to = "drop"
"#;

    /// Returns the plain routes, while these guests are up, of the file and more.
    fn by_wires(more: &str, up: &[&str]) -> Vec<String> {
        let file = format!("{FILE}{BY_WIRES}{more}");
        let Document { host, objects, .. } = config::parse(&file).unwrap();
        let index = Index::new(&host, objects.iter().map(|item| &item.object));
        let speech = speech(&host, &index, |name| up.contains(&name)).unwrap();
        let say = |(addr, outside): (&IpAddr, &Outside)| match outside.via {
            Ok(own) => format!("{addr} by {own}"),
            Err(why) => format!("{addr}: {why:?}"),
        };
        speech.outside.iter().map(say).collect()
    }

    #[test]
    fn addresses_reached_by_wires_are_announced_while_a_guest_is_behind() {
        let (shared, floating) = ("203.0.113.5 by 203.0.113.254", "2001:db8::77 by 2001:db8::ffff");
        assert_eq!(by_wires("", &["vm1", "vm2"]), [shared, floating]);
        assert_eq!(by_wires("", &["vm1"]), [floating]);
        assert_eq!(by_wires("", &["vm2"]), [shared]);
        assert!(by_wires("", &[]).is_empty());
    }

    #[test]
    fn an_address_of_two_networks_is_not_announced_by_wires() {
        let nat = |network: &str, inside: &str, of: &str| {
            let keys = format!("network = \"{network}\"\ninside = \"{inside}\"\noutside = \"198.18.0.1\"");
            format!("[[nat]]\n{keys}\noutside_network = \"{of}\"\n")
        };
        let both = [nat("red", "10.2.2.1", "public"), nat("green", "10.4.4.1", "public6")];
        let others = ["203.0.113.5 by 203.0.113.254", "2001:db8::77 by 2001:db8::ffff"];
        let of = |more: &str| by_wires(more, &["vm1", "vm2"]);
        let with = |first| [&[first], &others[..]].concat();
        assert_eq!(of(&both[0]), with("198.18.0.1 by 203.0.113.254"));
        // Without an address of the family, the next hop is of IPv6.
        assert_eq!(of(&both[1]), with("198.18.0.1 by 2001:db8:8::ffff"));
        assert_eq!(of(&both.concat()), with("198.18.0.1: Twice"));
    }
}
