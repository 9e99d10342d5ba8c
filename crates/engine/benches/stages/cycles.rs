//! Replaces the engine's cycle counter, which it reads at the boundaries between stages: here a reading starts or
//! stops counting. So the measured stages are those of a worker's own counters.

use super::callgrind;
use std::cell::Cell;
use std::ops::RangeInclusive;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Copies of the packets' heads, counters.
    Receive,
    /// Parse, key, flow cache, rewritten header.
    Lookup,
    /// Decision and new entry for every packet of a burst of which the cache knows none.
    Slow,
    /// Frames into the receiver's buffers.
    Deliver,
}

impl Stage {
    /// Returns between which of the counter's readings, in a burst of `packets`, the stage lies; every second
    /// reading ends it.
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

/// Counts `stage` while `work` takes a burst of `packets` through the engine; counts nothing if `stage` is
/// `None`.
///
/// # Panics
/// If the burst took a different path: the slow one where the fast one was expected, or the reverse.
pub fn counted(stage: Option<Stage>, packets: u64, work: impl FnOnce()) {
    READINGS.set(0);
    COUNTED.set(stage.map_or((u64::MAX, 0), |stage| stage.readings(packets).into_inner()));
    work();
    let expected = if stage == Some(Stage::Slow) { 4 + 2 * packets } else { 4 };
    let came = stage.is_none() || READINGS.get() == expected;
    assert!(came, "{stage:?}: {} readings, not {expected}: some packet took another way", READINGS.get());
}

/// Counts a reading and returns its number within the burst.
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
