//! The counters of executors.

use model::{NexthopId, RuleId};
use serde::{Deserialize, Serialize};

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// Busy cycles of a worker's stages, in TSC ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCycles {
    /// Receiving bursts from ports, including the snapshot.
    pub receive: u64,
    /// Parsing and flow cache.
    pub lookup: u64,
    /// `decide` for misses.
    pub slow_path: u64,
    /// Rewriting, copying and publishing.
    pub deliver: u64,
    /// Whole loop iterations with at least one packet.
    pub busy: u64,
    /// Loop iterations without packets.
    pub idle: u64,
    /// Asleep, up to the last time that the worker woke.
    pub asleep: u64,
}

/// Counters of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerCounters {
    /// The worker's number.
    pub worker: usize,
    /// CPU that the worker is pinned to.
    pub cpu: Option<usize>,
    /// Packets taken from ports.
    pub received: Counters,
    /// Packets delivered to ports; a flooded packet counts once per delivery.
    pub sent: Counters,
    /// Drops by reason, indexed as [`model::DropReason::ALL`].
    pub drops: Vec<u64>,
    /// Flow cache hits.
    pub hits: u64,
    /// Flow cache misses.
    pub misses: u64,
    /// Answers sent by Viaduct itself.
    pub replies: u64,
    /// Times that the worker slept.
    pub sleeps: u64,
    /// Cycles.
    pub cycles: StageCycles,
    /// Bursts by size: 1, 2-3, 4-7, 8-15, 16-31, 32-63, 64.
    pub bursts: [u64; 7],
}

impl WorkerCounters {
    /// Adds the counters of another worker.
    pub fn add(&mut self, other: &Self) {
        let pair = |a: &mut Counters, b: Counters| {
            a.packets = a.packets.wrapping_add(b.packets);
            a.bytes = a.bytes.wrapping_add(b.bytes);
        };
        pair(&mut self.received, other.received);
        pair(&mut self.sent, other.sent);
        self.drops.resize(self.drops.len().max(other.drops.len()), 0);
        self.drops.iter_mut().zip(&other.drops).for_each(|(a, b)| *a = a.wrapping_add(*b));
        self.bursts.iter_mut().zip(&other.bursts).for_each(|(a, b)| *a = a.wrapping_add(*b));
        self.hits = self.hits.wrapping_add(other.hits);
        self.misses = self.misses.wrapping_add(other.misses);
        self.replies = self.replies.wrapping_add(other.replies);
        self.sleeps = self.sleeps.wrapping_add(other.sleeps);
        let (cycles, more) = (&mut self.cycles, other.cycles);
        cycles.receive = cycles.receive.wrapping_add(more.receive);
        cycles.lookup = cycles.lookup.wrapping_add(more.lookup);
        cycles.slow_path = cycles.slow_path.wrapping_add(more.slow_path);
        cycles.deliver = cycles.deliver.wrapping_add(more.deliver);
        cycles.busy = cycles.busy.wrapping_add(more.busy);
        cycles.idle = cycles.idle.wrapping_add(more.idle);
        cycles.asleep = cycles.asleep.wrapping_add(more.asleep);
    }
}

/// The counts of an executor before this one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Counters by worker.
    pub workers: Vec<WorkerCounters>,
    /// Counters by rule.
    pub rules: Vec<(RuleId, Counters)>,
    /// Counters by nexthop.
    pub nexthops: Vec<(NexthopId, Counters)>,
    /// Connections made.
    pub flows_created: u64,
}

/// Counters of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VifCounters {
    /// From the interface.
    pub received: Counters,
    /// To the interface.
    pub sent: Counters,
    /// Packets from it that were dropped.
    pub receive_drops: u64,
    /// Packets to it that were dropped because it had no room or no connection.
    pub send_drops: u64,
}

impl VifCounters {
    /// Returns the difference, modulo 2^64.
    #[must_use]
    pub const fn less(self, other: &Self) -> Self {
        const fn less(a: Counters, b: Counters) -> Counters {
            Counters { packets: a.packets.wrapping_sub(b.packets), bytes: a.bytes.wrapping_sub(b.bytes) }
        }
        Self {
            received: less(self.received, other.received),
            sent: less(self.sent, other.sent),
            receive_drops: self.receive_drops.wrapping_sub(other.receive_drops),
            send_drops: self.send_drops.wrapping_sub(other.send_drops),
        }
    }
}

/// Counts of the shapers of an interface, since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shaping {
    /// Packets towards it that waited.
    pub in_waited: u64,
    /// Packets among these that were marked because they waited too long.
    pub in_marked: u64,
    /// Packets towards it that wait now.
    pub queued: Counters,
    /// Packets from it that waited in its own ring.
    pub out_waited: u64,
}

/// The counters of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Clock rate of the card's pipes, MHz.
    pub clock: u32,
    /// Clock cycles since its start. A simulated card stands still while it has nothing to do.
    pub clocks: u64,
    /// Clock cycles with packets inside.
    pub busy: u64,
    /// Packets that came in by the card's ports.
    pub received: u64,
    /// Received packets that the card forwarded.
    pub forwarded: u64,
    /// Received packets that the card dropped.
    pub dropped: u64,
    /// Packets that were inside when the card failed.
    pub lost: u64,
    /// Packets that the card punted to the host, by the name of the reason. Reasons without packets are left
    /// out.
    pub punted: Vec<(&'static str, u64)>,
    /// Flows in the card's table.
    pub flows: u64,
    /// How often a flow stayed on the host because its interface had used up its share of the table, or the table was
    /// full.
    pub flows_refused: u64,
    /// Flows in the card's table that have no counters: connections, rules and nexthops do not count their
    /// packets.
    pub flows_uncounted: u64,
    /// How often the card's memory answered with an error.
    pub memory_errors: u64,
}
