//! The routes that follow from objects, and which of two with the same prefix counts.

use super::vlan_vif;
use crate::owner::{Listed, Objects, Owned};
use config::{Guest, Kind, Lease, Object};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

pub(super) struct ObjectRoute<'a> {
    pub(super) network: &'a str,
    pub(super) prefix: IpNet,
    pub(super) to: To,
}

/// The target of a route.
pub(super) enum To {
    /// The gateway itself.
    Gateway,
    /// The gateway's subnet, on link.
    Subnet,
    Guest {
        vif: String,
        mac: Mac,
    },
    /// The network's way out by the host.
    WayOut,
    /// The network in which an address is that the guests share.
    Outside(IpAddr),
    /// Nowhere.
    Discard,
}

impl ObjectRoute<'_> {
    /// Is true if the route gives way to any other with its prefix. A route that somebody wrote is more
    /// deliberate than the subnet or the way out that follows from a gateway. Among other routes the last one counts.
    pub(super) fn gives_way(&self) -> bool {
        matches!(self.to, To::Subnet | To::WayOut | To::Outside(_) | To::Discard)
    }
}

/// Returns the routes that follow from an object. `lease`: what a guest leased.
pub(super) fn routes_of<'a>(object: &'a Object, lease: Option<&'a Lease>) -> Vec<ObjectRoute<'a>> {
    match object {
        Object::Network(network) => {
            let both = |gateway: &IpNet| {
                let route = |prefix, to| ObjectRoute { network: &network.name, prefix, to };
                [route(IpNet::from(gateway.addr()), To::Gateway), route(gateway.trunc(), To::Subnet)]
            };
            let out = network.gateways.iter().filter(|_| network.leaves_by_host()).flat_map(|gateway| {
                let way = |prefix, to| ObjectRoute { network: &network.name, prefix, to };
                let metadata = gateway.addr().is_ipv6().then(|| way(METADATA6, To::Discard));
                metadata.into_iter().chain([way(everywhere(gateway), To::WayOut)])
            });
            let shared = network.shared_addresses().map(|addr| ObjectRoute {
                network: &network.name,
                prefix: everywhere(&IpNet::from(addr)),
                to: To::Outside(addr),
            });
            network.gateways.iter().flat_map(both).chain(out).chain(shared).collect()
        }
        Object::Guest(guest) => {
            let mac = guest.mac.or(lease.and_then(|lease| lease.mac));
            mac.map(|mac| addresses_of(guest, lease, mac)).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// The address at which a cloud tells the host about itself, and nobody who only leaves by the host. The one of IPv4 is
/// link-local, and so not routed.
const METADATA6: IpNet =
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128));

/// Returns the prefix of all addresses of a family.
fn everywhere(of: &IpNet) -> IpNet {
    match of {
        IpNet::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpNet::V6(_) => IpNet::V6(Ipv6Net::default()),
    }
}

pub(super) fn is_away(object: &Object, away: &BTreeSet<String>) -> bool {
    matches!(object, Object::Guest(guest) if away.contains(&guest.name))
}

pub(super) fn is_on_standby(owned: &Owned) -> bool {
    matches!(&owned.object, Object::Guest(guest) if guest.is_standby())
}

pub(crate) fn places_of(guest: &Guest) -> impl Iterator<Item = (&str, IpAddr)> {
    let own = guest.addresses.iter().map(|addr| (guest.network.as_str(), *addr));
    let vlans = guest.vlans.iter();
    own.chain(vlans.flat_map(|vlan| vlan.addresses.iter().map(|addr| (vlan.network.as_str(), *addr))))
}

fn addresses_of<'a>(guest: &'a Guest, lease: Option<&'a Lease>, mac: Mac) -> Vec<ObjectRoute<'a>> {
    let route = |network: &'a str, addr: &IpAddr, vif| ObjectRoute {
        network,
        prefix: IpNet::from(*addr),
        to: To::Guest { vif, mac },
    };
    let leased = lease.iter().flat_map(|lease| &lease.addresses);
    let own = guest.addresses.iter().chain(leased);
    let own = own.map(|addr| route(guest.network.as_str(), addr, guest.name.clone()));
    let vlans = guest.vlans.iter().flat_map(|vlan| {
        vlan.addresses.iter().map(move |addr| route(vlan.network.as_str(), addr, vlan_vif(guest, vlan)))
    });
    own.chain(vlans).collect()
}

/// Finds the objects from which the routes of the tables follow.
pub(crate) struct Origins<'a> {
    objects: &'a Objects,
    /// Those of routes that nobody wrote, by network and prefix.
    implied: BTreeMap<(&'a str, IpNet), &'a Owned>,
}

impl<'a> Origins<'a> {
    /// Looks at these objects while guests are `away`.
    pub(crate) fn of(objects: &'a Objects, away: &BTreeSet<String>) -> Self {
        let mut implied = BTreeMap::new();
        for owned in objects.in_order_of([Kind::Network, Kind::Guest]) {
            if is_away(&owned.object, away) {
                continue;
            }
            for route in routes_of(&owned.object, crate::leases::of(objects, &owned.object)) {
                let key = (route.network, route.prefix);
                if !(route.gives_way() && implied.contains_key(&key)) {
                    implied.insert(key, owned);
                }
            }
        }
        Self { objects, implied }
    }

    /// Returns the object from which a route of a network follows. While a guest on standby is here, that is the guest,
    /// and otherwise the route that somebody wrote.
    pub(crate) fn get(&self, network: &str, prefix: IpNet) -> Option<Listed<'a>> {
        let implied = self.implied.get(&(network, prefix)).copied();
        let written = || self.objects.routes().get(network, prefix).map(Listed::Route);
        let written = (!implied.is_some_and(is_on_standby)).then(written).flatten();
        written.or(implied.map(Listed::Other))
    }
}
