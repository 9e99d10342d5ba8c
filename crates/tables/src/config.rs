//! The configured tables: the result of [`model::Change`]s, as one persistent value.

use crate::classifier::{Classifier, MAX_RULES};
use crate::trie::Trie;
use executor::{Dense, Nexthops};
use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;
use model::{
    ApplyError, BridgeTarget, Host, KernelPath, MeterConfig, MeterId, Network, NexthopId, RouteEntry, Vif,
    VifId, Vrf,
};
use packet::{Mac, TunnelKind};
use std::net::IpAddr;
use std::sync::Arc;

#[derive(Clone, Default)]
pub(crate) struct VrfTables {
    /// Absent only within a batch.
    pub network: Option<Arc<Network>>,
    pub v4: Trie<u32, NexthopId>,
    pub v6: Trie<u128, NexthopId>,
    pub rules: Classifier,
}

impl VrfTables {
    pub fn is_unused(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.rules.len() == 0
    }
}

/// The whole configuration. A clone is cheap and shares what is unchanged. Keys are ordered, not hashed, so no guest
/// can choose keys that collide.
#[derive(Clone, Default)]
pub(crate) struct Config {
    pub host: Arc<Host>,
    vifs: Arc<Vec<Option<Arc<Vif>>>>,
    wires: Arc<Vec<VifId>>,
    pub vrfs: OrdMap<Vrf, Arc<VrfTables>>,
    /// Guests by address, and by MAC. The one with the lowest id counts.
    pub guest_addresses: OrdSet<(Vrf, IpAddr, VifId)>,
    pub guest_macs: OrdSet<(Vrf, Mac, VifId)>,
    pub nexthops: Nexthops,
    /// Ports of tunnels, by the fields of packets that belong to them. Of ports with the same fields, the one
    /// with the lowest id counts.
    pub tunnels: OrdSet<(TunnelKind, IpAddr, u32, VifId)>,
    /// Remotes of tunnels, each with the number of nexthops that name it.
    remotes: OrdMap<IpAddr, u32>,
    pub macs: OrdMap<(Vrf, Mac), BridgeTarget>,
    /// MACs of owners of addresses on other hosts.
    pub owners: OrdMap<(Vrf, IpAddr), Mac>,
    pub mpls: OrdMap<u32, NexthopId>,
    pub vxlan: OrdMap<u32, Vrf>,
    /// Floating addresses from outside to inside, and from inside to outside.
    pub floating: OrdMap<(Vrf, IpAddr), (Vrf, IpAddr)>,
    pub floating_of: OrdSet<(Vrf, IpAddr, Vrf, IpAddr)>,
    /// Addresses that the guests of a network share: where they are, and whose. The network with the lowest VRF counts.
    pub shared: OrdSet<(Vrf, IpAddr, Vrf)>,
    pub meters: OrdMap<MeterId, MeterConfig>,
    /// How many table entries refer to each object (entries in a network's own tables are not counted).
    references: OrdMap<Object, u32>,
    /// The same for nexthops, of which there may be as many as routes.
    nexthop_references: Dense<u32>,
    pub rule_count: usize,
    pub kernel_paths: OrdMap<IpAddr, Arc<[KernelPath]>>,
    /// Remotes that are known to be out of reach.
    pub down: OrdSet<IpAddr>,
    /// Paths to remotes that are known to be broken, by wire and next hop.
    pub down_paths: OrdSet<(IpAddr, VifId, IpAddr)>,
    /// Remotes that count also while no nexthop names them.
    pub watched: OrdSet<IpAddr>,
}

/// An object to which table entries refer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    Vif(VifId),
    Network(Vrf),
    Nexthop(NexthopId),
    Meter(MeterId),
}

/// The least address in the order of [`IpAddr`].
const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

impl Config {
    pub fn vif(&self, id: VifId) -> Option<&Vif> {
        self.vifs.get(usize::from(id.0))?.as_deref()
    }

    pub fn vifs(&self) -> impl Iterator<Item = &Vif> {
        self.vifs.iter().flatten().map(|v| &**v)
    }

    pub fn wires(&self) -> &[VifId] {
        &self.wires
    }

    pub fn network(&self, vrf: Vrf) -> Option<&Network> {
        self.vrfs.get(&vrf)?.network.as_deref()
    }

    pub fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId> {
        let found = self.guest_addresses.get_next(&(vrf, addr, VifId(0)))?;
        ((found.0, found.1) == (vrf, addr)).then_some(found.2)
    }

    /// Returns the static bridge entry: a configured one, else the guest that has the MAC.
    pub fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeTarget> {
        if let Some(target) = self.macs.get(&(vrf, mac)) {
            return Some(*target);
        }
        let found = self.guest_macs.get_next(&(vrf, mac, VifId(0)))?;
        ((found.0, found.1) == (vrf, mac)).then_some(BridgeTarget::Vif(found.2))
    }

    pub fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry> {
        let tables = self.vrfs.get(&vrf)?;
        let (prefix_len, &nexthop) = match addr {
            IpAddr::V4(a) => tables.v4.longest(a.to_bits())?,
            IpAddr::V6(a) => tables.v6.longest(a.to_bits())?,
        };
        Some(RouteEntry { nexthop, prefix_len })
    }

    pub fn is_remote(&self, addr: IpAddr) -> bool {
        self.remotes.contains_key(&addr) || self.watched.contains(&addr)
    }

    pub fn is_port_remote(&self, addr: IpAddr) -> bool {
        [TunnelKind::Vxlan, TunnelKind::Geneve].into_iter().any(|kind| {
            let next = self.tunnels.get_next(&(kind, addr, 0, VifId(0)));
            next.is_some_and(|found| (found.0, found.1) == (kind, addr))
        })
    }

    pub fn tunnel_port(&self, kind: TunnelKind, remote: IpAddr, id: u32) -> Option<VifId> {
        let found = self.tunnels.get_next(&(kind, remote, id, VifId(0)))?;
        ((found.0, found.1, found.2) == (kind, remote, id)).then_some(found.3)
    }

    pub fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr> {
        let key = (inside_vrf, inside, outside_vrf);
        let found = self.floating_of.get_next(&(inside_vrf, inside, outside_vrf, FIRST))?;
        ((found.0, found.1, found.2) == key).then_some(found.3)
    }

    pub fn shared_by(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<Vrf> {
        let found = self.shared.get_next(&(outside_vrf, outside, Vrf(0)))?;
        ((found.0, found.1) == (outside_vrf, outside)).then_some(found.2)
    }

    pub fn has(&self, object: Object) -> bool {
        match object {
            Object::Vif(id) => self.vif(id).is_some(),
            Object::Network(vrf) => self.network(vrf).is_some(),
            Object::Nexthop(id) => self.nexthops.contains(id),
            Object::Meter(id) => self.meters.contains_key(&id),
        }
    }

    pub fn needs(&self, object: Object) -> bool {
        let own = |vrf: &Vrf| self.vrfs.get(vrf).is_some_and(|tables| !tables.is_unused());
        match object {
            Object::Nexthop(id) => self.nexthop_references.get(id.0) > 0,
            Object::Network(vrf) if own(&vrf) => true,
            other => self.references.contains_key(&other),
        }
    }

    /// Counts one more entry that refers to an object.
    pub fn refer(&mut self, object: Object) {
        match object {
            Object::Nexthop(NexthopId(id)) => {
                self.nexthop_references.set(id, self.nexthop_references.get(id) + 1);
            }
            other => *self.references.entry(other).or_default() += 1,
        }
    }

    /// Counts one entry less that refers to an object.
    pub fn unrefer(&mut self, object: Object) {
        if let Object::Nexthop(NexthopId(id)) = object {
            self.nexthop_references.set(id, self.nexthop_references.get(id).saturating_sub(1));
        } else if let Some(count) = self.references.get_mut(&object) {
            *count -= 1;
            if *count == 0 {
                self.references.remove(&object);
            }
        }
    }

    /// Sets an interface or, with `None`, removes it; returns the previous one.
    pub fn replace_vif(&mut self, id: VifId, vif: Option<Arc<Vif>>) -> Option<Arc<Vif>> {
        let vifs = Arc::make_mut(&mut self.vifs);
        if vifs.len() <= usize::from(id.0) {
            vifs.resize(usize::from(id.0) + 1, None);
        }
        std::mem::replace(&mut vifs[usize::from(id.0)], vif)
    }

    pub fn collect_wires(&mut self) {
        let wires = self.vifs().filter(|v| v.kind == model::VifKind::Wire).map(|v| v.id).collect();
        self.wires = Arc::new(wires);
    }

    /// Returns a network's tables, to change them. Creates them if they don't exist.
    pub fn tables_mut(&mut self, vrf: Vrf) -> &mut VrfTables {
        Arc::make_mut(self.vrfs.entry(vrf).or_default())
    }

    /// Sets a route; returns the previous nexthop of its prefix.
    pub fn put_route(&mut self, vrf: Vrf, prefix: &IpNet, nexthop: NexthopId) -> Option<NexthopId> {
        let tables = self.tables_mut(vrf);
        match prefix {
            IpNet::V4(p) => tables.v4.insert(p.network().to_bits(), p.prefix_len(), nexthop),
            IpNet::V6(p) => tables.v6.insert(p.network().to_bits(), p.prefix_len(), nexthop),
        }
    }

    pub fn del_route(&mut self, vrf: Vrf, prefix: &IpNet) -> Option<NexthopId> {
        self.vrfs.get(&vrf)?;
        let tables = self.tables_mut(vrf);
        match prefix {
            IpNet::V4(p) => tables.v4.remove(p.network().to_bits(), p.prefix_len()),
            IpNet::V6(p) => tables.v6.remove(p.network().to_bits(), p.prefix_len()),
        }
    }

    /// Counts one more nexthop with this remote; returns whether it is the first.
    pub fn count_remote(&mut self, addr: IpAddr) -> bool {
        let count = self.remotes.entry(addr).or_default();
        *count += 1;
        *count == 1
    }

    /// Counts one nexthop with this remote less; returns whether it was the last.
    pub fn uncount_remote(&mut self, addr: IpAddr) -> bool {
        let Some(count) = self.remotes.get_mut(&addr) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.remotes.remove(&addr);
        }
        last
    }

    /// Counts one more rule.
    ///
    /// # Errors
    /// If there are [`MAX_RULES`] already.
    pub fn count_rule(&mut self) -> Result<(), ApplyError> {
        if self.rule_count == MAX_RULES {
            return Err(ApplyError::Limit { what: "rules", limit: MAX_RULES });
        }
        self.rule_count += 1;
        Ok(())
    }
}
