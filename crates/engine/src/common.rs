//! State that the engine and its housekeeper share.

use crate::capture::{DropLog, Tap};
use crate::clock::Clock;
use crate::counters::WorkerCells;
use crate::mailbox::{Mailbox, Pending};
use crate::message::Message;
use crate::mutex::lock;
use executor::WorkerCounters;
use mem::Port;
use model::VifId;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use tables::Shared;

/// The parts of a worker that other threads hold.
pub(crate) struct Handle {
    pub cpu: Option<usize>,
    pub mailbox: Arc<Mailbox<Message>>,
    pub cells: Arc<WorkerCells>,
    pub log: Arc<DropLog>,
    /// Counters of the corresponding worker of the engine before this one.
    pub past: OnceLock<WorkerCounters>,
    /// The change that the worker did not process in time.
    behind: Mutex<Option<Pending>>,
}

impl Handle {
    /// Creates the handle of a new worker, which may be pinned to a CPU.
    ///
    /// # Errors
    /// If no event descriptor is left.
    pub fn new(cpu: Option<usize>) -> io::Result<Self> {
        Ok(Self {
            cpu,
            mailbox: Arc::new(Mailbox::new()?),
            cells: Arc::new(WorkerCells::new()),
            log: Arc::new(DropLog::new()),
            past: OnceLock::new(),
            behind: Mutex::default(),
        })
    }

    /// Records that the worker did not process a change in time.
    pub fn falls_behind(&self, pending: Pending) {
        *lock(&self.behind) = Some(pending);
    }

    /// Returns whether the worker is late with a change.
    pub fn is_stalled(&self) -> bool {
        let mut behind = lock(&self.behind);
        if behind.as_ref().is_some_and(|pending| pending.wait(Instant::now())) {
            *behind = None;
        }
        behind.is_some()
    }
}

pub(crate) struct Common {
    pub shared: Arc<Shared>,
    pub clock: Clock,
    pub workers: Vec<Handle>,
    pub taps: Mutex<Vec<Arc<Tap>>>,
    pub ports: Mutex<BTreeMap<VifId, Arc<dyn Port>>>,
    pub lost: Mutex<BTreeMap<VifId, Lost>>,
}

/// Packets of an interface that were lost before a worker received them, as its ports told.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// The present port's count when it was last looked at.
    seen: u64,
    pub total: u64,
}

impl Lost {
    /// Begins with a port whose count is `now`.
    pub const fn begin(&mut self, now: u64) {
        self.seen = now;
    }

    /// Adds what the port lost since the last time. A device that came back counts from zero.
    pub const fn follow(&mut self, now: u64) {
        self.total += if now < self.seen { now } else { now - self.seen };
        self.seen = now;
    }
}

impl Common {
    /// Returns the number of packets that an interface lost before a worker received them.
    pub fn lost_at(&self, vif: VifId) -> u64 {
        lock(&self.lost).get(&vif).map_or(0, |lost| lost.total)
    }
}

#[cfg(test)]
mod tests {
    use super::Lost;

    #[test]
    fn what_a_port_lost_before_is_not_counted_again() {
        let mut lost = Lost::default();
        lost.begin(7);
        let after = [7, 9, 2, 5].map(|now| {
            lost.follow(now);
            lost.total
        });
        assert_eq!(after, [0, 2, 4, 7]);
    }
}
