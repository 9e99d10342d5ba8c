//! What the control plane drives: whatever forwards packets by the tables.

use crate::{
    BridgeTarget, Change, DropReason, FlowKey, FlowState, NeighbourScope, NexthopId, RuleId, Seconds, VifId,
    Vrf,
};
use packet::Mac;
use std::net::IpAddr;
use std::sync::mpsc::SyncSender;

/// Why a batch of changes was refused. Nothing of it was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The executor has a limit.
    #[error("{what}: at most {limit} fit this executor")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A change refers to something that isn't there.
    #[error("{0} does not exist")]
    Missing(String),
}

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
    /// Taking bursts from ports, with the snapshot.
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
    /// Delivered to ports (a flooded packet counts once per delivery).
    pub sent: Counters,
    /// Drops by reason, indexed as [`DropReason::ALL`].
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
    /// Packets to it that were dropped for want of room or connection.
    pub send_drops: u64,
}

/// A connection, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowInfo {
    /// The direction of its first packet.
    pub key: FlowKey,
    /// Where it stands.
    pub state: FlowState,
    /// The rule that allowed it.
    pub rule: Option<RuleId>,
    /// Original direction.
    pub forward: Counters,
    /// Replies.
    pub reply: Counters,
    /// Packets are missing in the counters: a card forwarded a direction of it without one.
    pub approximate: bool,
    /// Seconds since it began.
    pub age: Seconds,
    /// Seconds since the last packet.
    pub idle: Seconds,
}

/// A learned MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedMac {
    /// Network.
    pub vrf: Vrf,
    /// MAC.
    pub mac: Mac,
    /// Where.
    pub target: BridgeTarget,
    /// Seconds since it was last seen.
    pub idle: Seconds,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourInfo {
    /// Where.
    pub scope: NeighbourScope,
    /// Address.
    pub addr: IpAddr,
    /// Its MAC; `None` while being resolved.
    pub mac: Option<Mac>,
    /// Packets waiting.
    pub held: usize,
}

/// A dropped packet of the drop log.
#[derive(Clone, Debug, PartialEq)]
pub struct DroppedPacket {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Where it came in.
    pub ingress: VifId,
    /// Why.
    pub reason: DropReason,
    /// Whole length, bytes.
    pub len: u32,
    /// Its head.
    pub head: Vec<u8>,
}

/// Which packets a capture takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaptureFilter {
    /// Only at this interface.
    pub vif: Option<VifId>,
    /// Only with this address as source or destination.
    pub host: Option<IpAddr>,
    /// Only this IP protocol.
    pub protocol: Option<u8>,
    /// Only with this port as source or destination.
    pub port: Option<u16>,
    /// Only dropped packets.
    pub dropped_only: bool,
    /// Bytes of each packet kept.
    pub snap_len: u32,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The interface.
    pub vif: VifId,
    /// Whether it left by the interface; else it came in.
    pub outbound: bool,
    /// Why it was dropped, if it was.
    pub dropped: Option<DropReason>,
    /// Whole length, bytes.
    pub len: u32,
    /// Its bytes, at most `snap_len`.
    pub bytes: Vec<u8>,
}

/// What a guest, or a wire, has of the connection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowUse {
    /// Connections it opened.
    pub opened: u64,
    /// Connections that came to it by a wire; of a wire, those that go to no guest alone.
    pub from_wire: u64,
    /// Connections of either kind it was refused since the start: too many, too fast, or no room.
    pub refused: u64,
    /// Connections of either kind that others displaced before they timed out.
    pub displaced: u64,
}

/// One table look-up of an explained packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The table: `bridge`, `flow`, `fragment`, `guest`, `mpls`, `nat`, `neighbour`, `network`, `nexthop`, `route`,
    /// `rule`, `vif` or `vxlan`.
    pub table: &'static str,
    /// The key, in words.
    pub key: String,
    /// What was found; `None`: a miss.
    pub result: Option<String>,
}

/// What `decide` says about a packet that nobody sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Look-ups in their order.
    pub steps: Vec<Step>,
    /// The decision.
    pub decision: crate::Decision,
}

/// What an executor is and how it is doing, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStatus {
    /// `cpu`, or the card's kind, and what became of the card.
    pub name: String,
    /// The card, where there is one.
    pub card: Option<CardCounters>,
    /// Numbers of the workers that did not do in time what they were told, and have not done it since: what was removed
    /// may still be in force for their packets.
    pub stalled: Vec<usize>,
}

/// What a card did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Clock of its pipes, MHz.
    pub clock: u32,
    /// Clocks since its start; a simulated card stands still while there is nothing to do.
    pub clocks: u64,
    /// Of these, with packets inside.
    pub busy: u64,
    /// Packets that came in by its ports.
    pub received: u64,
    /// Of these, those it forwarded.
    pub forwarded: u64,
    /// Those it dropped.
    pub dropped: u64,
    /// Those that were inside when it failed.
    pub lost: u64,
    /// Those it left to the host, by the name of the reason; reasons without any are left out.
    pub punted: Vec<(&'static str, u64)>,
    /// Flows in its table.
    pub flows: u64,
    /// How often a flow was left to the host because its interface had its share of the table, or the table no room.
    pub flows_refused: u64,
    /// Of the flows in its table, those without counters: their packets are in no count of connections, rules,
    /// nexthops.
    pub flows_uncounted: u64,
}

/// Whatever forwards packets by the tables: the CPU engine, or a card.
pub trait Executor: Send + Sync {
    /// What it is and how it is doing.
    fn status(&self) -> ExecutorStatus;

    /// Applies a batch as a whole. Returns once removals bind: no packet is forwarded by what was removed, but by
    /// workers that are stalled ([`ExecutorStatus::stalled`]).
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was applied.
    fn apply(&self, changes: &[Change]) -> Result<(), ApplyError>;

    /// Counters by worker.
    fn workers(&self) -> Vec<WorkerCounters>;
    /// Counters of an interface, over all workers.
    fn vif_counters(&self, vif: VifId) -> VifCounters;
    /// Counter of a rule.
    fn rule_counters(&self, rule: RuleId) -> Counters;
    /// Counter of a nexthop.
    fn nexthop_counters(&self, nexthop: NexthopId) -> Counters;

    /// Calls `each` for connections until it returns false.
    fn flows(&self, each: &mut dyn FnMut(FlowInfo) -> bool);
    /// Forgets the connections for which `which` is true; returns how many.
    fn flush_flows(&self, which: &mut dyn FnMut(&FlowInfo) -> bool) -> usize;
    /// Connections made since start.
    fn flows_created(&self) -> u64;
    /// Connections remembered now, idle ones that have not been swept yet included.
    fn flow_count(&self) -> usize;
    /// What an interface has of the connection table.
    fn flow_use(&self, vif: VifId) -> FlowUse;
    /// Learned MACs.
    fn learned(&self) -> Vec<LearnedMac>;
    /// Neighbours.
    fn neighbours(&self) -> Vec<NeighbourInfo>;

    /// The decision about `frame` coming in by `ingress`, by the live tables, with no effect.
    fn explain(&self, ingress: VifId, frame: &[u8]) -> Explanation;
    /// Dropped packets, newest last, at most `n`.
    fn dropped(&self, n: usize) -> Vec<DroppedPacket>;
    /// Sends captured packets to `to` until its receiver is gone; what does not fit is lost and counted.
    fn capture(&self, filter: CaptureFilter, to: SyncSender<Captured>);
}
