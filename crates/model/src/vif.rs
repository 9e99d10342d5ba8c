//! Interfaces.

use crate::{MeterId, Tunnel, VifId, Vrf};
use ipnet::IpNet;
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;

/// What an interface is connected to.
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
    /// No interface of the host: copies go through this VXLAN tunnel to somebody who looks at them.
    Mirror(Tunnel),
}

/// An interface of the host: a guest's or a wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Vif {
    /// Its key.
    pub id: VifId,
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// What it is connected to.
    pub kind: VifKind,
    /// A guest's network. `None` for a wire; networks attached to one are in [`WireAttributes::networks`].
    pub vrf: Option<Vrf>,
    /// A guest's MAC: the only source it may use beside `macs`, and by itself a static bridge entry. `None`: any,
    /// learned. A wire's own MAC: the source of what Viaduct sends there, and the only unicast it takes.
    pub mac: Option<Mac>,
    /// More source MACs a guest may use, which others may have as well: they are learned (a VRRP router's, RFC 9568,
    /// 7.3).
    pub macs: Vec<Mac>,
    /// A guest's own addresses. With none configured its source addresses are not checked.
    pub addresses: Vec<IpAddr>,
    /// More source prefixes a forwarding guest may use.
    pub allowed: Vec<IpNet>,
    /// Largest IP packet it takes, bytes.
    pub mtu: u16,
    /// Whether rules run and flows are tracked for its traffic.
    pub policy: bool,
    /// Policer of what the guest sends.
    pub meter: Option<MeterId>,
    /// The guest, or the [`VifKind::Mirror`], that gets a copy of both directions.
    pub mirror: Option<VifId>,
    /// What the guest is to its neighbours, beside a host.
    pub roles: Roles,
    /// A guest with a verbs device beside its port has two interfaces, of the same network, MAC and addresses, and this
    /// is the other one: of the port's the device's (of kind [`VifKind::Rdma`]), which owns UDP 4791; of the device's
    /// the port's, by which alone the MAC and the addresses are found.
    pub rdma: Option<VifId>,
    /// A guest's VLANs: identifiers, and the interfaces that stand for them. What has none of these tags is the guest's
    /// own network's.
    pub vlans: Vec<(u16, VifId)>,
    /// Set for an interface that stands for a guest's VLAN: the guest's own, whose port it shares, and the identifier.
    pub trunk: Option<(VifId, u16)>,
    /// Set for wires.
    pub wire: Option<WireAttributes>,
}

impl Vif {
    /// An interface of no network, without addresses, roles and policy, for packets of 1500 bytes.
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
            mirror: None,
            roles: Roles::default(),
            rdma: None,
            vlans: Vec::new(),
            trunk: None,
            wire: None,
        }
    }

    /// The interface of the guest's verbs device, if it has one.
    #[must_use]
    pub fn verbs(&self) -> Option<VifId> {
        if self.kind == VifKind::Rdma { Some(self.id) } else { self.rdma }
    }

    /// Whether a MAC is configured to be the guest's.
    #[must_use]
    pub fn has_mac(&self, mac: Mac) -> bool {
        self.mac == Some(mac) || self.macs.contains(&mac)
    }

    /// Whether it has VLANs or stands for one.
    #[must_use]
    pub const fn is_tagged(&self) -> bool {
        !self.vlans.is_empty() || self.trunk.is_some()
    }

    /// Whether it is the second interface of its guest: that is found by its first one.
    #[must_use]
    pub fn is_second(&self) -> bool {
        self.kind == VifKind::Rdma && self.rdma.is_some()
    }
}

/// Roles of a guest whose messages hosts believe, whoever sends them. A guest with addresses has none but these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// May send router advertisements and redirects (RFC 4861; RFC 792; RFC 1256).
    pub router: bool,
    /// May send what DHCP clients take from servers (RFC 2131; RFC 8415).
    pub dhcp_server: bool,
}

/// What only wires have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WireAttributes {
    /// Underlay addresses with their subnets; Viaduct answers ARP, ND and pings for them.
    pub addresses: Vec<IpNet>,
    /// Next hops for remotes off the subnets, at most one per family.
    pub gateways: Vec<IpAddr>,
    /// Tenant networks attached here: VLAN id (`None`: untagged) and network.
    pub networks: Vec<(Option<u16>, Vrf)>,
}
