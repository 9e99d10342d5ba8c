//! How much CPU time a port's control thread takes: as much as its VMM's requests cost, but no more than a
//! share, and with a lower weight than the workers, which carry everybody's packets.

use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// A VMM may cause one second of work in so many seconds.
const SECONDS: u32 = 20;
/// Work that it may cause at once: a VM with 64 pairs of queues and hundreds of regions causes about that much when it
/// starts.
const AT_ONCE: Duration = Duration::from_millis(500);
/// Shortest pause.
const PAUSE: Duration = Duration::from_millis(10);
/// By how much the nice value is higher than that of workers: a tenth of their weight (sched(7)).
const NICER: i32 = 10;

pub(super) struct Budget {
    /// Work that may be done without a pause, and work done beyond that; one of them is zero.
    left: Duration,
    owed: Duration,
    /// CPU time of the thread, and the time, at the last count.
    worked: Duration,
    at: Instant,
    /// Whether the thread's weight was lowered.
    is_low: bool,
}

impl Budget {
    /// Starts to count the work of the calling thread.
    pub(super) fn of_thread() -> Self {
        let (worked, at) = (worked(), Instant::now());
        Self { left: AT_ONCE, owed: Duration::ZERO, worked, at, is_low: false }
    }

    /// Lowers the weight of the calling thread, unless that was done. A thread that goes on for a different process does
    /// it afterwards, because all guests' packets wait for that.
    pub(super) fn lower(&mut self) {
        if !std::mem::replace(&mut self.is_low, true) {
            let nice = getpriority_process(None).unwrap_or(0);
            // Sets it only for the calling thread: in Linux each thread has its own.
            let _ = setpriority_process(None, nice.saturating_add(NICER));
        }
    }

    /// Returns how long the thread has to pause before it works again, if it has to.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        self.count(worked(), Instant::now())
    }

    fn count(&mut self, worked: Duration, now: Instant) -> Option<Duration> {
        let earned = now.saturating_duration_since(self.at) / SECONDS;
        let work = worked.saturating_sub(self.worked);
        (self.worked, self.at) = (worked, now);
        let (has, owes) = (self.left + earned, self.owed + work);
        (self.left, self.owed) = (has.saturating_sub(owes).min(AT_ONCE), owes.saturating_sub(has));
        (!self.owed.is_zero()).then(|| (self.owed * SECONDS).max(PAUSE))
    }
}

/// Returns the CPU time of the calling thread, the kernel's work for it included.
fn worked() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_a_share_waits() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        let (worked, owed) = Default::default();
        let mut budget = Budget { left: AT_ONCE, owed, worked, at: start, is_low: false };
        assert_eq!(budget.count(ms(500), at(0)), None, "at once");
        assert_eq!(budget.count(ms(501), at(20)), None, "20 ms earn one");
        assert_eq!(budget.count(ms(503), at(20)), Some(ms(40)));
        assert_eq!(budget.count(ms(503), at(59)), Some(PAUSE), "not yet");
        assert_eq!(budget.count(ms(503), at(60)), None);
        // A long rest earns no more than what may be done at once.
        assert_eq!(budget.count(ms(503), at(1_000_000)), None);
        assert_eq!(budget.count(ms(1004), at(1_000_000)), Some(ms(20)));
    }
}
