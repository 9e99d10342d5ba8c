//! A worker's counters: only the worker writes them, with plain adds; anybody may read them.

use crate::mutex::lock;
use executor::{Counters, StageCycles, VifCounters, WorkerCounters};
use model::{Crossing, Crossings, DropReason, NeighbourScope, NexthopId, RuleId, VifId, ovs};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Most interfaces: their counters and queues are found by index.
pub(crate) const MAX_VIFS: usize = 4096;

pub(crate) const BURST_CLASSES: usize = 7;

/// A number with one writer. An add is a load and a store, not an atomic read-modify-write.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds `n`. Only the one writer may call this.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pair {
    packets: Count,
    bytes: Count,
}

impl Pair {
    /// Adds packets and bytes. Only the one writer may call this.
    #[inline(always)]
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.add(packets);
        self.bytes.add(bytes);
    }

    fn get(&self) -> Counters {
        Counters { packets: self.packets.get(), bytes: self.bytes.get() }
    }
}

/// Flows of Open vSwitch whose counters get their memory together.
const OVS_CHUNK: usize = 4096;

/// Counters of flows of Open vSwitch, by index. They get memory when a flow comes that has such an index.
#[derive(Debug)]
pub(crate) struct OvsCells(Box<[OnceLock<Box<[Pair]>>]>);

impl OvsCells {
    fn new() -> Self {
        Self((0..(ovs::MAX_COUNTERS as usize).div_ceil(OVS_CHUNK)).map(|_| OnceLock::new()).collect())
    }

    /// Makes room for an index. Not for the packet path: it allocates.
    pub fn make_room(&self, counter: u32) {
        if let Some(chunk) = self.0.get(counter as usize / OVS_CHUNK) {
            chunk.get_or_init(|| (0..OVS_CHUNK).map(|_| Pair::default()).collect());
        }
    }

    fn pair(&self, counter: u32) -> Option<&Pair> {
        self.0.get(counter as usize / OVS_CHUNK)?.get()?.get(counter as usize % OVS_CHUNK)
    }

    /// Counts to an index that has room. Only the one writer may call this.
    pub fn add(&self, counter: u32, packets: u64, bytes: u64) {
        if let Some(pair) = self.pair(counter) {
            pair.add(packets, bytes);
        }
    }

    pub fn get(&self, counter: u32) -> Counters {
        self.pair(counter).map_or_else(Counters::default, Pair::get)
    }
}

/// The counters of one interface.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct VifCells {
    /// Packets from the interface.
    pub received: Pair,
    /// Packets to the interface.
    pub sent: Pair,
    /// Packets from the interface that were dropped.
    pub receive_drops: Count,
    /// Packets to it that were dropped because it had no room or no connection.
    pub send_drops: Count,
}

#[derive(Debug, Default)]
pub(crate) struct CycleCells {
    pub receive: Count,
    pub lookup: Count,
    pub slow_path: Count,
    pub deliver: Count,
    pub busy: Count,
    pub idle: Count,
    pub asleep: Count,
}

fn drop_index(vif: VifId, reason: DropReason) -> usize {
    usize::from(vif.0) * DropReason::ALL.len() + reason as usize
}

#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct WorkerCells {
    pub received: Pair,
    pub sent: Pair,
    pub hits: Count,
    pub misses: Count,
    pub replies: Count,
    pub sleeps: Count,
    pub cycles: CycleCells,
    pub bursts: [Count; BURST_CLASSES],
    drops: Vec<Count>,
    /// Drops at each interface, one interface after the other: 8 bytes for each reason, 2.4 MB for all
    /// interfaces.
    vif_drops: Vec<Count>,
    vifs: Vec<VifCells>,
    pub ovs: OvsCells,
    rules: Mutex<HashMap<RuleId, Counters>>,
    nexthops: Mutex<HashMap<NexthopId, Counters>>,
    held: Mutex<HashMap<(NeighbourScope, IpAddr), usize>>,
}

impl WorkerCells {
    pub fn new() -> Self {
        Self {
            received: Pair::default(),
            sent: Pair::default(),
            hits: Count::default(),
            misses: Count::default(),
            replies: Count::default(),
            sleeps: Count::default(),
            cycles: CycleCells::default(),
            bursts: Default::default(),
            drops: DropReason::ALL.iter().map(|_| Count::default()).collect(),
            vif_drops: (0..MAX_VIFS * DropReason::ALL.len()).map(|_| Count::default()).collect(),
            vifs: (0..MAX_VIFS).map(|_| VifCells::default()).collect(),
            ovs: OvsCells::new(),
            rules: Mutex::default(),
            nexthops: Mutex::default(),
            held: Mutex::default(),
        }
    }

    pub fn drop(&self, vif: VifId, reason: DropReason) {
        self.drops[reason as usize].add(1);
        if let Some(count) = self.vif_drops.get(drop_index(vif, reason)) {
            count.add(1);
        }
    }

    pub fn drops_at(&self, vif: VifId, reason: DropReason) -> u64 {
        self.vif_drops.get(drop_index(vif, reason)).map_or(0, Count::get)
    }

    #[inline(always)]
    pub fn burst(&self, n: usize) {
        self.bursts[(n.max(1).ilog2() as usize).min(BURST_CLASSES - 1)].add(1);
    }

    #[inline(always)]
    pub fn vif(&self, vif: VifId) -> Option<&VifCells> {
        self.vifs.get(usize::from(vif.0))
    }

    /// Counts packets to rules and a nexthop. Called once per 64 packets of a flow, or per packet on the slow
    /// path.
    pub fn tables(&self, rules: &[RuleId], nexthop: Option<NexthopId>, packets: u64, bytes: u64) {
        if !rules.is_empty() {
            let mut counted = lock(&self.rules);
            for rule in rules {
                count(&mut counted, *rule, packets, bytes);
            }
        }
        if let Some(nexthop) = nexthop {
            count(&mut lock(&self.nexthops), nexthop, packets, bytes);
        }
    }

    /// Counts packets to the ports of tunnels that they pass; `bytes` is the sum of the frames that came in.
    pub fn cross(&self, crossings: &Crossings, packets: u64, bytes: u64) {
        let Crossings { came, sent } = crossings;
        let add = |Crossing { port, grown }: &Crossing, pair: fn(&VifCells) -> &Pair| {
            if let Some(cells) = self.vif(*port) {
                pair(cells).add(packets, there(*grown, packets, bytes));
            }
        };
        came.iter().for_each(|crossing| add(crossing, |cells| &cells.received));
        sent.iter().for_each(|crossing| add(crossing, |cells| &cells.sent));
    }

    /// Records that one more packet waits for a neighbour.
    pub fn hold(&self, neighbour: (NeighbourScope, IpAddr)) {
        *lock(&self.held).entry(neighbour).or_default() += 1;
    }

    /// Records that one packet less waits for a neighbour.
    pub fn release(&self, neighbour: (NeighbourScope, IpAddr)) {
        let mut held = lock(&self.held);
        if let Some(count) = held.get_mut(&neighbour) {
            *count -= 1;
            if *count == 0 {
                held.remove(&neighbour);
            }
        }
    }

    /// Returns the number of packets that wait for a neighbour.
    pub fn held(&self, neighbour: (NeighbourScope, IpAddr)) -> usize {
        lock(&self.held).get(&neighbour).copied().unwrap_or(0)
    }

    /// Continues the counts of rules and nexthops from these values.
    pub fn resume(&self, rules: Vec<(RuleId, Counters)>, nexthops: Vec<(NexthopId, Counters)>) {
        lock(&self.rules).extend(rules);
        lock(&self.nexthops).extend(nexthops);
    }

    pub fn forget_rule(&self, rule: RuleId) {
        lock(&self.rules).remove(&rule);
    }

    pub fn forget_nexthop(&self, nexthop: NexthopId) {
        lock(&self.nexthops).remove(&nexthop);
    }

    pub fn rule_counters(&self, rule: RuleId) -> Counters {
        lock(&self.rules).get(&rule).copied().unwrap_or_default()
    }

    pub fn nexthop_counters(&self, nexthop: NexthopId) -> Counters {
        lock(&self.nexthops).get(&nexthop).copied().unwrap_or_default()
    }

    /// Adds the counters of nexthops.
    pub fn add_nexthops(&self, to: &mut HashMap<NexthopId, Counters>) {
        // The packet path waits for the lock, so it is held for a copy only.
        let all = lock(&self.nexthops).clone();
        for (nexthop, counted) in &all {
            count(to, *nexthop, counted.packets, counted.bytes);
        }
    }

    pub fn vif_counters(&self, vif: VifId) -> VifCounters {
        self.vif(vif).map_or_else(VifCounters::default, |cells| VifCounters {
            received: cells.received.get(),
            sent: cells.sent.get(),
            receive_drops: cells.receive_drops.get(),
            send_drops: cells.send_drops.get(),
        })
    }

    pub fn snapshot(&self, worker: usize, cpu: Option<usize>) -> WorkerCounters {
        let cycles = &self.cycles;
        WorkerCounters {
            worker,
            cpu,
            received: self.received.get(),
            sent: self.sent.get(),
            drops: self.drops.iter().map(Count::get).collect(),
            hits: self.hits.get(),
            misses: self.misses.get(),
            replies: self.replies.get(),
            sleeps: self.sleeps.get(),
            cycles: StageCycles {
                receive: cycles.receive.get(),
                lookup: cycles.lookup.get(),
                slow_path: cycles.slow_path.get(),
                deliver: cycles.deliver.get(),
                busy: cycles.busy.get(),
                idle: cycles.idle.get(),
                asleep: cycles.asleep.get(),
            },
            bursts: std::array::from_fn(|i| self.bursts[i].get()),
        }
    }
}

/// Returns the bytes of `packets` packets that are each longer by `grown` than the frame that came in; those
/// frames have `bytes` together.
pub(crate) const fn there(grown: i16, packets: u64, bytes: u64) -> u64 {
    bytes.saturating_add_signed(grown as i64 * packets as i64)
}

pub(crate) fn sum(a: Counters, b: Counters) -> Counters {
    Counters { packets: a.packets.wrapping_add(b.packets), bytes: a.bytes.wrapping_add(b.bytes) }
}

fn count<K: Hash + Eq>(counted: &mut HashMap<K, Counters>, key: K, packets: u64, bytes: u64) {
    let entry = counted.entry(key).or_default();
    *entry = sum(*entry, Counters { packets, bytes });
}
