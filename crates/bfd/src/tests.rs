//! Two sessions over a path, by a clock of the test.

use crate::{Change, Config, Diagnostic, Held, Initiator, Packet, Session, State, reflect};
use std::time::Duration;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Two sessions, and what is on the way between them.
struct Net {
    ends: [Session; 2],
    now: Duration,
    delay: Duration,
    /// Packets on their way, with the end to which they go and the time at which they arrive.
    way: Vec<(Duration, usize, Vec<u8>)>,
    /// Packets to an end are lost.
    cut: [bool; 2],
    changes: [Vec<(Duration, Change)>; 2],
    sent: [Vec<(Duration, Packet)>; 2],
}

impl Net {
    fn new(configs: [Config; 2]) -> Self {
        let now = ms(1);
        let [a, b] = configs;
        let ends = [Session::new(a, 1, now), Session::new(b, 2, now)];
        let (way, changes, sent) = Default::default();
        Self { ends, now, delay: ms(5), way, cut: [false; 2], changes, sent }
    }

    fn usual() -> Self {
        let mut net = Self::new([Config::default(); 2]);
        net.run(ms(5000));
        assert_eq!(net.states(), [State::Up; 2]);
        net
    }

    fn states(&self) -> [State; 2] {
        [0, 1].map(|end| self.ends[end].status().state)
    }

    /// Lets a time pass, event by event.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.step();
            let of_ends = self.ends.iter().filter_map(Session::deadline);
            let next = of_ends.chain(self.way.iter().map(|(at, ..)| *at)).min();
            match next {
                Some(next) if next <= end => self.now = next.max(self.now),
                _ => break,
            }
        }
        self.now = end;
    }

    fn step(&mut self) {
        let arrived: Vec<_> = self.way.extract_if(.., |(at, ..)| *at <= self.now).collect();
        for (_, to, bytes) in arrived.into_iter().filter(|(_, to, _)| !self.cut[*to]) {
            let packet = Packet::parse(&bytes).unwrap();
            let change = self.ends[to].received(&packet, self.now);
            self.changes[to].extend(change.map(|change| (self.now, change)));
        }
        for from in [0, 1] {
            let change = self.ends[from].tick(self.now);
            self.changes[from].extend(change.map(|change| (self.now, change)));
            while let Some(bytes) = self.ends[from].output(self.now) {
                self.sent[from].push((self.now, Packet::parse(&bytes).unwrap()));
                self.way.push((self.now + self.delay, 1 - from, bytes.to_vec()));
            }
        }
    }
}

#[test]
fn a_session_comes_up_slowly_and_then_goes_at_its_interval() {
    let mut net = Net::usual();
    for end in [0, 1] {
        let before = net.sent[end].iter().take_while(|(_, packet)| packet.state != State::Up);
        let times: Vec<_> = before.map(|(at, _)| *at).collect();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= ms(750)), "{times:?}");
        assert_eq!(net.changes[end].iter().map(|(_, change)| *change).collect::<Vec<_>>(), [Change::Up]);
        let status = net.ends[end].status();
        assert_eq!((status.interval, status.detection), (Some(ms(300)), Some(ms(900))));
        assert_eq!(status.remote_state, State::Up);
        // The new interval was told, and confirmed once.
        assert!(net.sent[end].iter().any(|(_, packet)| packet.polls));
        assert!(net.sent[end].iter().any(|(_, packet)| packet.answers));
        assert!(!net.sent[end].last().unwrap().1.polls);
        net.sent[end].clear();
    }
    net.run(ms(30_000));
    for sent in &net.sent {
        assert!((100..=134).contains(&sent.len()), "{}", sent.len());
        assert!(sent.windows(2).all(|pair| (ms(225)..=ms(300)).contains(&(pair[1].0 - pair[0].0))));
    }
}

#[test]
fn a_broken_path_is_noticed_in_the_detection_time() {
    let mut net = Net::usual();
    let cut = net.now;
    net.cut = [true; 2];
    net.run(ms(895));
    let fell = net.changes[0].last().copied();
    net.run(ms(10));
    for changes in &net.changes {
        let (at, change) = changes.last().copied().unwrap();
        assert_eq!(change, Change::Down(Diagnostic::EXPIRED));
        assert!(at > cut + ms(590) && at <= cut + ms(905), "{at:?} after {cut:?}, {fell:?}");
    }
    net.cut = [false; 2];
    net.run(ms(5000));
    assert_eq!(net.states(), [State::Up; 2]);
    assert_eq!(net.ends[0].status().counts.ups, 2);
}

#[test]
fn a_path_that_is_broken_in_one_direction_is_down_in_both() {
    let mut net = Net::usual();
    net.cut = [true, false];
    net.run(ms(3000));
    let last = |net: &Net, end: usize| net.changes[end].last().copied().unwrap().1;
    assert_eq!(last(&net, 0), Change::Down(Diagnostic::EXPIRED));
    assert_eq!(last(&net, 1), Change::Down(Diagnostic::NEIGHBOUR_DOWN));
    assert_eq!(net.ends[1].status().remote_diagnostic, Diagnostic::EXPIRED);
    net.run(ms(20_000));
    assert_eq!(net.ends[0].status().state, State::Down, "nothing comes");
}

#[test]
fn an_operator_who_ends_a_session_says_nothing_about_the_path() {
    let mut net = Net::usual();
    let now = net.now;
    let sent = net.sent[0].len();
    let until = net.ends[0].stop(now);
    // All its packets in this time but one may be lost.
    assert_eq!(until, now + ms(900));
    net.run(ms(899));
    assert!(net.sent[0].len() - sent >= 3, "{}", net.sent[0].len() - sent);
    net.run(ms(1101));
    assert_eq!(net.changes[1].last().unwrap().1, Change::AdminDown);
    assert_eq!(net.states(), [State::AdminDown, State::Down]);
    assert_eq!(net.sent[0].last().unwrap().1.diagnostic, Diagnostic::ADMIN_DOWN);
    net.run(ms(20_000));
    assert_eq!(net.states(), [State::AdminDown, State::Down]);
}

#[test]
fn the_slower_one_decides() {
    let slow = Config { interval: ms(700), multiplier: 5, multihop: false };
    let mut net = Net::new([Config::default(), slow]);
    net.run(ms(10_000));
    let [fast, slow] = [0, 1].map(|end| net.ends[end].status());
    assert_eq!((fast.interval, slow.interval), (Some(ms(700)), Some(ms(700))));
    assert_eq!((fast.detection, slow.detection), (Some(ms(3500)), Some(ms(2100))));
}

#[test]
fn a_neighbour_that_begins_anew_is_up_again() {
    let mut net = Net::usual();
    let now = net.now;
    net.ends[1] = Session::new(Config::default(), 77, now);
    net.run(ms(8000));
    assert_eq!(net.states(), [State::Up; 2]);
    let changes: Vec<_> = net.changes[0].iter().map(|(_, change)| *change).collect();
    assert_eq!(changes, [Change::Up, Change::Down(Diagnostic::NEIGHBOUR_DOWN), Change::Up]);
    // Packets of an earlier session mean nothing.
    let old = Packet { other: 12345, ..net.sent[1].last().unwrap().1 };
    assert_eq!(net.ends[0].received(&Packet { state: State::Down, ..old }, net.now), None);
    assert_eq!(net.ends[0].status().state, State::Up);
    assert!(net.ends[0].status().counts.foreign > 0);
}

#[test]
fn a_neighbour_does_not_notice_that_another_program_goes_on() {
    let mut net = Net::usual();
    let (held, now) = (net.ends[0].held().unwrap(), net.now);
    net.run(ms(400));
    net.ends[0] = Session::resume(Config::default(), &held, 99, now + ms(400)).unwrap();
    net.run(ms(5000));
    assert_eq!(net.states(), [State::Up; 2]);
    assert_eq!(net.changes[1].iter().map(|(_, change)| *change).collect::<Vec<_>>(), [Change::Up]);
    // Nor does it matter if the path breaks meanwhile.
    net.cut = [true; 2];
    let now = net.now;
    net.ends[0] = Session::resume(Config::default(), &held, 100, now).unwrap();
    net.run(ms(1050));
    assert_eq!(net.changes[0].last().unwrap().1, Change::Down(Diagnostic::EXPIRED));
    assert_eq!(net.ends[0].held(), None);
    for broken in [Held { own: 0, ..held }, Held { other: 0, ..held }, Held { multiplier: 0, ..held }] {
        assert!(Session::resume(Config::default(), &broken, 1, now).is_none());
    }
}

#[test]
fn who_is_far_away_does_not_end_a_session_by_a_forged_packet() {
    let fast = Config { interval: ms(10), multiplier: 3, multihop: true };
    let mut net = Net::new([fast; 2]);
    net.run(ms(5000));
    assert_eq!(net.states(), [State::Up; 2]);
    let own = net.sent[1].last().unwrap().1;
    for state in [State::Down, State::AdminDown] {
        let forged = Packet { state, own: 4711, other: 0, ..own };
        assert_eq!(net.ends[0].received(&forged, net.now), None);
    }
    net.run(ms(1000));
    assert_eq!((net.states(), net.ends[0].status().counts.foreign), ([State::Up; 2], 2));
    // A neighbour that begins anew is noticed nevertheless, in the detection time.
    let (now, before) = (net.now, net.changes[0].len());
    net.ends[1] = Session::new(fast, 77, now);
    net.run(ms(5000));
    let (at, change) = net.changes[0][before];
    assert_eq!((change, net.states()), (Change::Down(Diagnostic::EXPIRED), [State::Up; 2]));
    assert!(at <= now + ms(35), "{at:?} after {now:?}");
}

#[test]
fn a_neighbour_that_is_asked_for_patience_has_it_for_seconds() {
    let fast = Config { interval: ms(10), multiplier: 3, multihop: true };
    let mut net = Net::new([fast; 2]);
    net.run(ms(5000));
    net.ends[0].beg_patience(true);
    net.run(ms(50));
    let (held, now) = (net.ends[0].held().unwrap(), net.now);
    net.cut = [true; 2];
    net.run(ms(900));
    net.cut = [false; 2];
    net.ends[0] = Session::resume(fast, &held, 99, now + ms(900)).unwrap();
    net.run(ms(1000));
    assert_eq!(net.changes[1].iter().map(|(_, change)| *change).collect::<Vec<_>>(), [Change::Up]);
    assert_eq!((net.states(), net.ends[1].status().detection), ([State::Up; 2], Some(ms(30))));
    let last = net.sent[0].last().unwrap().1;
    assert!(!last.polls && last.sends == 10_000, "the time is told, and confirmed");
}

#[test]
fn a_neighbour_that_fails_says_so() {
    let mut net = Net::usual();
    let now = net.now;
    net.ends[0].fail(now);
    net.run(ms(10));
    assert_eq!(net.changes[1].last().unwrap().1, Change::Down(Diagnostic::NEIGHBOUR_DOWN));
    assert_eq!(net.ends[1].status().remote_diagnostic, Diagnostic::FORWARDING_RESET);
}

#[test]
fn a_neighbour_that_takes_nothing_gets_answers_alone() {
    let mut net = Net::usual();
    let last = Packet { takes: 0, polls: true, answers: false, ..net.sent[1].last().unwrap().1 };
    net.ends[0].received(&last, net.now);
    let answer = Packet::parse(&net.ends[0].output(net.now).unwrap()).unwrap();
    assert!(answer.answers && !answer.polls);
    assert_eq!((net.ends[0].output(net.now + ms(5000)), net.ends[0].status().interval), (None, None));
    // The same with one that has enough of a session that is up.
    net.ends[0].received(&Packet { demand: true, polls: false, takes: 1, ..last }, net.now);
    assert_eq!(net.ends[0].status().interval, None);
}

#[test]
fn packets_have_the_octets_of_the_standard() {
    let packet = Packet {
        diagnostic: Diagnostic(3),
        state: State::Up,
        polls: true,
        answers: false,
        demand: false,
        multiplier: 3,
        own: 0x0102_0304,
        other: 0x0506_0708,
        sends: 300_000,
        takes: 300_000,
    };
    let bytes = [0x23, 0xe0, 3, 24, 1, 2, 3, 4, 5, 6, 7, 8, 0, 4, 0x93, 0xe0, 0, 4, 0x93, 0xe0, 0, 0, 0, 0];
    assert_eq!(packet.bytes(), bytes);
    assert_eq!(Packet::parse(&bytes), Ok(packet));
    // Changed octets: version, authentication, several receivers, no loss allowed, length, no number, both flags.
    let wrong = [(0, 0x43), (1, 0xe4), (1, 0xe1), (2, 0), (3, 23), (3, 25), (1, 0xf0)];
    for (at, value) in wrong {
        let mut bytes = bytes;
        bytes[at] = value;
        assert!(Packet::parse(&bytes).is_err(), "octet {at} is {value:#x}");
    }
    assert!(Packet::parse(&[&bytes[..4], &[0; 4], &bytes[8..]].concat()).is_err(), "no own number");
    assert!(
        Packet::parse(&[&bytes[..8], &[0; 4], &bytes[12..]].concat()).is_err(),
        "up, and knows no number"
    );
    assert!(Packet::parse(&bytes[..23]).is_err());
    assert!(Packet::parse(&[&bytes[..], &[9; 9]].concat()).is_ok(), "padding");
}

/// A neighbour that sends anything, at any time: the session answers each packet once at most, else keeps its pace, and
/// is up only while it hears something in the detection time.
#[test]
fn a_neighbour_may_send_anything() {
    bolero::check!().for_each(|input: &[u8]| {
        let mut now = ms(1);
        let mut session = Session::new(Config::default(), 7, now);
        let number = session.number().to_be_bytes();
        let (mut answers, mut last_regular) = (0_u64, None::<Duration>);
        let mut initiator = Initiator::new(Config { multihop: true, ..Config::default() }, 7, now);
        for piece in input.chunks(26) {
            let (time, bytes) = piece.split_at(piece.len().min(2));
            now += ms(time.iter().fold(0, |all, byte| all * 8 + u64::from(*byte)));
            session.tick(now);
            let mut bytes = bytes.to_vec();
            // Most inputs would not get past the first checks.
            if let [first, _, multiplier, length, _, own, _, _, other @ ..] = &mut bytes[..]
                && other.len() >= 4
                && *first & 1 == 0
            {
                (*first, *multiplier, *length, *own) = (1 << 5 | *first & 0x1f, (*multiplier).max(1), 24, 1);
                if *first & 2 == 0 {
                    other[..4].copy_from_slice(&number);
                }
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                answers += u64::from(packet.polls);
                session.received(&packet, now);
                initiator.received(&Packet { other: initiator.number(), ..packet }, now);
                let answer = reflect(&packet, ms(10)).map(|answer| Packet::parse(&answer).unwrap());
                assert_eq!(answer.is_some(), packet.demand);
                assert!(answer.is_none_or(|answer| answer.other == packet.own && !answer.demand));
            }
            initiator.tick(now);
            let questions = std::iter::from_fn(|| initiator.output(7, now)).take(9).count();
            assert!(questions <= 1 && initiator.deadline() > now);
            while let Some(bytes) = session.output(now) {
                let packet = Packet::parse(&bytes).unwrap();
                assert_eq!(packet.own.to_be_bytes(), number);
                if packet.answers {
                    answers = answers.checked_sub(1).unwrap();
                } else {
                    assert!(last_regular.is_none_or(|last| now - last >= ms(225)));
                    last_regular = Some(now);
                }
            }
            let status = session.status();
            if status.state == State::Up {
                let silence = status.detection.unwrap();
                let mut later = session.clone();
                assert_eq!(later.tick(now + silence), Some(Change::Down(Diagnostic::EXPIRED)));
            }
            assert!(session.deadline().is_none_or(|due| due > now));
        }
    });
}
