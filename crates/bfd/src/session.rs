//! One session: its state and timers (RFC 5880, 6.8).

use crate::packet::{Diagnostic, LEN, Packet, State};
use crate::splitmix;
use std::time::Duration;

/// The least time between two packets while the session is not up (RFC 5880, 6.8.3).
pub(crate) const SLOW: Duration = Duration::from_secs(1);

/// The settings of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The time between two packets, in each direction, if the neighbour agrees.
    pub interval: Duration,
    /// Lost packets after which the neighbour is to take the path for broken: not 0.
    pub multiplier: u8,
    /// If true, routers may be between, and packets from far away can look like the neighbour's.
    pub multihop: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { interval: Duration::from_millis(300), multiplier: 3, multihop: false }
    }
}

/// A change of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It came up.
    Up,
    /// It was up, and the path or the neighbour is down.
    Down(Diagnostic),
    /// It was up, and the neighbour's operator ended it: that says nothing about the path (RFC 5882, 3.2).
    AdminDown,
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets received and used.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets of the neighbour that are none of this session: of an earlier one, or forged.
    pub foreign: u64,
    /// How often the session came up.
    pub ups: u64,
}

/// A session, for its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The own state.
    pub state: State,
    /// The state of the neighbour, as it said last.
    pub remote_state: State,
    /// The reason for the last change.
    pub diagnostic: Diagnostic,
    /// The neighbour's reason for its last change.
    pub remote_diagnostic: Diagnostic,
    /// The time between two packets to the neighbour. None: it takes none.
    pub interval: Option<Duration>,
    /// The time without a packet after which the path is taken for broken. None: nothing came yet.
    pub detection: Option<Duration>,
    /// Counters.
    pub counts: Counts,
}

/// A session that is up, as another program needs it to go on without the neighbour noticing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The own number of the session.
    pub own: u32,
    /// The neighbour's.
    pub other: u32,
    /// As in the neighbour's [`Packet`].
    pub multiplier: u8,
    /// As there.
    pub sends: u32,
    /// As there.
    pub takes: u32,
}

/// The last words of the neighbour.
#[derive(Clone, Copy, Debug)]
struct Remote {
    state: State,
    diagnostic: Diagnostic,
    /// The number by which it names the session. 0: not known.
    number: u32,
    multiplier: u8,
    sends: u32,
    takes: u32,
    demand: bool,
}

impl Remote {
    const UNKNOWN: Self = Self {
        state: State::Down,
        diagnostic: Diagnostic::NONE,
        number: 0,
        multiplier: 0,
        sends: 0,
        takes: 1,
        demand: false,
    };
}

/// A session without I/O. Time is measured from any beginning, the same in all calls.
#[derive(Clone, Debug)]
pub struct Session {
    config: Config,
    number: u32,
    state: State,
    diagnostic: Diagnostic,
    remote: Remote,
    /// The neighbour is to confirm that it knows the interval (RFC 5880, 6.5).
    polls: bool,
    /// The neighbour waits for such a confirmation.
    answers: bool,
    /// The neighbour is to wait longer for packets.
    begs_patience: bool,
    /// When the next packet is due. None: the neighbour takes none.
    next: Option<Duration>,
    /// The interval from which that follows.
    paced: Option<Duration>,
    /// When the last one was sent.
    last: Duration,
    /// When the neighbour is taken for gone.
    expires: Option<Duration>,
    /// The time until which packets tell the neighbour, as often as before, that the operator ended the session.
    ends: Duration,
    /// The state of the random numbers.
    random: u64,
    counts: Counts,
}

pub(crate) const fn micros(time: Duration) -> u32 {
    let micros = time.as_micros();
    if micros < u32::MAX as u128 { micros as u32 } else { u32::MAX }
}

impl Session {
    /// Makes a session that is down. `seed` is for its number and for the jitter of its packets.
    #[must_use]
    pub fn new(config: Config, seed: u64, now: Duration) -> Self {
        let mut session = Self {
            config,
            number: 1,
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote: Remote::UNKNOWN,
            polls: false,
            answers: false,
            begs_patience: false,
            next: Some(now),
            paced: None,
            last: now,
            expires: None,
            ends: Duration::ZERO,
            random: seed,
            counts: Counts::default(),
        };
        session.number = (splitmix(&mut session.random) as u32).max(1);
        session
    }

    /// Returns what another program needs to go on with the session. None: it is not up.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        let Remote { number: other, multiplier, sends, takes, .. } = self.remote;
        (self.state == State::Up).then_some(Held { own: self.number, other, multiplier, sends, takes })
    }

    /// Makes a session that was up in another program. None: there can be no such session.
    #[must_use]
    pub fn resume(config: Config, held: &Held, seed: u64, now: Duration) -> Option<Self> {
        let Held { own: number, other, multiplier, sends, takes } = *held;
        if number == 0 || other == 0 || multiplier == 0 {
            return None;
        }
        let state = State::Up;
        let remote = Remote { state, number: other, multiplier, sends, takes, ..Remote::UNKNOWN };
        // The neighbour may have been asked for patience.
        let mut session = Self { number, state, remote, polls: true, ..Self::new(config, seed, now) };
        session.expires = session.detection().map(|time| now + time.max(SLOW));
        Some(session)
    }

    /// Returns the number by which the neighbour names the session.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number by which the neighbour names the session. 0: not known.
    #[must_use]
    pub const fn neighbour(&self) -> u32 {
        self.remote.number
    }

    /// Returns the session for its operator.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            state: self.state,
            remote_state: self.remote.state,
            diagnostic: self.diagnostic,
            remote_diagnostic: self.remote.diagnostic,
            interval: self.interval(),
            detection: self.detection(),
            counts: self.counts,
        }
    }

    /// Takes a packet of the neighbour (RFC 5880, 6.8.6). Against the letter of that section, a packet without this
    /// session's number does not end it if routers may be between: anybody could have sent that packet. A neighbour
    /// that has lost the session sends nothing in it any more, which ends it as well.
    pub fn received(&mut self, packet: &Packet, now: Duration) -> Option<Change> {
        // From afar, anybody may send in the neighbour's name. Only the neighbour knows the number.
        let must_know = self.state == State::Up || packet.state == State::AdminDown;
        let is_nameless = packet.other == 0 && self.config.multihop && must_know;
        if is_nameless || packet.other != 0 && packet.other != self.number {
            self.counts.foreign += 1;
            return None;
        }
        if self.state == State::AdminDown {
            return None;
        }
        self.counts.received += 1;
        self.remote = Remote {
            state: packet.state,
            diagnostic: packet.diagnostic,
            number: packet.own,
            multiplier: packet.multiplier,
            sends: packet.sends,
            takes: packet.takes,
            demand: packet.demand,
        };
        if packet.answers {
            self.polls = false;
        }
        self.answers |= packet.polls;
        self.expires = self.detection().map(|time| now + time);
        let change = match (self.state, packet.state) {
            (State::Down, State::AdminDown) => None,
            (_, State::AdminDown) => self.fall(Diagnostic::NEIGHBOUR_DOWN).map(|_| Change::AdminDown),
            (State::Down, State::Down) => {
                self.state = State::Init;
                None
            }
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => Some(self.rise()),
            (State::Up, State::Down) => self.fall(Diagnostic::NEIGHBOUR_DOWN),
            _ => None,
        };
        self.schedule();
        change
    }

    /// Does what is due: gives up a neighbour that was silent for too long.
    pub fn tick(&mut self, now: Duration) -> Option<Change> {
        self.expires.filter(|expires| *expires <= now)?;
        self.expires = None;
        self.remote = Remote { diagnostic: self.remote.diagnostic, ..Remote::UNKNOWN };
        self.polls = false;
        self.answers = false;
        let change = if self.state > State::Down { self.fall(Diagnostic::EXPIRED) } else { None };
        self.schedule();
        change
    }

    /// Returns a packet to send, if one is due.
    pub fn output(&mut self, now: Duration) -> Option<[u8; LEN]> {
        let is_answer = std::mem::take(&mut self.answers);
        if !is_answer && self.next.is_none_or(|next| next > now) {
            return None;
        }
        // An answer may come between two others, and does not move them.
        if self.next.is_some_and(|next| next <= now) {
            self.last = now;
            self.paced = None;
            self.schedule();
        }
        self.counts.sent += 1;
        let packet = Packet {
            diagnostic: self.diagnostic,
            state: self.state,
            polls: self.polls && !is_answer,
            answers: is_answer,
            demand: false,
            multiplier: self.config.multiplier,
            own: self.number,
            other: self.remote.number,
            sends: micros(if self.begs_patience { SLOW } else { self.own_interval() }),
            takes: micros(self.config.interval),
        };
        Some(packet.bytes())
    }

    /// Returns when [`Self::tick`] or [`Self::output`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let answer = self.answers.then_some(Duration::ZERO);
        [answer, self.next, self.expires].into_iter().flatten().min()
    }

    /// Holds the session down, and tells the neighbour with the next packet, which is due at once (RFC 5880, 6.8.16).
    /// That packet may be lost, so the session repeats it for a detection time. Returns the end of that time.
    pub fn stop(&mut self, now: Duration) -> Duration {
        self.ends = now + self.interval().unwrap_or_default() * u32::from(self.config.multiplier);
        (self.state, self.diagnostic) = (State::AdminDown, Diagnostic::ADMIN_DOWN);
        (self.expires, self.polls, self.answers) = (None, false, false);
        self.next = Some(now);
        self.ends
    }

    /// Goes down, because packets do not arrive here any more. The next packet, due at once, tells the neighbour.
    pub fn fail(&mut self, now: Duration) {
        (self.state, self.diagnostic) = (State::Down, Diagnostic::FORWARDING_RESET);
        (self.expires, self.polls, self.answers) = (None, false, false);
        self.next = Some(now);
    }

    /// Has the neighbour wait some seconds for packets before it takes the path for broken, or no more. It is told with
    /// the next packet.
    pub const fn beg_patience(&mut self, begs: bool) {
        self.begs_patience = begs;
        self.polls = matches!(self.state, State::Up);
    }

    /// Waits for packets anew, because none could arrive for a while.
    pub fn wait_anew(&mut self, now: Duration) {
        if self.expires.is_some() {
            self.expires = self.detection().map(|time| now + time.max(SLOW));
        }
    }

    fn rise(&mut self) -> Change {
        (self.state, self.diagnostic) = (State::Up, Diagnostic::NONE);
        // The interval is a different one.
        self.polls = true;
        self.counts.ups += 1;
        Change::Up
    }

    /// Goes down. Returns the change if the session was up.
    fn fall(&mut self, why: Diagnostic) -> Option<Change> {
        let was_up = self.state == State::Up;
        (self.state, self.diagnostic) = (State::Down, why);
        self.polls = was_up && self.remote.number != 0;
        was_up.then_some(Change::Down(why))
    }

    /// Returns the time between two packets that the session wants to send.
    fn own_interval(&self) -> Duration {
        let is_quick = self.state == State::Up || self.state == State::AdminDown && self.last < self.ends;
        if is_quick { self.config.interval } else { self.config.interval.max(SLOW) }
    }

    /// Returns the time between two packets to the neighbour (RFC 5880, 6.8.7). None: it wants none.
    fn interval(&self) -> Option<Duration> {
        let Remote { takes, demand, state, .. } = self.remote;
        let is_quiet = demand && state == State::Up && self.state == State::Up && !self.polls;
        (takes > 0 && !is_quiet).then(|| self.own_interval().max(Duration::from_micros(takes.into())))
    }

    /// Makes the next packet due an interval after the last one, or up to a quarter less, if the interval is a new one.
    fn schedule(&mut self) {
        let interval = self.interval();
        if interval.is_some() && interval == self.paced {
            return;
        }
        // If a single lost packet counts, two must not be a whole interval apart.
        let most = if self.config.multiplier == 1 { 150 } else { 250 };
        let part = 750 + (splitmix(&mut self.random) % (most + 1)) as u32;
        self.paced = interval;
        self.next = interval.map(|interval| self.last + interval * part / 1000);
    }

    /// Returns the detection time (RFC 5880, 6.8.4).
    fn detection(&self) -> Option<Duration> {
        let interval = self.config.interval.max(Duration::from_micros(self.remote.sends.into()));
        (self.remote.multiplier > 0).then(|| interval * u32::from(self.remote.multiplier))
    }
}
