//! The rate of a shaper, by a virtual clock: the time at which all bytes so far would have gone at the rate.
//!
//! Queues of one guest share it, though different workers poll them. It needs no timer: who asks gets the bytes that
//! may go now, or the time to come back.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a nanosecond in which the clock counts, so that short frames at high rates cost what they should. It wraps
/// around after nine years.
const PARTS: u64 = 64;
/// How far what goes at once may be ahead of the clock, nanoseconds. A worker wakes so often for a guest.
const AHEAD_NS: u64 = 500_000;
/// How much of the time in which nothing went is made up for, nanoseconds: workers come late on a busy host, and guests
/// pause.
const LATE_NS: u64 = 10_000_000;

/// The bytes that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// About so many, and always one packet.
    Go(usize),
    /// None before this time, nanoseconds.
    Wait(u64),
}

#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// 0: no limit.
    bits_per_second: AtomicU64,
    /// The virtual clock, in parts of nanoseconds.
    next: AtomicU64,
}

impl Pacer {
    /// Changes the rate; 0 removes it.
    pub fn set(&self, bits_per_second: u64) {
        self.bits_per_second.store(bits_per_second, Ordering::Relaxed);
    }

    pub fn pace(&self, now_ns: u64) -> Pace {
        let rate = self.bits_per_second.load(Ordering::Relaxed);
        if rate == 0 {
            return Pace::Go(usize::MAX);
        }
        let (now, next) = (now_ns * PARTS, self.next.load(Ordering::Relaxed));
        match now.checked_sub(next) {
            Some(late) => Pace::Go(bytes(late.min(LATE_NS * PARTS) + AHEAD_NS * PARTS, rate)),
            None => Pace::Wait(next.div_ceil(PARTS)),
        }
    }

    /// Returns when bytes may go again, nanoseconds; `None` if they may go now.
    pub fn wait(&self, now_ns: u64) -> Option<u64> {
        match self.pace(now_ns) {
            Pace::Go(_) => None,
            Pace::Wait(until) => Some(until),
        }
    }

    /// Counts bytes that go now.
    pub fn spend(&self, now_ns: u64, bytes: u64) {
        let rate = self.bits_per_second.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let earliest = now_ns.saturating_sub(LATE_NS) * PARTS;
        let cost = cost(bytes, rate);
        let later = |next: u64| Some(next.max(earliest).saturating_add(cost));
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

/// Parts of nanoseconds in which a bit goes at one bit per second.
const BIT: u128 = 1_000_000_000 * PARTS as u128;

fn cost(bytes: u64, rate: u64) -> u64 {
    let parts = (u128::from(bytes) * 8 * BIT).div_ceil(u128::from(rate));
    u64::try_from(parts).unwrap_or(u64::MAX)
}

fn bytes(parts: u64, rate: u64) -> usize {
    let bytes = u128::from(parts) * u128::from(rate) / (8 * BIT);
    usize::try_from(bytes).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 77 * SECOND;

    /// Runs queues that always have packets of these lengths, in turn, for a second of the virtual clock. Their worker
    /// comes `late` after the time that it was told. Returns the bytes that went.
    fn run(pacer: &Pacer, lens: &[u64], late: u64) -> u64 {
        let (mut now, mut sent, mut lens) = (START, 0, lens.iter().cycle());
        while now < START + SECOND {
            match pacer.pace(now) {
                Pace::Go(budget) => {
                    let mut burst = 0;
                    while burst < budget as u64 && burst < 128 << 10 {
                        burst += lens.next().unwrap();
                    }
                    pacer.spend(now, burst);
                    sent += burst;
                    // To forward a burst takes time, too.
                    now += 2_000;
                }
                Pace::Wait(until) => now = until + late,
            }
        }
        sent
    }

    #[test]
    fn the_rate_is_kept_within_two_percent_from_ten_megabits_to_ten_gigabits() {
        for mbps in [10, 50, 200, 500, 1000, 2500, 10_000] {
            let rate = mbps * 1_000_000;
            for lens in [&[60][..], &[1514], &[60, 1514, 590], &[65_226]] {
                for late in [0, 50_000, 2_000_000] {
                    let pacer = Pacer::default();
                    pacer.set(rate);
                    // A pacer that has just begun owes the time before it.
                    pacer.spend(START, rate / 8 / 100);
                    let (sent, all) = (run(&pacer, lens, late) as f64, rate as f64 / 8.0);
                    let one = *lens.last().unwrap() as f64;
                    assert!((sent - all).abs() <= 0.02 * all + one, "{mbps} {lens:?} {late}: {}", sent / all);
                }
            }
        }
    }

    #[test]
    fn what_did_not_go_for_long_is_not_made_up_for() {
        let pacer = Pacer::default();
        pacer.set(80_000_000);
        let Pace::Go(budget) = pacer.pace(START) else { panic!("nothing went so far") };
        assert_eq!(budget, 105_000, "10 bytes a microsecond, for 10.5 ms");
        pacer.spend(START, budget as u64);
        assert_eq!(pacer.pace(START), Pace::Wait(START + AHEAD_NS));
        assert_eq!(pacer.wait(START + AHEAD_NS), None);
    }

    #[test]
    fn a_long_packet_goes_and_the_next_waits_for_all_of_it() {
        let pacer = Pacer::default();
        pacer.set(10_000_000);
        pacer.spend(START, 12_500);
        assert_eq!(pacer.pace(START), Pace::Go(625), "the time before the start is used up");
        pacer.spend(START, 65_226);
        assert_eq!(pacer.wait(START), Some(START + 65_226 * 800));
    }

    #[test]
    fn a_rate_changes_at_once_and_none_lets_all_pass() {
        let pacer = Pacer::default();
        assert_eq!(pacer.pace(0), Pace::Go(usize::MAX));
        pacer.set(1_000_000);
        pacer.spend(START, 125_000);
        assert!(pacer.wait(START).is_some());
        pacer.set(0);
        assert_eq!(pacer.pace(START), Pace::Go(usize::MAX));
        pacer.spend(START, 1 << 40);
        pacer.set(1_000_000_000);
        assert_eq!(pacer.wait(START), Some(START + SECOND - LATE_NS), "the debt of before");
    }

    #[test]
    fn queues_of_several_workers_share_the_rate() {
        let pacer = Arc::new(Pacer::default());
        pacer.set(8_000_000_000);
        pacer.spend(START, 10_000_000);
        let spend =
            |pacer: Arc<Pacer>| std::thread::spawn(move || (0..1000).for_each(|_| pacer.spend(START, 100)));
        let workers: Vec<_> = (0..4).map(|_| spend(pacer.clone())).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(pacer.wait(START), Some(START + 400_000), "a byte a nanosecond");
    }
}
