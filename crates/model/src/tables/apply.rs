//! Changes to the configured tables: a batch is applied as a whole or not at all.

use super::Tables;
use crate::{
    ApplyError, BridgeTarget, Change, MeterId, Modifier, Network, Nexthop, NexthopId, Rule, RuleAction, Vif,
    VifId, VifKind, Vrf,
};
use std::collections::BTreeMap;
use std::fmt::Display;

impl Tables {
    /// Applies a batch. All that a change refers to must exist once the whole batch is applied; all that it
    /// deletes must exist before.
    ///
    /// # Errors
    /// [`ApplyError::Missing`]; nothing was applied.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), ApplyError> {
        let mut next = self.clone();
        for change in changes {
            next.change(change)?;
        }
        next.check()?;
        next.wires = next.vifs.values().filter(|v| v.kind == VifKind::Wire).map(|v| v.id).collect();
        next.dynamic.retain(&next.vifs, &next.networks);
        next.forget_flows();
        *self = next;
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), ApplyError> {
        match change.clone() {
            Change::SetHost(host) => self.host = host,
            Change::PutVif(vif) => put(&mut self.vifs, vif.id, vif),
            Change::DelVif(id) => take(&mut self.vifs, &id, || format!("vif {id}"))?,
            Change::PutNetwork(network) => put(&mut self.networks, network.vrf, network),
            Change::DelNetwork(vrf) => take(&mut self.networks, &vrf, || format!("network {vrf}"))?,
            Change::PutNexthop(id, nexthop) => put(&mut self.nexthops, id, nexthop),
            Change::DelNexthop(id) => take(&mut self.nexthops, &id, || format!("nexthop {id}"))?,
            Change::PutRoute { vrf, prefix, nexthop } => {
                put(&mut self.routes, (vrf, prefix.trunc()), nexthop);
            }
            Change::DelRoute { vrf, prefix } => {
                take(&mut self.routes, &(vrf, prefix.trunc()), || {
                    format!("route {prefix} of network {vrf}")
                })?;
            }
            Change::PutMac { vrf, mac, target } => put(&mut self.macs, (vrf, mac), target),
            Change::DelMac { vrf, mac } => {
                take(&mut self.macs, &(vrf, mac), || format!("MAC {mac} of network {vrf}"))?;
            }
            Change::PutOwner { vrf, addr, mac } => put(&mut self.owners, (vrf, addr), mac),
            Change::DelOwner { vrf, addr } => {
                take(&mut self.owners, &(vrf, addr), || format!("owner of {addr} in network {vrf}"))?;
            }
            Change::PutMpls { label, nexthop } => put(&mut self.mpls, label, nexthop),
            Change::DelMpls { label } => take(&mut self.mpls, &label, || format!("label {label}"))?,
            Change::PutVxlan { vni, vrf } => put(&mut self.vxlan, vni, vrf),
            Change::DelVxlan { vni } => take(&mut self.vxlan, &vni, || format!("VNI {vni}"))?,
            Change::PutFloating(f) => {
                put(&mut self.floating, (f.outside_vrf, f.outside), (f.inside_vrf, f.inside));
            }
            Change::DelFloating { outside_vrf, outside } => {
                let what = || format!("floating address {outside} of network {outside_vrf}");
                take(&mut self.floating, &(outside_vrf, outside), what)?;
            }
            Change::PutMeter(id, config) => self.put_meter(id, config),
            Change::DelMeter(id) => {
                take(&mut self.meter_configs, &id, || format!("meter {id}"))?;
                self.dynamic.meters.remove(&id);
            }
            Change::PutRule(rule) => self.put_rule(rule),
            Change::DelRule { vrf, id } => {
                let key = self.rules.keys().find(|(v, _, r)| (*v, *r) == (vrf, id)).copied();
                let key = key.ok_or_else(|| ApplyError::Missing(format!("rule {id} of network {vrf}")))?;
                self.rules.remove(&key);
            }
            Change::PutPaths { remote, paths } if paths.is_empty() => drop(self.kernel_paths.remove(&remote)),
            Change::PutPaths { remote, paths } => put(&mut self.kernel_paths, remote, paths),
            Change::SetDown { remote, is_down: true } => drop(self.down.insert(remote)),
            Change::SetDown { remote, is_down: false } => drop(self.down.remove(&remote)),
            Change::SetPathDown { remote, wire, hop, is_down: true } => {
                self.down_paths.insert((remote, wire, hop));
            }
            Change::SetPathDown { remote, wire, hop, is_down: false } => {
                self.down_paths.remove(&(remote, wire, hop));
            }
            Change::SetWatched { remote, is_watched: true } => drop(self.watched.insert(remote)),
            Change::SetWatched { remote, is_watched: false } => drop(self.watched.remove(&remote)),
        }
        Ok(())
    }

    /// Sets a meter. It keeps its tokens unless its configuration changes.
    fn put_meter(&mut self, id: MeterId, config: crate::MeterConfig) {
        if self.meter_configs.insert(id, config) != Some(config) {
            self.dynamic.meters.insert(id, crate::Meter::new(config));
        }
    }

    fn put_rule(&mut self, rule: Rule) {
        self.rules.retain(|(vrf, _, id), _| (*vrf, *id) != (rule.vrf, rule.id));
        self.rules.insert((rule.vrf, rule.priority, rule.id), rule);
    }

    /// Checks that everything referred to exists.
    fn check(&self) -> Result<(), ApplyError> {
        self.vifs.values().try_for_each(|vif| self.check_vif(vif))?;
        self.networks.values().try_for_each(|network| self.check_network(network))?;
        self.nexthops.values().try_for_each(|nexthop| self.check_nexthop(nexthop))?;
        for ((vrf, _), nexthop) in &self.routes {
            self.has_network(*vrf)?;
            self.has_nexthop(*nexthop)?;
        }
        for ((vrf, _), target) in &self.macs {
            self.has_network(*vrf)?;
            match target {
                BridgeTarget::Vif(vif) => self.has_vif(*vif)?,
                BridgeTarget::Nexthop(nexthop) => self.has_nexthop(*nexthop)?,
                BridgeTarget::Vtep { .. } => {}
            }
        }
        self.owners.keys().try_for_each(|(vrf, _)| self.has_network(*vrf))?;
        self.mpls.values().try_for_each(|nexthop| self.has_nexthop(*nexthop))?;
        self.vxlan.values().try_for_each(|vrf| self.has_network(*vrf))?;
        for ((outside, _), (inside, _)) in &self.floating {
            self.has_network(*outside)?;
            self.has_network(*inside)?;
        }
        self.rules.values().try_for_each(|rule| self.check_rule(rule))
    }

    fn check_vif(&self, vif: &Vif) -> Result<(), ApplyError> {
        vif.vrf.map_or(Ok(()), |vrf| self.has_network(vrf))?;
        vif.meter.map_or(Ok(()), |meter| self.has_meter(meter))?;
        let vlans = vif.vlans.iter().map(|(_, id)| id).chain(vif.trunk.iter().map(|(port, _)| port));
        vif.mirror
            .iter()
            .chain(&vif.rdma)
            .chain(&vif.ovs)
            .chain(vlans)
            .try_for_each(|other| self.has_vif(*other))?;
        let attached = vif.wire.iter().flat_map(|wire| &wire.networks);
        attached.map(|(_, vrf)| *vrf).try_for_each(|vrf| self.has_network(vrf))
    }

    fn check_network(&self, network: &Network) -> Result<(), ApplyError> {
        network.members.iter().try_for_each(|vif| self.has_vif(*vif))?;
        network.flood.iter().try_for_each(|nexthop| self.has_nexthop(*nexthop))?;
        network.sharing.addresses.iter().try_for_each(|shared| self.has_network(shared.outside_vrf))?;
        network.wire.map_or(Ok(()), |wire| self.has_vif(wire.vif))
    }

    fn check_nexthop(&self, nexthop: &Nexthop) -> Result<(), ApplyError> {
        match nexthop {
            Nexthop::Encap { vif, .. } => self.has_vif(*vif),
            Nexthop::VrfTranslate { vrf } => self.has_network(*vrf),
            Nexthop::Ecmp(members) => members.iter().try_for_each(|member| self.has_nexthop(*member)),
            Nexthop::Discard | Nexthop::Receive | Nexthop::Tunnel(_) | Nexthop::Resolve { .. } => Ok(()),
        }
    }

    fn check_rule(&self, rule: &Rule) -> Result<(), ApplyError> {
        self.has_network(rule.vrf)?;
        match rule.action {
            RuleAction::Modify(Modifier::Mirror(vif)) => self.has_vif(vif),
            RuleAction::Modify(Modifier::Police(meter)) => self.has_meter(meter),
            RuleAction::End(_) => Ok(()),
        }
    }

    fn has_vif(&self, id: VifId) -> Result<(), ApplyError> {
        has(&self.vifs, &id, "vif")
    }

    fn has_network(&self, vrf: Vrf) -> Result<(), ApplyError> {
        has(&self.networks, &vrf, "network")
    }

    fn has_nexthop(&self, id: NexthopId) -> Result<(), ApplyError> {
        has(&self.nexthops, &id, "nexthop")
    }

    fn has_meter(&self, id: MeterId) -> Result<(), ApplyError> {
        has(&self.meter_configs, &id, "meter")
    }
}

fn put<K: Ord, V>(table: &mut BTreeMap<K, V>, key: K, value: V) {
    table.insert(key, value);
}

fn take<K: Ord, V>(
    table: &mut BTreeMap<K, V>,
    key: &K,
    what: impl FnOnce() -> String,
) -> Result<(), ApplyError> {
    table.remove(key).map(|_| ()).ok_or_else(|| ApplyError::Missing(what()))
}

fn has<K: Ord + Display, V>(table: &BTreeMap<K, V>, key: &K, what: &str) -> Result<(), ApplyError> {
    if table.contains_key(key) { Ok(()) } else { Err(ApplyError::Missing(format!("{what} {key}"))) }
}
