//! The engine's clocks, all from one monotonic reading. They count from the machine's start, so that the next engine
//! goes on counting where this one ended.

use model::Seconds;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When the machine started, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_unix_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Now {
    /// Nanoseconds since the machine started.
    pub ns: u64,
    /// Seconds since the machine started.
    pub seconds: Seconds,
    /// Ticks of 2^32 nanoseconds since the machine started, modulo 256.
    pub tick: u8,
    /// Nanoseconds since the Unix epoch.
    pub unix_ns: u64,
}

impl Now {
    /// Returns the moment `ns` nanoseconds after the start.
    #[inline]
    pub const fn at(ns: u64, start_unix_ns: u64) -> Self {
        let seconds = (ns / 1_000_000_000) as Seconds;
        Self { ns, seconds, tick: (ns >> 32) as u8, unix_ns: start_unix_ns + ns }
    }
}

impl Clock {
    /// Reads the clocks to find when this machine started.
    pub fn start() -> Self {
        let since = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        let now = Instant::now(); // It reads the same clock.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (start, since) = now.checked_sub(since).map_or((now, Duration::ZERO), |start| (start, since));
        Self::since(start, unix.saturating_sub(since).as_nanos() as u64)
    }

    /// Counts from this moment.
    pub const fn since(start: Instant, start_unix_ns: u64) -> Self {
        Self { start, start_unix_ns }
    }

    #[inline]
    pub fn now(&self) -> Now {
        Now::at(self.start.elapsed().as_nanos() as u64, self.start_unix_ns)
    }
}
