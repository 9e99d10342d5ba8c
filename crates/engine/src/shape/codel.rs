//! Controlled delay (CoDel, RFC 8289): decides which packets of a queue are dropped or marked so that those behind them
//! wait less.

/// How long packets may wait for good, nanoseconds.
const TARGET_NS: u64 = 5_000_000;
/// For how long they may wait longer than that, nanoseconds: the time that a sender far away takes to slow down.
const INTERVAL_NS: u64 = 100_000_000;

/// The state of a queue, with the names of RFC 8289, 5.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Codel {
    /// When packets have waited too long for an interval; 0: they do not.
    first_above_time: u64,
    drop_next: u64,
    count: u64,
    last_count: u64,
    dropping: bool,
    /// The longest packet so far: a queue that holds no more than one is not too long.
    longest: usize,
}

impl Codel {
    /// Decides about a packet of `len` bytes that leaves the queue at `now` after `waited`, both in nanoseconds, while
    /// `left` bytes remain. Returns whether its sender must slow down.
    pub fn slows(&mut self, now: u64, waited: u64, len: usize, left: usize) -> bool {
        self.longest = if left == 0 { 0 } else { self.longest.max(len) };
        let too_long = self.is_too_long(now, waited, left);
        if !self.dropping {
            if too_long {
                self.begin(now);
            }
            return too_long;
        }
        self.dropping = too_long;
        let drops = too_long && now >= self.drop_next;
        if drops {
            self.count += 1;
            self.drop_next = self.after(self.drop_next);
        }
        drops
    }

    const fn is_too_long(&mut self, now: u64, waited: u64, left: usize) -> bool {
        if waited < TARGET_NS || left <= self.longest {
            self.first_above_time = 0;
        } else if self.first_above_time == 0 {
            self.first_above_time = now + INTERVAL_NS;
        } else {
            return now >= self.first_above_time;
        }
        false
    }

    /// Begins to drop. If it dropped until recently, goes on at the frequency that helped then.
    fn begin(&mut self, now: u64) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let recent = now.saturating_sub(self.drop_next) < 16 * INTERVAL_NS;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = self.after(now);
        self.last_count = self.count;
    }

    /// Returns the time of the next drop: the more were dropped, the sooner.
    fn after(&self, time: u64) -> u64 {
        time + (INTERVAL_NS as f64 / (self.count as f64).sqrt()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const FULL: usize = 100_000;

    /// Returns the milliseconds at which one of the packets that leave every millisecond slows its sender, if all of
    /// them waited for `waited`.
    fn slowed(codel: &mut Codel, ms: std::ops::Range<u64>, waited: u64, left: usize) -> Vec<u64> {
        ms.filter(|ms| codel.slows(ms * MS, waited, 1500, left)).collect()
    }

    #[test]
    fn a_queue_that_is_short_most_of_the_time_loses_nothing() {
        let mut codel = Codel::default();
        assert!(slowed(&mut codel, 1000..3000, TARGET_NS - 1, FULL).is_empty());
        for start in (3000..6000).step_by(100) {
            assert!(slowed(&mut codel, start..start + 99, 50 * MS, FULL).is_empty(), "a burst");
            assert!(slowed(&mut codel, start + 99..start + 100, MS, FULL).is_empty());
        }
        assert!(slowed(&mut codel, 6000..8000, 50 * MS, 1500).is_empty(), "one packet is no queue");
    }

    #[test]
    fn a_standing_queue_loses_ever_more_until_it_is_short() {
        let mut codel = Codel::default();
        let at = slowed(&mut codel, 1000..1500, 6 * MS, FULL);
        // The intervals are 100 ms divided by the roots of 1, 2, 3 and so on.
        assert_eq!(at, [1100, 1200, 1271, 1329, 1379, 1424, 1464], "{at:?}");
        assert!(!codel.slows(1500 * MS, MS, 1500, FULL));
        assert!(slowed(&mut codel, 1501..1601, 6 * MS, FULL).is_empty(), "an interval's patience again");
        let again = slowed(&mut codel, 1601..1800, 6 * MS, FULL);
        assert!(again.len() > 3, "it goes on where it was: {again:?}");
    }

    #[test]
    fn after_a_long_time_it_begins_anew() {
        let mut codel = Codel::default();
        assert!(slowed(&mut codel, 1000..3000, 6 * MS, FULL).len() > 30);
        assert!(!codel.slows(3000 * MS, 0, 1500, 0));
        assert_eq!(slowed(&mut codel, 9000..9250, 6 * MS, FULL), [9100, 9200]);
    }
}
