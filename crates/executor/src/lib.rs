//! The interface of the control plane to the executors, which forward packets according to the model's
//! tables.
//!
//! Owns: the trait [`Executor`], which the CPU engine implements, and the engine with a card in front; its
//! answers: counters, listings of what executors learn and remember, dropped and captured packets; tables of nexthops in
//! the small form in which both keep them.
//!
//! Must not know: how any executor forwards, how tables are configured, what the API looks like.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod counters;
mod dense;
mod filter;
mod listing;
mod nexthops;
mod packets;
mod status;

pub use counters::{CardCounters, Counters, Past, Shaping, StageCycles, VifCounters, WorkerCounters};
pub use dense::Dense;
pub use filter::{Filter, Property, Side};
pub use listing::{BadRecord, Entered, FlowInfo, FlowUse, LearnedMac, NeighbourInfo, RECORD};
pub use nexthops::{Nexthops, Tunnels};
pub use packets::{CaptureFilter, Captured, DroppedPacket};
pub use status::{ExecutorStatus, OvsPlace};

use model::{ApplyError, Change, Explanation, Learn, NeighbourFound, NexthopId, RuleId, Seconds, VifId, ovs};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Anything that forwards packets according to the tables: the CPU engine, or a card.
pub trait Executor: Send + Sync {
    /// Returns the executor's name and state.
    fn status(&self) -> ExecutorStatus;

    /// Applies a batch as a whole. Returns once removed objects no longer affect traffic, except on stalled workers
    /// ([`ExecutorStatus::stalled`]).
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was applied.
    fn apply(&self, changes: &[Change]) -> Result<(), ApplyError>;

    /// Changes the flows of ports that an Open vSwitch programs. Ignores flows of ports that do not exist.
    /// With `waits`, returns once removed flows no longer affect traffic, like [`Executor::apply`]; otherwise
    /// they may affect it for a while.
    ///
    /// # Errors
    /// [`ApplyError::Limit`]: this executor carries out no such flows, or a counter's index is too high;
    /// nothing was applied.
    fn ovs_apply(&self, _: &[ovs::Change], _waits: bool) -> Result<(), ApplyError> {
        Err(ApplyError::Limit { what: "flows of Open vSwitch", limit: 0 })
    }
    /// Returns counters of such flows by their index ([`ovs::Flow::counter`]), since the start. They lag by
    /// some seconds at most and never decrease; a flow that gets the index of a removed one goes on from its
    /// count.
    fn ovs_counts(&self, counters: &[u32]) -> Vec<Counters> {
        vec![Counters::default(); counters.len()]
    }

    /// Returns the place where the packets of each such flow are forwarded. `None` without a card.
    fn ovs_places(&self, _: &[Arc<ovs::Flow>]) -> Option<Vec<OvsPlace>> {
        None
    }

    /// Goes on counting from an earlier executor's counts. Called once, before packets flow.
    fn enter_counts(&self, past: Past);
    /// Returns the counters of each worker.
    fn workers(&self) -> Vec<WorkerCounters>;
    /// Returns the counters of an interface, summed over all workers.
    fn vif_counters(&self, vif: VifId) -> VifCounters;
    /// Returns the drops at an interface, by reason, indexed as [`model::DropReason::ALL`]. Packets that a
    /// card drops are not among them, because the card counts by reason only.
    fn drops_at(&self, vif: VifId) -> Vec<u64>;
    /// Returns what the shapers of an interface do ([`model::Vif::shape`]).
    fn shaping(&self, _: VifId) -> Shaping {
        Shaping::default()
    }
    /// Returns the counters of a rule.
    fn rule_counters(&self, rule: RuleId) -> Counters;
    /// Returns the counters of a nexthop.
    fn nexthop_counters(&self, nexthop: NexthopId) -> Counters;
    /// Returns the counters of the nexthops that packets have taken.
    fn counted_nexthops(&self) -> HashMap<NexthopId, Counters>;

    /// Brings the counters of connections, rules and nexthops up to date. Without this they lag by two
    /// seconds at most.
    fn settle(&self);
    /// Calls `each` for connections until it returns false.
    fn flows(&self, each: &mut dyn FnMut(FlowInfo) -> bool);
    /// Enters connections that another host remembered. Returns how many. Connections that are known here
    /// stay as they are, and those beyond an interface's share are left out.
    fn enter_flows(&self, flows: &[FlowInfo]) -> usize;
    /// Returns the connection in a record of such an executor's table, even if the process that wrote it is
    /// gone. `None` if the record holds no connection.
    ///
    /// # Errors
    /// [`BadRecord`].
    fn remembered(&self, record: &[u64; RECORD]) -> Result<Option<FlowInfo>, BadRecord>;
    /// Enters the connection of a record while the process that wrote it still forwards. `None` if
    /// [`Executor::enter_flows`] would leave the connection out.
    fn enter_early(&self, flow: &FlowInfo, record: &[u64; RECORD]) -> Option<Entered>;
    /// Brings an entered connection up to date with its record once the writer has stopped, before packets
    /// flow here. If the record no longer holds this connection, removes it and returns false.
    ///
    /// # Errors
    /// [`BadRecord`]; the connection is removed.
    fn catch_up(&self, entered: Entered, record: &[u64; RECORD]) -> Result<bool, BadRecord>;
    /// Removes the connections for which `which` returns true. Returns how many.
    fn flush_flows(&self, which: &mut dyn FnMut(&FlowInfo) -> bool) -> usize;
    /// Returns the number of connections made, those of earlier executors ([`Executor::enter_counts`]) included.
    fn flows_created(&self) -> u64;
    /// Returns the number of connections, including idle ones that have not been swept yet.
    fn flow_count(&self) -> usize;
    /// Returns an interface's use of the connection table.
    fn flow_use(&self, vif: VifId) -> FlowUse;
    /// Returns the learned MACs.
    fn learned(&self) -> Vec<LearnedMac>;
    /// Enters MACs that were learned elsewhere, with the seconds since they were seen. Returns for how many
    /// the table now holds the given location.
    fn enter_learned(&self, macs: &[(Learn, Seconds)]) -> usize;
    /// Returns the neighbours.
    fn neighbours(&self) -> Vec<NeighbourInfo>;
    /// Returns the neighbours whose MAC is known, each with the interface by which the MAC came.
    fn found_neighbours(&self) -> Vec<(NeighbourFound, VifId)>;
    /// Enters neighbours that another process found, as if packets announced them now.
    fn enter_neighbours(&self, found: &[(NeighbourFound, VifId)]);

    /// Returns the decision about `frame` coming in on `ingress`, according to the live tables, without
    /// effects. A large send has the payload of its segments, bytes.
    fn explain(&self, ingress: VifId, frame: &[u8], gso_size: Option<u16>) -> Explanation;
    /// Returns the dropped packets, newest last, at most `n`.
    fn dropped(&self, n: usize) -> Vec<DroppedPacket>;
    /// Sends captured packets to `to` until its receiver is gone. Packets that do not fit are lost and counted.
    fn capture(&self, filter: CaptureFilter, to: SyncSender<Captured>);
}
