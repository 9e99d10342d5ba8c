//! What a guest may take of the connection table.

use super::zeroed::Zeroed;
use model::{Seconds, VifId};
use std::sync::atomic::Ordering;

/// Connections a guest has.
const HELD: usize = 0;
/// Connections it opened within a second (low half), and that second plus 1.
const OPENED: usize = 1;

/// By interface.
pub(super) struct Quotas {
    used: Zeroed<2>,
    /// Connections at a time.
    held: u64,
    /// New ones a second: a bucket that is full again with each second.
    per_second: u32,
}

impl Quotas {
    pub fn new(held: u64, per_second: u32) -> Self {
        Self { used: Zeroed::new(1 << 16), held, per_second }
    }

    /// Charges a connection to an interface. Returns whether it may have it.
    pub fn take(&self, vif: VifId, now: Seconds) -> bool {
        let record = &self.used.records()[usize::from(vif.0)];
        let second = (u64::from(now) + 1) << 32;
        let open = |word: u64| {
            let opened = if word >> 32 == second >> 32 { word as u32 } else { 0 };
            (opened < self.per_second).then(|| second | u64::from(opened + 1))
        };
        let add = |held| (held < self.held).then_some(held + 1);
        if record[HELD].fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return false;
        }
        let opened = record[OPENED].fetch_update(Ordering::Relaxed, Ordering::Relaxed, open).is_ok();
        if !opened {
            self.give_back(vif);
        }
        opened
    }

    /// A connection is gone.
    pub fn give_back(&self, vif: VifId) {
        self.used.records()[usize::from(vif.0)][HELD].fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections an interface has.
    pub fn held(&self, vif: VifId) -> u64 {
        self.used.records()[usize::from(vif.0)][HELD].load(Ordering::Relaxed)
    }
}
