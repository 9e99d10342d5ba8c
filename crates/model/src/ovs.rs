//! The programming of an Open vSwitch: for each of its ports, flows with masked keys and lists of actions.
//!
//! OVS folds its tables, registers and resubmits into such flows (megaflows) and offloads them port by port.
//! There are no priorities, because the flows of a port are disjoint. A packet that no flow matches goes to
//! OVS itself, by the port's *OVS side*: another interface, of kind [`VifKind::Ovs`](crate::VifKind::Ovs).
//! Packets that OVS sends by this side leave by the port.

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

/// A flow of one port. If several flows match a packet, the one with the lowest number counts, so that a new
/// flow never changes the treatment of packets that already have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The flow's number.
    pub id: FlowId,
    /// Index of the flow's counters, less than [`MAX_COUNTERS`]. Indexes are dense. The index of a removed
    /// flow goes to no other flow for some seconds, because workers count a little late.
    pub counter: u32,
    /// The port whose packets the flow matches.
    pub port: VifId,
    /// The packets that the flow matches.
    pub matching: Match,
    /// Actions on the packets, in order. Without an output, the packets are dropped.
    pub actions: Vec<Action>,
}

impl Flow {
    /// Returns whether OVS carries the flow out itself, and Viaduct only tells it which packets belong to the
    /// flow.
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
    /// Adds a flow. Replaces a flow of the same port with the same number.
    Add(Arc<Flow>),
    /// Removes a flow, if it exists.
    Remove {
        /// The flow's port.
        port: VifId,
        /// The flow's number.
        id: FlowId,
    },
    /// Removes all flows of a port.
    Flush {
        /// The port.
        port: VifId,
    },
}
