//! Enforces the rate of a guest. Packets that the vRouter's policer would drop wait here, because RoCE performs badly
//! when packets are lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How much a guest may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second, of frames from the Ethernet header on.
    pub bits_per_second: u64,
    /// Bytes that may be sent at once.
    pub burst_bytes: u64,
}

impl Rate {
    /// Returns how long this many bytes take, nanoseconds.
    fn nanoseconds(self, bytes: u64) -> u64 {
        let time = u128::from(bytes) * 8_000_000_000 / u128::from(self.bits_per_second.max(1));
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

/// Enforces a rate (the generic cell rate algorithm of ITU-T I.371). All queue pairs of a device share it.
#[derive(Debug, Default)]
pub(crate) struct Shaper {
    /// 0 if there is no rate.
    bits_per_second: AtomicU64,
    burst_bytes: AtomicU64,
    /// When all bytes sent so far would have been sent at the rate: nanoseconds of the monotonic clock.
    until: AtomicU64,
}

impl Shaper {
    /// Changes the rate; `None` removes it.
    pub fn set(&self, rate: Option<Rate>) {
        let rate = rate.map_or((0, 0), |rate| (rate.bits_per_second.max(1), rate.burst_bytes));
        self.burst_bytes.store(rate.1, Ordering::Relaxed);
        self.bits_per_second.store(rate.0, Ordering::Relaxed);
    }

    fn rate(&self) -> Option<Rate> {
        let (bits_per_second, burst_bytes) =
            (self.bits_per_second.load(Ordering::Relaxed), self.burst_bytes.load(Ordering::Relaxed));
        (bits_per_second > 0).then_some(Rate { bits_per_second, burst_bytes })
    }

    pub fn is_set(&self) -> bool {
        self.rate().is_some()
    }

    /// Returns how many frames of `frame` bytes may be sent now, at most `most`. One frame may always be sent when
    /// no time is owed, however small the burst.
    pub fn room(&self, now: Duration, frame: u64, most: usize) -> usize {
        let Some(rate) = self.rate() else { return most };
        let owed = self.until.load(Ordering::Relaxed).saturating_sub(now.as_nanos() as u64);
        if owed == 0 {
            let burst = rate.burst_bytes / frame.max(1);
            return most.min(burst.max(1) as usize);
        }
        let left = rate.nanoseconds(rate.burst_bytes).saturating_sub(owed);
        most.min((left / rate.nanoseconds(frame).max(1)) as usize)
    }

    /// Returns how long it takes until there is room for a frame of `frame` bytes.
    pub fn wait(&self, now: Duration, frame: u64) -> Duration {
        let Some(rate) = self.rate() else { return Duration::ZERO };
        let owed = self.until.load(Ordering::Relaxed).saturating_sub(now.as_nanos() as u64);
        let may_owe = rate.nanoseconds(rate.burst_bytes).saturating_sub(rate.nanoseconds(frame));
        Duration::from_nanos(owed.saturating_sub(may_owe))
    }

    /// Counts a frame that is sent.
    pub fn spend(&self, now: impl FnOnce() -> Duration, bytes: u64) {
        let Some(rate) = self.rate() else { return };
        let (now, cost) = (now().as_nanos() as u64, rate.nanoseconds(bytes));
        let add = |until: u64| Some(until.max(now).saturating_add(cost));
        let _ = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_after_a_burst() {
        let shaper = Shaper::default();
        shaper.set(Some(Rate { bits_per_second: 8_000_000, burst_bytes: 10_000 }));
        let (mut now, mut sent) = (Duration::from_secs(5), 0);
        let end = now + Duration::from_secs(1);
        while now < end {
            let room = shaper.room(now, 1000, 64);
            (0..room).for_each(|_| shaper.spend(|| now, 1000));
            sent += room;
            now += Duration::from_micros(100);
        }
        // A megabyte in a second, and the burst.
        assert!((1000..=1011).contains(&sent), "{sent}");
        shaper.set(None);
        assert_eq!(shaper.room(now, 1000, 64), 64);
    }

    #[test]
    fn a_frame_longer_than_the_burst_goes_in_its_time() {
        let shaper = Shaper::default();
        shaper.set(Some(Rate { bits_per_second: 8_000, burst_bytes: 10 }));
        let now = Duration::from_secs(5);
        assert_eq!(shaper.room(now, 1000, 64), 1);
        shaper.spend(|| now, 1000);
        assert_eq!(shaper.room(now + Duration::from_millis(999), 1000, 64), 0);
        assert_eq!(shaper.wait(now, 1000), Duration::from_secs(1));
        assert_eq!(shaper.room(now + Duration::from_secs(1), 1000, 64), 1);
    }
}
