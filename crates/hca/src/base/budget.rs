//! Counts what verbs take from the daemon: objects, descriptors, mappings and memory. They are counted for all
//! applications of a device together; descriptors and mappings also for all devices together.
//!
//! Verbs may use half of the descriptors and mappings that the kernel allows the daemon. The other half stays free
//! for VMs, wires and the control plane. A device may take no more of them than what is then left, so something is
//! left for the next device, however many devices take all they can.

use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of packets waiting for a device's applications, including buffers for later packets.
const PACKETS: u64 = 128 << 20;
/// Descriptors and mappings if the kernel does not report how many are allowed: its usual limits.
const USUAL: Use = Use { descriptors: 1024, mappings: 65530 };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub descriptors: u64,
    pub mappings: u64,
}

impl Use {
    const fn plus(self, other: Self) -> Self {
        Self { descriptors: self.descriptors + other.descriptors, mappings: self.mappings + other.mappings }
    }

    const fn minus(self, other: Self) -> Self {
        Self { descriptors: self.descriptors - other.descriptors, mappings: self.mappings - other.mappings }
    }

    /// Returns what is left of this limit after `other` is taken; nothing if that is more.
    const fn left_by(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.saturating_sub(other.descriptors),
            mappings: self.mappings.saturating_sub(other.mappings),
        }
    }

    const fn is_within(self, limit: Self) -> bool {
        self.descriptors <= limit.descriptors && self.mappings <= limit.mappings
    }
}

/// The descriptors and mappings for all verbs devices of a host, and how many are taken.
#[derive(Debug)]
pub(crate) struct HostBudget {
    limit: Use,
    used: Mutex<Use>,
}

impl HostBudget {
    /// Allows verbs half of what the kernel allows this process.
    pub fn of_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(USUAL.descriptors);
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let mappings = mappings.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL.mappings);
        Self::new(descriptors / 2, mappings / 2)
    }

    pub fn new(descriptors: u64, mappings: u64) -> Self {
        Self { limit: Use { descriptors, mappings }, used: Mutex::default() }
    }

    fn used(&self) -> MutexGuard<'_, Use> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `wanted` for a device that already has `has`.
    fn take(&self, has: Use, wanted: Use) -> bool {
        let mut used = self.used();
        let after = used.plus(wanted);
        let may = after.is_within(self.limit) && has.plus(wanted).is_within(self.limit.left_by(after));
        if may {
            *used = after;
        }
        may
    }

    fn give_back(&self, taken: Use) {
        let mut used = self.used();
        *used = used.minus(taken);
    }

    pub fn taken(&self) -> Use {
        *self.used()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Client,
    QueuePair,
    CompletionQueue,
    Channel,
    SharedQueue,
    ProtectionDomain,
    AddressHandle,
    Pages,
    Process,
}

impl Kind {
    const COUNT: usize = Self::Process as usize + 1;

    const fn name(self) -> &'static str {
        match self {
            Self::Client => "connections (`connections` of rdma_limits)",
            Self::QueuePair => "queue pairs",
            Self::CompletionQueue => "completion queues",
            Self::Channel => "completion channels",
            Self::SharedQueue => "shared receive queues",
            Self::ProtectionDomain => "protection domains",
            Self::AddressHandle => "address handles",
            Self::Pages => "regions in files",
            Self::Process => "processes",
        }
    }

    /// Returns the most that one object of this kind takes.
    const fn takes(self) -> Use {
        let (descriptors, mappings) = match self {
            // 19 descriptors: the connection, the inbox (2), the events, the table of regions, the memory, the
            // process for each window (2), and eleven in transit to or from the program. 8 mappings: the doorbells,
            // the table of regions, the thread's stacks and arena (6).
            Self::Client => (19, 8),
            // The descriptor of its memory; mappings: its memory, its list of requests, and a direct session in
            // each direction.
            Self::QueuePair => (1, 4),
            Self::CompletionQueue | Self::SharedQueue | Self::Pages => (1, 1),
            Self::Channel | Self::Process => (1, 0),
            Self::ProtectionDomain | Self::AddressHandle => (0, 0),
        };
        Use { descriptors, mappings }
    }
}

/// The device has reached a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exhausted {
    #[error("all programs of the guest together may have {1} {kind}", kind = .0.name())]
    Context(Kind, u32),
    #[error(
        "queues and regions of the guest's programs have {0} bytes together, the most they may: raise `queues_mb` of its rdma_limits"
    )]
    Memory(u64),
    #[error(
        "the daemon has no descriptor or mapping left for this guest's programs: raise LimitNOFILE and vm.max_map_count, and restart it"
    )]
    Daemon,
}

#[derive(Debug, Default)]
struct Sums {
    counts: [u32; Kind::COUNT],
    uses: Use,
    bytes: u64,
    /// The limit of `bytes`.
    most: u64,
}

impl Sums {
    /// Returns the sum after adding this many bytes, if it is within the limit.
    fn with(&self, bytes: u64) -> Result<u64, Exhausted> {
        self.bytes.checked_add(bytes).filter(|sum| *sum <= self.most).ok_or(Exhausted::Memory(self.most))
    }
}

/// The sums of what the applications of a device use, and their limits.
#[derive(Debug)]
pub(crate) struct DeviceBudget {
    sums: Mutex<Sums>,
    /// Bytes of packets that wait.
    packets: AtomicU64,
    host_budget: Arc<HostBudget>,
}

impl DeviceBudget {
    /// Creates the budget of a device whose queues and tables of regions may have `queues` bytes.
    pub fn new(host_budget: Arc<HostBudget>, queues: u64) -> Self {
        let sums = Sums { most: queues, ..Sums::default() };
        Self { sums: Mutex::new(sums), packets: AtomicU64::new(0), host_budget }
    }

    /// Changes the limit of bytes. Applications that use more keep it.
    pub fn set_queues(&self, bytes: u64) {
        self.sums().most = bytes;
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what one more object of a kind needs, and this many bytes for queues. `limit` is the most objects of the
    /// kind.
    pub fn take(self: &Arc<Self>, kind: Kind, bytes: u64, limit: u32) -> Result<Reservation, Exhausted> {
        let mut sums = self.sums();
        if sums.counts[kind as usize] >= limit {
            return Err(Exhausted::Context(kind, limit));
        }
        let sum = sums.with(bytes)?;
        if !self.host_budget.take(sums.uses, kind.takes()) {
            return Err(Exhausted::Daemon);
        }
        sums.counts[kind as usize] += 1;
        sums.uses = sums.uses.plus(kind.takes());
        sums.bytes = sum;
        Ok(Reservation { kind, bytes, budget: self.clone() })
    }

    /// Takes bytes for a table that grows with its use.
    pub fn take_bytes(&self, bytes: u64) -> Result<(), Exhausted> {
        let mut sums = self.sums();
        sums.bytes = sums.with(bytes)?;
        Ok(())
    }

    pub fn give_back_bytes(&self, bytes: u64) {
        self.sums().bytes -= bytes;
    }

    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.sums().bytes
    }

    #[cfg(test)]
    pub fn count(&self, kind: Kind) -> u32 {
        self.sums().counts[kind as usize]
    }

    /// Takes bytes for packets, for an inbox that already has `has`. No inbox may take more than what is then left.
    pub fn take_packets(&self, has: u64, wanted: u64) -> bool {
        let order = Ordering::Relaxed;
        let may =
            |used: u64| (has + wanted <= PACKETS.saturating_sub(used + wanted)).then_some(used + wanted);
        self.packets.fetch_update(order, order, may).is_ok()
    }

    pub fn give_back_packets(&self, bytes: u64) {
        self.packets.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// An object's share of the budget, which is returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    kind: Kind,
    bytes: u64,
    budget: Arc<DeviceBudget>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut sums = self.budget.sums();
        sums.counts[self.kind as usize] -= 1;
        sums.uses = sums.uses.minus(self.kind.takes());
        sums.bytes -= self.bytes;
        self.budget.host_budget.give_back(self.kind.takes());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const QUEUES: u64 = 512 << 20;

    #[test]
    fn however_many_take_all_they_can_something_is_left() {
        let host_budget = Arc::new(HostBudget::new(1000, 1000));
        let mut left = 1000;
        let mut all = Vec::new();
        for _ in 0..5 {
            let budget = Arc::new(DeviceBudget::new(host_budget.clone(), 0));
            let taken: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Channel, 0, u32::MAX).ok()).collect();
            assert_eq!(budget.take(Kind::Channel, 0, u32::MAX).unwrap_err(), Exhausted::Daemon);
            assert_eq!(taken.len(), left / 2);
            left -= taken.len();
            all.push(taken);
        }
        all.clear();
        assert_eq!(host_budget.taken(), Use::default());
    }

    #[test]
    fn each_kind_and_all_bytes_have_their_limit() {
        let budget = Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(1 << 20, 1 << 20)), QUEUES));
        let one = budget.take(Kind::CompletionQueue, QUEUES - 1, 2).unwrap();
        assert_eq!(budget.take(Kind::SharedQueue, 2, 2).unwrap_err(), Exhausted::Memory(QUEUES));
        assert_eq!(budget.take(Kind::SharedQueue, u64::MAX, 2).unwrap_err(), Exhausted::Memory(QUEUES));
        let other = budget.take(Kind::CompletionQueue, 1, 2).unwrap();
        let full = budget.take(Kind::CompletionQueue, 0, 2).unwrap_err();
        assert_eq!(full.to_string(), "all programs of the guest together may have 2 completion queues");
        drop(one);
        assert_eq!(budget.count(Kind::CompletionQueue), 1);
        drop(other);
        assert!(budget.take(Kind::CompletionQueue, QUEUES, 1).is_ok());
        budget.set_queues(QUEUES + 1);
        assert!(budget.take(Kind::CompletionQueue, QUEUES + 1, 1).is_ok());
    }

    #[test]
    fn no_inbox_takes_what_the_others_need() {
        let budget = DeviceBudget::new(Arc::new(HostBudget::new(0, 0)), 0);
        let mut has = 0;
        while budget.take_packets(has, 1 << 20) {
            has += 1 << 20;
        }
        assert_eq!(has, PACKETS / 2);
        assert!(budget.take_packets(0, PACKETS / 4) && !budget.take_packets(0, PACKETS / 4));
        budget.give_back_packets(has);
        assert!(budget.take_packets(0, PACKETS / 4));
    }
}
