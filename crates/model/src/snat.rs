//! Outside addresses that many guests share: source NAT by ports (RFC 3022, 2.2), and forwarded ports.
//!
//! A guest's connection has a [`Binding`]: the shared address and the port that stand for the guest's own outside.
//! Nothing else is remembered. A packet from outside finds the connection by the binding
//! ([`Connection::outside_key`]), and a new connection gets a port with which no other is found.
//!
//! In a network whose [`Mapping`] is endpoint-independent, a guest's end also keeps one port for all destinations
//! ([`Connection::mapping`]), for as long as a connection with it is remembered: nobody else gets that port meanwhile.
//!
//! The ports of the addresses are divided into blocks of equal size. An inside address has one block of one of them
//! ([`PortBlock`]): who has a port is known without a log, and nobody takes the ports of others.

use crate::{Connection, Endpoint, FlowKey, Vrf};
use packet::PortBlock;
pub use packet::address_tag as tag;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An outside address behind which the guests of a network are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedAddress {
    /// Network in which the address is reachable.
    pub outside_vrf: Vrf,
    /// The address.
    pub outside: IpAddr,
}

/// A port of a shared address that leads to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardedPort {
    /// The shared address.
    pub outside: IpAddr,
    /// IP protocol: TCP or UDP.
    pub protocol: u8,
    /// The port there.
    pub port: u16,
    /// The guest's address, of the same family.
    pub inside: IpAddr,
    /// The guest's port.
    pub inside_port: u16,
}

/// For which destinations a guest's end has the same port outside (RFC 4787, 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    /// For one address and port. For others it may be a different one.
    #[default]
    AddressAndPortDependent,
    /// For all.
    EndpointIndependent,
}

/// A port of a shared address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutsidePort {
    /// The [`tag`] of the address.
    pub tag: u16,
    /// The port, or for ICMP the identifier; never 0.
    pub port: u16,
}

/// How the guests of a network share outside addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// The addresses, in their order. No two have the same [`tag`].
    pub addresses: Vec<SharedAddress>,
    /// Ports of an inside address, for each protocol by itself.
    pub ports: u16,
    /// The ports that lead to guests, in their order.
    pub forwards: Vec<ForwardedPort>,
    /// For which destinations a guest's end has the same port.
    pub mapping: Mapping,
}

impl Sharing {
    /// The ports of an inside address, unless configured otherwise.
    pub const PORTS: u16 = 512;
    /// Most ports that are tried for a new connection.
    pub const TRIES: u16 = 64;

    /// Returns whether an address of this network is behind shared ones in another network.
    #[must_use]
    pub fn hides(&self, inside: IpAddr, outside_vrf: Vrf) -> bool {
        self.addresses_for(inside, outside_vrf).next().is_some()
    }

    /// Returns the address with this tag.
    #[must_use]
    pub fn tagged(&self, inside: IpAddr, outside_vrf: Vrf, tagged: u16) -> Option<IpAddr> {
        self.addresses_for(inside, outside_vrf).find(|addr| tag(*addr) == tagged)
    }

    /// Returns the guest's end to which a port leads.
    #[must_use]
    pub fn forwarded(&self, outside: IpAddr, protocol: u8, port: u16) -> Option<(IpAddr, u16)> {
        let key = |f: &ForwardedPort| (f.outside, f.protocol, f.port);
        let at = self.forwards.binary_search_by_key(&(outside, protocol, port), key).ok()?;
        self.forwards.get(at).map(|found| (found.inside, found.inside_port))
    }

    /// Returns the first port that leads to a guest's end.
    #[must_use]
    pub fn forwarded_to(&self, inside: IpAddr, protocol: u8, port: u16) -> Option<(IpAddr, u16)> {
        let is_its = |f: &&ForwardedPort| (f.inside, f.protocol, f.inside_port) == (inside, protocol, port);
        self.forwards.iter().find(is_its).map(|found| (found.outside, found.port))
    }

    /// Returns the addresses of the family of an inside one that are in a network.
    fn addresses_for(&self, inside: IpAddr, outside_vrf: Vrf) -> impl Iterator<Item = IpAddr> {
        let is_for = move |shared: &&SharedAddress| {
            shared.outside_vrf == outside_vrf && shared.outside.is_ipv4() == inside.is_ipv4()
        };
        self.addresses.iter().filter(is_for).map(|shared| shared.outside)
    }
}

/// The ports that stand for those of an inside address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The shared address.
    pub outside: IpAddr,
    /// The ports there.
    pub ports: PortBlock,
}

impl Block {
    /// Returns the block of an inside address in an outside network. `None` if no address of the family is shared there.
    #[must_use]
    pub fn of(sharing: &Sharing, inside: IpAddr, outside_vrf: Vrf) -> Option<Self> {
        let addresses = || sharing.addresses_for(inside, outside_vrf);
        let ports = PortBlock::of(inside, addresses().count(), sharing.ports)?;
        Some(Self { outside: addresses().nth(ports.address)?, ports })
    }

    /// Returns whether a port of a shared address is of the block.
    #[must_use]
    pub fn has(self, (outside, port): (IpAddr, u16)) -> bool {
        let PortBlock { first, ports, .. } = self.ports;
        outside == self.outside && port.checked_sub(first).is_some_and(|at| at < ports)
    }

    /// Returns the ports to try for a guest's port, in this order: the same one first for whatever destination, as far as
    /// it is free (RFC 4787, 4.1).
    pub fn candidates(self, inside_port: u16) -> impl Iterator<Item = u16> {
        let PortBlock { first, ports, .. } = self.ports;
        let port = move |n: u16| (u32::from(inside_port) + u32::from(n)) % u32::from(ports);
        (0..ports.min(Sharing::TRIES)).map(move |n| first + port(n) as u16)
    }
}

/// The end of a connection by which its guest is known outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The [`tag`] of the shared address.
    pub tag: u16,
    /// The port, or for ICMP the identifier; never 0.
    pub port: u16,
    /// Whether the guest is the destination of the original direction.
    pub of_destination: bool,
    /// True if the guest's end has this port for all destinations ([`Mapping::EndpointIndependent`]).
    pub for_all: bool,
}

impl Binding {
    /// Returns the guest's end and the other one of a connection with this binding and these ends.
    #[must_use]
    pub const fn ends(self, original: &FlowKey) -> (Endpoint, Endpoint) {
        let FlowKey { src, dst, .. } = *original;
        if self.of_destination { (dst, src) } else { (src, dst) }
    }

    /// Returns the guest's end and its port for all destinations, if it has one, for a connection with these ends.
    #[must_use]
    pub fn mapping(self, original: &FlowKey) -> Option<(Endpoint, OutsidePort)> {
        let Self { tag, port, .. } = self;
        self.for_all.then(|| (self.ends(original).0, OutsidePort { tag, port }))
    }

    /// Returns the key by which packets from outside find a connection of a network behind this binding. It has the
    /// tag in place of the shared address.
    #[must_use]
    pub fn key(self, vrf: Vrf, remote: Endpoint, protocol: u8) -> FlowKey {
        let addr = match remote.addr {
            IpAddr::V4(_) => Ipv4Addr::from_bits(self.tag.into()).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(self.tag.into()).into(),
        };
        FlowKey { src: Endpoint { vrf, addr, port: self.port }, dst: remote, protocol }
    }
}

impl Connection {
    /// Returns the guest's end and the other one, for a connection with a binding.
    #[must_use]
    pub fn bound_ends(&self) -> Option<(Endpoint, Endpoint)> {
        self.binding.map(|binding| binding.ends(&self.original))
    }

    /// Returns the guest's end and its port for all destinations, if it has one.
    #[must_use]
    pub fn mapping(&self) -> Option<(Endpoint, OutsidePort)> {
        self.binding.and_then(|binding| binding.mapping(&self.original))
    }

    /// Returns the key by which packets from outside find the connection, if it has a binding.
    #[must_use]
    pub fn outside_key(&self) -> Option<FlowKey> {
        let ((guest, remote), binding) = (self.bound_ends()?, self.binding?);
        Some(binding.key(guest.vrf, remote, self.original.protocol))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_block_is_of_an_address_of_the_family_and_network() {
        let shared = |text: &str| SharedAddress { outside_vrf: Vrf(9), outside: text.parse().unwrap() };
        let addresses = ["203.0.113.5", "203.0.113.6", "2001:db8::5"].map(shared).to_vec();
        let sharing = Sharing { addresses, ports: 512, ..Sharing::default() };
        let of = |text: &str, vrf| {
            Block::of(&sharing, text.parse().unwrap(), Vrf(vrf)).map(|block| block.outside.to_string())
        };
        assert_eq!(of("10.1.1.1", 9).as_deref(), Some("203.0.113.6"));
        assert_eq!(of("10.1.1.2", 9).as_deref(), Some("203.0.113.5"));
        assert_eq!(of("fd00::1", 9).as_deref(), Some("2001:db8::5"));
        assert_eq!(of("10.1.1.1", 8), None);
    }

    #[test]
    fn a_port_is_tried_first_for_all_destinations_and_all_others_of_the_block_once() {
        let ports = PortBlock { address: 0, first: 2048, ports: 64 };
        let block = Block { outside: Ipv4Addr::LOCALHOST.into(), ports };
        let tried: Vec<_> = block.candidates(40_001).collect();
        assert_eq!((tried[0], block.candidates(40_002).next()), (2048 + 40_001 % 64, Some(tried[1])));
        let all: BTreeSet<_> = tried.iter().copied().collect();
        assert!(all.len() == 64 && all.iter().all(|port| (2048..2112).contains(port)));
    }
}
