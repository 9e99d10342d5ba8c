//! The last logged state of a network device, so that each change is logged once.

use mem::PortStatus;
use std::time::{Duration, Instant};

/// How long lost frames are summed up before they are logged again.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Seen {
    is_down: bool,
    has_fault: bool,
    lost: u64,
    told: Option<Instant>,
}

/// A change that is worth a line in the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// No packets can flow any more, or the reason why they can't is now that the device is gone.
    Down,
    Up,
    /// Number of frames lost since the last such line.
    Lost(u64),
}

impl Seen {
    /// Notices a state, and returns what changed.
    pub(super) fn notice(&mut self, status: &PortStatus, now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        let is_gone = !self.has_fault && status.fault.is_some();
        self.has_fault = status.fault.is_some();
        if self.is_down == status.up || is_gone {
            self.is_down = !status.up;
            news.push(if status.up { News::Up } else { News::Down });
        }
        let is_quiet = self.told.is_none_or(|told| now.duration_since(told) >= QUIET);
        if status.lost > self.lost && is_quiet {
            news.push(News::Lost(status.lost - self.lost));
            (self.lost, self.told) = (status.lost, Some(now));
        }
        // A device that came back counts from zero.
        self.lost = self.lost.min(status.lost);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_told_once() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let mut notice = |up, lost, second| {
            let status = PortStatus { up, lost, ..PortStatus::default() };
            seen.notice(&status, start + Duration::from_secs(second))
        };
        assert_eq!(notice(true, 0, 0), []);
        assert_eq!(notice(false, 0, 1), [News::Down]);
        assert_eq!(notice(false, 0, 2), []);
        assert_eq!(notice(true, 7, 3), [News::Up, News::Lost(7)]);
        assert_eq!(notice(true, 9, 4), [], "gathered");
        assert_eq!(notice(true, 10, 63), [News::Lost(3)]);
        assert_eq!(notice(true, 2, 130), []);
        assert_eq!(notice(true, 5, 200), [News::Lost(3)]);
    }

    #[test]
    fn a_device_that_goes_while_it_is_down_is_told() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let gone = PortStatus { fault: Some("no such device".into()), ..PortStatus::default() };
        assert_eq!(seen.notice(&PortStatus::default(), now), [News::Down]);
        assert_eq!([seen.notice(&gone, now), seen.notice(&gone, now)], [vec![News::Down], vec![]]);
        assert_eq!(seen.notice(&PortStatus { up: true, ..PortStatus::default() }, now), [News::Up]);
    }
}
