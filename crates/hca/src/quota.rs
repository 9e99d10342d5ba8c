//! The limits against which a new object of an application counts.

use crate::adapter::Adapter;
use crate::budget::{DeviceBudget, Kind, Reservation};
use crate::limits::Limits;
use crate::queue_memory::guarded_memory;
use crate::refusal::no_memory;
use mem::FaultWord;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::{Memory, Refusal};

/// The limits of a device, what its applications use of them, and where faults of their memory are recorded.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    pub limits: Limits,
    budget: Arc<DeviceBudget>,
    fault: Arc<FaultWord>,
}

impl Quota {
    pub fn new(adapter: &Adapter, fault: &Arc<FaultWord>) -> Self {
        Self { limits: adapter.spec().limits, budget: adapter.budget.clone(), fault: fault.clone() }
    }

    /// Takes one more object of a kind, and bytes, from the limits of the device's applications.
    pub fn take(&self, kind: Kind, bytes: usize, limit: u32) -> Result<Reservation, Refusal> {
        self.budget.take(kind, bytes as u64, limit).map_err(no_memory)
    }

    /// Memory to share with the application, and its file.
    pub fn memory(&self, name: &str, bytes: usize) -> Result<(Memory, OwnedFd), Refusal> {
        guarded_memory(name, bytes, &self.fault)
    }
}
