//! The card's parser against `packet`, clock by clock: the card must refuse what `packet` refuses, for the same
//! reason. In what `packet` accepts, the card must find the same fields, or be stricter in one of a few ways.
#![cfg(feature = "card-test")]

mod expect;
mod frames;
mod layout;

use card::registers::Punt;
use expect::Accepted;
use layout::Layout;
use model::generate::Rng;
use rtl::{Bits, ParserTop};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of bytes that the card examines.
const WINDOW: usize = 128;

struct Parser {
    name: &'static str,
    /// Clocks from the beat that completes the window to the header.
    latency: u64,
    expect: fn(&[u8], usize) -> Result<Accepted, Punt>,
    /// Frames whose headers are outstanding, and the clock at which their windows were complete.
    waiting: VecDeque<(u64, Frame)>,
    reasons: BTreeMap<&'static str, usize>,
    /// Number of frames that went on.
    accepted: usize,
    /// Number of frames that the card left to the host although `packet` accepts them, by whether they were plain and
    /// by the reason.
    stricter: BTreeMap<(bool, &'static str), usize>,
    /// Number of frames that `packet` and the card refuse for different reasons.
    renamed: BTreeMap<(Punt, &'static str), usize>,
    /// Number of frames that the card accepted although their TCP options end after the window.
    long_tcp: usize,
}

#[derive(Clone)]
struct Frame {
    bytes: Vec<u8>,
    port: u16,
    /// Whether the frame was not spoilt on purpose.
    plain: bool,
    /// Whether the frame is from the host, so that no header comes of it.
    direct: bool,
}

/// The simulated parsers, and their input.
struct Bench {
    top: ParserTop,
    beat: Layout,
    header: Layout,
    parsers: [Parser; 2],
    rng: Rng,
    clock: u64,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut top = ParserTop::new();
        top.reset(4);
        let parser = |name, latency, expect| Parser {
            name,
            latency,
            expect,
            waiting: VecDeque::new(),
            reasons: BTreeMap::new(),
            accepted: 0,
            stricter: BTreeMap::new(),
            renamed: BTreeMap::new(),
            long_tcp: 0,
        };
        Self {
            top,
            beat: Layout::of("beat_t"),
            header: Layout::of("header_t"),
            parsers: [parser("guest", 7, expect::guest), parser("wire", 13, expect::wire)],
            rng: Rng::new(seed),
            clock: 0,
        }
    }

    /// Sends a frame's beats. In `gaps` percent of the cases, a clock without a beat comes before one.
    fn send(&mut self, frame: Frame, gaps: usize) {
        let beats = frame.bytes.len().div_ceil(64);
        for (index, part) in frame.bytes.chunks(64).enumerate() {
            while self.rng.percent(gaps) {
                self.noise(false);
                self.step();
            }
            self.noise(true);
            let mut beat = self.top.s_beat_mut();
            let (data, _) = self.beat.field("data");
            beat.set_bytes(data / 8, part);
            let fields = [
                ("last", u128::from(index + 1 == beats)),
                ("direct", frame.direct.into()),
                ("port", frame.port.into()),
                ("size", frame.bytes.len() as u128),
            ];
            for (name, value) in fields {
                let (low, width) = self.beat.field(name);
                beat.set(low, width, value);
            }
            if !frame.direct && index == usize::from(beats > 1) {
                let clock = self.clock;
                self.parsers.iter_mut().for_each(|parser| parser.waiting.push_back((clock, frame.clone())));
            }
            self.step();
        }
    }

    /// Sets a beat of random bytes: bytes that aren't valid must not matter, nor bytes after a frame's end.
    fn noise(&mut self, valid: bool) {
        self.top.set_s_valid(valid);
        let width = self.beat.width;
        let mut beat = self.top.s_beat_mut();
        for low in (0..width).step_by(64) {
            let bits = (width - low).min(64);
            beat.set(low, bits, u128::from(self.rng.next_u64()) & ((1 << bits) - 1));
        }
    }

    fn step(&mut self) {
        self.top.clock();
        self.clock += 1;
        let [guest, wire] = &mut self.parsers;
        guest.look(self.clock, self.top.guest_valid(), self.top.guest_header(), &self.header);
        wire.look(self.clock, self.top.wire_valid(), self.top.wire_header(), &self.header);
    }

    /// Waits until all headers are out.
    fn drain(&mut self) {
        for _ in 0..20 {
            self.noise(false);
            self.step();
        }
        assert!(self.parsers.iter().all(|parser| parser.waiting.is_empty()), "headers are missing");
    }
}

impl Parser {
    /// Checks that a header comes out exactly when it should, and checks its contents.
    fn look(&mut self, clock: u64, valid: bool, header: Bits<'_>, layout: &Layout) {
        let due = self.waiting.front().is_some_and(|(since, _)| clock == since + self.latency);
        assert_eq!(valid, due, "{}, clock {clock}: a header at the wrong time", self.name);
        if !valid {
            return;
        }
        let Some((_, frame)) = self.waiting.pop_front() else { return };
        let get = |name: &str| {
            let (low, width) = layout.field(name);
            header.get(low, width)
        };
        if let Err(what) = self.compare(&frame, get) {
            let text = model::text::show(&frame.bytes);
            panic!("{}: {what}\n{text}\n{:02x?}", self.name, frame.bytes);
        }
    }

    fn compare(&mut self, frame: &Frame, get: impl Fn(&str) -> u128) -> Result<(), String> {
        let number = get("exception") as usize;
        let exception = *Punt::ALL.get(number).ok_or("no such exception")?;
        *self.reasons.entry(exception.name()).or_default() += 1;
        if (get("port"), get("size")) != (frame.port.into(), frame.bytes.len() as u128) {
            return Err("port or size".into());
        }
        let near = (self.expect)(&frame.bytes, WINDOW);
        let too_long = matches!(near, Err(Punt::HeaderTooLong)) && exception != Punt::HeaderTooLong;
        // The options of TCP and of neighbour discovery may end after the window.
        let expected = if too_long { (self.expect)(&frame.bytes, usize::MAX) } else { near };
        if too_long && exception == Punt::None && get("l4") != 1 && get("neighbour") == 0 {
            return Err("a header that ends behind the window".into());
        }
        self.long_tcp += usize::from(too_long && exception == Punt::None && get("l4") == 1);
        match (expected, exception) {
            (Ok(accepted), Punt::None) => {
                self.accepted += 1;
                let differs = |(name, value): &&(&str, u128)| get(name) != *value;
                match accepted.fields.iter().find(differs) {
                    Some((name, value)) => Err(format!("{name} is {:#x}, should be {value:#x}", get(name))),
                    None => Ok(()),
                }
            }
            (Ok(accepted), _) if accepted.stricter.contains(&exception) => {
                *self.stricter.entry((frame.plain, exception.name())).or_default() += 1;
                Ok(())
            }
            (Err(Punt::Neighbour), Punt::None) if get("neighbour") == 1 => Ok(()),
            (Err(reason), _) if reason == exception => Ok(()),
            // The card stops at these; `packet` goes on and finds another reason.
            (Err(reason), Punt::Ipv6Extension | Punt::LabelStack | Punt::TunnelMalformed) => {
                *self.renamed.entry((reason, exception.name())).or_default() += 1;
                Ok(())
            }
            (Err(reason), _) => Err(format!("{}, should be {}", exception.name(), reason.name())),
            (Ok(_), _) => Err(format!("{}, though it is well-formed", exception.name())),
        }
    }

    fn seen(&self) -> BTreeSet<&'static str> {
        self.reasons.keys().copied().collect()
    }
}

/// The reasons that both parsers know, and the reasons for tunnels.
const REASONS: [Punt; 11] = [
    Punt::None,
    Punt::EthernetTruncated,
    Punt::TooManyTags,
    Punt::IpTruncated,
    Punt::IpHeader,
    Punt::IpLength,
    Punt::IpChecksum,
    Punt::IpSource,
    Punt::Ipv6Extension,
    Punt::Fragment,
    Punt::L4Malformed,
];
const TUNNEL_REASONS: [Punt; 10] = [
    Punt::HeaderTooLong,
    Punt::Neighbour,
    Punt::OuterFragment,
    Punt::OuterChecksumMissing,
    Punt::NotForUs,
    Punt::TunnelMalformed,
    Punt::LabelStack,
    Punt::Ttl,
    Punt::TunnelPayload,
    Punt::Ecn,
];

/// Makes frames of all kinds, some of them with errors.
fn frames(rng: &mut Rng, generated: usize, spoilt: usize) -> Vec<Frame> {
    let mut all = frames::of_vectors();
    let tunnels = frames::tunnels();
    assert!(all.len() > 150 && tunnels.len() > 500, "{} vectors, {} tunnels", all.len(), tunnels.len());
    all.extend(frames::generated(rng, generated));
    let mut made: Vec<_> = all.iter().map(|bytes| (bytes.clone(), true)).collect();
    all.retain(|frame| frame.len() < 400);
    made.extend(tunnels.iter().chain(&frames::edges()).map(|bytes| (bytes.clone(), false)));
    for _ in 0..spoilt {
        let from = if rng.percent(50) { &all } else { &tunnels };
        let which = rng.below(from.len());
        made.push((frames::spoilt(rng, &from[which]), false));
    }
    let frame = |(bytes, plain)| Frame {
        bytes,
        port: rng.below(1024) as u16,
        plain,
        direct: !plain && rng.percent(2),
    };
    made.into_iter().map(frame).collect()
}

#[test]
fn the_card_reads_what_packet_reads() {
    let mut rng = Rng::new(1);
    let frames = frames(&mut rng, 40_000, 240_000);
    assert!(frames.len() >= 200_000, "{} frames", frames.len());
    let plain = frames.iter().filter(|frame| frame.plain).count();
    let mut bench = Bench::new(2);
    for (index, frame) in frames.into_iter().enumerate() {
        // Back to back and with gaps, in turn.
        let gaps = [0, 0, 30, 80][index / 1000 % 4];
        bench.send(frame, gaps);
    }
    bench.drain();
    for parser in &bench.parsers {
        println!("{}: {} accepted, {:?}", parser.name, parser.accepted, parser.reasons);
        println!("  stricter (plain, reason): {:?}\n  other reason: {:?}", parser.stricter, parser.renamed);
        let stricter: usize =
            parser.stricter.iter().filter(|((plain, _), _)| *plain).map(|(_, count)| count).sum();
        assert!(
            100 * stricter < 3 * plain,
            "{}: stricter with {stricter} of {plain} plain frames",
            parser.name
        );
    }
    let [guest, wire] = &bench.parsers;
    assert!(wire.long_tcp > 0, "no TCP options behind the window");
    for reason in REASONS {
        assert!(guest.seen().contains(reason.name()), "no guest's frame with {}", reason.name());
    }
    for reason in REASONS.iter().chain(&TUNNEL_REASONS) {
        assert!(wire.seen().contains(reason.name()), "no wire's frame with {}", reason.name());
    }
}
