//! What a new object of an application counts against: the limits of its device.

use crate::adapter::Adapter;
use crate::budget::{Account, Held, Kind};
use crate::limits::Limits;
use crate::queue_memory::guarded_memory;
use crate::refusal::no_memory;
use mem::FaultWord;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::{Memory, Refusal};

/// The limits of a device, what its applications have of them, and where faults of their memory are noted.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    pub limits: Limits,
    account: Arc<Account>,
    fault: Arc<FaultWord>,
}

impl Quota {
    pub fn new(adapter: &Adapter, fault: &Arc<FaultWord>) -> Self {
        Self { limits: adapter.spec().limits, account: adapter.account.clone(), fault: fault.clone() }
    }

    /// Takes one more of a kind, and bytes, of what the applications of the device may have together.
    pub fn take(&self, kind: Kind, bytes: usize, limit: u32) -> Result<Held, Refusal> {
        self.account.take(kind, bytes as u64, limit).map_err(no_memory)
    }

    /// Memory to share with the application, and its file.
    pub fn memory(&self, name: &str, bytes: usize) -> Result<(Memory, OwnedFd), Refusal> {
        guarded_memory(name, bytes, &self.fault)
    }
}
