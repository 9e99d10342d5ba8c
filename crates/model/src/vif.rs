//! Interfaces.

use crate::{MeterId, Tunnel, VifId, Vrf};
use ipnet::IpNet;
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;

/// The other end of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VifKind {
    /// A guest over vhost-user.
    Vhost,
    /// A guest over a TAP device.
    Tap,
    /// A guest with verbs only.
    Rdma,
    /// A way out of the host.
    Wire,
    /// The OVS side of a port that an Open vSwitch programs. OVS sends its packets here, and they leave by
    /// the port.
    Ovs,
    /// A tunnel to another host, as a port of an Open vSwitch. To the tables, packets from the tunnel come in
    /// here, and packets sent by this port go into the tunnel.
    Tunnel(Tunnel),
    /// Not an interface of the host: copies go through this VXLAN tunnel to an observer.
    Mirror(Tunnel),
}

/// An interface of the host: a guest's or a wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Vif {
    /// The interface's key.
    pub id: VifId,
    /// The interface's name in the configuration.
    pub name: Arc<str>,
    /// The other end of the interface.
    pub kind: VifKind,
    /// A guest's network. `None` for a wire; networks attached to one are in [`WireAttributes::networks`].
    pub vrf: Option<Vrf>,
    /// A guest's MAC: the only source that it may use besides `macs`, and itself a static bridge entry.
    /// `None`: any, learned. A wire's own MAC: the source of Viaduct's frames on it, and the only unicast
    /// address that it accepts.
    pub mac: Option<Mac>,
    /// More source MACs that a guest may use. Others may have them as well, so they are learned (a VRRP router's, RFC
    /// 9568, 7.3).
    pub macs: Vec<Mac>,
    /// A guest's own addresses. If none is configured, its source addresses are not checked.
    pub addresses: Vec<IpAddr>,
    /// More source prefixes a forwarding guest may use.
    pub allowed: Vec<IpNet>,
    /// Largest IP packet that the interface takes, bytes.
    pub mtu: u16,
    /// Whether rules run and flows are tracked for the interface's traffic.
    pub policy: bool,
    /// Policer of the guest's packets.
    pub meter: Option<MeterId>,
    /// Rates of the guest's port. An executor has packets wait for them; `decide` does not look at them.
    pub shape: Shape,
    /// The DSCP (RFC 2474) with which IP packets from the guest leave; `None`: their own.
    pub dscp: Option<u8>,
    /// The guest, or the [`VifKind::Mirror`], that gets a copy of both directions.
    pub mirror: Option<VifId>,
    /// The guest's role to its neighbours, besides that of a host.
    pub roles: Roles,
    /// A guest with a verbs device beside its port has two interfaces with the same network, MAC and addresses; this
    /// is the other one. The port names the device (of kind [`VifKind::Rdma`]), which owns UDP 4791. The device names
    /// the port, which alone is found by MAC and addresses.
    pub rdma: Option<VifId>,
    /// For a guest or wire that an Open vSwitch programs: its OVS side, of kind [`VifKind::Ovs`]. For an OVS side: the
    /// guest or wire.
    pub ovs: Option<VifId>,
    /// For a guest that an Open vSwitch programs: the network whose rules it obeys, in both directions and
    /// whatever the flows say. The guest belongs to no network.
    pub rules: Option<Vrf>,
    /// A guest's VLANs: identifiers, and the interfaces that stand for them. Frames without one of these tags belong
    /// to the guest's own network.
    pub vlans: Vec<(u16, VifId)>,
    /// For an interface that stands for a guest's VLAN: the guest's own interface, whose port it shares, and the VLAN
    /// identifier.
    pub trunk: Option<(VifId, u16)>,
    /// Set for wires.
    pub wire: Option<WireAttributes>,
}

impl Vif {
    /// Returns an interface without network, addresses, roles or policy, with an MTU of 1500 bytes.
    #[must_use]
    pub fn new(id: VifId, name: &str, kind: VifKind) -> Self {
        Self {
            id,
            name: name.into(),
            kind,
            vrf: None,
            mac: None,
            macs: Vec::new(),
            addresses: Vec::new(),
            allowed: Vec::new(),
            mtu: 1500,
            policy: false,
            meter: None,
            shape: Shape::default(),
            dscp: None,
            mirror: None,
            roles: Roles::default(),
            rdma: None,
            ovs: None,
            rules: None,
            vlans: Vec::new(),
            trunk: None,
            wire: None,
        }
    }

    /// Returns the interface of the guest's verbs device, if it has one.
    #[must_use]
    pub fn verbs(&self) -> Option<VifId> {
        if self.kind == VifKind::Rdma { Some(self.id) } else { self.rdma }
    }

    /// Returns the traffic class with which a packet from the guest leaves: the guest's DSCP, the packet's own ECN
    /// field.
    #[must_use]
    pub fn marked(&self, tos: u8) -> u8 {
        self.dscp.map_or(tos, |dscp| dscp << 2 | tos & packet::ecn::ECN_MASK)
    }

    /// Returns whether a MAC is configured as the guest's.
    #[must_use]
    pub fn has_mac(&self, mac: Mac) -> bool {
        self.mac == Some(mac) || self.macs.contains(&mac)
    }

    /// Returns whether the interface has VLANs or stands for one.
    #[must_use]
    pub const fn is_tagged(&self) -> bool {
        !self.vlans.is_empty() || self.trunk.is_some()
    }

    /// Returns whether an Open vSwitch programs the interface by flows.
    #[must_use]
    pub fn takes_flows(&self) -> bool {
        self.ovs.is_some() && self.kind != VifKind::Ovs
    }

    /// Returns the tunnel of which this interface is the port, if it is one.
    #[must_use]
    pub const fn tunnel(&self) -> Option<&Tunnel> {
        if let VifKind::Tunnel(tunnel) = &self.kind { Some(tunnel) } else { None }
    }

    /// Returns whether this is the second interface of a guest. A guest is looked up by its first one.
    #[must_use]
    pub fn is_second(&self) -> bool {
        self.kind == VifKind::Rdma && self.rdma.is_some() || self.kind == VifKind::Ovs
    }
}

/// Rates of a guest's port, over which packets wait, bits per second. A large send counts as its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// The rate of packets towards the guest, which wait in the host.
    pub inward: Option<u64>,
    /// The rate of packets from the guest, which wait in its own ring.
    pub outward: Option<u64>,
}

/// Roles of a guest whose messages hosts believe from any sender. A guest with addresses has only these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// May send router advertisements and redirects (RFC 4861; RFC 792; RFC 1256).
    pub router: bool,
    /// May send what DHCP clients accept from servers (RFC 2131; RFC 8415).
    pub dhcp_server: bool,
}

/// The attributes that only wires have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WireAttributes {
    /// Underlay addresses with their subnets; Viaduct answers ARP, ND and pings for them.
    pub addresses: Vec<IpNet>,
    /// Next hops for remotes off the subnets, at most one per family.
    pub gateways: Vec<IpAddr>,
    /// Tenant networks attached here: VLAN id (`None`: untagged) and network.
    pub networks: Vec<(Option<u16>, Vrf)>,
    /// Whether the wire has no link. Then another wire that leads to the same place is taken instead.
    pub is_down: bool,
    /// Whether the kernel keeps the wire: addresses, ARP and ND are its own, and it says by which hops packets leave
    /// ([`crate::KernelPath`]). Viaduct takes tunnel packets alone, and answers nothing.
    pub shared: bool,
}
