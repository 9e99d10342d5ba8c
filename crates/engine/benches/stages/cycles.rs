//! In place of the engine's cycle counter, which it reads where one stage ends and the next begins: here that starts
//! and stops counting. What is measured are thus the stages that a worker's own counters tell apart.

use super::callgrind;
use std::cell::Cell;
use std::ops::RangeInclusive;

/// A part of a burst's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Copies of the packets' heads, counters.
    Receive,
    /// Parse, key, flow cache, rewritten header.
    Lookup,
    /// Decision and new entry, of every packet of a burst that the cache knows none of.
    Slow,
    /// Frames into the receiver's buffers.
    Deliver,
}

impl Stage {
    /// The readings of the counter in a burst of `packets` between which it lies: every other ends it.
    fn readings(self, packets: u64) -> RangeInclusive<u64> {
        match self {
            Self::Receive => 0..=1,
            Self::Lookup => 1..=2,
            Self::Slow => 2..=1 + 2 * packets,
            Self::Deliver => 2..=3,
        }
    }
}

thread_local! {
    static READINGS: Cell<u64> = const { Cell::new(0) };
    static COUNTED: Cell<(u64, u64)> = const { Cell::new((u64::MAX, 0)) };
}

/// Counts `stage` of the burst of `packets` that `work` leads through the engine; nothing if there is none.
///
/// # Panics
/// Where the burst went another way: by the slow path, or not.
pub fn counted(stage: Option<Stage>, packets: u64, work: impl FnOnce()) {
    READINGS.set(0);
    COUNTED.set(stage.map_or((u64::MAX, 0), |stage| stage.readings(packets).into_inner()));
    work();
    let expected = if stage == Some(Stage::Slow) { 4 + 2 * packets } else { 4 };
    let came = stage.is_none() || READINGS.get() == expected;
    assert!(came, "{stage:?}: {} readings, not {expected}: some packet took another way", READINGS.get());
}

/// The number of this reading in the burst.
#[inline(always)]
pub fn now() -> u64 {
    let reading = READINGS.get();
    READINGS.set(reading + 1);
    let (first, last) = COUNTED.get();
    if (first..=last).contains(&reading) {
        callgrind::toggle();
    }
    reading
}
