//! The card's drops, as the host counts them.

use crate::stats::Stats;
use card::{Card, Commands};
use model::DropReason;

/// Selects the card's counters of dropped packets, by reason ([`card::registers::counters::SELECT`]).
const DROPS: u8 = 5;
const REASONS: [DropReason; 4] =
    [DropReason::RuleDrop, DropReason::DefaultDrop, DropReason::DiscardRoute, DropReason::PuntBudget];

/// The part of the card's drop counters that the host has counted already.
pub struct Dropped {
    reasons: [u64; REASONS.len()],
    /// Drops for lack of room while flows moved.
    hold_full: u32,
}

impl Dropped {
    /// Starts with the card's current counts, so that only later drops are counted.
    pub fn new<C: Card>(commands: &mut Commands<C>) -> Self {
        Self { reasons: REASONS.map(|reason| commands.counter(DROPS, reason as u32)), hold_full: 0 }
    }

    /// Counts the drops since the last time.
    pub fn count<C: Card>(&mut self, commands: &mut Commands<C>, stats: &Stats) {
        let (_, full) = commands.held();
        let more = full.wrapping_sub(std::mem::replace(&mut self.hold_full, full));
        stats.drops[DropReason::HoldFull as usize].add(more.into());
        for (seen, reason) in self.reasons.iter_mut().zip(REASONS) {
            let count = commands.counter(DROPS, reason as u32);
            stats.drops[reason as usize].add(count.saturating_sub(*seen));
            *seen = count;
        }
    }
}
