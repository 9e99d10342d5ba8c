//! Counts of an interface's number before the interface got it. The executor counts per number and goes on
//! from the counts of the number's previous interface, so views subtract them.

use super::counts::VifCounts;
use crate::compile::Desired;
use executor::{Executor, FlowUse, VifCounters};
use imbl::OrdMap;
use model::VifId;

/// The counts that an interface found under its number, less those that it brought along (modulo 2^64).
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    pub(super) counters: VifCounters,
    pub(super) drops: Vec<u64>,
    pub(super) flows: FlowUse,
}

/// By interface, for all that may have found any.
#[derive(Clone, Debug, Default)]
pub(super) struct Inherited(OrdMap<VifId, Before>);

impl Inherited {
    /// Notes the counts found by interfaces that are new in `to`, and forgets interfaces that are gone.
    pub(super) fn follow(&mut self, from: &Desired, to: &Desired, executor: &dyn Executor) {
        for id in from.vifs.keys().filter(|id| !to.vifs.contains_key(*id)) {
            self.0.remove(id);
        }
        for &id in to.vifs.keys().filter(|id| !from.vifs.contains_key(*id)) {
            let flows = executor.flow_use(id);
            let (counters, drops) = (executor.vif_counters(id), executor.drops_at(id));
            self.0.insert(id, Before { counters, drops, flows });
        }
    }

    /// Lets an interface go on from the counts `counted`.
    pub(super) fn resume(&mut self, id: VifId, counted: &VifCounts) {
        let before = self.0.entry(id).or_default();
        before.counters = before.counters.less(&counted.counters);
        before.drops.resize(counted.drops.len().max(before.drops.len()), 0);
        before
            .drops
            .iter_mut()
            .zip(&counted.drops)
            .for_each(|(found, own)| *found = found.wrapping_sub(*own));
        before.flows.refused = before.flows.refused.wrapping_sub(counted.flows.refused);
        before.flows.displaced = before.flows.displaced.wrapping_sub(counted.flows.displaced);
    }

    pub(super) fn of(&self, id: VifId) -> Option<&Before> {
        self.0.get(&id)
    }
}
