//! Counts of packets and connections, under names that mean the same to the next daemon.

use super::Core;
use super::carry::epoch_seconds;
use super::view::View;
use crate::service::nexthop_entries;
use config::{Kind, Object};
use executor::{Counters, FlowUse, Past, VifCounters, WorkerCounters};
use model::{DropReason, NexthopId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

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
    /// Each with the nexthop in words.
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
    pub(super) fn of(view: &View) -> Self {
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
        let nexthops = nexthop_entries(view).filter(|entry| entry.packets > 0);
        let counted = |entry: api::v1::NexthopEntry| {
            (entry.text, Counters { packets: entry.packets, bytes: entry.bytes })
        };
        Self {
            reasons: DropReason::ALL.iter().map(|reason| reason.name().to_owned()).collect(),
            vifs: view.tables.vifs.keys().map(|id| (id.0, of_vif(*id))).collect(),
            workers: view.executor.workers(),
            rules: rules.collect(),
            nexthops: nexthops.map(counted).collect(),
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
        let now: HashMap<_, _> =
            nexthop_entries(view).map(|entry| (entry.text, NexthopId(entry.id))).collect();
        let nexthops = self.nexthops.iter().filter_map(|(text, counted)| Some((*now.get(text)?, *counted)));
        Past {
            workers: self.workers.clone(),
            rules: rules.collect(),
            nexthops: nexthops.collect(),
            flows_created: self.flows_created,
        }
    }
}
