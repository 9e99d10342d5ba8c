//! Sums of payloads: packets of any size and any part of them, with and without pauses, with and without waiting for
//! the sum.

use model::generate::Rng;
use packet::checksum;
use rtl::PayloadSum;
use std::collections::VecDeque;
use std::ops::Range;

const BEAT: usize = 64;
/// Most packets that may wait.
const WAITING: usize = 60;
/// Cycles until a packet's sum: from its last beat, or from the arrival of its part.
const LATENCY: u64 = 7;

struct Packet {
    bytes: Vec<u8>,
    part: Range<usize>,
}

impl Packet {
    fn random(rng: &mut Rng) -> Self {
        let size = match rng.below(200) {
            0 => rng.one(&[65_535, 65_534, 65_473]),
            1..20 => 1 + rng.below(9000),
            _ => 1 + rng.below(300),
        };
        let fill = rng.one(&[0, 0xff, 1, 1]);
        let bytes = (0..size).map(|_| if fill == 1 { rng.next_u64() as u8 } else { fill }).collect();
        // A malformed packet has a meaningless part.
        let start = 2 * rng.below(64);
        let end = if rng.percent(70) { size } else { rng.below(size + 1) };
        Self { bytes, part: start..end }
    }

    fn sum(&self) -> u16 {
        self.bytes.get(self.part.clone()).map_or(0, |part| checksum::sum(part).fold())
    }

    fn beats(&self) -> usize {
        self.bytes.len().div_ceil(BEAT)
    }
}

/// Percentages of the cycles in which a beat comes and a packet is taken; whether packets wait for their sum; cycles
/// that the parser takes.
#[derive(Clone, Copy)]
struct Pace {
    beats: usize,
    takes: usize,
    patience: usize,
    parser: u64,
}

struct Bench {
    sim: PayloadSum,
    rng: Rng,
    pace: Pace,
    /// All packets that have arrived or are arriving.
    packets: Vec<Packet>,
    /// Number of beats of the last packet that have arrived; 0 if all have.
    at: usize,
    /// The cycles in which packets had arrived completely.
    whole: Vec<u64>,
    /// The cycles in which the parser gives the part to sum, and that part.
    parts: VecDeque<(u64, Range<usize>)>,
    parsed: usize,
    taken: usize,
    /// Whether the oldest packet is taken only with its sum.
    wait: bool,
    checked: usize,
}

impl Bench {
    fn new(pace: Pace, seed: u64) -> Self {
        let mut sim = PayloadSum::new();
        sim.reset(2);
        Self {
            sim,
            rng: Rng::new(seed),
            pace,
            packets: Vec::new(),
            at: 0,
            whole: Vec::new(),
            parts: VecDeque::new(),
            parsed: 0,
            taken: 0,
            wait: true,
            checked: 0,
        }
    }

    fn cycle(&mut self) {
        let now = self.sim.cycle();
        let due = self.parts.front().is_some_and(|(due, _)| *due <= now);
        let part = if due { self.parts.pop_front() } else { None };
        self.sim.set_part_valid(part.is_some());
        if let Some((_, part)) = &part {
            self.sim.set_part_start(part.start as u8);
            self.sim.set_part_end(part.end as u16);
        }
        self.beat(now);
        self.sim.eval();
        self.take(now);
        self.parsed += usize::from(part.is_some());
        self.sim.clock();
    }

    fn beat(&mut self, now: u64) {
        let full = self.at == 0 && self.packets.len() >= self.taken + WAITING;
        let come = !full && self.rng.below(100) < self.pace.beats;
        self.sim.set_s_valid(come);
        if !come {
            return;
        }
        if self.at == 0 {
            self.packets.push(Packet::random(&mut self.rng));
        }
        let packet = self.packets.last().unwrap();
        // The bytes after the end are random.
        let mut words: [u32; 16] = std::array::from_fn(|_| self.rng.next_u64() as u32);
        for (k, byte) in packet.bytes[BEAT * self.at..].iter().take(BEAT).enumerate() {
            let shift = 8 * (k % 4);
            words[k / 4] = words[k / 4] & !(0xff << shift) | u32::from(*byte) << shift;
        }
        self.sim.s_data_mut().copy_words(&words);
        let last = self.at + 1 == packet.beats();
        self.sim.set_s_last(last);
        if self.at == 1 || last && self.at == 0 {
            self.parts.push_back((now + self.pace.parser, packet.part.clone()));
        }
        self.at = if last { 0 } else { self.at + 1 };
        if last {
            self.whole.push(now);
        }
    }

    fn take(&mut self, now: u64) {
        let ready = self.sim.ready();
        let due = self.whole.get(self.taken).map(|whole| whole + self.pace.parser + LATENCY);
        if self.pace.patience == 100 {
            assert!(ready || due.is_none_or(|due| now < due), "no sum of packet {} at {now}", self.taken);
        }
        let can = self.parsed > self.taken && (ready || !self.wait) && self.rng.below(100) < self.pace.takes;
        self.sim.set_take(can);
        if !can {
            return;
        }
        if ready {
            let packet = &self.packets[self.taken];
            assert!(self.whole.len() > self.taken, "the sum of a packet that is still coming");
            assert_eq!(self.sim.sum(), packet.sum(), "{:?} of {} bytes", packet.part, packet.bytes.len());
            self.checked += 1;
        }
        self.taken += 1;
        self.wait = self.rng.below(100) < self.pace.patience;
    }
}

#[test]
fn sums_are_those_of_the_parts_that_packets_say() {
    const PACKETS: usize = 4000;
    let paces =
        [(100, 100, 100, 7), (100, 100, 100, 13), (100, 100, 50, 13), (60, 50, 80, 13), (100, 20, 90, 7)];
    for (seed, (beats, takes, patience, parser)) in (1..).zip(paces) {
        let mut bench = Bench::new(Pace { beats, takes, patience, parser }, seed);
        while bench.taken < PACKETS {
            bench.cycle();
            assert!(bench.sim.cycle() < 10_000_000, "nothing moves any more");
        }
        let least = if patience == 100 { PACKETS } else { PACKETS / 3 };
        assert!(bench.checked >= least && bench.checked < PACKETS + patience / 100, "{} sums", bench.checked);
    }
}
