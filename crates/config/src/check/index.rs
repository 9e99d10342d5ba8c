//! What objects refer to, by name.

use crate::{Guest, Host, Key, Network, Nexthop, Object, Wire};
use std::collections::HashMap;
use std::net::IpAddr;

/// The wires, networks, guests and nexthops of a host: what other objects refer to. Routes, of which there may be a
/// million, are not in it.
#[derive(Clone, Debug, Default)]
pub struct Index {
    tunnel_sources: Vec<IpAddr>,
    wires: Vec<Wire>,
    networks: HashMap<String, Network>,
    guests: HashMap<String, Guest>,
    nexthops: HashMap<String, Nexthop>,
    /// Whose the addresses of guests and gateways are, by network.
    own: HashMap<String, HashMap<IpAddr, Key>>,
}

impl Index {
    /// Indexes the objects of a host.
    pub fn new<'a>(host: &Host, objects: impl Iterator<Item = &'a Object>) -> Self {
        let mut index = Self::default();
        for object in objects {
            match object {
                Object::Wire(wire) => index.wires.push(wire.clone()),
                Object::Network(network) => {
                    let gateways = network.gateways.iter().map(|net| net.addr());
                    index.own(&network.name, gateways, object);
                    index.networks.insert(network.name.clone(), network.clone());
                }
                Object::Guest(guest) => {
                    index.own(&guest.network, guest.addresses.iter().copied(), object);
                    index.guests.insert(guest.name.clone(), guest.clone());
                }
                Object::Nexthop(nexthop) => {
                    drop(index.nexthops.insert(nexthop.name.clone(), nexthop.clone()))
                }
                _ => {}
            }
        }
        index.tunnel_sources = host.tunnel_sources(index.wires.iter());
        index
    }

    fn own(&mut self, network: &str, addresses: impl Iterator<Item = IpAddr>, of: &Object) {
        let own = self.own.entry(network.to_owned()).or_default();
        own.extend(addresses.map(|addr| (addr, of.key())));
    }

    /// Where tunnels start: at most one address per family.
    #[must_use]
    pub fn tunnel_sources(&self) -> &[IpAddr] {
        &self.tunnel_sources
    }

    /// The wires, in their order.
    #[must_use]
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// The wire of that name.
    #[must_use]
    pub fn wire(&self, name: &str) -> Option<&Wire> {
        self.wires.iter().find(|wire| wire.name == name)
    }

    /// The networks by name.
    #[must_use]
    pub const fn networks(&self) -> &HashMap<String, Network> {
        &self.networks
    }

    /// The guests by name.
    #[must_use]
    pub const fn guests(&self) -> &HashMap<String, Guest> {
        &self.guests
    }

    /// The nexthops by name.
    #[must_use]
    pub const fn nexthops(&self) -> &HashMap<String, Nexthop> {
        &self.nexthops
    }

    /// The guest or network whose address it is.
    #[must_use]
    pub fn owner(&self, network: &str, addr: IpAddr) -> Option<&Key> {
        self.own.get(network)?.get(&addr)
    }
}
