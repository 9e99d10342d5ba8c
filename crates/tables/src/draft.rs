//! Applies a batch of changes to a copy of the configured tables.
//!
//! An object to which a batch refers must exist once the whole batch is applied; one that it deletes must
//! exist before. References are counted, so that this can be checked without walking the tables: in the end,
//! only objects that the batch deleted or newly referred to can be missing.

use crate::cells::{Cell, Touched};
use crate::config::{Config, Object};
use imbl::OrdSet;
use ipnet::IpNet;
use model::{
    ApplyError, BridgeTarget, Change, FloatingAddress, KernelPath, Modifier, Network, Nexthop, NexthopId,
    Rule, RuleAction, RuleId, Vif, VifId, VifKind, Vrf,
};
use packet::Mac;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

/// A copy of the tables that is being changed.
pub(crate) struct Draft {
    pub config: Config,
    /// The cells to bump when it is published.
    pub touched: Touched,
    /// Objects to check when the whole batch is applied.
    check: BTreeSet<Object>,
    /// Whether interfaces or networks were removed, so that what was learned about them is removed too.
    pub removed: bool,
    wires_changed: bool,
}

/// Puts something into a set, or takes it out.
fn set<T: Ord + Clone>(of: &mut OrdSet<T>, one: T, is_in: bool) {
    match is_in {
        true => drop(of.insert(one)),
        false => drop(of.remove(&one)),
    }
}

fn missing<T>(what: impl Display) -> Result<T, ApplyError> {
    Err(ApplyError::Missing(what.to_string()))
}

impl Draft {
    pub fn new(config: Config) -> Self {
        let check = BTreeSet::new();
        Self { config, touched: Touched::none(), check, removed: false, wires_changed: false }
    }

    pub fn apply(mut self, changes: &[Change]) -> Result<Self, ApplyError> {
        for change in changes {
            self.change(change)?;
        }
        for &object in &self.check {
            if self.config.needs(object) && !self.config.has(object) {
                return match object {
                    Object::Vif(id) => missing(format_args!("vif {id}")),
                    Object::Network(vrf) => missing(format_args!("network {vrf}")),
                    Object::Nexthop(id) => missing(format_args!("nexthop {id}")),
                    Object::Meter(id) => missing(format_args!("meter {id}")),
                };
            }
            if let Object::Network(vrf) = object
                && self.config.vrfs.get(&vrf).is_some_and(|t| t.network.is_none() && t.is_unused())
            {
                self.config.vrfs.remove(&vrf);
            }
        }
        if self.wires_changed {
            self.config.collect_wires();
        }
        Ok(self)
    }

    fn change(&mut self, change: &Change) -> Result<(), ApplyError> {
        match change {
            Change::SetHost(host) => {
                self.config.host = Arc::new(host.clone());
                self.touched.add(Cell::host());
            }
            Change::PutVif(vif) => self.replace_vif(vif.id, Some(Arc::new(vif.clone())))?,
            Change::DelVif(id) => self.replace_vif(*id, None)?,
            Change::PutNetwork(network) => {
                self.replace_network(network.vrf, Some(Arc::new(network.clone())))?
            }
            Change::DelNetwork(vrf) => self.replace_network(*vrf, None)?,
            Change::PutNexthop(id, nexthop) => self.put_nexthop(*id, nexthop),
            Change::DelNexthop(id) => self.del_nexthop(*id)?,
            Change::PutRoute { vrf, prefix, nexthop } => self.put_route(*vrf, prefix, *nexthop),
            Change::DelRoute { vrf, prefix } => self.del_route(*vrf, prefix)?,
            Change::PutMac { vrf, mac, target } => self.put_mac(*vrf, *mac, *target),
            Change::DelMac { vrf, mac } => self.del_mac(*vrf, *mac)?,
            Change::PutOwner { vrf, addr, mac } => self.put_owner(*vrf, *addr, *mac),
            Change::DelOwner { vrf, addr } => self.del_owner(*vrf, *addr)?,
            Change::PutMpls { label, nexthop } => self.put_mpls(*label, *nexthop),
            Change::DelMpls { label } => self.del_mpls(*label)?,
            Change::PutVxlan { vni, vrf } => self.put_vxlan(*vni, *vrf),
            Change::DelVxlan { vni } => self.del_vxlan(*vni)?,
            Change::PutFloating(floating) => self.put_floating(*floating),
            Change::DelFloating { outside_vrf, outside } => self.del_floating(*outside_vrf, *outside)?,
            Change::PutMeter(id, config) => {
                self.config.meters.insert(*id, *config);
            }
            Change::DelMeter(id) => {
                if self.config.meters.remove(id).is_none() {
                    return missing(format_args!("meter {id}"));
                }
                self.check.insert(Object::Meter(*id));
            }
            Change::PutRule(rule) => self.put_rule(rule)?,
            Change::DelRule { vrf, id } => self.del_rule(*vrf, *id)?,
            Change::PutPaths { remote, paths } => self.put_paths(*remote, paths),
            Change::SetDown { remote, is_down } => {
                set(&mut self.config.down, *remote, *is_down);
                self.touched.add(Cell::remote(*remote));
            }
            Change::SetPathDown { remote, wire, hop, is_down } => {
                set(&mut self.config.down_paths, (*remote, *wire, *hop), *is_down);
                self.touched.add(Cell::remote(*remote));
            }
            Change::SetWatched { remote, is_watched } => {
                set(&mut self.config.watched, *remote, *is_watched);
                self.touched.add(Cell::remote(*remote));
            }
        }
        Ok(())
    }

    fn put_paths(&mut self, remote: IpAddr, paths: &Arc<[KernelPath]>) {
        match paths.is_empty() {
            true => drop(self.config.kernel_paths.remove(&remote)),
            false => drop(self.config.kernel_paths.insert(remote, paths.clone())),
        }
        self.touched.add(Cell::remote(remote));
    }

    fn put_owner(&mut self, vrf: Vrf, addr: IpAddr, mac: Mac) {
        if self.config.owners.insert((vrf, addr), mac).is_none() {
            self.refer(Object::Network(vrf));
        }
        self.touched.add(Cell::address(vrf, addr));
    }

    fn del_owner(&mut self, vrf: Vrf, addr: IpAddr) -> Result<(), ApplyError> {
        if self.config.owners.remove(&(vrf, addr)).is_none() {
            return missing(format_args!("owner of {addr} in network {vrf}"));
        }
        self.unrefer(Object::Network(vrf));
        self.touched.add(Cell::address(vrf, addr));
        Ok(())
    }

    fn refer(&mut self, object: Object) {
        self.config.refer(object);
        self.check.insert(object);
    }

    fn unrefer(&mut self, object: Object) {
        self.config.unrefer(object);
    }

    fn replace_vif(&mut self, id: VifId, vif: Option<Arc<Vif>>) -> Result<(), ApplyError> {
        let deleted = vif.is_none();
        let old = self.config.replace_vif(id, vif.clone());
        if let Some(old) = &old {
            references_of_vif(old, |object| self.unrefer(object));
            self.index_vif(old, false);
        } else if deleted {
            return missing(format_args!("vif {id}"));
        }
        if let Some(vif) = &vif {
            references_of_vif(vif, |object| self.refer(object));
            self.index_vif(vif, true);
        }
        if deleted {
            self.check.insert(Object::Vif(id));
            self.removed = true;
        }
        self.touched.add(Cell::vif(id));
        if vif.iter().chain(&old).any(|v| v.kind == VifKind::Wire) {
            self.touched.add(Cell::wires());
            self.wires_changed = true;
        }
        Ok(())
    }

    /// Adds a guest's addresses and MAC, or a port's tunnel, to the index, or removes them.
    fn index_vif(&mut self, vif: &Vif, add: bool) {
        if let Some(tunnel) = vif.tunnel() {
            let key = (tunnel.kind, tunnel.remote, tunnel.id, vif.id);
            if add {
                self.config.tunnels.insert(key);
            } else {
                self.config.tunnels.remove(&key);
            }
            self.touched.add(Cell::vxlan(tunnel.id));
            self.touched.add(Cell::remote(tunnel.remote));
        }
        let Some(vrf) = vif.vrf.filter(|_| !vif.is_second()) else { return };
        for &addr in &vif.addresses {
            let key = (vrf, addr, vif.id);
            if add {
                self.config.guest_addresses.insert(key);
            } else {
                self.config.guest_addresses.remove(&key);
            }
            self.touched.add(Cell::address(vrf, addr));
        }
        if let Some(mac) = vif.mac {
            let key = (vrf, mac, vif.id);
            if add {
                self.config.guest_macs.insert(key);
            } else {
                self.config.guest_macs.remove(&key);
            }
            self.touched.add(Cell::bridge(vrf, mac));
        }
    }

    fn replace_network(&mut self, vrf: Vrf, network: Option<Arc<Network>>) -> Result<(), ApplyError> {
        let deleted = network.is_none();
        if let Some(network) = &network {
            references_of_network(network, |object| self.refer(object));
        }
        let old = std::mem::replace(&mut self.config.tables_mut(vrf).network, network.clone());
        self.index_shared(vrf, old.as_deref(), network.as_deref());
        match old {
            Some(old) => references_of_network(&old, |object| self.unrefer(object)),
            None if deleted => return missing(format_args!("network {vrf}")),
            None => {}
        }
        if deleted {
            self.check.insert(Object::Network(vrf));
            self.removed = true;
        }
        self.touched.add(Cell::network(vrf));
        self.touched.add(Cell::rules(vrf)); // They fall back to the network's default.
        Ok(())
    }

    /// Removes the addresses that the guests of a network shared from the index, and adds those that they share now.
    fn index_shared(&mut self, vrf: Vrf, old: Option<&Network>, new: Option<&Network>) {
        let [old, new] =
            [old, new].map(|network| network.map_or(&[][..], |network| &network.sharing.addresses));
        if old == new {
            return;
        }
        for shared in old {
            self.config.shared.remove(&(shared.outside_vrf, shared.outside, vrf));
        }
        for shared in new {
            self.config.shared.insert((shared.outside_vrf, shared.outside, vrf));
        }
        for shared in old.iter().chain(new) {
            self.touched.add(Cell::inside(shared.outside_vrf, shared.outside));
        }
    }

    fn put_nexthop(&mut self, id: NexthopId, nexthop: &Nexthop) {
        references_of_nexthop(nexthop, |object| self.refer(object));
        nexthop.remote().into_iter().for_each(|remote| self.count_remote(remote, true));
        if let Some(old) = self.config.nexthops.insert(id, nexthop.clone()) {
            references_of_nexthop(&old, |object| self.unrefer(object));
            old.remote().into_iter().for_each(|remote| self.count_remote(remote, false));
        }
        self.touched.add(Cell::nexthop(id));
    }

    /// Counts the remote of a tunnel: tunnel packets from it are accepted while a nexthop names it.
    fn count_remote(&mut self, remote: IpAddr, add: bool) {
        let config = &mut self.config;
        let changed = if add { config.count_remote(remote) } else { config.uncount_remote(remote) };
        if changed {
            self.touched.add(Cell::remote(remote));
        }
    }

    fn del_nexthop(&mut self, id: NexthopId) -> Result<(), ApplyError> {
        let Some(old) = self.config.nexthops.remove(id) else {
            return missing(format_args!("nexthop {id}"));
        };
        references_of_nexthop(&old, |object| self.unrefer(object));
        old.remote().into_iter().for_each(|remote| self.count_remote(remote, false));
        self.check.insert(Object::Nexthop(id));
        self.touched.add(Cell::nexthop(id));
        Ok(())
    }

    fn put_route(&mut self, vrf: Vrf, prefix: &IpNet, nexthop: NexthopId) {
        self.check.insert(Object::Network(vrf));
        let old = self.config.put_route(vrf, prefix, nexthop);
        if old == Some(nexthop) {
            return;
        }
        self.refer(Object::Nexthop(nexthop));
        old.into_iter().for_each(|old| self.unrefer(Object::Nexthop(old)));
        self.touched.add(Cell::prefix(vrf, prefix));
    }

    fn del_route(&mut self, vrf: Vrf, prefix: &IpNet) -> Result<(), ApplyError> {
        let Some(old) = self.config.del_route(vrf, prefix) else {
            return missing(format_args!("route {prefix} of network {vrf}"));
        };
        self.unrefer(Object::Nexthop(old));
        self.check.insert(Object::Network(vrf));
        self.touched.add(Cell::prefix(vrf, prefix));
        Ok(())
    }

    fn put_mac(&mut self, vrf: Vrf, mac: Mac, target: BridgeTarget) {
        self.refer(Object::Network(vrf));
        reference_of_target(target).into_iter().for_each(|object| self.refer(object));
        if let Some(old) = self.config.macs.insert((vrf, mac), target) {
            self.forget_mac(vrf, old);
        }
        self.touched.add(Cell::bridge(vrf, mac));
    }

    fn del_mac(&mut self, vrf: Vrf, mac: Mac) -> Result<(), ApplyError> {
        let Some(old) = self.config.macs.remove(&(vrf, mac)) else {
            return missing(format_args!("MAC {mac} of network {vrf}"));
        };
        self.forget_mac(vrf, old);
        self.touched.add(Cell::bridge(vrf, mac));
        Ok(())
    }

    fn forget_mac(&mut self, vrf: Vrf, target: BridgeTarget) {
        self.unrefer(Object::Network(vrf));
        reference_of_target(target).into_iter().for_each(|object| self.unrefer(object));
    }

    fn put_mpls(&mut self, label: u32, nexthop: NexthopId) {
        self.refer(Object::Nexthop(nexthop));
        let old = self.config.mpls.insert(label, nexthop);
        old.into_iter().for_each(|old| self.unrefer(Object::Nexthop(old)));
        self.touched.add(Cell::mpls(label));
    }

    fn del_mpls(&mut self, label: u32) -> Result<(), ApplyError> {
        let Some(old) = self.config.mpls.remove(&label) else {
            return missing(format_args!("label {label}"));
        };
        self.unrefer(Object::Nexthop(old));
        self.touched.add(Cell::mpls(label));
        Ok(())
    }

    fn put_vxlan(&mut self, vni: u32, vrf: Vrf) {
        self.refer(Object::Network(vrf));
        let old = self.config.vxlan.insert(vni, vrf);
        old.into_iter().for_each(|old| self.unrefer(Object::Network(old)));
        self.touched.add(Cell::vxlan(vni));
    }

    fn del_vxlan(&mut self, vni: u32) -> Result<(), ApplyError> {
        let Some(old) = self.config.vxlan.remove(&vni) else { return missing(format_args!("VNI {vni}")) };
        self.unrefer(Object::Network(old));
        self.touched.add(Cell::vxlan(vni));
        Ok(())
    }

    fn put_floating(&mut self, f: FloatingAddress) {
        self.refer(Object::Network(f.outside_vrf));
        self.refer(Object::Network(f.inside_vrf));
        if let Some(old) = self.config.floating.insert((f.outside_vrf, f.outside), (f.inside_vrf, f.inside)) {
            self.forget_floating(f.outside_vrf, f.outside, old);
        }
        self.config.floating_of.insert((f.inside_vrf, f.inside, f.outside_vrf, f.outside));
        self.touched.add(Cell::inside(f.outside_vrf, f.outside));
        self.touched.add(Cell::floating(f.inside_vrf, f.inside));
    }

    fn del_floating(&mut self, outside_vrf: Vrf, outside: IpAddr) -> Result<(), ApplyError> {
        let Some(old) = self.config.floating.remove(&(outside_vrf, outside)) else {
            return missing(format_args!("floating address {outside} of network {outside_vrf}"));
        };
        self.forget_floating(outside_vrf, outside, old);
        self.touched.add(Cell::inside(outside_vrf, outside));
        Ok(())
    }

    fn forget_floating(&mut self, outside_vrf: Vrf, outside: IpAddr, (inside_vrf, inside): (Vrf, IpAddr)) {
        self.unrefer(Object::Network(outside_vrf));
        self.unrefer(Object::Network(inside_vrf));
        self.config.floating_of.remove(&(inside_vrf, inside, outside_vrf, outside));
        self.touched.add(Cell::floating(inside_vrf, inside));
    }

    fn put_rule(&mut self, rule: &Rule) -> Result<(), ApplyError> {
        reference_of_rule(rule).into_iter().for_each(|object| self.refer(object));
        self.take_rule(rule.vrf, rule.id);
        self.config.count_rule()?;
        self.config.tables_mut(rule.vrf).rules.insert(Arc::new(rule.clone()));
        self.check.insert(Object::Network(rule.vrf));
        self.touched.add(Cell::rules(rule.vrf));
        Ok(())
    }

    fn del_rule(&mut self, vrf: Vrf, id: RuleId) -> Result<(), ApplyError> {
        if !self.take_rule(vrf, id) {
            return missing(format_args!("rule {id} of network {vrf}"));
        }
        self.check.insert(Object::Network(vrf));
        self.touched.add(Cell::rules(vrf));
        Ok(())
    }

    /// Removes a rule; returns whether it existed.
    fn take_rule(&mut self, vrf: Vrf, id: RuleId) -> bool {
        if self.config.vrfs.get(&vrf).is_none_or(|tables| tables.rules.get(id).is_none()) {
            return false;
        }
        let Some(old) = self.config.tables_mut(vrf).rules.remove(id) else { return false };
        self.config.rule_count -= 1;
        reference_of_rule(&old).into_iter().for_each(|object| self.unrefer(object));
        true
    }
}

fn references_of_vif(vif: &Vif, each: impl FnMut(Object)) {
    let attached = vif.wire.iter().flat_map(|wire| &wire.networks).map(|&(_, vrf)| Object::Network(vrf));
    (vif.vrf.map(Object::Network).into_iter())
        .chain(vif.meter.map(Object::Meter))
        .chain(vif.mirror.map(Object::Vif))
        .chain(vif.rdma.map(Object::Vif))
        .chain(vif.ovs.map(Object::Vif))
        .chain(vif.vlans.iter().map(|&(_, id)| Object::Vif(id)))
        .chain(vif.trunk.map(|(port, _)| Object::Vif(port)))
        .chain(attached)
        .for_each(each);
}

fn references_of_network(network: &Network, each: impl FnMut(Object)) {
    (network.members.iter().copied().map(Object::Vif))
        .chain(network.flood.iter().copied().map(Object::Nexthop))
        .chain(network.wire.map(|wire| Object::Vif(wire.vif)))
        .chain(network.sharing.addresses.iter().map(|shared| Object::Network(shared.outside_vrf)))
        .for_each(each);
}

fn references_of_nexthop(nexthop: &Nexthop, mut each: impl FnMut(Object)) {
    match nexthop {
        Nexthop::Encap { vif, .. } => each(Object::Vif(*vif)),
        Nexthop::VrfTranslate { vrf } => each(Object::Network(*vrf)),
        Nexthop::Ecmp(members) => members.iter().copied().map(Object::Nexthop).for_each(each),
        Nexthop::Discard | Nexthop::Receive | Nexthop::Tunnel(_) | Nexthop::Resolve { .. } => {}
    }
}

fn reference_of_target(target: BridgeTarget) -> Option<Object> {
    match target {
        BridgeTarget::Vif(vif) => Some(Object::Vif(vif)),
        BridgeTarget::Nexthop(nexthop) => Some(Object::Nexthop(nexthop)),
        BridgeTarget::Vtep { .. } => None,
    }
}

fn reference_of_rule(rule: &Rule) -> Option<Object> {
    match rule.action {
        RuleAction::Modify(Modifier::Mirror(vif)) => Some(Object::Vif(vif)),
        RuleAction::Modify(Modifier::Police(meter)) => Some(Object::Meter(meter)),
        RuleAction::End(_) => None,
    }
}
