//! Index by name of the objects to which others refer.

use crate::object::mode::{Mode, OVS_MTU};
use crate::{
    Bgp, Forward, Guest, Host, Key, Labels, Lease, Nat, Network, Nexthop, Object, RouteName, Wire, router_id,
};
use packet::{TunnelKind, proto};
use std::collections::HashMap;
use std::net::IpAddr;

/// The window that all guests of a trust have in common, if one of them is a virtual machine with a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommonWindow {
    /// Size in megabytes: that of the largest window of these guests.
    pub mb: u32,
    /// The owner of these windows, in the form of a guest socket's owner.
    pub owner: Option<String>,
    /// Their mode, octal.
    pub mode: Option<String>,
}

/// The common windows of a host, by trust.
#[derive(Clone, Debug, Default)]
pub struct CommonWindows(HashMap<String, CommonWindow>);

impl CommonWindows {
    /// Returns the common windows of these guests.
    #[must_use]
    pub fn of<'a>(guests: impl Iterator<Item = &'a Guest>) -> Self {
        guests.fold(Self::default(), |mut all, guest| {
            all.add(guest);
            all
        })
    }

    fn add(&mut self, guest: &Guest) {
        let (Some(trust), Some(vhost)) = (&guest.rdma_trust, guest.vhost()) else { return };
        let Some(mb) = vhost.window.map(|window| window.mb) else { return };
        let (owner, mode) = (vhost.owner.clone(), vhost.socket_mode.clone());
        let common = self.0.entry(trust.clone()).or_insert(CommonWindow { mb, owner, mode });
        common.mb = common.mb.max(mb);
    }

    /// Returns the window that the guests of a trust have in common, if they have one.
    #[must_use]
    pub fn get(&self, trust: &str) -> Option<&CommonWindow> {
        self.0.get(trust)
    }
}

/// The names by which BGP tells a network from others.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteNames {
    /// The default route target, if it is used.
    pub target: Option<RouteName>,
    /// The default one of routes with an `l3vni`, if it is used.
    pub l3_target: Option<RouteName>,
    /// The route distinguisher.
    pub distinguisher: RouteName,
}

/// The wires, networks, guests, floating addresses, forwarded ports and nexthops of a host. It has no routes, of which
/// there may be a million.
#[derive(Clone, Debug, Default)]
pub struct Index {
    tunnel_sources: Vec<IpAddr>,
    /// `[bgp]`, if the host speaks it.
    bgp: Option<Bgp>,
    wires: Vec<Wire>,
    networks: HashMap<String, Network>,
    guests: HashMap<String, Guest>,
    nexthops: HashMap<String, Nexthop>,
    forwards: Vec<Forward>,
    nats: Vec<Nat>,
    /// The leases, by guest.
    leases: HashMap<String, Lease>,
    /// The common windows, by trust.
    commons: CommonWindows,
    /// The owners of the addresses of guests and gateways, by network.
    own: HashMap<String, HashMap<IpAddr, Key>>,
}

impl Index {
    /// Indexes the objects of a host.
    pub fn new<'a>(host: &Host, objects: impl Iterator<Item = &'a Object>) -> Self {
        let mut index = Self { bgp: host.bgp.clone(), ..Self::default() };
        for object in objects {
            match object {
                Object::Wire(wire) => index.wires.push((**wire).clone()),
                Object::Network(network) => {
                    let gateways = network.gateways.iter().map(|net| net.addr());
                    index.own(&network.name, gateways, object);
                    index.networks.insert(network.name.clone(), (**network).clone());
                }
                Object::Guest(guest) => {
                    index.own(&guest.network, guest.addresses.iter().copied(), object);
                    for vlan in &guest.vlans {
                        index.own(&vlan.network, vlan.addresses.iter().copied(), object);
                    }
                    index.commons.add(guest);
                    index.guests.insert(guest.name.clone(), Guest::clone(guest));
                }
                Object::Forward(forward) => index.forwards.push(forward.clone()),
                Object::Nat(nat) => index.nats.push(nat.clone()),
                Object::Lease(lease) => index.add_lease(lease),
                Object::Nexthop(nexthop) => {
                    drop(index.nexthops.insert(nexthop.name.clone(), nexthop.clone()))
                }
                _ => {}
            }
        }
        index.tunnel_sources = host.tunnel_sources(index.wires.iter());
        index
    }

    /// Gives a guest the addresses that it leased.
    fn add_lease(&mut self, lease: &Lease) {
        let Some(guest) = self.guests.get_mut(&lease.guest) else { return };
        if guest.addresses.is_empty() && guest.network == lease.network {
            guest.addresses.clone_from(&lease.addresses);
            guest.mac = guest.mac.or(lease.mac);
            let key = Object::from(guest.clone()).key();
            let own = self.own.entry(lease.network.clone()).or_default();
            own.extend(lease.addresses.iter().map(|addr| (*addr, key.clone())));
            self.leases.insert(lease.guest.clone(), lease.clone());
        }
    }

    fn own(&mut self, network: &str, addresses: impl Iterator<Item = IpAddr>, of: &Object) {
        let own = self.own.entry(network.to_owned()).or_default();
        own.extend(addresses.map(|addr| (addr, of.key())));
    }

    /// Returns the source addresses of tunnels: at most one per family.
    #[must_use]
    pub fn tunnel_sources(&self) -> &[IpAddr] {
        &self.tunnel_sources
    }

    /// Returns the labels that belong to networks, if the host speaks BGP.
    #[must_use]
    pub fn labels(&self) -> Option<Labels> {
        self.bgp.as_ref().map(|bgp| bgp.labels)
    }

    /// Returns the route target that a network imports or exports if it names none there, and its distinguisher, if the
    /// host speaks BGP.
    pub(super) fn route_names(&self, network: &Network) -> Option<RouteNames> {
        let bgp = self.bgp.as_ref().filter(|_| network.bgp)?;
        let is_default = network.import.is_empty() || network.export.is_empty();
        let distinguisher = network
            .rd
            .or_else(|| Some(RouteName::Address(router_id(bgp, &self.tunnel_sources)?, network.vrf)))?;
        let is_default_l3 = network.l3_import.is_empty() || network.l3_export.is_empty();
        Some(RouteNames {
            target: is_default.then(|| bgp.default_target(network)),
            l3_target: bgp.default_l3_target(network).filter(|_| is_default_l3),
            distinguisher,
        })
    }

    /// Returns whether a network lacks route targets for its `l3vni`: AS and `l3vni` do not fit into one.
    pub(super) fn lacks_l3_targets(&self, network: &Network) -> bool {
        let lacks = |bgp: &Bgp| {
            network.l3vni.is_some()
                && (bgp.l3_import(network).is_empty() || bgp.l3_export(network).is_empty())
        };
        self.bgp.as_ref().filter(|_| network.bgp).is_some_and(lacks)
    }

    /// Returns the label by which other hosts reach a network, if it is announced to them.
    #[must_use]
    pub fn network_label(&self, network: &Network) -> Option<u32> {
        self.labels().filter(|_| network.bgp).and_then(|labels| labels.of(network.vrf))
    }

    /// Returns the wires, in their order.
    #[must_use]
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// Returns the wires that are no tunnels.
    pub fn underlay(&self) -> impl Iterator<Item = &Wire> {
        self.wires.iter().filter(|wire| wire.tunnel().is_none())
    }

    /// Returns the wire of that name.
    #[must_use]
    pub fn wire(&self, name: &str) -> Option<&Wire> {
        self.wires.iter().find(|wire| wire.name == name)
    }

    /// Returns the networks by name.
    #[must_use]
    pub const fn networks(&self) -> &HashMap<String, Network> {
        &self.networks
    }

    /// Returns the largest IP packet of a network, bytes: the network's own MTU, else the MTU of its wire,
    /// else what the smallest wire takes with a tunnel's headers around it.
    #[must_use]
    pub fn network_mtu(&self, name: &str) -> u16 {
        let of = |network: &Network| {
            network.mtu.or_else(|| self.wire(network.wire.as_deref()?).map(|wire| wire.mtu))
        };
        self.networks.get(name).and_then(of).unwrap_or_else(|| self.tunnelled_mtu())
    }

    fn tunnelled_mtu(&self) -> u16 {
        let underlay = self.underlay().map(|wire| wire.mtu).min().unwrap_or(1500);
        let v6 = self.tunnel_sources.iter().any(IpAddr::is_ipv6);
        // VXLAN's headers are the longest.
        let overhead = TunnelKind::Vxlan.overhead(v6) + proto::ETHERNET_LEN;
        underlay.saturating_sub(if self.tunnel_sources.is_empty() { 0 } else { overhead as u16 })
    }

    /// Returns the largest IP packet of a guest, bytes.
    #[must_use]
    pub fn guest_mtu(&self, guest: &Guest) -> u16 {
        guest.mtu.unwrap_or_else(|| match guest.mode {
            Mode::Vrouter => self.network_mtu(&guest.network),
            Mode::Ovs => OVS_MTU,
        })
    }

    /// Returns the guests by name, with the addresses and the MAC that they leased.
    #[must_use]
    pub const fn guests(&self) -> &HashMap<String, Guest> {
        &self.guests
    }

    /// Returns what a guest leased.
    #[must_use]
    pub fn lease(&self, guest: &str) -> Option<&Lease> {
        self.leases.get(guest)
    }

    /// Returns the windows that guests of a trust have in common.
    #[must_use]
    pub const fn common_windows(&self) -> &CommonWindows {
        &self.commons
    }

    /// Returns the ports of the host that lead to guests of a network, in their order.
    pub fn forwards<'a>(&'a self, network: &'a str) -> impl Iterator<Item = &'a Forward> {
        self.forwards.iter().filter(move |forward| forward.network == network)
    }

    /// Returns the address to which a forwarded port leads: the first of its guest's that has the family.
    #[must_use]
    pub fn forwarded_to(&self, forward: &Forward) -> Option<IpAddr> {
        let guest = self.guests.get(&forward.to.guest)?;
        guest.addresses.iter().copied().find(|addr| addr.is_ipv4() == forward.outside.is_ipv4())
    }

    /// Returns the network in which an address is that guests of others share: the one that is attached to a wire, and has
    /// the address in the subnet of a gateway.
    ///
    /// # Errors
    /// The names of the networks, if there is not exactly one.
    pub fn outside_of(&self, addr: IpAddr) -> Result<&Network, Vec<&str>> {
        let has = |network: &&Network| {
            network.wire.is_some() && network.gateways.iter().any(|net| net.contains(&addr))
        };
        let mut found: Vec<_> = self.networks.values().filter(has).collect();
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        match found[..] {
            [one] => Ok(one),
            _ => Err(found.into_iter().map(|network| network.name.as_str()).collect()),
        }
    }

    /// Returns the floating addresses, in their order.
    #[must_use]
    pub fn nats(&self) -> &[Nat] {
        &self.nats
    }

    /// Returns the nexthops by name.
    #[must_use]
    pub const fn nexthops(&self) -> &HashMap<String, Nexthop> {
        &self.nexthops
    }

    /// Returns the guest or network to which an address belongs.
    #[must_use]
    pub fn owner(&self, network: &str, addr: IpAddr) -> Option<&Key> {
        self.own.get(network)?.get(&addr)
    }
}
