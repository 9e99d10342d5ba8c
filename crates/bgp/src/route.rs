//! Routes: what the host announces, and what it has learned.

use crate::names::{Encapsulation, Family, Rd, RouteTarget};
use ipnet::IpNet;
use packet::Mac;
use std::net::IpAddr;

/// The number of a network (VRF) of the host.
pub type VrfId = u32;

/// Most paths of one prefix, each counted as often as its weight.
pub const MAX_PATHS: usize = 64;

/// Most hosts to which floods of one network go.
pub const MAX_FLOOD: usize = 1024;

/// The name of a route of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nlri {
    /// A prefix with an MPLS label: VPNv4 or VPNv6.
    Vpn {
        /// The network's distinguisher.
        rd: Rd,
        /// The prefix. Bits beyond its length are 0.
        prefix: IpNet,
    },
    /// A prefix by EVPN type 5 (RFC 9136), without a gateway.
    Prefix {
        /// The network's distinguisher.
        rd: Rd,
        /// The prefix. Bits beyond its length are 0.
        prefix: IpNet,
    },
    /// A MAC address, alone or with an address of its owner: EVPN type 2.
    Mac {
        /// The network's distinguisher.
        rd: Rd,
        /// The MAC address.
        mac: Mac,
        /// An IP address of its owner.
        address: Option<IpAddr>,
    },
    /// Membership in the floods of a network, by ingress replication: EVPN type 3.
    Flood {
        /// The network's distinguisher.
        rd: Rd,
        /// The host: the address at which its tunnels end.
        originator: IpAddr,
    },
    /// A prefix without a network: plain IPv4 or IPv6.
    Unicast {
        /// The prefix. Bits beyond its length are 0.
        prefix: IpNet,
    },
}

impl Nlri {
    /// Returns the family by which it goes.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self {
            Self::Vpn { prefix: IpNet::V4(_), .. } => Family::Vpnv4,
            Self::Vpn { prefix: IpNet::V6(_), .. } => Family::Vpnv6,
            Self::Unicast { prefix: IpNet::V4(_) } => Family::Ipv4Unicast,
            Self::Unicast { prefix: IpNet::V6(_) } => Family::Ipv6Unicast,
            Self::Prefix { .. } | Self::Mac { .. } | Self::Flood { .. } => Family::Evpn,
        }
    }

    /// Returns the distinguisher of its network; `None` for a plain route.
    #[must_use]
    pub const fn rd(&self) -> Option<Rd> {
        match self {
            Self::Vpn { rd, .. }
            | Self::Prefix { rd, .. }
            | Self::Mac { rd, .. }
            | Self::Flood { rd, .. } => Some(*rd),
            Self::Unicast { .. } => None,
        }
    }
}

/// The label of a route, and by that its kind of encapsulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// An MPLS label, of 20 bits.
    Mpls(u32),
    /// A VXLAN network identifier, of 24 bits.
    Vni(u32),
    /// No label: packets come without a tunnel.
    None,
}

/// The place of a MAC address in the order of its moves (RFC 7432, 7.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mobility {
    /// Whether the address does not move.
    pub sticky: bool,
    /// How often it has moved. Of two, the higher counts.
    pub sequence: u32,
}

/// The announcement of an [`Nlri`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Announcement {
    /// The address at which the host's tunnels end, or to which packets go without one.
    pub next_hop: IpAddr,
    /// The label by which the host knows the network.
    pub label: Label,
    /// For a MAC with an address: the VNI or label of the network's routes (RFC 9135), of the same kind as `label`.
    pub routed: Option<u32>,
    /// The targets that it is exported to.
    pub targets: Vec<RouteTarget>,
    /// The MAC address to send routed packets to: type 5, and type 2 with `routed`, over VXLAN.
    pub router_mac: Option<Mac>,
    /// For a MAC address that has moved, or does not move.
    pub mobility: Option<Mobility>,
    /// LOCAL_PREF, to peers of the same AS. The usual value is 100; the highest is used. [`LEAVING`] is also told to peers
    /// of other ASes, by a community.
    pub preference: u32,
}

/// The preference of routes that are about to end (RFC 8326, 4.2): whoever has another path takes that.
pub const LEAVING: u32 = 0;

/// A tunnel to a remote host, with the label that it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tunnel {
    /// The address of the remote end.
    pub remote: IpAddr,
    /// How packets are carried.
    pub encapsulation: Encapsulation,
    /// The MPLS label, or the VNI.
    pub label: u32,
}

/// One of the paths of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// To another host.
    Tunnel {
        /// The tunnel.
        tunnel: Tunnel,
        /// The destination MAC of packets in VXLAN.
        router_mac: Option<Mac>,
    },
    /// To a router on the network's own link.
    Via(IpAddr),
}

impl Path {
    /// Returns the tunnel, if the path is one.
    #[must_use]
    pub const fn tunnel(&self) -> Option<&Tunnel> {
        if let Self::Tunnel { tunnel, .. } = self { Some(tunnel) } else { None }
    }
}

/// The location of a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacPath {
    /// The tunnel.
    pub tunnel: Tunnel,
    /// The moves of the address.
    pub mobility: Mobility,
}

/// A learned MAC address of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownMac {
    /// The address.
    pub mac: Mac,
    /// The IP addresses that are announced with it, in order.
    pub addresses: Vec<IpAddr>,
    /// The location that is used.
    pub path: MacPath,
}

/// A change of what was learned for a network. It says all that holds now: the one before is void.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The paths of a prefix, sorted: several share the traffic, each as often as its weight. None: the route is gone.
    Route {
        /// The network.
        vrf: VrfId,
        /// The prefix.
        prefix: IpNet,
        /// At most [`MAX_PATHS`].
        paths: Vec<Path>,
    },
    /// The location of a MAC address, if it has one.
    Mac {
        /// The network.
        vrf: VrfId,
        /// The address.
        mac: Mac,
        /// The location.
        path: Option<MacPath>,
    },
    /// Which MAC address has an IP address, if any (for ARP and ND on behalf of its owner).
    Neighbour {
        /// The network.
        vrf: VrfId,
        /// The IP address.
        address: IpAddr,
        /// The MAC address of its owner.
        mac: Option<Mac>,
    },
    /// The remote hosts to which floods of a network go, sorted: one tunnel to each, at most [`MAX_FLOOD`].
    Flood {
        /// The network.
        vrf: VrfId,
        /// The tunnels.
        tunnels: Vec<Tunnel>,
    },
}
