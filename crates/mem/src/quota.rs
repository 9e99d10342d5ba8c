//! How much memory guests may have mapped here. Files of memory may be sparse, so VMMs could take all address space.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limits on the memory of one guest, and of all guests together.
#[derive(Debug)]
pub struct HostQuota {
    guest: u64,
    all: u64,
    used: AtomicU64,
}

impl Default for HostQuota {
    /// Sets no limits.
    fn default() -> Self {
        Self::new(u64::MAX, u64::MAX)
    }
}

impl HostQuota {
    /// Limits the bytes of each guest, and of all together.
    #[must_use]
    pub const fn new(guest: u64, all: u64) -> Self {
        Self { guest, all, used: AtomicU64::new(0) }
    }

    /// Returns the bytes of all guests, and the limit.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        (self.used.load(Ordering::Relaxed), self.all)
    }
}

/// The memory of one guest.
#[derive(Debug, Default)]
pub struct Quota {
    host: Arc<HostQuota>,
    used: AtomicU64,
}

/// A guest's memory would exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverQuota {
    /// The guest's own limit.
    #[error("{0} bytes of memory are more than a guest may have, {1} (`guest_memory_mb` of [host])")]
    Guest(u64, u64),
    /// The limit of all guests.
    #[error(
        "with {0} bytes, the memory of all guests is more than it may be, {1} (`guests_memory_mb` of [host])"
    )]
    All(u64, u64),
}

impl Quota {
    #[must_use]
    pub const fn new(host: Arc<HostQuota>) -> Self {
        Self { host, used: AtomicU64::new(0) }
    }

    /// Counts bytes until the result is dropped.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Charge, OverQuota> {
        let host = &self.host;
        let add = |used: &AtomicU64, most| {
            let new = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
            let sum = |used: u64| used.saturating_add(bytes);
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, new).map(drop).map_err(sum)
        };
        add(&self.used, host.guest).map_err(|sum| OverQuota::Guest(sum, host.guest))?;
        add(&host.used, host.all).map_err(|sum| {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            OverQuota::All(sum, host.all)
        })?;
        Ok(Charge { quota: self.clone(), bytes })
    }
}

/// Bytes that count.
#[derive(Debug)]
pub(crate) struct Charge {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.quota.host.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guest_and_all_together_have_limits() {
        let host = Arc::new(HostQuota::new(100, 150));
        let [a, b] = [(); 2].map(|()| Arc::new(Quota::new(host.clone())));
        let first = a.take(60).ok();
        assert_eq!(a.take(41).err(), Some(OverQuota::Guest(101, 100)));
        assert_eq!(a.take(u64::MAX).err(), Some(OverQuota::Guest(u64::MAX, 100)));
        let others = b.take(90).ok();
        assert_eq!((a.take(1).err(), host.usage()), (Some(OverQuota::All(151, 150)), (150, 150)));
        drop(first);
        let all = a.take(60).ok();
        assert!(all.is_some() && host.usage() == (150, 150));
        drop((all, others));
        assert_eq!(host.usage(), (0, 150));
    }
}
