//! How long a thread that has no work polls before it sleeps.
//!
//! With few CPUs, a thread that polls may take one from others, even from the program that is to give it work. It
//! measures the time that it lost: it polled in vain, or others had its CPU meanwhile. Then it does not poll for
//! several times as long, and sleeps as soon as it has no work. So a thread that finds work by polling goes on, and
//! one that finds none loses at most a ninth of its time.

use crate::base::clock::monotonic;
use std::num::NonZero;
use std::time::Duration;

/// How long a thread polls for work before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
/// Number of CPUs from which on some can be spared.
const ENOUGH_CPUS: usize = 4;
/// With fewer CPUs, a thread does not poll for this many times the time that it lost.
const RESTS: u32 = 8;
/// The longest time for which a thread does not poll.
const LONGEST_REST: Duration = Duration::from_millis(20);

pub(super) struct Pace {
    /// True on a machine with few CPUs: other threads may need this one.
    must_spare: bool,
    /// When it last had work.
    busy_at: Duration,
    /// True if it polls since then.
    is_polling: bool,
    /// Until when it does not poll.
    rests_until: Duration,
}

impl Pace {
    pub fn new() -> Self {
        Self::with_cpus(std::thread::available_parallelism().map_or(1, NonZero::get), monotonic())
    }

    const fn with_cpus(cpus: usize, now: Duration) -> Self {
        let rests_until = if cpus > 1 { Duration::ZERO } else { Duration::MAX };
        Self { must_spare: cpus < ENOUGH_CPUS, busy_at: now, is_polling: false, rests_until }
    }

    /// Notes that there was work.
    pub const fn work(&mut self, now: Duration) {
        self.busy_at = now;
        self.is_polling = false;
    }

    /// Returns whether the thread, which has looked for work in vain, goes on polling.
    pub fn polls(&mut self, now: Duration) -> bool {
        let idle = now.saturating_sub(self.busy_at);
        let polls = now >= self.rests_until && idle < SPIN;
        if self.is_polling && !polls && self.must_spare {
            self.rest(now, idle.saturating_mul(RESTS).min(LONGEST_REST));
        }
        self.is_polling = polls;
        polls
    }

    /// Keeps the thread from polling for this time.
    pub fn rest(&mut self, now: Duration, time: Duration) {
        self.is_polling = false;
        self.rests_until = self.rests_until.max(now + time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1);
    const LOOK: Duration = Duration::from_micros(1);

    /// Returns the pace of a thread that had work just now.
    fn pace(cpus: usize) -> Pace {
        let mut pace = Pace::with_cpus(cpus, START);
        pace.work(START);
        pace
    }

    /// Polls in vain until the thread is to sleep. Returns when that is.
    fn end(pace: &mut Pace, mut now: Duration) -> Duration {
        while pace.polls(now) {
            now += LOOK;
        }
        now
    }

    /// Returns whether the thread polls after work.
    fn polls_again(pace: &mut Pace, now: Duration) -> bool {
        pace.work(now);
        pace.polls(now)
    }

    #[test]
    fn a_thread_without_work_sleeps_after_a_while() {
        for (cpus, time) in [(1, Duration::ZERO), (2, SPIN), (4, SPIN)] {
            assert_eq!(end(&mut pace(cpus), START), START + time);
        }
    }

    #[test]
    fn after_polling_in_vain_it_sleeps_at_once_where_cpus_are_few() {
        for (cpus, is_spared) in [(2, false), (3, false), (4, true)] {
            let mut pace = pace(cpus);
            let slept = end(&mut pace, START);
            assert_eq!(polls_again(&mut pace, slept + SPIN * RESTS - LOOK), is_spared);
            assert!(polls_again(&mut pace, slept + SPIN * RESTS));
        }
    }

    #[test]
    fn the_longer_others_had_its_cpu_the_longer_it_does_not_poll() {
        let mut pace = pace(2);
        assert!(pace.polls(START));
        let back = START + SPIN * 4;
        assert!(!pace.polls(back));
        assert!(!polls_again(&mut pace, back + SPIN * 4 * RESTS - LOOK));
        let polls = back + SPIN * 4 * RESTS;
        assert!(polls_again(&mut pace, polls));
        // Whoever stopped it for an hour does not need the next one.
        let hour = polls + Duration::from_secs(3600);
        assert!(!pace.polls(hour));
        assert!(!polls_again(&mut pace, hour + LONGEST_REST - LOOK));
        assert!(polls_again(&mut pace, hour + LONGEST_REST));
    }

    #[test]
    fn neither_work_nor_sleep_is_lost_time() {
        let (mut pace, mut now) = (pace(2), START);
        for _ in 0..100 {
            assert!(pace.polls(now), "work came in time");
            now += SPIN - LOOK;
            pace.work(now);
            // The work takes longer than it polls.
            now += SPIN * 2;
            assert!(!pace.polls(now) && polls_again(&mut pace, now));
        }
        pace.rest(now, Duration::ZERO);
        assert!(!pace.polls(now + SPIN * 1000) && polls_again(&mut pace, now + SPIN * 1000));
    }
}
