//! The desired contents of the tables, and the changes from one such state to another.

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use ipnet::IpNet;
use model::{
    BridgeTarget, Change, FloatingAddress, Host, MeterConfig, MeterId, Network, Nexthop, NexthopId, Rule,
    RuleId, Vif, VifId, Vrf,
};
use packet::Mac;
use std::net::IpAddr;

/// The desired contents of the tables. A clone is cheap, and a comparison of two costs only as much as their
/// difference.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Desired {
    pub(crate) host: Host,
    pub(crate) meters: OrdMap<MeterId, MeterConfig>,
    pub(crate) vifs: OrdMap<VifId, Vif>,
    pub(crate) networks: OrdMap<Vrf, Network>,
    pub(crate) nexthops: OrdMap<NexthopId, Nexthop>,
    pub(crate) routes: OrdMap<(Vrf, IpNet), NexthopId>,
    /// The routes that nobody wrote: those of gateways and guests. Written ones with the same prefix hide them. These are
    /// no contents of the tables.
    pub(crate) implied: OrdMap<(Vrf, IpNet), NexthopId>,
    pub(crate) macs: OrdMap<(Vrf, Mac), BridgeTarget>,
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
        let mut out = Batch::default();
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
        out.table(
            &self.routes,
            &to.routes,
            |&(vrf, prefix), &nexthop| Change::PutRoute { vrf, prefix, nexthop },
            |&(vrf, prefix), _| Change::DelRoute { vrf, prefix },
        );
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
        [rules.dels, out.puts, rules.puts, out.dels.into_iter().rev().collect()].concat()
    }

    /// Adds the changes of nexthops, groups after their members.
    fn nexthop_changes(&self, to: &Self, out: &mut Batch) {
        let mut changes = [Batch::default(), Batch::default()];
        for item in self.nexthops.diff(&to.nexthops) {
            let (DiffItem::Add(_, nexthop)
            | DiffItem::Update { new: (_, nexthop), .. }
            | DiffItem::Remove(_, nexthop)) = item;
            let batch = &mut changes[usize::from(matches!(nexthop, Nexthop::Ecmp(_)))];
            match item {
                DiffItem::Add(id, nexthop) | DiffItem::Update { new: (id, nexthop), .. } => {
                    batch.puts.push(Change::PutNexthop(*id, nexthop.clone()));
                }
                DiffItem::Remove(id, _) => batch.dels.push(Change::DelNexthop(*id)),
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
