//! Counters, for showing.

use std::collections::BTreeMap;

/// Why an offer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// No established TCP connection came along.
    NoConnection,
    /// The addresses are not those of guests with sockets.
    Addresses,
    /// The user or the guest has its share.
    Limit,
    /// The connection is gone, and another one has its ports.
    Stale,
    /// Two offered the same end, or one name for two connections.
    Twice,
    /// The tables do not allow memory in common.
    NotAllowed,
    /// A program does not read its messages.
    Unread,
    /// The kernel has no memory or descriptors.
    Memory,
    /// No daemon answers where the other end is.
    Unreachable,
}

impl Refusal {
    const fn name(self) -> &'static str {
        match self {
            Self::NoConnection => "no_connection",
            Self::Addresses => "addresses",
            Self::Limit => "limit",
            Self::Stale => "stale",
            Self::Twice => "twice",
            Self::NotAllowed => "not_allowed",
            Self::Unread => "unread",
            Self::Memory => "memory",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Why pairs are told to return to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The guest has no sockets any more.
    Guest,
    /// The tables do not allow memory in common any more.
    Tables,
    /// Nobody speaks for a virtual machine's program any more.
    Agent,
    /// The daemon of the other host, or the line to it, is gone.
    Line,
    /// The daemon is about to be replaced, and carries the connection to another host.
    Daemon,
}

impl Reason {
    const fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Tables => "tables",
            Self::Agent => "agent",
            Self::Line => "line",
            Self::Daemon => "daemon",
        }
    }

    pub const fn text(self) -> &'static str {
        match self {
            Self::Guest => "the guest has no sockets",
            Self::Tables => "a rule, a mirror, a rate or a capture",
            Self::Agent => "a program has left, or the agent of its machine",
            Self::Line => "the daemon of the other host is gone",
            Self::Daemon => "the daemon is replaced",
        }
    }
}

/// Counts since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Offers ever made.
    pub offered: u64,
    /// Pairs ever made.
    pub matched: u64,
    /// Offers that were refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Pairs that were told to return to TCP, by reason.
    pub returned: BTreeMap<&'static str, u64>,
    /// Bytes that went by rings, as the programs say, some seconds late.
    pub bytes: u64,
}

impl Counters {
    pub(crate) fn refuse(&mut self, why: Refusal) {
        *self.refused.entry(why.name()).or_default() += 1;
    }

    pub(crate) fn return_pair(&mut self, why: Reason) {
        *self.returned.entry(why.name()).or_default() += 1;
    }
}
