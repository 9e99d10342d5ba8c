//! What an executor is and how it is doing.

use crate::CardCounters;

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
