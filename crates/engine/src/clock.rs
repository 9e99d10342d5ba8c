//! The engine's clocks, all from one monotonic reading.

use model::Seconds;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// When the engine started, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_unix_ns: u64,
}

/// A moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Now {
    /// Nanoseconds since the engine started.
    pub ns: u64,
    /// Seconds since the engine started.
    pub seconds: Seconds,
    /// Ticks of 2^32 nanoseconds since the engine started, modulo 256.
    pub tick: u8,
    /// Nanoseconds since the Unix epoch.
    pub unix_ns: u64,
}

impl Now {
    /// The moment `ns` nanoseconds after the start.
    #[inline]
    pub const fn at(ns: u64, start_unix_ns: u64) -> Self {
        let seconds = (ns / 1_000_000_000) as Seconds;
        Self { ns, seconds, tick: (ns >> 32) as u8, unix_ns: start_unix_ns + ns }
    }
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_unix_ns: unix.as_nanos() as u64 }
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Now {
        Now::at(self.start.elapsed().as_nanos() as u64, self.start_unix_ns)
    }
}
