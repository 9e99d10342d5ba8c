//! Policers: token buckets shared by the workers.

use crate::actions::Action;
use model::{DropReason, Meter, MeterConfig, MeterId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Attempts to lease a bucket before the thread waits for it.
const SPINS: usize = 1000;

/// A bucket. Workers lease it for some nanoseconds.
#[derive(Debug)]
pub(crate) struct SharedMeter(Mutex<Meter>);

impl SharedMeter {
    /// Returns whether a frame of `len` bytes conforms; if so, takes its tokens.
    pub fn conforms(&self, now_ns: u64, len: usize) -> bool {
        for _ in 0..SPINS {
            if let Ok(mut meter) = self.0.try_lock() {
                return meter.conforms(now_ns, len);
            }
            std::hint::spin_loop();
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).conforms(now_ns, len)
    }
}

/// The current meters, by id. The map is replaced as a whole; the buckets live on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters(BTreeMap<MeterId, (MeterConfig, Arc<SharedMeter>)>);

impl Meters {
    /// Sets a meter. If its configuration does not change, the bucket keeps its level.
    pub fn put(&mut self, id: MeterId, config: MeterConfig) {
        if self.0.get(&id).is_none_or(|(old, _)| *old != config) {
            self.0.insert(id, (config, Arc::new(SharedMeter(Mutex::new(Meter::new(config))))));
        }
    }

    pub fn remove(&mut self, id: MeterId) {
        self.0.remove(&id);
    }

    /// Returns the reason to drop a frame that exceeds the rate of one of an action's meters. The meters
    /// before that one have already taken the frame's tokens.
    #[cold]
    pub fn over(&self, action: &Action, now_ns: u64, len: usize) -> Option<DropReason> {
        let meters = &action.policy()?.meters;
        meters.iter().find(|(meter, _)| !self.conforms(*meter, now_ns, len)).map(|(_, reason)| *reason)
    }

    /// Returns whether a frame conforms. A meter that does not exist limits nothing.
    pub fn conforms(&self, id: MeterId, now_ns: u64, len: usize) -> bool {
        self.0.get(&id).is_none_or(|(_, meter)| meter.conforms(now_ns, len))
    }
}
