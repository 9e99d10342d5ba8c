//! Nexthops.

use crate::{GATEWAY_MAC, NexthopId, VifId, Vrf};
use arrayvec::ArrayVec;
use packet::{Mac, TunnelKind};
use std::net::IpAddr;

/// The treatment of a packet that a table sends here. Names follow Tungsten Fabric's vRouter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nexthop {
    /// Dropped as `discard_route`.
    Discard,
    /// Local to Viaduct: a gateway address.
    Receive,
    /// To a guest, with a new Ethernet header if the packet was routed.
    Encap {
        /// The guest.
        vif: VifId,
        /// The guest's MAC.
        mac: Mac,
    },
    /// Through a tunnel.
    Tunnel(Tunnel),
    /// To another network, where the look-up starts again.
    VrfTranslate {
        /// The other network.
        vrf: Vrf,
    },
    /// A subnet or router, resolved by ARP or ND in the tenant network itself and then by its bridge table.
    Resolve {
        /// The router; `None` if the destination itself is on the link.
        via: Option<IpAddr>,
    },
    /// One of several, by the flow's entropy hash (rendezvous hashing: members that stay keep their flows). A member
    /// that has several places gets as many shares of the flows.
    Ecmp(Vec<NexthopId>),
}

/// Encapsulation to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tunnel {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// Outer destination.
    pub remote: IpAddr,
    /// MPLS label (20 bits) or network identifier of VXLAN or Geneve (24 bits).
    pub id: u32,
    /// Inner destination MAC of packets routed into VXLAN; `None`: [`crate::GATEWAY_MAC`].
    pub mac: Option<Mac>,
}

impl Tunnel {
    /// Returns how much of the underlay's MTU the tunnel takes, bytes, without an inner Ethernet header.
    #[must_use]
    pub const fn overhead(&self) -> usize {
        self.kind.overhead(self.remote.is_ipv6())
    }

    /// Returns the inner destination MAC of routed packets; `None` if they have no inner Ethernet header.
    #[must_use]
    pub fn inner_mac(&self) -> Option<Mac> {
        self.kind.has_ethernet().then(|| self.mac.unwrap_or(GATEWAY_MAC))
    }
}

impl Nexthop {
    /// Returns the remote, if the nexthop is a tunnel.
    #[must_use]
    pub const fn remote(&self) -> Option<IpAddr> {
        if let Self::Tunnel(tunnel) = self { Some(tunnel.remote) } else { None }
    }

    /// Returns a hash in 32 bits that does not depend on this host's numbering: FNV-1a over a tag and the
    /// fields, with numbers in big-endian order and IPv4 addresses as IPv4-mapped ones.
    ///
    /// | nexthop | bytes |
    /// |---|---|
    /// | discard, receive | 0; 1 |
    /// | encap | 2, MAC (6) |
    /// | tunnel | 3, kind (1: MPLS over UDP 0, over GRE 1, VXLAN 2), remote (16), id (4) |
    /// | VRF translate | 4, VRF (2) |
    /// | resolve | 5, via (16; `::` for none) |
    /// | ECMP | 6 |
    #[must_use]
    pub fn fingerprint(&self) -> u32 {
        let mut bytes = ArrayVec::<u8, 24>::new();
        let mut put = |field: &[u8]| bytes.extend(field.iter().copied());
        match self {
            Self::Discard => put(&[0]),
            Self::Receive => put(&[1]),
            Self::Encap { mac, .. } => {
                put(&[2]);
                put(&mac.0);
            }
            Self::Tunnel(tunnel) => {
                put(&[3, tunnel.kind as u8]);
                put(&mapped(tunnel.remote));
                put(&tunnel.id.to_be_bytes());
            }
            Self::VrfTranslate { vrf } => {
                put(&[4]);
                put(&vrf.0.to_be_bytes());
            }
            Self::Resolve { via } => {
                put(&[5]);
                put(&via.map_or([0; 16], mapped));
            }
            Self::Ecmp(_) => put(&[6]),
        }
        bytes.iter().fold(0x811c_9dc5, |hash, byte| fnv_1a(hash, *byte))
    }

    /// Returns the score of one of the nexthop's places, counted from 0, for a flow in rendezvous hashing. The
    /// fingerprint, of which the number of the place is one more byte unless it is 0, is exclusive-ored with the
    /// flow's entropy hash and mixed by the finaliser of MurmurHash3 (32 bits). The mixing must not be linear:
    /// otherwise one of three members would get half of all flows.
    #[must_use]
    pub fn score(&self, place: u8, entropy: u32) -> u32 {
        let fingerprint = self.fingerprint();
        let mut x = if place == 0 { fingerprint } else { fnv_1a(fingerprint, place) } ^ entropy;
        x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
        x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
        x ^ x >> 16
    }
}

/// Returns the members of an ECMP group, each once, with their weights.
#[must_use]
pub fn weights(places: &[NexthopId]) -> Vec<(NexthopId, usize)> {
    let mut weights: Vec<(NexthopId, usize)> = Vec::new();
    for id in places {
        match weights.iter_mut().find(|(member, _)| member == id) {
            Some((_, weight)) => *weight += 1,
            None => weights.push((*id, 1)),
        }
    }
    weights
}

const fn fnv_1a(hash: u32, byte: u8) -> u32 {
    (hash ^ byte as u32).wrapping_mul(0x0100_0193)
}

fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
