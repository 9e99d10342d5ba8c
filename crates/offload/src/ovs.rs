//! Counts of the packets and entries that the card has for flows of an Open vSwitch.

use crate::stats::lock;
use card::ovs::Origin;
use executor::Counters;
use model::VifId;
use model::ovs::FlowId;
use std::collections::HashMap;
use std::sync::Mutex;

/// Packets that the card forwarded, by the flows' counters; and the card's entries, by flow.
#[derive(Debug, Default)]
pub struct OvsCells {
    counts: Mutex<HashMap<u32, Counters>>,
    entries: Mutex<HashMap<(VifId, FlowId), u64>>,
}

impl OvsCells {
    /// Counts packets of a flow that the card forwarded.
    pub fn count(&self, origin: &Origin, counters: Counters) {
        let mut counts = lock(&self.counts);
        let to = counts.entry(origin.counter).or_default();
        to.packets += counters.packets;
        to.bytes += counters.bytes;
    }

    /// Returns the packets that the card forwarded, for each of these counters.
    pub fn counts(&self, counters: &[u32]) -> Vec<Counters> {
        let counts = lock(&self.counts);
        counters.iter().map(|counter| counts.get(counter).copied().unwrap_or_default()).collect()
    }

    /// Notes that the card has one more entry of a flow.
    pub fn enter(&self, origin: &Origin) {
        *lock(&self.entries).entry((origin.port, origin.id)).or_default() += 1;
    }

    /// Notes that the card has one entry less of a flow.
    pub fn leave(&self, origin: &Origin) {
        let mut entries = lock(&self.entries);
        let key = (origin.port, origin.id);
        if let Some(count) = entries.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                entries.remove(&key);
            }
        }
    }

    /// Returns how many entries the card has of a flow.
    pub fn entries(&self, port: VifId, id: FlowId) -> u64 {
        lock(&self.entries).get(&(port, id)).copied().unwrap_or_default()
    }
}
