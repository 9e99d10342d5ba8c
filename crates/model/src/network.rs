//! Tenant networks and what belongs to them: bridge and route entries, floating addresses, neighbours; the host.

use crate::{Action, NexthopId, Sharing, VifId, Vrf};
use ipnet::IpNet;
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// MAC of every gateway (the first of VRRP's range, as Tungsten Fabric uses it): never learned, never flooded.
pub const GATEWAY_MAC: Mac = Mac([0x00, 0x00, 0x5e, 0x00, 0x01, 0x00]);

/// A tenant network: one VRF with its bridge and route tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The network's key.
    pub vrf: Vrf,
    /// The network's name in the configuration.
    pub name: Arc<str>,
    /// Gateway addresses with their subnets, answered by [`GATEWAY_MAC`].
    pub gateways: Vec<IpNet>,
    /// VXLAN id of frames that arrive for this network.
    pub vni: Option<u32>,
    /// VXLAN id of packets that other hosts routed to this network (RFC 9135). No bridge sees them.
    pub l3vni: Option<u32>,
    /// Whether source MACs are learned.
    pub learning: bool,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// The action for traffic that no rule matches. It also decides about non-IP frames other than ARP, and about
    /// fragments that arrive before the first one: they pass if it is `Allow`.
    pub default_action: Action,
    /// The guests of the network, in the order of their ids: the members that floods go to. The whole list is set with
    /// the network; ids that don't exist (yet) are skipped.
    pub members: Vec<VifId>,
    /// Tunnels that floods also go to.
    pub flood: Vec<NexthopId>,
    /// The wire the network is attached to, if any: a member of its bridge.
    pub wire: Option<WireAttachment>,
    /// How the bridge extends to other hosts.
    pub overlay: Overlay,
    /// How the network's TCP connections are tracked.
    pub tcp: TcpPaths,
    /// Whether packets of other networks leave by the attached wire without address translation.
    pub routed_outside: bool,
    /// The services that the host itself gives the guests of the network.
    pub services: Services,
    /// The outside addresses that the guests of the network share.
    pub sharing: Sharing,
}

/// The services that the host itself gives the guests of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// DHCP (RFC 2131) and DHCPv6 (RFC 8415).
    pub dhcp: bool,
    /// Router advertisements (RFC 4861).
    pub ra: bool,
    /// Names, by DNS (RFC 1035) at the gateways' addresses.
    pub dns: bool,
    /// Metadata, by HTTP at [`Services::METADATA`].
    pub metadata: bool,
}

impl Services {
    /// The addresses where metadata is asked for. In a network with metadata they are among the gateways', as far as it
    /// has others of the family.
    pub const METADATA: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    ];
}

/// Properties of the paths that a network's TCP connections take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpPaths {
    /// Which connections may be picked up although their SYN was not seen, because it came before a restart or on
    /// another path.
    pub midstream: Midstream,
    /// Whether the two directions may take different paths. Then sequence numbers are not enforced.
    pub asymmetric: bool,
    /// Whether path MTU discovery fails on the path, so that the MSS of SYNs is clamped to what fits the exit.
    pub mss_clamp: bool,
}

/// The TCP connections that are picked up in mid-stream, for a segment that acknowledges something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Midstream {
    /// None.
    Never,
    /// Those that the rules allow in the segment's own direction.
    #[default]
    Ruled,
    /// Also those that the rules allow in the opposite direction only. Who forges the addresses of a server that a
    /// guest may reach gets segments to the guest by this.
    Reverse,
}

/// How a network's bridge extends to other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    /// The host that bridges between the network's tunnels and the wire to which it is attached.
    pub l2_gateway: L2Gateway,
    /// The identifiers of this network on hosts to which it floods, by address and in the order of
    /// `Network::flood`: their VNIs may differ from ours.
    pub vnis: Vec<(IpAddr, u32)>,
}

impl Network {
    /// Returns a network without gateways, members, tunnels or a wire, with an MTU of 1500 bytes. It learns
    /// no MACs, and allows what no rule matches.
    #[must_use]
    pub fn new(vrf: Vrf, name: &str) -> Self {
        Self {
            vrf,
            name: name.into(),
            gateways: Vec::new(),
            vni: None,
            l3vni: None,
            learning: false,
            mtu: 1500,
            default_action: Action::Allow,
            members: Vec::new(),
            flood: Vec::new(),
            wire: None,
            overlay: Overlay::default(),
            tcp: TcpPaths::default(),
            routed_outside: false,
            services: Services::default(),
            sharing: Sharing::default(),
        }
    }

    /// Returns whether an address is a gateway's.
    #[must_use]
    pub fn is_gateway(&self, addr: IpAddr) -> bool {
        self.gateways.iter().any(|gateway| gateway.addr() == addr)
    }

    /// Returns whether an address is one where metadata is asked for. Only guests find it: on an attached wire and
    /// behind tunnels there may be servers of metadata of others.
    #[must_use]
    pub fn is_metadata(&self, addr: IpAddr) -> bool {
        self.services.metadata && Services::METADATA.contains(&addr)
    }

    /// Returns whether an address is the router anycast address of one of the subnets: the lowest one (RFC 4291,
    /// 2.6.1), except in subnets of two addresses or one (RFC 6164).
    #[must_use]
    pub fn is_router_anycast(&self, addr: IpAddr) -> bool {
        self.gateways.iter().any(|gateway| {
            matches!(gateway, IpNet::V6(v6) if v6.prefix_len() < 127 && IpAddr::V6(v6.network()) == addr)
        })
    }

    /// Returns whether frames may go between the network's tunnels and its other members.
    #[must_use]
    pub const fn bridges_tunnels(&self) -> bool {
        self.wire.is_none() || !matches!(self.overlay.l2_gateway, L2Gateway::Elsewhere)
    }

    /// Returns this network's identifier on another host. Frames came from there with the identifier
    /// `came_by`.
    #[must_use]
    pub fn vni_at(&self, remote: IpAddr, came_by: u32) -> u32 {
        let vnis = &self.overlay.vnis;
        let at = vnis.partition_point(|(addr, _)| *addr < remote);
        vnis.get(at).filter(|(addr, _)| *addr == remote).map_or(came_by, |(_, vni)| *vni)
    }

    /// Returns whether two addresses are in one subnet.
    #[must_use]
    pub fn is_one_subnet(&self, one: IpAddr, other: IpAddr) -> bool {
        self.gateways.iter().any(|subnet| subnet.contains(&one) && subnet.contains(&other))
    }

    /// Returns the gateway address of `other`'s family, preferably the one in the subnet of `other`.
    #[must_use]
    pub fn gateway_for(&self, other: IpAddr) -> Option<IpAddr> {
        let family = || self.gateways.iter().filter(|gateway| gateway.addr().is_ipv4() == other.is_ipv4());
        family().find(|gateway| gateway.contains(&other)).or_else(|| family().next()).map(IpNet::addr)
    }
}

/// The host that bridges between a network's tunnels and the wire to which it is attached. There must be only one, or
/// broadcasts would loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L2Gateway {
    /// None is named. This host bridges, except for floods from the wire.
    #[default]
    Unnamed,
    /// This host.
    Here,
    /// Another host.
    Elsewhere,
}

/// A network's attachment to a wire (a provider network).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireAttachment {
    /// The wire.
    pub vif: VifId,
    /// VLAN id, or untagged.
    pub vlan: Option<u16>,
}

/// The location of a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeEntry {
    /// A static entry's target is configured; a learned one's is where the MAC was seen last.
    pub target: BridgeTarget,
    /// Whether the entry is configured: learning never moves it, and it does not age.
    pub is_static: bool,
}

/// Target of a bridge entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BridgeTarget {
    /// A guest, or the wire to which the network is attached.
    Vif(VifId),
    /// A configured tunnel nexthop.
    Nexthop(NexthopId),
    /// Learned from a VXLAN tunnel.
    Vtep {
        /// The remote's address.
        remote: IpAddr,
        /// The network identifier of frames from there.
        vni: u32,
    },
}

/// A route's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// The nexthop to which packets go.
    pub nexthop: NexthopId,
    /// Length of the prefix that matched, bits.
    pub prefix_len: u8,
}

/// One-to-one NAT between an inside address and a floating one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatingAddress {
    /// Network of the inside address.
    pub inside_vrf: Vrf,
    /// The guest's address.
    pub inside: IpAddr,
    /// Network in which the floating address is reachable.
    pub outside_vrf: Vrf,
    /// The floating address.
    pub outside: IpAddr,
}

/// The place of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NeighbourScope {
    /// Underlay, on a wire.
    Wire(VifId),
    /// A tenant network.
    Network(Vrf),
}

/// Settings of the host as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// The host's name.
    pub name: Arc<str>,
    /// Outer source addresses of tunnels, at most one per family.
    pub tunnel_source: Vec<IpAddr>,
    /// Addresses from which tunnel packets are accepted, besides the remotes that nexthops name.
    pub tunnel_peers: Vec<IpNet>,
    /// This host's router MAC (RFC 9135, 8.1): other hosts route packets to it through VXLAN, as to [`GATEWAY_MAC`].
    pub router_mac: Option<Mac>,
    /// The host watches tunnels' remotes by BFD (RFC 5883).
    pub tunnel_bfd: bool,
    /// Tunnel packets over IPv6 may have no UDP checksum (RFC 6935, 5).
    pub udp6_zero_checksum: bool,
    /// Tunnel packets over IPv4 may be fragmented: they leave without Don't Fragment, those of MPLS in fragments if they
    /// are too big for the path, and fragments from remotes are reassembled.
    pub tunnel_fragments: bool,
}
