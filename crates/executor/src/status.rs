//! The status of an executor.

use crate::CardCounters;

/// The status of an executor, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStatus {
    /// `cpu`, or the card's kind with the card's state.
    pub name: String,
    /// The card's counters, if there is a card.
    pub card: Option<CardCounters>,
    /// Numbers of the workers that did not obey a message in time and have obeyed none since: removed objects
    /// may still affect their packets.
    pub stalled: Vec<usize>,
    /// The reason why new connections are refused though the table has room for them, in words.
    pub connections_lack: Option<String>,
}

/// The place where a host with a card forwards the packets of a flow of Open vSwitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OvsPlace {
    /// The card: it holds this many entries of the flow. The host forwards packets without an entry.
    Card(u64),
    /// The host, because the card can't. Holds the name of the reason.
    Host(&'static str),
}
