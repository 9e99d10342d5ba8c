//! From the model's tables to the card's: the value of each key in a card's table, by the rule that the card forwards
//! only what [`model::decide`] would forward in the same way. Everything else becomes [`Hop::Host`].

mod hop;
mod port;

pub use hop::outer_checksum;

use crate::registers;
use ipnet::IpNet;
use model::{
    BridgeTarget, Destination, GATEWAY_MAC, Lookup, Nexthop, NexthopId, Tunnel, Vif, VifId, VifKind, Vrf,
};
use packet::{Mac, TunnelKind};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Number of networks for which the card has room. Those with lower numbers are on it.
pub const VRFS: u16 = 3072;
/// Number of ports for which the card has room.
pub const PORTS: u16 = 1024;
/// Number of networks on the card. After those of the tables, each port has a network of its own, for flows of an Open
/// vSwitch: their keys then distinguish the ports.
pub const ALL_VRFS: u16 = VRFS + PORTS;
/// Number of labels for which the card has room. Lower ones are on it.
pub const LABELS: u32 = 65_536;

/// The place at which an interface is attached to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Number of the port, below [`PORTS`].
    pub port: u16,
    /// Number of the output, below 16: first the queues to the host, then the wires.
    pub egress: u8,
}

/// The interfaces that are attached to the card. Packets to others go to the host.
pub type Attachments = BTreeMap<VifId, Attachment>;

/// The meaning of a nexthop on the card. Its line derives from this and the tables ([`Compiler::line`]). So a change of
/// the tables rewrites the line, but not the entries that refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hop {
    Host,
    /// A flow's own nexthop.
    Flow,
    /// Nowhere: packets are dropped.
    Discard,
    Guest {
        vif: VifId,
        /// Destination MAC of packets routed to the guest.
        mac: Mac,
    },
    /// A guest, only for packets whose flows are on the card: a flow determines whether the TTL is decremented.
    GuestByFlow {
        vif: VifId,
        /// Destination MAC of packets routed to the guest.
        mac: Mac,
    },
    /// A port of an Open vSwitch, only for frames with these MACs, which stay unchanged.
    Unchanged {
        vif: VifId,
        src: Mac,
        dst: Mac,
    },
    Tunnel {
        tunnel: Tunnel,
        /// The network from which packets enter the tunnel; its MTU applies.
        vrf: Vrf,
    },
}

/// An entry of the bridge's MAC table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    pub hop: Hop,
    /// Whether the entry is configured.
    pub fixed: bool,
    /// Whether `at` is a tunnel endpoint; otherwise it is a port.
    pub at_tunnel: bool,
    /// The place of the MAC, with which the card compares where a packet came from. [`NOWHERE`] if the card can't
    /// compare.
    pub at: u32,
}

/// A place from which no packet comes: as an address it is the broadcast address, and there is no such port.
pub const NOWHERE: u32 = u32::MAX;

/// An entry of the incoming label map (RFC 3031, 3.11): a network in which to route, or a guest in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelEntry {
    pub vrf: u16,
    /// The hop to the guest, if the label stands for one.
    pub hop: Option<Hop>,
}

#[derive(Debug)]
pub struct Compiler<'a, T> {
    pub tables: &'a T,
    pub attachments: &'a Attachments,
}

impl<T> Clone for Compiler<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Compiler<'_, T> {}

impl<T: Lookup> Compiler<'_, T> {
    /// Returns a network's number on the card, if it is there. A network that lowers the MSS of SYNs is not: the card
    /// recognises SYNs only of tracked connections.
    #[must_use]
    pub fn vrf(&self, vrf: Vrf) -> Option<u16> {
        let network = self.tables.network(vrf)?;
        (vrf.0 < VRFS && !network.tcp.mss_clamp).then_some(vrf.0)
    }

    #[must_use]
    pub fn attached(&self, id: VifId) -> Option<Attachment> {
        self.attachments.get(&id).copied().filter(|at| at.port < PORTS && at.egress < 16)
    }

    /// Returns whether a network learns; `None` if it is not on the card.
    #[must_use]
    pub fn learning(&self, vrf: Vrf) -> Option<bool> {
        self.vrf(vrf)?;
        self.tables.network(vrf).map(|network| network.learning)
    }

    /// Returns the network of a VNI, if its bridge extends to tunnels here. Packets with an `l3vni` are left to the host.
    #[must_use]
    pub fn vni(&self, vni: u32) -> Option<u16> {
        let is_bridged = |vrf: &Vrf| {
            let network = self.tables.network(*vrf);
            network.is_some_and(|network| network.bridges_tunnels() && network.l3vni != Some(vni))
        };
        let vrf = self.tables.vxlan(vni).filter(is_bridged);
        vrf.and_then(|vrf| self.vrf(vrf)).filter(|_| vni < 1 << 24)
    }

    /// Returns the entry of a label. A label with a choice among several nexthops is left to the host.
    #[must_use]
    pub fn label(&self, label: u32) -> Option<LabelEntry> {
        let nexthop = self.tables.nexthop(self.tables.mpls(label)?)?;
        match (&*nexthop, self.hop(Vrf(0), &nexthop)) {
            _ if label >= LABELS => None,
            (Nexthop::VrfTranslate { vrf }, _) => {
                let vif = |id: &VifId| self.tables.vif(*id).filter(|vif| vif.vrf == Some(*vrf));
                let near = self.attachments.keys().filter_map(vif).any(|vif| self.asks(vif));
                (!near).then_some(LabelEntry { vrf: self.vrf(*vrf)?, hop: None })
            }
            (_, hop @ Hop::Guest { vif: id, mac }) => {
                let vif = self.tables.vif(id)?;
                let hop = if self.asks(vif) { Hop::GuestByFlow { vif: id, mac } } else { hop };
                Some(LabelEntry { vrf: self.vrf(vif.vrf?)?, hop: Some(hop) })
            }
            _ => None,
        }
    }

    /// Returns whether the card must ask the host about each flow from labels to this guest, although none of the
    /// guest's connections are tracked: packets from its own subnet keep their TTL, and only a flow can say that.
    pub(crate) fn asks(&self, vif: &Vif) -> bool {
        let has_subnets = |vrf| self.tables.network(vrf).is_some_and(|network| !network.gateways.is_empty());
        !vif.policy && vif.vrf.is_some_and(has_subnets)
    }

    #[must_use]
    pub fn mac_entry(&self, vrf: Vrf, mac: Mac) -> Option<MacEntry> {
        self.vrf(vrf)?;
        let entry = self.tables.bridge(vrf, mac)?;
        let (at_tunnel, at) = match entry.target {
            BridgeTarget::Vif(id) => (false, self.attached(id).map_or(NOWHERE, |at| at.port.into())),
            BridgeTarget::Vtep { remote: IpAddr::V4(remote), .. } => (true, remote.to_bits()),
            BridgeTarget::Vtep { remote: IpAddr::V6(_), .. } | BridgeTarget::Nexthop(_) => (true, NOWHERE),
        };
        let hop = self.behind(vrf, entry.target).unwrap_or(Hop::Host);
        Some(MacEntry { hop, fixed: entry.is_static, at_tunnel, at })
    }

    /// Returns the hop of a bridge entry; `None` for attached wires.
    fn behind(&self, vrf: Vrf, target: BridgeTarget) -> Option<Hop> {
        let network = self.tables.network(vrf)?;
        let tunnel = match target {
            BridgeTarget::Vif(id) => {
                let vif = self.tables.vif(id)?;
                let attached = network.wire.is_some_and(|wire| wire.vif == id);
                let mac = vif.mac.unwrap_or_default();
                return (vif.vrf == Some(vrf) && !attached).then_some(Hop::Guest { vif: id, mac });
            }
            BridgeTarget::Nexthop(id) => match *self.tables.nexthop(id)? {
                Nexthop::Tunnel(tunnel) => tunnel,
                _ => return None,
            },
            BridgeTarget::Vtep { remote, vni } => {
                Tunnel { kind: TunnelKind::Vxlan, remote, id: network.vni_at(remote, vni), mac: None }
            }
        };
        let bridged = tunnel.kind == TunnelKind::Vxlan && network.bridges_tunnels();
        bridged.then_some(Hop::Tunnel { tunnel, vrf })
    }

    /// Returns the hop of packets to a prefix that is routed to `nexthop`, if any. Gateways and floating addresses take
    /// precedence over routes.
    #[must_use]
    pub fn route(&self, vrf: Vrf, prefix: &IpNet, nexthop: Option<NexthopId>) -> Option<Hop> {
        self.vrf(vrf)?;
        if prefix.prefix_len() == prefix.max_prefix_len() {
            match Destination::of(self.tables, self.tables.network(vrf)?, prefix.addr()) {
                Destination::Gateway => return Some(Hop::Host),
                Destination::Floating(..) | Destination::Shared(_) => return Some(Hop::Flow),
                Destination::Routed => {}
            }
        }
        let hop = self.tables.nexthop(nexthop?).map_or(Hop::Host, |nexthop| self.hop(vrf, &nexthop));
        // Whether the TTL is decremented depends on the source.
        let mpls = matches!(hop, Hop::Tunnel { tunnel, .. } if tunnel.kind != TunnelKind::Vxlan);
        let overlaps = |subnet: &IpNet| subnet.contains(prefix) || prefix.contains(subnet);
        let near = || self.tables.network(vrf).is_some_and(|network| network.gateways.iter().any(overlaps));
        Some(if mpls && near() { Hop::Flow } else { hop })
    }

    /// Returns the hop to which the card routes packets to an address.
    #[must_use]
    pub fn routed(&self, vrf: Vrf, dst: IpAddr) -> Option<Hop> {
        let nexthop = self.tables.route(vrf, dst).map(|route| route.nexthop);
        self.route(vrf, &dst.into(), nexthop)
    }

    /// Returns the card's hop for a nexthop of the model, for packets routed in a network.
    fn hop(&self, vrf: Vrf, nexthop: &Nexthop) -> Hop {
        match *nexthop {
            Nexthop::Discard => Hop::Discard,
            Nexthop::Receive => Hop::Host,
            Nexthop::Encap { vif, mac } => Hop::Guest { vif, mac },
            // The card writes one MAC of routers.
            Nexthop::Tunnel(Tunnel { mac: Some(mac), .. })
                if mac != GATEWAY_MAC && self.tables.host().router_mac.is_some() =>
            {
                Hop::Host
            }
            Nexthop::Tunnel(tunnel) => Hop::Tunnel { tunnel, vrf },
            // The targets of these depend on more than the prefix.
            Nexthop::VrfTranslate { .. } | Nexthop::Resolve { .. } | Nexthop::Ecmp(_) => Hop::Flow,
        }
    }
}

/// Returns whether the card can serve a guest of this kind.
const fn is_port(kind: VifKind) -> bool {
    matches!(kind, VifKind::Vhost | VifKind::Tap)
}

/// Converts a MAC to the form of lines.
#[must_use]
pub fn mac_bits(mac: Mac) -> u64 {
    mac.0.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

/// Converts an address to the form of lines.
pub(crate) fn address_bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Returns the two places of a remote in its table.
pub(crate) fn remote_places(addr: IpAddr) -> [u32; 2] {
    let low = address_bits(addr) as u32;
    [low & 0xfff, 1 << 12 | (low ^ low >> 12) & 0xfff]
}

pub(crate) fn remote(addr: IpAddr) -> registers::Remote {
    registers::Remote { address: address_bits(addr), v6: addr.is_ipv6(), valid: true }
}

/// Makes a line that sends packets to the host.
fn host_line() -> registers::Nexthop {
    registers::Nexthop { kind: registers::NexthopKind::Host as u8, ..Default::default() }
}
