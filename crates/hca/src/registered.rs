//! What the applications of a device have registered together, and what that takes of the daemon.

use crate::address_space::{AddressSpace, Identity};
use crate::budget::{Account, Exhausted, Held, Kind};
use crate::ids::MwId;
use crate::keys::Keyed;
use crate::limits::Limits;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uverbs::{RegionTable, SharedPages};

/// Files of a device's applications that are mapped. Regions beyond that are reached as any others are.
const FILES: u32 = 512;
/// Bytes that the daemon keeps of a region: its entry, by key, with a byte of a hash table, which just after it grew
/// has 7 entries in 16 places.
pub(crate) const BYTES_OF_REGION: u64 = ((size_of::<(MwId, Keyed)>() as u64 + 1) * 16).div_ceil(7);

// docs/rdma.md says so (`queues_mb`).
const _: () = assert!(RegionTable::PAGE + BYTES_OF_REGION <= 4300);

/// The device's limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("at most {0} memory regions and windows (rdma_limits)")]
    Regions(u32),
    #[error("at most {0} bytes registered (rdma_limits)")]
    Bytes(u64),
    #[error(transparent)]
    Memory(#[from] Exhausted),
}

/// What the applications of a device have registered together: regions, with windows, and bytes; and bytes of that
/// which are mapped here.
#[derive(Debug)]
pub(crate) struct Registered {
    regions: Mutex<(u64, u64)>,
    mapped: Mutex<u64>,
    /// What is mapped, and of which address space.
    shared: Mutex<Vec<(Identity, Weak<SharedPages>)>>,
    pub account: Arc<Account>,
}

/// A file's share of what is mapped.
#[derive(Debug)]
pub(crate) struct Share {
    len: u64,
    together: Arc<Registered>,
    _held: Held,
}

impl Share {
    /// For a file of so many bytes, if there is room.
    pub fn take(together: &Arc<Registered>, len: u64, limits: Limits) -> Option<Self> {
        let held = together.account.take(Kind::Pages, 0, FILES).ok()?;
        let mut mapped = together.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        *mapped = mapped.checked_add(len).filter(|bytes| *bytes <= limits.registered)?;
        Some(Self { len, together: together.clone(), _held: held })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut mapped = self.together.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        *mapped -= self.len;
    }
}

impl Registered {
    pub fn new(account: Arc<Account>) -> Self {
        Self { regions: Mutex::default(), mapped: Mutex::default(), shared: Mutex::default(), account }
    }

    fn shared(&self) -> MutexGuard<'_, Vec<(Identity, Weak<SharedPages>)>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an application has in a file: all of its contexts find it.
    pub fn note(&self, space: &AddressSpace, pages: &Arc<SharedPages>) {
        let mut shared = self.shared();
        shared.retain(|(_, pages)| pages.strong_count() > 0);
        shared.push((space.identity(), Arc::downgrade(pages)));
    }

    /// Does something with a word that is in a file, if it is in one.
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

    /// Takes room for a region, in the place of another of so many bytes where there was one; or for a window, of none.
    pub fn take(&self, len: u64, old: Option<u64>, limits: Limits) -> Result<(), Full> {
        let mut sums = self.sums();
        let regions = sums.0 - u64::from(old.is_some()) + 1;
        let bytes = (sums.1 - old.unwrap_or_default()).saturating_add(len);
        if regions > limits.mrs.into() {
            return Err(Full::Regions(limits.mrs));
        }
        if bytes > limits.registered {
            return Err(Full::Bytes(limits.registered));
        }
        *sums = (regions, bytes);
        Ok(())
    }

    pub fn give_back(&self, regions: usize, bytes: u64) {
        let mut sums = self.sums();
        *sums = (sums.0 - regions as u64, sums.1 - bytes);
    }
}

/// Memory of the daemon for an application's regions. It is in use until the application ends, however few regions are
/// left: neither do tables shrink, nor does the kernel take back pages of theirs.
#[derive(Debug)]
pub(crate) struct Spent {
    /// The most regions that there were.
    regions: usize,
    /// Pages of the shared table that were written.
    pages: HashSet<u32>,
    account: Arc<Account>,
}

impl Spent {
    pub fn new(account: Arc<Account>) -> Self {
        Self { regions: 0, pages: HashSet::new(), account }
    }

    /// Takes bytes for a table with so many regions, one of them in this page of the shared table.
    pub fn grow(&mut self, regions: usize, page: u32) -> Result<(), Exhausted> {
        if regions > self.regions {
            self.account.take_bytes(BYTES_OF_REGION)?;
            self.regions += 1;
        }
        if !self.pages.contains(&page) {
            self.account.take_bytes(RegionTable::PAGE)?;
            self.pages.insert(page);
        }
        Ok(())
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        let bytes = self.regions as u64 * BYTES_OF_REGION + self.pages.len() as u64 * RegionTable::PAGE;
        self.account.give_back_bytes(bytes);
    }
}
