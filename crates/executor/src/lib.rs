//! What the control plane drives: whatever forwards packets by the model's tables.
//!
//! Owns: the trait [`Executor`], which the CPU engine implements, and the engine with a card in front; its answers:
//! counters, listings of what executors learn and remember, dropped and captured packets.
//!
//! Must not know: how any executor forwards, how tables are configured, what the API looks like.
#![deny(unsafe_code)]

mod counters;
mod filter;
mod listing;
mod packets;
mod status;

pub use counters::{CardCounters, Counters, Past, StageCycles, VifCounters, WorkerCounters};
pub use filter::{Filter, Property, Side};
pub use listing::{BadRecord, Entered, FlowInfo, FlowUse, LearnedMac, NeighbourInfo, RECORD};
pub use packets::{CaptureFilter, Captured, DroppedPacket};
pub use status::{ExecutorStatus, OvsPlace};

use model::{ApplyError, Change, Explanation, Learn, NeighbourFound, NexthopId, RuleId, Seconds, VifId, ovs};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Anything that forwards packets according to the tables: the CPU engine, or a card.
pub trait Executor: Send + Sync {
    /// What it is and how it works at present.
    fn status(&self) -> ExecutorStatus;

    /// Applies a batch as a whole. Returns once removed objects no longer affect traffic, except on stalled workers
    /// ([`ExecutorStatus::stalled`]).
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was applied.
    fn apply(&self, changes: &[Change]) -> Result<(), ApplyError>;

    /// Changes the flows of ports that an Open vSwitch programs; ports that do not exist get none. If it `waits`, it
    /// returns once removed flows no longer affect traffic, as [`Executor::apply`]; else they may for a while.
    ///
    /// # Errors
    /// [`ApplyError::Limit`]: this executor carries out no such flows, or a counter's index is too high; nothing was
    /// applied.
    fn ovs_apply(&self, _: &[ovs::Change], _waits: bool) -> Result<(), ApplyError> {
        Err(ApplyError::Limit { what: "flows of Open vSwitch", limit: 0 })
    }
    /// Counters of such flows by their index ([`ovs::Flow::counter`]), since the start. They lag by some seconds at
    /// most and never decrease; a flow that gets the index of a removed one goes on from there.
    fn ovs_counts(&self, counters: &[u32]) -> Vec<Counters> {
        vec![Counters::default(); counters.len()]
    }

    /// Where such flows' packets are forwarded; `None` without a card.
    fn ovs_places(&self, _: &[Arc<ovs::Flow>]) -> Option<Vec<OvsPlace>> {
        None
    }

    /// Goes on counting where another one ended. Once, before packets flow.
    fn enter_counts(&self, past: Past);
    /// Counters by worker.
    fn workers(&self) -> Vec<WorkerCounters>;
    /// Counters of an interface, over all workers.
    fn vif_counters(&self, vif: VifId) -> VifCounters;
    /// Drops at an interface, by reason, indexed as [`model::DropReason::ALL`]. Packets that a card drops are not
    /// among them: it counts by reason only.
    fn drops_at(&self, vif: VifId) -> Vec<u64>;
    /// Counter of a rule.
    fn rule_counters(&self, rule: RuleId) -> Counters;
    /// Counter of a nexthop.
    fn nexthop_counters(&self, nexthop: NexthopId) -> Counters;

    /// Brings the counters of connections, rules and nexthops up to date; otherwise they lag by two seconds at most.
    fn settle(&self);
    /// Calls `each` for connections until it returns false.
    fn flows(&self, each: &mut dyn FnMut(FlowInfo) -> bool);
    /// Enters connections that another host remembered; returns how many. Those that are known here stay as they are,
    /// and those beyond an interface's share are left out.
    fn enter_flows(&self, flows: &[FlowInfo]) -> usize;
    /// The connection of a record of such an executor's table, whatever became of the process; `None` if there is none
    /// in it.
    ///
    /// # Errors
    /// [`BadRecord`].
    fn remembered(&self, record: &[u64; RECORD]) -> Result<Option<FlowInfo>, BadRecord>;
    /// Enters the connection of a record whose writer still forwards; `None` where [`Executor::enter_flows`] leaves it
    /// out.
    fn enter_early(&self, flow: &FlowInfo, record: &[u64; RECORD]) -> Option<Entered>;
    /// Brings it up to date with the record once the writer has stopped, before packets flow here. False if the record
    /// holds another connection now, or none: this one is removed then.
    ///
    /// # Errors
    /// [`BadRecord`]; the connection is removed.
    fn catch_up(&self, entered: Entered, record: &[u64; RECORD]) -> Result<bool, BadRecord>;
    /// Removes the connections for which `which` returns true; returns how many.
    fn flush_flows(&self, which: &mut dyn FnMut(&FlowInfo) -> bool) -> usize;
    /// Connections made, those before [`Executor::resume`] included.
    fn flows_created(&self) -> u64;
    /// Number of connections, including idle ones that have not been swept yet.
    fn flow_count(&self) -> usize;
    /// An interface's use of the connection table.
    fn flow_use(&self, vif: VifId) -> FlowUse;
    /// Learned MACs.
    fn learned(&self) -> Vec<LearnedMac>;
    /// Enters MACs that were learned elsewhere, with the seconds since they were seen; returns how many are where they
    /// say.
    fn enter_learned(&self, macs: &[(Learn, Seconds)]) -> usize;
    /// Neighbours.
    fn neighbours(&self) -> Vec<NeighbourInfo>;
    /// Those whose MAC is known, each with the interface that brought it.
    fn found_neighbours(&self) -> Vec<(NeighbourFound, VifId)>;
    /// Enters neighbours that another process found, as packets would that come now.
    fn enter_neighbours(&self, found: &[(NeighbourFound, VifId)]);

    /// The decision about `frame` coming in on `ingress`, according to the live tables, without effects.
    fn explain(&self, ingress: VifId, frame: &[u8]) -> Explanation;
    /// Dropped packets, newest last, at most `n`.
    fn dropped(&self, n: usize) -> Vec<DroppedPacket>;
    /// Sends captured packets to `to` until its receiver is gone. Packets that do not fit are lost and counted.
    fn capture(&self, filter: CaptureFilter, to: SyncSender<Captured>);
}
