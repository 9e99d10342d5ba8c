//! What executors learn and remember, as it is listed.

use crate::Counters;
use model::{BridgeTarget, FlowKey, FlowState, NeighbourScope, RuleId, Seconds, Vrf};
use packet::Mac;
use std::net::IpAddr;

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
