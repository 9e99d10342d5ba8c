//! The executor, as drivers of Open vSwitch change it.

use crate::forwarder::Forwarder;
use executor::{Counters, VifCounters};
use model::VifId;
use model::ovs::Change;

/// The executor's flows.
pub struct OvsTables(pub Forwarder);

impl ovs::Tables for OvsTables {
    fn apply(&self, changes: &[Change]) -> Result<(), String> {
        self.0.executor().ovs_apply(changes).map_err(|e| e.to_string())
    }

    fn counts(&self, counters: &[u32]) -> Vec<Counters> {
        self.0.executor().ovs_counts(counters)
    }

    fn port_of(&self, side: VifId) -> Option<VifId> {
        self.0.engine().ovs_port(side)
    }

    fn vif_counters(&self, vif: VifId) -> VifCounters {
        self.0.executor().vif_counters(vif)
    }
}
