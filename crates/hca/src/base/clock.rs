//! The monotonic clock for the queue pairs, rates and timers of a device.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

pub(crate) fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

pub(crate) fn monotonic_nanoseconds() -> u64 {
    monotonic().as_nanos() as u64
}
