//! Listings of what executors learn and remember.

use crate::Counters;
use model::{Binding, BridgeTarget, FlowKey, FlowState, NeighbourScope, RuleId, Seconds, Tcp, VifId, Vrf};
use packet::Mac;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A connection, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowInfo {
    /// The direction of the connection's first packet.
    pub key: FlowKey,
    /// The phase of the connection.
    pub state: FlowState,
    /// The rule that allowed it.
    pub rule: Option<RuleId>,
    /// Counters of the original direction.
    pub forward: Counters,
    /// Counters of the replies.
    pub reply: Counters,
    /// Whether the counters miss packets: a card forwarded one of the directions without a counter.
    pub approximate: bool,
    /// Seconds since it began.
    pub age: Seconds,
    /// Seconds since the last packet.
    pub idle: Seconds,
    /// The events seen so far, as in [`model::Connection::seen`].
    pub seen: u8,
    /// Sequence numbers, for TCP.
    pub tcp: Tcp,
    /// The end by which its guest is known outside, if guests share an address there.
    pub binding: Option<Binding>,
    /// The interface in whose share of the table the connection counts, and whether the connection came to it
    /// by a wire.
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
    /// Identifies the connection in the executor's table.
    pub flow: u64,
    /// Identifies the connection in its record.
    pub seq: u64,
}

/// A guest's or a wire's use of the connection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowUse {
    /// Connections that it opened.
    pub opened: u64,
    /// Connections that came to it through a wire; for a wire, those that go to no single guest.
    pub from_wire: u64,
    /// Connections of either kind that it was refused since the start: they were too many or too fast, or
    /// there was no room.
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
    /// The location of the MAC.
    pub target: BridgeTarget,
    /// Seconds since it was last seen.
    pub idle: Seconds,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourInfo {
    /// The neighbour's wire or network.
    pub scope: NeighbourScope,
    /// Address.
    pub addr: IpAddr,
    /// The neighbour's MAC; `None` while it is being resolved.
    pub mac: Option<Mac>,
    /// Packets that wait for the neighbour.
    pub held: usize,
}
