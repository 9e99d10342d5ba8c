//! Sends packets through the rewriter and collects its output.

use super::edit::Edit;
use model::generate::Rng;
use model::{Forward, PacketView, rewrite};
use rtl::RewriterSim;
use std::collections::VecDeque;

pub const BEAT: usize = 64;

/// A packet, its edit, and the expected output.
pub struct Job {
    pub frame: Vec<u8>,
    pub edit: Edit,
    /// The expected port and bytes.
    pub expected: Option<(u16, Vec<u8>)>,
}

impl Job {
    /// Makes the job of a packet that is forwarded as the model rewrites it; `None` if the card leaves it to the host.
    pub fn forward(forward: &Forward, packet: &PacketView<'_>) -> Option<Self> {
        let edit = Edit::of(forward, packet)?;
        let expected = (forward.port.0, rewrite::rewrite(forward, packet)?);
        Some(Self { frame: packet.bytes.to_vec(), edit, expected: Some(expected) })
    }

    pub fn punt(rng: &mut Rng, frame: Vec<u8>) -> Self {
        let meta: [u32; 16] = std::array::from_fn(|_| rng.next_u64() as u32);
        let port = rng.below(1024) as u16;
        let bytes = meta.iter().flat_map(|word| word.to_le_bytes()).chain(frame.iter().copied()).collect();
        Self { frame, edit: Edit::Punt { meta, port }, expected: Some((port, bytes)) }
    }

    pub const fn drop(frame: Vec<u8>) -> Self {
        Self { frame, edit: Edit::Drop, expected: None }
    }

    /// Returns the larger number of the beats that go in and those that come out.
    pub fn beats(&self) -> usize {
        let out = self.expected.as_ref().map_or(0, |(_, bytes)| bytes.len());
        self.frame.len().max(out).div_ceil(BEAT)
    }
}

/// Percentages of the cycles in which each side is ready.
#[derive(Clone, Copy)]
pub struct Pace {
    pub beats: usize,
    pub edits: usize,
    pub out: usize,
}

pub const FULL: Pace = Pace { beats: 100, edits: 100, out: 100 };

struct Bench<'a> {
    sim: RewriterSim,
    rng: Rng,
    pace: Pace,
    jobs: &'a [Job],
    /// Position of the next beat that goes in: the packet, and the offset in it.
    beat: (usize, usize),
    /// Whether the next beat and the next edit are offered. An offer stays until it is taken.
    offered: (bool, bool),
    edits: usize,
    expected: VecDeque<&'a (u16, Vec<u8>)>,
    taken: usize,
    /// The output that was offered but not taken in the last cycle.
    shown: Option<Vec<u32>>,
    /// The cycles in which packets ended.
    ends: Vec<u64>,
}

/// Sends all packets and checks all output. Returns the cycles in which packets ended.
pub fn run(jobs: &[Job], pace: Pace, seed: u64) -> Vec<u64> {
    let mut sim = RewriterSim::new();
    sim.reset(2);
    let expected: VecDeque<_> = jobs.iter().filter_map(|job| job.expected.as_ref()).collect();
    let mut bench = Bench {
        sim,
        rng: Rng::new(seed),
        pace,
        jobs,
        beat: (0, 0),
        offered: (false, false),
        edits: 0,
        expected,
        taken: 0,
        shown: None,
        ends: Vec::new(),
    };
    let most = 1000 + 200 * jobs.iter().map(Job::beats).sum::<usize>() as u64;
    while !bench.expected.is_empty() || bench.beat.0 < jobs.len() {
        bench.cycle();
        assert!(bench.sim.cycle() < most, "nothing moves any more");
    }
    // No other output comes.
    for _ in 0..50 {
        bench.cycle();
    }
    bench.ends
}

impl Bench<'_> {
    fn cycle(&mut self) {
        self.offer_beat();
        self.offer_edit();
        let ready = self.rng.below(100) < self.pace.out;
        self.sim.set_m_ready(ready);
        self.sim.eval();
        self.look();
        if self.sim.s_valid() && self.sim.s_ready() {
            self.offered.0 = false;
            let last = self.sim.s_last();
            self.beat = if last { (self.beat.0 + 1, 0) } else { (self.beat.0, self.beat.1 + BEAT) };
        }
        if self.sim.edit_valid() && self.sim.edit_ready() {
            self.offered.1 = false;
            self.edits += 1;
        }
        self.sim.clock();
    }

    fn offer_beat(&mut self) {
        let (index, at) = self.beat;
        if !self.offered.0
            && let Some(job) = self.jobs.get(index)
            && self.rng.below(100) < self.pace.beats
        {
            // The bytes after the end are random.
            let mut words: [u32; 16] = std::array::from_fn(|_| self.rng.next_u64() as u32);
            let rest = &job.frame[at..];
            for (k, byte) in rest.iter().take(BEAT).enumerate() {
                let shift = 8 * (k % 4);
                words[k / 4] = words[k / 4] & !(0xff << shift) | u32::from(*byte) << shift;
            }
            self.sim.s_data_mut().copy_words(&words);
            self.sim.set_s_last(rest.len() <= BEAT);
            self.sim.set_s_size(job.frame.len() as u16);
            self.offered.0 = true;
        }
        self.sim.set_s_valid(self.offered.0);
    }

    fn offer_edit(&mut self) {
        if !self.offered.1
            && let Some(job) = self.jobs.get(self.edits)
            && self.rng.below(100) < self.pace.edits
        {
            job.edit.set(&mut self.sim);
            self.offered.1 = true;
        }
        self.sim.set_edit_valid(self.offered.1);
    }

    /// Compares the output with the expected packets.
    fn look(&mut self) {
        let sim = &self.sim;
        let words = sim.m_valid().then(|| sim.m_data().words().to_vec());
        if let Some(shown) = self.shown.take() {
            assert_eq!(words.as_ref(), Some(&shown), "stays until it is taken");
        }
        let Some(words) = words else { return };
        if !sim.m_ready() {
            self.shown = Some(words);
            return;
        }
        let (port, bytes) = self.expected.front().expect("nothing is to leave");
        let number = self.jobs.len() - self.expected.len();
        assert_eq!((sim.m_port(), usize::from(sim.m_size())), (*port, bytes.len()), "packet {number}");
        assert!(!sim.m_direct());
        let rest = &bytes[self.taken..];
        let mut beat: Vec<u8> = rest[..rest.len().min(BEAT)].to_vec();
        beat.resize(BEAT, 0);
        let shown: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(shown, beat, "packet {number} of {} bytes from byte {} on", bytes.len(), self.taken);
        assert_eq!(sim.m_last(), rest.len() <= BEAT);
        self.taken += BEAT;
        if sim.m_last() {
            self.taken = 0;
            self.expected.pop_front();
            self.ends.push(sim.cycle());
        }
    }
}
