//! The window of a connection: how many packets may be under way. A fixed one feeds itself: many queue pairs fill the
//! queues on the way until answers take longer than the timeout, everything is sent again, and queues stay full.
//!
//! It grows while packets arrive in time, and shrinks when some are lost or answers take long.

use std::time::Duration;

/// The first window, packets.
const FIRST: u64 = 16;
/// The smallest window, packets.
const LEAST: u64 = 4;
/// Once a loss is known, the window grows by a packet for so many that have their answer.
const PER_STEP: u64 = 8;
/// The round-trip time above which the window shrinks: a part of the time after which packets are sent again.
const PART: u32 = 4;
const SHORTEST: Duration = Duration::from_micros(250);
const LONGEST: Duration = Duration::from_millis(8);

pub(crate) struct Congestion {
    window: u64,
    most: u64,
    /// Below this the window grows by each packet that has its answer.
    threshold: u64,
    /// Packets with answers since the window last grew.
    answered: u64,
    /// The number of packets that were sent when the window last shrank: what is learned about these is not new.
    seen_to: u64,
    /// Number of the packet that is timed, and when it was sent.
    timed: Option<(u64, Duration)>,
    /// Mean round-trip time and its mean deviation (RFC 6298), once there is one.
    round_trip: Option<(Duration, Duration)>,
}

/// Leaves out what only packets measure: without packets, short messages are otherwise the same.
impl std::fmt::Debug for Congestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Congestion").field("window", &self.window).finish_non_exhaustive()
    }
}

impl Congestion {
    /// Makes a window of at most `most` packets. With `is_local`, packets reach no wire, and the window is always that.
    pub const fn new(most: u64, is_local: bool) -> Self {
        let window = if is_local || most < FIRST { most } else { FIRST };
        Self { window, most, threshold: u64::MAX, answered: 0, seen_to: 0, timed: None, round_trip: None }
    }

    /// Returns how many packets may be under way.
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// Notes that a packet was sent for the first time and will be answered.
    pub fn sent(&mut self, number: u64, now: Duration) {
        self.timed.get_or_insert((number, now));
    }

    /// Notes that all packets before `to` have answers, of `under_way`; `sent` is the number of all.
    pub fn answered(
        &mut self,
        to: u64,
        under_way: u64,
        sent: u64,
        patience: Option<Duration>,
        now: Duration,
    ) {
        let before = to.min(sent).saturating_sub(sent - under_way.min(sent));
        // A window that is not used says nothing.
        if under_way * 2 >= self.window {
            self.grow(before);
        }
        if let Some((number, at)) = self.timed
            && number < to
        {
            self.timed = None;
            let took = now.saturating_sub(at);
            self.measure(took);
            let part = patience.map_or(LONGEST, |patience| (patience / PART).clamp(SHORTEST, LONGEST));
            if took > part {
                self.shrink(self.window - self.window / 4, to, sent);
            }
        }
    }

    fn grow(&mut self, packets: u64) {
        if self.window < self.threshold {
            self.window = (self.window + packets).min(self.threshold).min(self.most);
            return;
        }
        self.answered += packets;
        self.window = (self.window + self.answered / PER_STEP).min(self.most);
        self.answered %= PER_STEP;
    }

    fn measure(&mut self, took: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => (took, took / 2),
            Some((mean, deviation)) => (mean * 7 / 8 + took / 8, deviation * 3 / 4 + mean.abs_diff(took) / 4),
        });
    }

    /// Notes that packets from `from` on are lost, and are sent again.
    pub fn lost(&mut self, from: u64, sent: u64) {
        self.shrink(self.window / 2, from, sent);
        self.sent_again();
    }

    /// Notes that packets are sent again: their answers may be those to the first ones (Karn).
    pub const fn sent_again(&mut self) {
        self.timed = None;
    }

    /// Notes that no answer came in time.
    pub fn timed_out(&mut self, sent: u64) {
        self.shrink(self.window / 2, sent, sent);
        self.sent_again();
    }

    /// Shrinks the window, once for the packets that are under way.
    fn shrink(&mut self, to: u64, from: u64, sent: u64) {
        if from < self.seen_to {
            return;
        }
        self.window = to.max(LEAST.min(self.most));
        (self.threshold, self.answered, self.seen_to) = (self.window, 0, sent);
    }

    /// Returns the time to wait for an answer, if `patience` is asked for: never less, but more where answers take longer.
    pub fn patience(&self, patience: Duration) -> Duration {
        self.round_trip.map_or(patience, |(mean, deviation)| patience.max(mean + deviation * 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PATIENCE: Option<Duration> = Some(Duration::from_millis(67));

    /// Sends windows of packets that are answered after `took`.
    fn windows(congestion: &mut Congestion, sent: &mut u64, count: usize, took: Duration) {
        for _ in 0..count {
            let window = congestion.window();
            congestion.sent(*sent, Duration::ZERO);
            *sent += window;
            congestion.answered(*sent, window, *sent, PATIENCE, took);
        }
    }

    #[test]
    fn the_window_doubles_until_the_largest() {
        let (mut congestion, mut sent) = (Congestion::new(128, false), 0);
        let seen: Vec<_> = (0..5)
            .map(|_| {
                windows(&mut congestion, &mut sent, 1, MS / 2);
                congestion.window()
            })
            .collect();
        assert_eq!(seen, [32, 64, 128, 128, 128]);
        assert_eq!(Congestion::new(32, true).window(), 32, "on one host");
        // Not if it is not used.
        let mut congestion = Congestion::new(128, false);
        (0..100).for_each(|n| congestion.answered(n + 1, 1, n + 1, PATIENCE, MS));
        assert_eq!(congestion.window(), FIRST);
    }

    #[test]
    fn a_loss_halves_it_once_and_then_it_grows_by_an_eighth() {
        let (mut congestion, mut sent) = (Congestion::new(128, false), 0);
        windows(&mut congestion, &mut sent, 5, MS / 2);
        congestion.lost(sent - 100, sent);
        congestion.lost(sent - 90, sent);
        assert_eq!(congestion.window(), 64, "a packet before the first loss was known is no other loss");
        windows(&mut congestion, &mut sent, 1, MS / 2);
        assert_eq!(congestion.window(), 72);
        windows(&mut congestion, &mut sent, 8, MS / 2);
        assert_eq!(congestion.window(), 128);
        for _ in 0..20 {
            congestion.timed_out(sent);
        }
        assert_eq!(congestion.window(), LEAST);
    }

    #[test]
    fn answers_that_take_long_shrink_it() {
        let (mut congestion, mut sent) = (Congestion::new(128, false), 0);
        windows(&mut congestion, &mut sent, 5, 8 * MS);
        assert_eq!(congestion.window(), 128);
        windows(&mut congestion, &mut sent, 3, 9 * MS);
        let after = congestion.window();
        assert!(after < 100, "{after}");
        windows(&mut congestion, &mut sent, 40, 20 * MS);
        assert!(congestion.window() <= 8, "{}", congestion.window());
        windows(&mut congestion, &mut sent, 40, MS);
        assert_eq!(congestion.window(), 128);
    }

    #[test]
    fn patience_follows_the_round_trip_and_is_never_less_than_asked_for() {
        let (mut congestion, mut sent) = (Congestion::new(128, false), 0);
        assert_eq!(congestion.patience(4 * MS), 4 * MS);
        windows(&mut congestion, &mut sent, 20, MS);
        assert_eq!(congestion.patience(4 * MS), 4 * MS);
        windows(&mut congestion, &mut sent, 40, 30 * MS);
        assert!((30 * MS..40 * MS).contains(&congestion.patience(4 * MS)), "{congestion:?}");
        // A packet that is sent again is not timed.
        let mut congestion = Congestion::new(128, false);
        congestion.sent(0, Duration::ZERO);
        congestion.timed_out(1);
        congestion.answered(1, 1, 1, PATIENCE, 100 * MS);
        assert_eq!(congestion.patience(MS), MS);
    }
}
