//! Counts what all applications of a device have registered, and the memory that this costs the daemon.

use crate::base::budget::{DeviceBudget, Exhausted, Kind, Reservation};
use crate::base::ids::MwId;
use crate::base::limits::Limits;
use crate::memory::address_space::{AddressSpace, Identity};
use crate::memory::keys::KeyEntry;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uverbs::{RegionTable, SharedPages};

/// Most mapped files of a device's applications. Further regions are accessed through the address space.
const FILES: u32 = 512;
/// Bytes that the daemon keeps for a region: an entry and a byte of a hash table, which has 7 entries in 16 places
/// just after it grew.
pub(crate) const BYTES_OF_REGION: u64 = ((size_of::<(MwId, KeyEntry)>() as u64 + 1) * 16).div_ceil(7);

// docs/rdma.md documents this (`queues_mb`).
const _: () = assert!(RegionTable::PAGE + BYTES_OF_REGION <= 4300);

/// A limit of the device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegionLimit {
    #[error("at most {0} memory regions and windows (rdma_limits)")]
    Regions(u32),
    #[error("at most {0} bytes registered (rdma_limits)")]
    Bytes(u64),
    #[error(transparent)]
    Memory(#[from] Exhausted),
}

/// The sums of all applications of a device: registered regions, windows and bytes, and mapped bytes.
#[derive(Debug)]
pub(crate) struct Registered {
    regions: Mutex<(u64, u64)>,
    mapped: Mutex<u64>,
    /// The mapped pages, with their address space.
    shared: Mutex<Vec<(Identity, Weak<SharedPages>)>>,
    pub budget: Arc<DeviceBudget>,
}

/// The mapped bytes of one file.
#[derive(Debug)]
pub(crate) struct MappedBytes {
    len: u64,
    together: Arc<Registered>,
    _reservation: Reservation,
}

impl MappedBytes {
    /// Counts a file of this many bytes. `None` if there is no room.
    pub fn take(together: &Arc<Registered>, len: u64, limits: Limits) -> Option<Self> {
        let held = together.budget.take(Kind::Pages, 0, FILES).ok()?;
        let mut mapped = together.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        *mapped = mapped.checked_add(len).filter(|bytes| *bytes <= limits.registered)?;
        Some(Self { len, together: together.clone(), _reservation: held })
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        let mut mapped = self.together.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        *mapped -= self.len;
    }
}

impl Registered {
    pub fn new(budget: Arc<DeviceBudget>) -> Self {
        Self { regions: Mutex::default(), mapped: Mutex::default(), shared: Mutex::default(), budget }
    }

    fn shared(&self) -> MutexGuard<'_, Vec<(Identity, Weak<SharedPages>)>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records pages that an application has in a file, so that all of its contexts find them.
    pub fn note(&self, space: &AddressSpace, pages: &Arc<SharedPages>) {
        let mut shared = self.shared();
        shared.retain(|(_, pages)| pages.strong_count() > 0);
        shared.push((space.identity(), Arc::downgrade(pages)));
    }

    /// Works on a word of an address space, if it is in a mapped file.
    pub fn with_word<T>(&self, of: Identity, address: u64, work: impl FnMut(&AtomicU64) -> T) -> Option<T> {
        let found = self.shared().iter().filter(|(identity, _)| *identity == of).find_map(|(_, pages)| {
            let pages = pages.upgrade()?;
            pages.word(address)?;
            Some(pages)
        })?;
        found.word(address).map(work)
    }

    pub fn sums(&self) -> MutexGuard<'_, (u64, u64)> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a region of `len` bytes, which replaces another of `old` bytes if there was one. A window has no bytes.
    pub fn take(&self, len: u64, old: Option<u64>, limits: Limits) -> Result<(), RegionLimit> {
        let mut sums = self.sums();
        let regions = sums.0 - u64::from(old.is_some()) + 1;
        let bytes = (sums.1 - old.unwrap_or_default()).saturating_add(len);
        if regions > limits.mrs.into() {
            return Err(RegionLimit::Regions(limits.mrs));
        }
        if bytes > limits.registered {
            return Err(RegionLimit::Bytes(limits.registered));
        }
        *sums = (regions, bytes);
        Ok(())
    }

    pub fn give_back(&self, regions: usize, bytes: u64) {
        let mut sums = self.sums();
        *sums = (sums.0 - regions as u64, sums.1 - bytes);
    }
}

/// The daemon's memory for an application's regions. It stays in use until the application ends, however few regions
/// are left: tables don't shrink, and the kernel takes none of their pages back.
#[derive(Debug)]
pub(crate) struct TableMemory {
    /// The highest number of regions so far.
    regions: usize,
    /// Pages of the shared table that were written.
    pages: HashSet<u32>,
    budget: Arc<DeviceBudget>,
}

impl TableMemory {
    pub fn new(budget: Arc<DeviceBudget>) -> Self {
        Self { regions: 0, pages: HashSet::new(), budget }
    }

    /// Takes bytes for a table of this many regions, one of which is in this page of the shared table.
    pub fn grow(&mut self, regions: usize, page: u32) -> Result<(), Exhausted> {
        if regions > self.regions {
            self.budget.take_bytes(BYTES_OF_REGION)?;
            self.regions += 1;
        }
        if !self.pages.contains(&page) {
            self.budget.take_bytes(RegionTable::PAGE)?;
            self.pages.insert(page);
        }
        Ok(())
    }
}

impl Drop for TableMemory {
    fn drop(&mut self) {
        let bytes = self.regions as u64 * BYTES_OF_REGION + self.pages.len() as u64 * RegionTable::PAGE;
        self.budget.give_back_bytes(bytes);
    }
}
