//! The engine's clocks, all from one monotonic reading.

use model::Seconds;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// When the engine started, by both clocks.
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
    /// Nanoseconds since the Unix epoch.
    pub unix_ns: u64,
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
        let ns = self.start.elapsed().as_nanos() as u64;
        Now { ns, seconds: (ns / 1_000_000_000) as Seconds, unix_ns: self.start_unix_ns + ns }
    }
}
