//! Nexthops.

use crate::{NexthopId, VifId, Vrf};
use packet::{Mac, TunnelKind};
use std::net::IpAddr;

/// What is done with a packet that a table sent here. Names follow Tungsten Fabric's vRouter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nexthop {
    /// Dropped as `discard_route`.
    Discard,
    /// Local to Viaduct: a gateway address.
    Receive,
    /// To a guest, with a new Ethernet header where the packet was routed.
    Encap {
        /// The guest.
        vif: VifId,
        /// Its MAC.
        mac: Mac,
    },
    /// Through a tunnel.
    Tunnel(Tunnel),
    /// To another network, where the look-up starts again.
    VrfTranslate {
        /// That network.
        vrf: Vrf,
    },
    /// A subnet or router reached by ARP or ND in the tenant network itself, then by its bridge table.
    Resolve {
        /// The router; `None`: the destination itself is on the link.
        via: Option<IpAddr>,
    },
    /// One of several, by the flow's entropy hash (rendezvous hashing: members that stay keep their flows).
    Ecmp(Vec<NexthopId>),
}

/// Encapsulation to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tunnel {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// Outer destination.
    pub remote: IpAddr,
    /// MPLS label (20 bits) or VXLAN network identifier (24 bits).
    pub id: u32,
    /// Inner destination MAC of packets routed into VXLAN; `None`: [`crate::GATEWAY_MAC`].
    pub mac: Option<Mac>,
}
