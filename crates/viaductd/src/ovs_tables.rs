//! Gives drivers of Open vSwitch access to the executor's flows.

use crate::forwarder::Forwarder;
use engine::Engine;
use executor::{Counters, Executor, OvsPlace, VifCounters};
use model::VifId;
use model::ovs::{Change, Flow};
use std::sync::{Arc, Weak};

/// The executor's flows. The references are weak: the thread that serves drivers ends a little after the rest
/// of the daemon, and ports close with the executor.
pub struct OvsTables {
    executor: Weak<dyn Executor>,
    engine: Weak<Engine>,
}

impl OvsTables {
    pub fn new(forwarder: &Forwarder) -> Self {
        let executor = Arc::downgrade(&forwarder.executor());
        Self { executor, engine: Arc::downgrade(forwarder.engine()) }
    }
}

impl ovs::Tables for OvsTables {
    fn apply(&self, changes: &[Change], waits: bool) -> Result<(), String> {
        let executor = self.executor.upgrade().ok_or("the daemon ends")?;
        executor.ovs_apply(changes, waits).map_err(|e| e.to_string())
    }

    fn counts(&self, counters: &[u32]) -> Option<Vec<Counters>> {
        Some(self.executor.upgrade()?.ovs_counts(counters))
    }

    fn settle(&self) {
        if let Some(executor) = self.executor.upgrade() {
            executor.settle();
        }
    }

    fn places(&self, flows: &[Arc<Flow>]) -> Option<Vec<OvsPlace>> {
        self.executor.upgrade()?.ovs_places(flows)
    }

    fn port_of(&self, side: VifId) -> Option<VifId> {
        self.engine.upgrade()?.ovs_port(side)
    }

    fn vif_counters(&self, vif: VifId) -> Option<VifCounters> {
        Some(self.executor.upgrade()?.vif_counters(vif))
    }
}
