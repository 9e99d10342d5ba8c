//! What the tables shall hold, and the changes from one such state to another.

use ipnet::IpNet;
use model::{
    BridgeTarget, Change, FloatingAddress, Host, MeterConfig, MeterId, Network, Nexthop, NexthopId, Rule,
    RuleId, Vif, VifId, Vrf,
};
use packet::Mac;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What the tables shall hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Desired {
    pub(crate) host: Host,
    pub(crate) meters: BTreeMap<MeterId, MeterConfig>,
    pub(crate) vifs: BTreeMap<VifId, Vif>,
    pub(crate) networks: BTreeMap<Vrf, Network>,
    pub(crate) nexthops: BTreeMap<NexthopId, Nexthop>,
    pub(crate) routes: BTreeMap<(Vrf, IpNet), NexthopId>,
    pub(crate) macs: BTreeMap<(Vrf, Mac), BridgeTarget>,
    pub(crate) mpls: BTreeMap<u32, NexthopId>,
    pub(crate) vxlan: BTreeMap<u32, Vrf>,
    pub(crate) floating: BTreeMap<(Vrf, IpAddr), FloatingAddress>,
    pub(crate) rules: BTreeMap<RuleId, Rule>,
}

impl Desired {
    /// The changes that lead from `self` to `to`: first what others will refer to, removals in the reverse order
    /// last, so that nothing dangles at any point.
    pub(crate) fn changes_to(&self, to: &Self) -> Vec<Change> {
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
        out.table(
            &self.rules,
            &to.rules,
            |_, v| Change::PutRule(v.clone()),
            |&id, old| Change::DelRule { vrf: old.vrf, id },
        );
        out.finish()
    }

    /// Groups come after their members.
    fn nexthop_changes(&self, to: &Self, out: &mut Batch) {
        for groups in [false, true] {
            let of = |all: &BTreeMap<NexthopId, Nexthop>| -> BTreeMap<NexthopId, Nexthop> {
                let wanted = |nexthop: &Nexthop| matches!(nexthop, Nexthop::Ecmp(_)) == groups;
                all.iter().filter(|(_, n)| wanted(n)).map(|(id, n)| (*id, n.clone())).collect()
            };
            out.table(
                &of(&self.nexthops),
                &of(&to.nexthops),
                |k, v| Change::PutNexthop(*k, v.clone()),
                |k, _| Change::DelNexthop(*k),
            );
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
        from: &BTreeMap<K, V>,
        to: &BTreeMap<K, V>,
        put: impl Fn(&K, &V) -> Change,
        del: impl Fn(&K, &V) -> Change,
    ) {
        let changed = to.iter().filter(|(key, value)| from.get(key) != Some(value));
        self.puts.extend(changed.map(|(key, value)| put(key, value)));
        let gone = from.iter().filter(|(key, _)| !to.contains_key(key));
        self.dels.extend(gone.map(|(key, value)| del(key, value)));
    }

    fn finish(mut self) -> Vec<Change> {
        self.puts.extend(self.dels.into_iter().rev());
        self.puts
    }
}
