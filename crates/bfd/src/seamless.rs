//! Seamless BFD (RFC 7880): one end asks by each of several paths, the other answers and keeps nothing. So the end that
//! asks knows which of its paths work.

use crate::packet::{Diagnostic, LEN, Packet, State};
use crate::session::{Config, SLOW, micros};
use crate::splitmix;
use std::time::Duration;

/// The longest time between two questions that the other end can ask for.
const SELDOM: Duration = Duration::from_secs(10);

/// The end of a path that asks (SBFDInitiator). Time is measured as for a [`crate::Session`].
#[derive(Clone, Debug)]
pub struct Initiator {
    config: Config,
    number: u32,
    works: Option<bool>,
    /// When the last answer came.
    answered: Option<Duration>,
    /// The least time between two questions that the other end takes.
    takes: Duration,
    /// Whether a question waits for its answer.
    asks: bool,
    next: Duration,
    /// When the path is taken for broken.
    expires: Option<Duration>,
    random: u64,
}

impl Initiator {
    /// Makes an end that knows nothing of its path. `seed` is for its number and for the jitter of its packets.
    #[must_use]
    pub const fn new(config: Config, mut seed: u64, now: Duration) -> Self {
        let number = splitmix(&mut seed) as u32 | 1;
        let (works, takes, asks, random) = (None, Duration::ZERO, false, seed);
        let expires = Some(now.saturating_add(SLOW.saturating_mul(config.multiplier as u32)));
        Self { config, number, works, answered: None, takes, asks, next: now, expires, random }
    }

    /// Returns the number by which the other end names this one.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether answers come. None: it is too early to say, or the other end is out of service.
    #[must_use]
    pub const fn works(&self) -> Option<bool> {
        self.works
    }

    /// Returns whether this path gets answers, while the `other` path to the same end gets none any more. When both
    /// break at the same time, one expires a little before the other: that does not count.
    #[must_use]
    pub fn outlives(&self, other: &Self) -> bool {
        let pace = self.config.interval.max(self.takes);
        let later = |answered| other.answered.is_none_or(|last| answered > last + pace * 3 / 2);
        self.works == Some(true) && other.works == Some(false) && self.answered.is_some_and(later)
    }

    /// Takes an answer: one for each question, so that the other end can't have the path change at any rate.
    pub fn received(&mut self, packet: &Packet, now: Duration) {
        if packet.other != self.number || packet.demand || !std::mem::take(&mut self.asks) {
            return;
        }
        let before = self.interval();
        self.works = (packet.state == State::Up).then_some(true);
        self.answered = self.works.map(|_| now).or(self.answered);
        self.takes = Duration::from_micros(packet.takes.into()).min(SELDOM);
        if self.interval() < before {
            self.schedule(now);
        }
        self.expires = Some(now + self.interval() * u32::from(self.config.multiplier));
    }

    /// Takes the path for broken if no answer came for too long.
    pub fn tick(&mut self, now: Duration) {
        if self.expires.is_some_and(|expires| expires <= now) {
            (self.works, self.expires) = (Some(false), None);
        }
    }

    /// Returns a question to the end with this number, if one is due. 0: the number is not known.
    pub fn output(&mut self, reflector: u32, now: Duration) -> Option<[u8; LEN]> {
        if self.next > now {
            return None;
        }
        self.schedule(now);
        if reflector == 0 {
            // Nobody is asked.
            (self.works, self.expires) = (None, Some(now + SLOW * u32::from(self.config.multiplier)));
            return None;
        }
        self.asks = true;
        let packet = Packet {
            diagnostic: Diagnostic::NONE,
            state: if self.works == Some(true) { State::Up } else { State::Down },
            polls: false,
            answers: false,
            demand: true,
            multiplier: self.config.multiplier,
            own: self.number,
            other: reflector,
            sends: micros(self.interval()),
            takes: micros(self.config.interval),
        };
        Some(packet.bytes())
    }

    /// Returns when [`Self::tick`] or [`Self::output`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.expires.map_or(self.next, |expires| expires.min(self.next))
    }

    /// Waits for answers anew, because none could arrive for a while.
    pub fn wait_anew(&mut self, now: Duration) {
        self.expires = self.expires.map(|_| now + SLOW * u32::from(self.config.multiplier));
    }

    /// Returns the time between two questions.
    fn interval(&self) -> Duration {
        let least = if self.works == Some(true) { Duration::ZERO } else { SLOW };
        self.config.interval.max(self.takes).max(least)
    }

    /// Makes the next question due an interval from now, or up to a quarter less.
    fn schedule(&mut self, now: Duration) {
        let part = 750 + (splitmix(&mut self.random) % 251) as u32;
        self.next = now + self.interval() * part / 1000;
    }
}

/// Returns the answer to a question (SBFDReflector). `takes`: the least time between two questions that this end takes.
/// None: it is no question.
#[must_use]
pub fn reflect(question: &Packet, takes: Duration) -> Option<[u8; LEN]> {
    // No answer is a question, so two ends can't keep answering each other.
    question.demand.then(|| {
        let answer = Packet {
            diagnostic: Diagnostic::NONE,
            state: State::Up,
            polls: false,
            answers: question.polls,
            demand: false,
            own: question.other,
            other: question.own,
            takes: micros(takes),
            ..*question
        };
        answer.bytes()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(10);
    const CONFIG: Config = Config { interval: INTERVAL, multiplier: 3, multihop: true };
    const MS: Duration = Duration::from_millis(1);

    /// Lets time pass, a millisecond at a time, and has questions answered while `answers`. Returns their number.
    fn pass(initiator: &mut Initiator, now: &mut Duration, time: Duration, answers: bool) -> usize {
        let (end, mut asked) = (*now + time, 0);
        while *now < end {
            if let Some(question) = initiator.output(7, *now) {
                asked += 1;
                let question = Packet::parse(&question).unwrap();
                assert_eq!(question.other, 7);
                let answer = Packet::parse(&reflect(&question, INTERVAL).unwrap()).unwrap();
                assert!(reflect(&answer, INTERVAL).is_none(), "an answer is no question");
                if answers {
                    initiator.received(&answer, *now);
                }
            }
            initiator.tick(*now);
            assert!(initiator.deadline() > *now);
            *now += MS;
        }
        asked
    }

    #[test]
    fn a_path_breaks_within_three_intervals_and_heals_within_a_second() {
        for seed in 0..50 {
            let mut now = Duration::from_secs(5);
            let mut initiator = Initiator::new(CONFIG, seed, now);
            assert_eq!(initiator.works(), None);
            let asked = pass(&mut initiator, &mut now, Duration::from_secs(1), true);
            assert_eq!(initiator.works(), Some(true));
            assert!((100..140).contains(&asked), "{asked}");
            pass(&mut initiator, &mut now, 3 * INTERVAL + MS, false);
            assert_eq!(initiator.works(), Some(false));
            let asked = pass(&mut initiator, &mut now, Duration::from_secs(10), false);
            assert!((9..15).contains(&asked), "{asked}");
            pass(&mut initiator, &mut now, Duration::from_secs(1), true);
            assert_eq!(initiator.works(), Some(true));
        }
    }

    #[test]
    fn a_path_that_never_worked_is_given_up_after_three_questions() {
        let mut now = Duration::ZERO;
        let mut initiator = Initiator::new(CONFIG, 7, now);
        assert!((3..=4).contains(&pass(&mut initiator, &mut now, 2999 * MS, false)));
        assert_eq!(initiator.works(), None);
        pass(&mut initiator, &mut now, 2 * MS, false);
        assert_eq!(initiator.works(), Some(false));
    }

    #[test]
    fn the_other_end_sets_the_pace_and_can_be_out_of_service() {
        let mut now = Duration::ZERO;
        let mut initiator = Initiator::new(CONFIG, 7, now);
        let question = Packet::parse(&initiator.output(7, now).unwrap()).unwrap();
        let answer = Packet::parse(&reflect(&question, SLOW).unwrap()).unwrap();
        initiator.received(&answer, now);
        assert!(pass(&mut initiator, &mut now, Duration::from_secs(2), false) <= 3);
        assert_eq!(initiator.works(), Some(true), "it is asked for patience");
        for ignored in [Packet { other: 8, ..answer }, Packet { demand: true, ..answer }] {
            initiator.received(&Packet { state: State::AdminDown, ..ignored }, now);
            assert_eq!(initiator.works(), Some(true));
        }
        // One that takes them often again is asked often at once.
        initiator.received(&Packet { takes: 10_000, ..answer }, now);
        pass(&mut initiator, &mut now, 20 * MS, true);
        assert!(pass(&mut initiator, &mut now, Duration::from_secs(1), true) >= 100);
        assert_eq!(initiator.works(), Some(true));
        // No answer puts off the next question for long.
        while initiator.output(7, now).is_none() {
            now += MS;
        }
        initiator.received(&Packet { takes: u32::MAX, ..answer }, now);
        initiator.received(&Packet { state: State::AdminDown, ..answer }, now);
        assert_eq!(initiator.works(), Some(true), "nobody asked for that answer");
        pass(&mut initiator, &mut now, 4 * SELDOM, false);
        assert_eq!(initiator.works(), Some(false));
        // One that is out of service breaks no path, but one that falls silent does.
        assert!(initiator.output(7, now + 2 * SELDOM).is_some());
        initiator.received(&Packet { state: State::AdminDown, ..answer }, now);
        assert_eq!(initiator.works(), None);
        pass(&mut initiator, &mut now, 4 * SELDOM, false);
        assert_eq!(initiator.works(), Some(false));
        now += 2 * SELDOM;
        assert_eq!(initiator.output(0, now), None, "the other end's number is not known");
        initiator.tick(now);
        assert_eq!(initiator.works(), None);
    }
}
