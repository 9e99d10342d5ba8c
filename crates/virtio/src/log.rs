//! Log messages caused by a VMM, at a limited rate: a VMM whose requests are refused cannot fill the host's log.

use crate::control::lock;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Lines that may follow each other at once.
const AT_ONCE: u32 = 20;
/// Time after which one more is allowed.
const PAUSE: Duration = Duration::from_secs(10);

/// The log lines of one guest.
pub(crate) struct Log {
    guest: String,
    limit: Mutex<Limit>,
}

impl Log {
    pub(crate) fn new(guest: String) -> Self {
        Self { guest, limit: Mutex::new(Limit::new(Instant::now())) }
    }

    pub(crate) fn guest(&self) -> &str {
        &self.guest
    }

    pub(crate) fn info(&self, what: fmt::Arguments<'_>) {
        if self.admits() {
            info!(guest = self.guest, "{what}");
        }
    }

    pub(crate) fn warn(&self, what: fmt::Arguments<'_>) {
        if self.admits() {
            warn!(guest = self.guest, "{what}");
        }
    }

    /// Returns whether a line may be written. First logs how many were left out.
    fn admits(&self) -> bool {
        let admitted = lock(&self.limit).admit(Instant::now());
        if let Some(left_out @ 1..) = admitted {
            warn!(guest = self.guest, left_out, "this VMM caused too many log lines; some were left out");
        }
        admitted.is_some()
    }
}

/// A token bucket.
struct Limit {
    left: u32,
    /// When the last token came.
    since: Instant,
    left_out: u64,
}

impl Limit {
    fn new(now: Instant) -> Self {
        Self { left: AT_ONCE, since: now, left_out: 0 }
    }

    /// Returns how many lines were left out since the last one, if a line may be written `now`.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let pauses = now.saturating_duration_since(self.since).as_secs() / PAUSE.as_secs();
        self.left = self.left.saturating_add(u32::try_from(pauses).unwrap_or(u32::MAX)).min(AT_ONCE);
        self.since += PAUSE * u32::try_from(pauses).unwrap_or(0);
        let Some(left) = self.left.checked_sub(1) else {
            self.left_out += 1;
            return None;
        };
        self.left = left;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_at_a_rate_and_those_left_out_are_counted() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let mut admitted =
            |at: Duration| (0..100).filter_map(|_| limit.admit(start + at)).collect::<Vec<_>>();
        assert_eq!(admitted(Duration::ZERO), [0; 20]);
        assert!(admitted(PAUSE - Duration::from_nanos(1)).is_empty());
        assert_eq!(admitted(PAUSE), [180]);
        assert_eq!(admitted(PAUSE * 7 / 2), [99, 0]);
        assert_eq!(admitted(PAUSE * 4), [98], "part of a pause counts");
        // However long it was quiet, no more than that may follow each other at once.
        let late = admitted(PAUSE * 1000);
        assert_eq!((late.len(), late[0], late[1]), (20, 99, 0));
    }
}
