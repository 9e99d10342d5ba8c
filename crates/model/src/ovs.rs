//! What an Open vSwitch programs: for each of its ports, flows with masked keys and lists of actions.
//!
//! OVS folds its tables, registers and resubmits into such flows (megaflows) and offloads them port by port. There are
//! no priorities, because the flows of a port are disjoint. A packet that no flow matches goes to OVS itself, by the
//! port's *OVS side*: another interface, of kind [`VifKind::Ovs`](crate::VifKind::Ovs). What comes from there leaves by
//! the port.

mod action;
mod edits;
mod key;
mod words;
mod wrap;

pub use action::{Action, BadOuter, MAX_OUTER, Outer};
pub use edits::{Edits, MAX_PUSHED};
pub use key::{Key, Match};
pub use wrap::{Output, Wrap};

use crate::VifId;
use std::fmt;
use std::sync::Arc;

/// A flow's number. Each new flow gets a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A flow of one port. Where several flows match a packet, the one with the lowest number counts, so that a new flow
/// never changes what becomes of packets that have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its number.
    pub id: FlowId,
    /// Index of its counters, less than [`MAX_COUNTERS`]. Indexes are dense. One that was a removed flow's is not
    /// given to another within some seconds, because workers count a little late.
    pub counter: u32,
    /// The port whose packets it matches.
    pub port: VifId,
    /// Which packets.
    pub matching: Match,
    /// What happens to them, in order. Without an output, they are dropped.
    pub actions: Vec<Action>,
}

impl Flow {
    /// Whether OVS carries it out itself, and is only told which packets are its.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        self.actions == [Action::Mark]
    }
}

/// Most flows with counters.
pub const MAX_COUNTERS: u32 = 1 << 20;

/// A change to the flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new flow. A flow of its port with the same number is replaced.
    Add(Arc<Flow>),
    /// A flow is removed, if it exists.
    Remove {
        /// Its port.
        port: VifId,
        /// Its number.
        id: FlowId,
    },
    /// All flows of a port are removed.
    Flush {
        /// The port.
        port: VifId,
    },
}
