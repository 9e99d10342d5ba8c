//! Counts of packets and connections, under names that mean the same to the next daemon.

use super::Core;
use super::carry::epoch_seconds;
use super::view::View;
use crate::compile::Desired;
use config::{Kind, Object};
use executor::{Counters, FlowUse, Past, VifCounters, WorkerCounters};
use model::{ApplyError, Change, DropReason, Nexthop, NexthopId, Tunnel, TunnelKind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct VifCounts {
    pub(super) counters: VifCounters,
    /// In the order of [`DropReason::ALL`].
    pub(super) drops: Vec<u64>,
    pub(super) flows: FlowUse,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Names of the drop reasons, in the order of `drops` above.
    reasons: Vec<String>,
    /// By the number of the interface.
    pub(super) vifs: BTreeMap<u16, VifCounts>,
    workers: Vec<WorkerCounters>,
    /// Each with its network and the text of the rule.
    rules: Vec<(String, String, Counters)>,
    /// Nexthops in words with their counts, and tunnels in words with the counts of labels that are gone.
    nexthops: Vec<(String, Counters)>,
    flows_created: u64,
}

impl Core {
    /// Returns the time when the counts were zero, seconds since the Unix epoch: with this daemon's start, or before
    /// it. `None` if an earlier version began them.
    pub(crate) fn counted_since(&self) -> Option<u64> {
        match self.carry.get() {
            Some(carry) => carry.since(),
            None => Some(epoch_seconds().saturating_sub(self.started.elapsed().as_secs())),
        }
    }
}

impl Counts {
    pub(super) fn of(view: &View, departed: &Departed) -> Self {
        let of_vif = |id| VifCounts {
            counters: view.vif_counters(id),
            drops: view.drops_at(id),
            flows: view.flow_use(id),
        };
        let rules = view.objects.of_kind(Kind::Rule).filter_map(|owned| {
            let Object::Rule(rule) = &owned.object else { return None };
            let text = rule.to_string();
            let counted = view.executor.rule_counters(view.ids.rule(&rule.network, &text)?);
            (counted != Counters::default()).then(|| (rule.network.clone(), text, counted))
        });
        let (departed, counted) = departed.of(view);
        let nexthops = counted.into_iter().filter_map(|(id, counted)| {
            let words = words(&*view.tables.nexthops.get(id)?, view)?;
            (counted.packets > 0).then_some((words, counted))
        });
        let departed =
            departed.into_iter().map(|((kind, remote), counted)| (tunnel_words(kind, remote), counted));
        Self {
            reasons: DropReason::ALL.iter().map(|reason| reason.name().to_owned()).collect(),
            vifs: view.tables.vifs.keys().map(|id| (id.0, of_vif(*id))).collect(),
            workers: view.executor.workers(),
            rules: rules.collect(),
            nexthops: nexthops.chain(departed).collect(),
            flows_created: view.executor.flows_created(),
        }
    }

    /// Sorts drops by this daemon's reasons, and removes counts that no daemon can have reached.
    pub(super) fn understood(mut self) -> Self {
        let at: HashMap<_, _> = self.reasons.iter().enumerate().map(|(i, name)| (name.clone(), i)).collect();
        let reorder = |drops: &mut Vec<u64>| {
            let of = |reason: &DropReason| at.get(reason.name()).and_then(|i| drops.get(*i)).copied();
            *drops = DropReason::ALL.iter().map(|reason| of(reason).unwrap_or(0)).collect();
        };
        self.vifs.values_mut().for_each(|vif| reorder(&mut vif.drops));
        self.workers.iter_mut().for_each(|worker| reorder(&mut worker.drops));
        self.reasons = DropReason::ALL.iter().map(|reason| reason.name().to_owned()).collect();
        self
    }

    /// Converts the counts to the numbers of this view, for its executor.
    pub(super) fn past(&self, view: &View) -> Past {
        let rules = self
            .rules
            .iter()
            .filter_map(|(network, text, counted)| Some((view.ids.rule(network, text)?, *counted)));
        let id = |text: &str| view.ids.nexthop(nexthop(text, view)?);
        let nexthops = self.nexthops.iter().filter_map(|(text, counted)| Some((id(text)?, *counted)));
        Past {
            workers: self.workers.clone(),
            rules: rules.collect(),
            nexthops: nexthops.collect(),
            flows_created: self.flows_created,
        }
    }

    /// Returns the counts of tunnels for labels that are gone, now or since the previous daemon.
    pub(super) fn departed(&self, view: &View) -> impl Iterator<Item = (TunnelOf, Counters)> {
        self.nexthops.iter().filter_map(|(text, counted)| match text.split(' ').collect::<Vec<_>>()[..] {
            [kind, "to", remote] => Some(((tunnel_kind(kind)?, remote.parse().ok()?), *counted)),
            _ => match nexthop(text, view)? {
                Nexthop::Tunnel(ref tunnel) if view.ids.nexthop(Nexthop::Tunnel(*tunnel)).is_none() => {
                    Some((of_tunnel(tunnel), *counted))
                }
                _ => None,
            },
        })
    }
}

/// A tunnel, whatever its label.
pub(crate) type TunnelOf = (TunnelKind, IpAddr);

/// Counts of tunnels' nexthops that are gone: what is counted by tunnel does not become less when a label goes.
#[derive(Default)]
pub(super) struct Departed(Mutex<BTreeMap<TunnelOf, Counters>>);

impl Departed {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TunnelOf, Counters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, more: impl IntoIterator<Item = (TunnelOf, Counters)>) {
        add_to(&mut self.lock(), more);
    }

    /// Returns the counts of tunnels that are there, and forgets the others; and with them those of the nexthops that
    /// are there. Nothing goes from these to those meanwhile.
    fn of(&self, view: &View) -> (BTreeMap<TunnelOf, Counters>, HashMap<NexthopId, Counters>) {
        let mut all = self.lock();
        let there: BTreeSet<_> = view.tables.nexthops.tunnels().map(of_tunnel).collect();
        all.retain(|tunnel, _| there.contains(tunnel));
        (all.clone(), view.executor.counted_nexthops())
    }
}

fn add_to(all: &mut BTreeMap<TunnelOf, Counters>, more: impl IntoIterator<Item = (TunnelOf, Counters)>) {
    for (tunnel, counted) in more {
        let sum = all.entry(tunnel).or_default();
        *sum = Counters { packets: sum.packets + counted.packets, bytes: sum.bytes + counted.bytes };
    }
}

pub(crate) const fn of_tunnel(tunnel: &Tunnel) -> TunnelOf {
    (tunnel.kind, tunnel.remote)
}

impl Core {
    /// Returns the packets that tunnels took, whatever their labels.
    pub(crate) fn tunnel_packets(&self, view: &View) -> BTreeMap<TunnelOf, u64> {
        let mut all: BTreeMap<_, _> =
            view.tables.nexthops.tunnels().map(|tunnel| (of_tunnel(tunnel), 0)).collect();
        let (departed, now) = self.departed.of(view);
        let now = now.into_iter().filter_map(|(id, counted)| match *view.tables.nexthops.get(id)? {
            Nexthop::Tunnel(ref tunnel) => Some((of_tunnel(tunnel), counted)),
            _ => None,
        });
        for (tunnel, counted) in departed.into_iter().chain(now) {
            all.entry(tunnel).and_modify(|packets| *packets += counted.packets);
        }
        all
    }

    /// Has the executor apply changes of these tables.
    pub(super) fn put(&self, from: &Desired, changes: &[Change]) -> Result<(), ApplyError> {
        if changes.is_empty() {
            return Ok(());
        }
        let leaving = |change: &Change| {
            let Change::DelNexthop(id) = *change else { return None };
            let Nexthop::Tunnel(ref tunnel) = *from.nexthops.get(id)? else { return None };
            Some((id, of_tunnel(tunnel)))
        };
        let leaving: Vec<_> = changes.iter().filter_map(leaving).collect();
        if leaving.is_empty() {
            self.executor.apply(changes)?;
        } else {
            let mut all = self.departed.lock();
            let counted = leaving.into_iter().map(|(id, of)| (of, self.executor.nexthop_counters(id)));
            let counted: Vec<_> = counted.filter(|(_, counted)| counted.packets > 0).collect();
            self.executor.apply(changes)?;
            add_to(&mut all, counted);
        }
        self.ports.tables_changed();
        Ok(())
    }
}

fn tunnel_words(kind: TunnelKind, remote: IpAddr) -> String {
    format!("{} to {remote}", Tunnel { kind, remote, id: 0, mac: None }.encapsulation())
}

fn tunnel_kind(name: &str) -> Option<TunnelKind> {
    let all = [TunnelKind::MplsUdp, TunnelKind::MplsGre, TunnelKind::Vxlan, TunnelKind::Geneve];
    let remote = Ipv4Addr::UNSPECIFIED.into();
    all.into_iter().find(|kind| Tunnel { kind: *kind, remote, id: 0, mac: None }.encapsulation() == name)
}

/// Returns a nexthop in words, from which [`nexthop`] reads it. Groups count nothing.
fn words(nexthop: &Nexthop, view: &View) -> Option<String> {
    match nexthop {
        Nexthop::Ecmp(_) => None,
        Nexthop::Tunnel(Tunnel { mac: Some(mac), .. }) => Some(format!("{} mac {mac}", nexthop.words(view))),
        other => Some(other.words(view)),
    }
}

fn nexthop(words: &str, view: &View) -> Option<Nexthop> {
    let tunnel = |kind, remote: &str, id: &str, mac: Option<&str>| {
        let mac = mac.map(str::parse).transpose().ok()?;
        let tunnel =
            Tunnel { kind: tunnel_kind(kind)?, remote: remote.parse().ok()?, id: id.parse().ok()?, mac };
        Some(Nexthop::Tunnel(tunnel))
    };
    match words.split(' ').collect::<Vec<_>>()[..] {
        ["discard"] => Some(Nexthop::Discard),
        ["receive"] => Some(Nexthop::Receive),
        ["encap", mac, "to", vif] => Some(Nexthop::Encap { vif: view.ids.vif(vif)?, mac: mac.parse().ok()? }),
        ["to", "network", name] => Some(Nexthop::VrfTranslate { vrf: view.network(name)?.vrf }),
        ["resolve"] => Some(Nexthop::Resolve { via: None }),
        ["resolve", "via", via] => Some(Nexthop::Resolve { via: Some(via.parse().ok()?) }),
        [kind, "to", remote, "label" | "vni", id] => tunnel(kind, remote, id, None),
        [kind, "to", remote, "label" | "vni", id, "mac", mac] => tunnel(kind, remote, id, Some(mac)),
        _ => None,
    }
}
