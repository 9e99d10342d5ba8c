//! The expected values of the card's counters.

use card::{Card, Commands};
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of counters for packets (`select` of the block of counters). The kind after each counts bytes, except for
/// punts and drops.
pub const RECEIVED: u8 = 0;
pub const SENT: u8 = 2;
pub const PUNTED: u8 = 4;
pub const DROPPED: u8 = 5;
pub const FLOW: u8 = 6;
const PUNTED_BYTES: u8 = 8;
const DROPPED_BYTES: u8 = 9;
/// Number of reasons with counters.
pub const REASONS: u32 = 64;

/// Returns the kind that counts the bytes of packets of a kind.
const fn bytes_of(kind: u8) -> u8 {
    match kind {
        PUNTED => PUNTED_BYTES,
        DROPPED => DROPPED_BYTES,
        _ => kind + 1,
    }
}

/// The expected counters, and the set of those that changed since they were last checked.
#[derive(Default)]
pub struct Ledger {
    counts: BTreeMap<(u8, u32), u64>,
    changed: BTreeSet<(u8, u32)>,
}

impl Ledger {
    pub fn packet(&mut self, kind: u8, number: u32, len: usize) {
        for (kind, count) in [(kind, 1), (bytes_of(kind), len as u64)] {
            *self.counts.entry((kind, number)).or_default() += count;
            self.changed.insert((kind, number));
        }
    }

    /// Takes over the card's values, for packets whose path is not known exactly.
    pub fn adopt<C: Card>(
        &mut self,
        commands: &mut Commands<C>,
        kind: u8,
        numbers: impl Iterator<Item = u32>,
    ) {
        for number in numbers {
            for kind in [kind, bytes_of(kind)] {
                self.counts.insert((kind, number), commands.counter(kind, number));
            }
        }
    }

    /// Returns the number of packets of a kind, over all numbers.
    pub fn sum(&self, kind: u8) -> u64 {
        self.counts.range((kind, 0)..(kind + 1, 0)).map(|(_, count)| count).sum()
    }

    /// Compares the changed counters with the card's.
    pub fn check<C: Card>(&mut self, commands: &mut Commands<C>) {
        for (kind, number) in std::mem::take(&mut self.changed) {
            self.check_one(commands, kind, number);
        }
    }

    /// Compares the counters of all reasons with the card's, including those without packets, and all that ever
    /// changed.
    pub fn check_all<C: Card>(&mut self, commands: &mut Commands<C>) {
        let reasons = [PUNTED, DROPPED, PUNTED_BYTES, DROPPED_BYTES].into_iter();
        self.changed.extend(reasons.flat_map(|kind| (0..REASONS).map(move |number| (kind, number))));
        self.changed.extend(self.counts.keys());
        self.check(commands);
    }

    fn check_one<C: Card>(&self, commands: &mut Commands<C>, kind: u8, number: u32) {
        let expected = self.counts.get(&(kind, number)).copied().unwrap_or_default();
        assert_eq!(commands.counter(kind, number), expected, "counter {number} of kind {kind}");
    }
}
