//! The carrier's counters: only the carrier writes them, anybody may read them.

use crate::ovs::OvsCells;
use card::registers::Punt;
use executor::{CardCounters, Counters, StageCycles, VifCounters, WorkerCounters};
use model::{DropReason, NexthopId, RuleId, VifId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most ports of a card.
pub const PORTS: usize = 1024;

/// A number that only one thread writes.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A count of packets, and one of their bytes.
#[derive(Debug, Default)]
pub struct Pair {
    packets: Count,
    bytes: Count,
}

impl Pair {
    pub fn packet(&self, bytes: usize) {
        self.packets.add(1);
        self.bytes.add(bytes as u64);
    }

    pub fn get(&self) -> Counters {
        Counters { packets: self.packets.get(), bytes: self.bytes.get() }
    }
}

/// An interface's counters: packets that entered the card, packets that it punted, and packets that it sent.
#[derive(Debug, Default)]
pub struct VifCells {
    pub received: Pair,
    pub punted: Pair,
    pub sent: Pair,
    /// The part of `sent` that the engine had sent and counted, too.
    pub again: Pair,
    pub send_drops: Count,
}

/// The counters of the card, its interfaces, and its flows.
#[derive(Debug)]
pub struct Stats {
    pub clock: Count,
    pub clocks: Count,
    pub busy: Count,
    pub received: Pair,
    pub punted: Pair,
    pub sent: Pair,
    /// The part of `sent` that the engine had sent. Counted when the card gets the packet, so it may be ahead of
    /// `sent`.
    pub again: Pair,
    pub dropped: Count,
    pub lost: Count,
    pub flows: Count,
    pub flows_refused: Count,
    pub flows_uncounted: Count,
    pub memory_errors: Count,
    pub sleeps: Count,
    pub punts: Vec<Count>,
    pub drops: Vec<Count>,
    vifs: Vec<VifCells>,
    rules: Mutex<HashMap<RuleId, Counters>>,
    nexthops: Mutex<HashMap<NexthopId, Counters>>,
    pub ovs: OvsCells,
    /// The reason why the card failed, if it did.
    failed: Mutex<Option<String>>,
}

impl Stats {
    pub fn new() -> Self {
        let counts = |n: usize| (0..n).map(|_| Count::default()).collect();
        Self {
            clock: Count::default(),
            clocks: Count::default(),
            busy: Count::default(),
            received: Pair::default(),
            punted: Pair::default(),
            sent: Pair::default(),
            again: Pair::default(),
            dropped: Count::default(),
            lost: Count::default(),
            flows: Count::default(),
            flows_refused: Count::default(),
            flows_uncounted: Count::default(),
            memory_errors: Count::default(),
            sleeps: Count::default(),
            punts: counts(Punt::ALL.len()),
            drops: counts(DropReason::ALL.len()),
            vifs: (0..PORTS).map(|_| VifCells::default()).collect(),
            rules: Mutex::default(),
            nexthops: Mutex::default(),
            ovs: OvsCells::default(),
            failed: Mutex::default(),
        }
    }

    pub fn vif(&self, vif: VifId) -> Option<&VifCells> {
        self.vifs.get(usize::from(vif.0))
    }

    /// Counts a packet that the card punted to the host.
    pub fn count_punt(&self, vif: VifId, bytes: usize) {
        self.vif(vif).into_iter().for_each(|cells| cells.punted.packet(bytes));
        self.punted.packet(bytes);
    }

    /// Counts packets of a flow for its rules and its nexthop.
    pub fn tables(&self, rules: &[RuleId], nexthop: Option<NexthopId>, counters: Counters) {
        let mut counted = lock(&self.rules);
        for rule in rules {
            add(counted.entry(*rule).or_default(), counters);
        }
        drop(counted);
        if let Some(nexthop) = nexthop {
            add(lock(&self.nexthops).entry(nexthop).or_default(), counters);
        }
    }

    /// Forgets the counters of a rule that no longer exists.
    pub fn forget_rule(&self, rule: RuleId) {
        lock(&self.rules).remove(&rule);
    }

    /// Forgets the counters of a nexthop that no longer exists.
    pub fn forget_nexthop(&self, nexthop: NexthopId) {
        lock(&self.nexthops).remove(&nexthop);
    }

    pub fn rule(&self, rule: RuleId) -> Counters {
        lock(&self.rules).get(&rule).copied().unwrap_or_default()
    }

    pub fn nexthop(&self, nexthop: NexthopId) -> Counters {
        lock(&self.nexthops).get(&nexthop).copied().unwrap_or_default()
    }

    /// Adds the counters of nexthops.
    pub fn add_nexthops(&self, to: &mut HashMap<NexthopId, Counters>) {
        // The packet path waits for the lock, so it is held for a copy only.
        let all = lock(&self.nexthops).clone();
        for (nexthop, counted) in &all {
            add(to.entry(*nexthop).or_default(), *counted);
        }
    }

    pub fn fail(&self, why: String) {
        *lock(&self.failed) = Some(why);
    }

    pub fn failed(&self) -> Option<String> {
        lock(&self.failed).clone()
    }

    /// Returns the counters of an interface's packets that the engine did not see.
    pub fn vif_counters(&self, vif: VifId) -> VifCounters {
        self.vif(vif).map_or_else(VifCounters::default, |cells| VifCounters {
            received: less(cells.received.get(), cells.punted.get()),
            sent: cells.sent.get(),
            receive_drops: 0,
            send_drops: cells.send_drops.get(),
        })
    }

    /// Counts packets that the engine sent by an interface and that the card then sent.
    pub fn again(&self, vif: VifId) -> Counters {
        self.vif(vif).map_or_else(Counters::default, |cells| cells.again.get())
    }

    fn forwarded(&self) -> Counters {
        less(self.sent.get(), self.again.get())
    }

    pub fn card(&self) -> CardCounters {
        let named = |(punt, count): (&Punt, &Count)| (punt.name(), count.get());
        CardCounters {
            clock: self.clock.get() as u32,
            clocks: self.clocks.get(),
            busy: self.busy.get(),
            received: self.received.get().packets,
            forwarded: self.forwarded().packets,
            dropped: self.dropped.get(),
            lost: self.lost.get(),
            punted: Punt::ALL.iter().zip(&self.punts).map(named).filter(|(_, count)| *count > 0).collect(),
            flows: self.flows.get(),
            flows_refused: self.flows_refused.get(),
            flows_uncounted: self.flows_uncounted.get(),
            memory_errors: self.memory_errors.get(),
        }
    }

    /// Returns the card's counters in the form of a worker's. Cycles are the card's clocks.
    pub fn worker(&self, number: usize) -> WorkerCounters {
        let busy = self.busy.get();
        WorkerCounters {
            worker: number,
            cpu: None,
            received: less(self.received.get(), self.punted.get()),
            sent: self.forwarded(),
            drops: self.drops.iter().map(Count::get).collect(),
            hits: self.forwarded().packets,
            misses: self.punted.get().packets,
            replies: 0,
            sleeps: self.sleeps.get(),
            cycles: StageCycles {
                busy,
                idle: self.clocks.get().saturating_sub(busy),
                ..StageCycles::default()
            },
            bursts: [0; 7],
        }
    }
}

fn add(to: &mut Counters, counters: Counters) {
    to.packets += counters.packets;
    to.bytes += counters.bytes;
}

/// Returns the difference, at least zero: the parts are read one after the other, and may be ahead.
pub fn less(all: Counters, part: Counters) -> Counters {
    Counters {
        packets: all.packets.saturating_sub(part.packets),
        bytes: all.bytes.saturating_sub(part.bytes),
    }
}

/// Locks a mutex, even if it is poisoned: a panic leaves no state half-changed that is guarded here.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
