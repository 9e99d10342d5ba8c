//! What executors count.

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// Busy cycles of a worker's stages, in TSC ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Iterations without.
    pub idle: u64,
    /// Asleep, up to the last time that the worker woke.
    pub asleep: u64,
}

/// Counters of one worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerCounters {
    /// Its number.
    pub worker: usize,
    /// CPU it is pinned to.
    pub cpu: Option<usize>,
    /// Taken from ports.
    pub received: Counters,
    /// Delivered to ports; a flooded packet counts once per delivery.
    pub sent: Counters,
    /// Drops by reason, indexed as [`model::DropReason::ALL`].
    pub drops: Vec<u64>,
    /// Flow cache hits.
    pub hits: u64,
    /// Flow cache misses.
    pub misses: u64,
    /// Answers sent by Viaduct itself.
    pub replies: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Cycles.
    pub cycles: StageCycles,
    /// Bursts by size: 1, 2-3, 4-7, 8-15, 16-31, 32-63, 64.
    pub bursts: [u64; 7],
}

/// Counters of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// What a card did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Clock of its pipes, MHz.
    pub clock: u32,
    /// Clock cycles since its start. A simulated card stands still while it has nothing to do.
    pub clocks: u64,
    /// Of these, cycles with packets inside.
    pub busy: u64,
    /// Packets that came in by its ports.
    pub received: u64,
    /// Of these, packets that it forwarded.
    pub forwarded: u64,
    /// Those it dropped.
    pub dropped: u64,
    /// Packets that were inside when it failed.
    pub lost: u64,
    /// Packets that it punted to the host, by the name of the reason; reasons without packets are left out.
    pub punted: Vec<(&'static str, u64)>,
    /// Flows in its table.
    pub flows: u64,
    /// How often a flow stayed on the host because its interface had used up its share of the table, or the table was
    /// full.
    pub flows_refused: u64,
    /// Flows in its table without counters: connections, rules and nexthops do not count their packets.
    pub flows_uncounted: u64,
    /// How often its memory answered with an error.
    pub memory_errors: u64,
}
