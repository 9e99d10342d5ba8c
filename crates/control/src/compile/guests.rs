//! Guests: their interfaces, those of their VLANs, and the tables' entries for both.

use super::Compiler;
use config::{Dscp, Guest, GuestKind, GuestVlan, Mode, ShapeRate};
use model::{BridgeTarget, Nexthop, Roles, Shape, Vif, VifId, VifKind};

/// Returns the name of the interface of the verbs device that a guest has beside its port. No object can have
/// this name.
pub(crate) fn verbs_vif(guest: &Guest) -> Option<String> {
    let beside = guest.verbs.is_some() && guest.kind() != GuestKind::Rdma;
    beside.then(|| format!("{}:rdma", guest.name))
}

/// Returns the name of the OVS side of a guest or wire that an Open vSwitch programs. No object can have this
/// name.
pub(crate) fn ovs_side(mode: Mode, name: &str) -> Option<String> {
    (mode == Mode::Ovs).then(|| format!("{name}:ovs"))
}

/// Returns the name of the interface that stands for a VLAN of a guest. No object can have this name.
pub(crate) fn vlan_vif(guest: &Guest, vlan: &GuestVlan) -> String {
    format!("{}:{}", guest.name, vlan.tag)
}

impl Compiler<'_> {
    pub(super) fn guest(&mut self, guest: &Guest) {
        let id = self.vif_id(&guest.name);
        if self.links.away.contains(&guest.name) {
            return self.absent_guest(guest, id);
        }
        let ovs = self.ovs_side(guest.mode, id, &guest.name, self.index.guest_mtu(guest));
        let vrf = self.vrf(&guest.network);
        if let Some(mac) = guest.mac {
            self.out.macs.insert((vrf, mac), BridgeTarget::Vif(id));
            if let Some(label) = guest.label {
                let encap = self.nexthop(Nexthop::Encap { vif: id, mac });
                self.out.mpls.insert(label, encap);
            }
        }
        let vif = Vif {
            id,
            name: guest.name.as_str().into(),
            kind: match guest.kind() {
                GuestKind::Vhost => VifKind::Vhost,
                GuestKind::Tap | GuestKind::Host => VifKind::Tap,
                GuestKind::Rdma => VifKind::Rdma,
            },
            vrf: (guest.mode == Mode::Vrouter).then_some(vrf),
            mac: guest.mac,
            addresses: guest.addresses.clone(),
            allowed: guest.allowed.clone(),
            macs: guest.macs.clone(),
            vlans: Vec::new(),
            trunk: None,
            mtu: self.index.guest_mtu(guest),
            policy: guest.policy && guest.mode == Mode::Vrouter,
            meter: guest.rate.map(|rate| self.meter("guest", guest.name.clone(), rate)),
            shape: guest.shape.map_or_else(Shape::default, shape),
            dscp: guest.dscp.map(Dscp::value),
            mirror: guest.mirror.as_ref().map(|name| self.mirror(name)),
            roles: Roles { router: guest.router, dhcp_server: guest.dhcp_server },
            rdma: None,
            ovs,
            rules: (guest.policy && guest.mode == Mode::Ovs).then_some(vrf),
            wire: None,
        };
        let vif = Vif { vlans: self.vlans(guest, &vif), ..vif };
        let vif = match verbs_vif(guest) {
            Some(name) => {
                let device = self.vif_id(&name);
                let (name, kind) = (name.into(), VifKind::Rdma);
                let (allowed, macs, vlans) = Default::default();
                let second =
                    Vif { id: device, name, kind, allowed, macs, vlans, rdma: Some(id), ..vif.clone() };
                self.out.vifs.insert(device, second);
                Vif { rdma: Some(device), ..vif }
            }
            None => vif,
        };
        self.out.vifs.insert(id, vif);
    }

    /// Adds the interfaces of a guest on standby that is away. They are in no network, so packets from them
    /// are dropped until the tables include the guest.
    fn absent_guest(&mut self, guest: &Guest, id: VifId) {
        self.out.vifs.insert(id, Vif::new(id, &guest.name, VifKind::Vhost));
        if let Some(name) = verbs_vif(guest) {
            let device = self.vif_id(&name);
            let mtu = self.index.guest_mtu(guest);
            self.out.vifs.insert(device, Vif { mtu, ..Vif::new(device, &name, VifKind::Rdma) });
        }
    }

    /// Makes the interfaces of a guest's VLANs. They equal the guest's own except for network and addresses.
    fn vlans(&mut self, guest: &Guest, own: &Vif) -> Vec<(u16, VifId)> {
        guest.vlans.iter().map(|vlan| (vlan.tag, self.vlan(guest, own, vlan))).collect()
    }

    fn vlan(&mut self, guest: &Guest, own: &Vif, vlan: &GuestVlan) -> VifId {
        let name = vlan_vif(guest, vlan);
        let (id, vrf) = (self.vif_id(&name), self.vrf(&vlan.network));
        if let Some(mac) = guest.mac {
            self.out.macs.insert((vrf, mac), BridgeTarget::Vif(id));
        }
        let vif = Vif {
            id,
            name: name.into(),
            vrf: Some(vrf),
            addresses: vlan.addresses.clone(),
            allowed: vlan.allowed.clone(),
            mtu: guest.mtu.unwrap_or_else(|| self.index.network_mtu(&vlan.network)),
            trunk: Some((own.id, vlan.tag)),
            ..own.clone()
        };
        self.out.vifs.insert(id, vif);
        id
    }
}

fn shape(of: config::Shape) -> Shape {
    Shape {
        inward: of.inward.map(ShapeRate::bits_per_second),
        outward: of.outward.map(ShapeRate::bits_per_second),
    }
}
