//! The desired contents of the tables, and the changes from one such state to another.

use super::bridges::Bridges;
use crate::prefixes::{Difference, Prefixes};
use executor::Nexthops;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use model::{
    BridgeTarget, Change, FloatingAddress, Host, MeterConfig, MeterId, Network, Nexthop, NexthopId, Rule,
    RuleId, Tunnel, Vif, VifId, Vrf,
};
use packet::Mac;
use rib::{Place, Rib};
use std::net::IpAddr;

/// The desired contents of the tables. A clone is cheap, and a comparison of two costs only as much as their
/// difference.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Desired {
    pub(crate) host: Host,
    pub(crate) meters: OrdMap<MeterId, MeterConfig>,
    pub(crate) vifs: OrdMap<VifId, Vif>,
    pub(crate) networks: OrdMap<Vrf, Network>,
    pub(crate) nexthops: Nexthops,
    pub(crate) routes: Prefixes<Vrf, NexthopId>,
    /// The routes that nobody wrote: those of gateways and guests. Written ones with the same prefix hide them. These are
    /// no contents of the tables.
    pub(crate) implied: Prefixes<Vrf, NexthopId>,
    /// The routes of programs. They count where there is no other with the same prefix.
    pub(crate) learned: Rib,
    pub(crate) macs: OrdMap<(Vrf, Mac), BridgeTarget>,
    /// The floods of objects. These are no contents of the tables.
    pub(crate) floods: OrdMap<Vrf, Vec<Tunnel>>,
    /// The MAC addresses and floods of programs. The floods of networks contain them.
    pub(crate) bridges: Bridges,
    pub(crate) mpls: OrdMap<u32, NexthopId>,
    pub(crate) vxlan: OrdMap<u32, Vrf>,
    pub(crate) floating: OrdMap<(Vrf, IpAddr), FloatingAddress>,
    pub(crate) rules: OrdMap<RuleId, Rule>,
}

impl Desired {
    /// Returns the changes that lead from `self` to `to`. Entries come before those that refer to them, and
    /// removals last in the reverse order, so no reference dangles at any point. Removals of rules come first
    /// of all: nothing refers to rules, and new ones need their room.
    pub(crate) fn changes_to(&self, to: &Self) -> Vec<Change> {
        let mut rules = Batch::default();
        rules.table(
            &self.rules,
            &to.rules,
            |_, v| Change::PutRule(v.clone()),
            |&id, old| Change::DelRule { vrf: old.vrf, id },
        );
        let mut out = Batch { puts: rules.dels, dels: Vec::new() };
        if self.host != to.host {
            out.puts.push(Change::SetHost(to.host.clone()));
        }
        out.table(&self.meters, &to.meters, |k, v| Change::PutMeter(*k, *v), |k, _| Change::DelMeter(*k));
        out.table(
            &self.networks,
            &to.networks,
            |_, v| Change::PutNetwork(v.clone()),
            |k, _| Change::DelNetwork(*k),
        );
        out.table(&self.vifs, &to.vifs, |_, v| Change::PutVif(v.clone()), |k, _| Change::DelVif(*k));
        self.nexthop_changes(to, &mut out);
        for Difference { place: (vrf, prefix), new, .. } in self.routes.changes_to(&to.routes) {
            match new {
                Some(&nexthop) => out.puts.push(Change::PutRoute { vrf, prefix, nexthop }),
                None => out.dels.push(Change::DelRoute { vrf, prefix }),
            }
        }
        out.table(
            &self.macs,
            &to.macs,
            |&(vrf, mac), &target| Change::PutMac { vrf, mac, target },
            |&(vrf, mac), _| Change::DelMac { vrf, mac },
        );
        out.table(
            &self.mpls,
            &to.mpls,
            |&label, &nexthop| Change::PutMpls { label, nexthop },
            |&label, _| Change::DelMpls { label },
        );
        out.table(
            &self.vxlan,
            &to.vxlan,
            |&vni, &vrf| Change::PutVxlan { vni, vrf },
            |&vni, _| Change::DelVxlan { vni },
        );
        out.table(
            &self.floating,
            &to.floating,
            |_, v| Change::PutFloating(*v),
            |&(outside_vrf, outside), _| Change::DelFloating { outside_vrf, outside },
        );
        out.table(
            &self.bridges.owners,
            &to.bridges.owners,
            |&(vrf, addr), &mac| Change::PutOwner { vrf, addr, mac },
            |&(vrf, addr), _| Change::DelOwner { vrf, addr },
        );
        let Batch { puts: mut all, mut dels } = out;
        all.extend(rules.puts);
        all.extend(self.learned_changes(to));
        all.extend(self.bridge_changes(to));
        dels.iter_mut().for_each(|change| to.uncover(change));
        all.extend(dels.into_iter().rev());
        all
    }

    /// Puts the learned route or MAC address in the place of another that goes.
    fn uncover(&self, change: &mut Change) {
        if let Change::DelRoute { vrf, prefix } = *change
            && let Some((nexthop, _)) = self.learned.best(&(vrf, prefix))
        {
            *change = Change::PutRoute { vrf, prefix, nexthop };
        }
        if let Change::DelMac { vrf, mac } = *change
            && let Some((_, nexthop)) = self.bridges.macs.get(&(vrf, mac))
        {
            *change = Change::PutMac { vrf, mac, target: BridgeTarget::Nexthop(*nexthop) };
        }
    }

    /// Returns the changes of learned MAC addresses that no object hides, before or after.
    fn bridge_changes(&self, to: &Self) -> Vec<Change> {
        let change = |item: DiffItem<'_, '_, (Vrf, Mac), (Tunnel, NexthopId)>| {
            let (&(vrf, mac), new) = match item {
                DiffItem::Add(place, (_, nexthop)) | DiffItem::Update { new: (place, (_, nexthop)), .. } => {
                    (place, Some(*nexthop))
                }
                DiffItem::Remove(place, _) => (place, None),
            };
            let is_hidden = [self, to].iter().any(|of| of.macs.contains_key(&(vrf, mac)));
            let put = |nexthop| Change::PutMac { vrf, mac, target: BridgeTarget::Nexthop(nexthop) };
            (!is_hidden).then(|| new.map_or(Change::DelMac { vrf, mac }, put))
        };
        self.bridges.macs.diff(&to.bridges.macs).filter_map(change).collect()
    }

    /// Returns the configured and learned entries of bridges in force.
    pub(crate) fn macs_in_force(&self) -> impl Iterator<Item = ((Vrf, Mac), BridgeTarget)> {
        let learned = self.bridges.macs.iter().filter(|(place, _)| !self.macs.contains_key(*place));
        let learned = learned.map(|(place, (_, nexthop))| (*place, BridgeTarget::Nexthop(*nexthop)));
        self.macs.iter().map(|(place, target)| (*place, *target)).chain(learned)
    }

    /// Returns the changes of learned routes that no other hides, before or after.
    fn learned_changes(&self, to: &Self) -> Vec<Change> {
        let is_bare = |(place, _): &(Place, _)| [self, to].iter().all(|of| !of.routes.contains_key(place));
        let change = |((vrf, prefix), nexthop)| match nexthop {
            Some(nexthop) => Change::PutRoute { vrf, prefix, nexthop },
            None => Change::DelRoute { vrf, prefix },
        };
        self.learned.changes_to(&to.learned).filter(is_bare).map(change).collect()
    }

    /// Returns the routes in force.
    pub(crate) fn routes_in_force(&self) -> impl Iterator<Item = (Place, NexthopId)> {
        let learned = self.learned.iter().filter(|(place, ..)| !self.routes.contains_key(place));
        let learned = learned.map(|(place, nexthop, _)| (place, nexthop));
        self.routes.iter().map(|(place, nexthop)| (place, *nexthop)).chain(learned)
    }

    /// Adds the changes of nexthops, groups after their members.
    fn nexthop_changes(&self, to: &Self, out: &mut Batch) {
        let mut changes = [Batch::default(), Batch::default()];
        for (id, old, new) in self.nexthops.changes_to(&to.nexthops) {
            let is_group = matches!(new.as_deref().or(old.as_deref()), Some(Nexthop::Ecmp(_)));
            let batch = &mut changes[usize::from(is_group)];
            match new {
                Some(nexthop) => batch.puts.push(Change::PutNexthop(id, nexthop.into_owned())),
                None => batch.dels.push(Change::DelNexthop(id)),
            }
        }
        for batch in changes {
            out.puts.extend(batch.puts);
            out.dels.extend(batch.dels);
        }
    }
}

#[derive(Default)]
struct Batch {
    puts: Vec<Change>,
    dels: Vec<Change>,
}

impl Batch {
    fn table<K: Ord, V: PartialEq>(
        &mut self,
        from: &OrdMap<K, V>,
        to: &OrdMap<K, V>,
        put: impl Fn(&K, &V) -> Change,
        del: impl Fn(&K, &V) -> Change,
    ) {
        for item in from.diff(to) {
            match item {
                DiffItem::Add(key, value) | DiffItem::Update { new: (key, value), .. } => {
                    self.puts.push(put(key, value));
                }
                DiffItem::Remove(key, value) => self.dels.push(del(key, value)),
            }
        }
    }
}
