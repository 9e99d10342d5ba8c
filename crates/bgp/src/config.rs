//! Configuration: the speaker itself, its peers, the networks of the host.

use crate::names::{Encapsulation, Family, RouteTarget};
use crate::route::VrfId;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};

/// The speaker itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The autonomous system.
    pub asn: u32,
    /// The BGP identifier: not 0.
    pub router_id: Ipv4Addr,
    /// The addresses at which the host's tunnels end. Routes that lead there are its own, and are ignored.
    pub own: Vec<IpAddr>,
    /// Seconds without a message after which a peer is taken for dead (RFC 4271, 4.2): 0, or at least 3.
    pub hold_time: u16,
    /// Whether the host forwards by the routes of an earlier speaker, as after a replacement of the daemon.
    pub restarted: bool,
    /// Encapsulations that the host can send, the preferred one first.
    pub encapsulations: Vec<Encapsulation>,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// The peer's address, which identifies it.
    pub address: IpAddr,
    /// The port to which connections are opened.
    pub port: u16,
    /// The peer's autonomous system.
    pub asn: u32,
    /// The families to speak.
    pub families: Vec<Family>,
    /// The encapsulation that is announced for routes with an MPLS label, and taken for granted if the peer names none.
    pub encapsulation: Encapsulation,
    /// Whether the peer opens the connection, never the speaker.
    pub passive: bool,
    /// A number that changes with the password, and with all else that a socket is told once. When it changes, the
    /// session begins anew.
    pub password: u64,
    /// Seconds for which the peer is asked to keep the host's routes when the session ends (RFC 4724), at most 4095.
    /// The routes of a peer that asks for no time are kept for as long. 0: nothing is asked, nothing kept.
    pub restart_time: u16,
    /// Most routes to keep of it. One more ends the session (RFC 4486).
    pub max_routes: usize,
}

/// A range of addresses from which peers may call without a configuration of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeConfig {
    /// The addresses, which identify the range.
    pub range: IpNet,
    /// Most peers of the range at a time.
    pub max_peers: usize,
    /// The configuration of each, but for its address. The speaker calls none of them.
    pub peer: PeerConfig,
}

impl RangeConfig {
    /// Returns the configuration of the peer with this address.
    pub(crate) fn peer(&self, address: IpAddr) -> PeerConfig {
        PeerConfig { address, passive: true, ..self.peer.clone() }
    }
}

/// The imports of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The network.
    pub vrf: VrfId,
    /// Targets of its routes: VPNv4, VPNv6, EVPN type 5, host routes of type 2.
    pub routes: Vec<RouteTarget>,
    /// Targets of its MAC addresses and floods: EVPN types 2 and 3.
    pub macs: Vec<RouteTarget>,
    /// The link by which it takes plain routes, if it takes any.
    pub link: Option<Link>,
}

/// The link of a network with routers, whose plain routes it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The host's own addresses on the link, with their subnets. Routers and next hops must be in these subnets.
    pub addresses: Vec<IpNet>,
    /// Whether it takes all routes, not only default routes.
    pub all: bool,
}

impl Link {
    /// Returns whether an address is the host's own.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.addr() == address)
    }

    /// Returns whether an address can be a router's on the link.
    pub(crate) fn reaches(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.contains(&address)) && !self.is_own(address)
    }
}
