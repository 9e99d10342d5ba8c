//! The status of an executor.

use crate::CardCounters;

/// The status of an executor, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStatus {
    /// `cpu`, or the card's kind with the card's state.
    pub name: String,
    /// The card's counters, if there is a card.
    pub card: Option<CardCounters>,
    /// Numbers of the workers that did not obey a message in time, and have not done so since: removed objects may
    /// still affect their packets.
    pub stalled: Vec<usize>,
}
