//! The limits against which a new object of an application counts.

use crate::base::budget::{DeviceBudget, Kind, Reservation};
use crate::base::limits::Limits;
use crate::base::refusal::no_memory;
use crate::net::adapter::Adapter;
use crate::window::source::{MemoryBacking, MemorySource};
use std::sync::Arc;
use uverbs::{Given, Memory, Refusal};

/// The limits of a device, what its applications use of them, and where memory for the application comes from.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    pub limits: Limits,
    budget: Arc<DeviceBudget>,
    source: Arc<MemorySource>,
}

impl Quota {
    pub fn new(adapter: &Adapter, source: &Arc<MemorySource>) -> Self {
        Self { limits: adapter.spec().limits, budget: adapter.budget.clone(), source: source.clone() }
    }

    /// Takes one more object of a kind, and bytes, from the limits of the device's applications.
    pub fn take(&self, kind: Kind, bytes: usize, limit: u32) -> Result<Reservation, Refusal> {
        self.budget.take(kind, bytes as u64, limit).map_err(no_memory)
    }

    /// Takes memory to share with the application.
    pub fn memory(&self, name: &str, bytes: usize) -> Result<(Memory, MemoryBacking), Refusal> {
        self.source.memory(name, bytes)
    }

    /// Makes what the application gets to map that memory.
    pub fn give(&self, backing: &MemoryBacking) -> Result<Given, Refusal> {
        backing.give_owner(&self.source.reach)
    }
}
