//! Listings of what executors learn and remember.

use crate::Counters;
use model::{BridgeTarget, FlowKey, FlowState, NeighbourScope, RuleId, Seconds, Tcp, VifId, Vrf};
use packet::Mac;
use serde::{Deserialize, Serialize};
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
    /// The counters miss packets: a card forwarded one of its directions without a counter.
    pub approximate: bool,
    /// Seconds since it began.
    pub age: Seconds,
    /// Seconds since the last packet.
    pub idle: Seconds,
    /// What was seen of it, as [`model::Connection::seen`].
    pub seen: u8,
    /// Sequence numbers, of TCP.
    pub tcp: Tcp,
    /// Whose share of the table it takes: the interface's, and whether it came to it by a wire.
    pub charged: (VifId, bool),
}

/// Words of a record of a connection table.
pub const RECORD: usize = 16;

/// A record that an executor did not finish, or never wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord;

/// A connection that was entered while the process that wrote its record went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Identifies it in the table of the executor.
    pub flow: u64,
    /// Identifies it in its record.
    pub seq: u64,
}

/// A guest's or a wire's use of the connection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowUse {
    /// Connections it opened.
    pub opened: u64,
    /// Connections that came to it through a wire; for a wire, those that go to no single guest.
    pub from_wire: u64,
    /// Connections of either kind that it was refused since the start: too many, too fast, or no room.
    pub refused: u64,
    /// Connections of either kind that others evicted before they timed out.
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
