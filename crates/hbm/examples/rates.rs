//! How many random reads per second a pseudo channel serves, and how long they take: the tables of `docs/hbm.md`, or
//! with `--json` every figure in them.
//!
//! `cargo run --release -p hbm --example rates [-- --json]`

use std::collections::VecDeque;

use hbm::{Channel, Controller, Refresh, Timing};

const CLOCKS: u64 = 200_000;
const CARD: u32 = 4000; // ps: 250 MHz
const FAST: u32 = 2000; // ps: a port that isn't the limit
const CHANNEL: u64 = 1 << 22; // lines of 64 bytes in a channel

/// A way to read, and its result.
struct Run {
    timing: &'static str,
    reads: String,
    controller: Controller,
    beats: u8,
    ids: usize,
    lines: u64,       // that are read, at random
    outstanding: u64, // reads at once at most
    mps: f64,
    idle_ns: f64,
    mean_ns: f64,
    p99_ns: f64,
}

fn timing(name: &str) -> Timing {
    match name {
        "hbm2_1800" => Timing::hbm2_1800(),
        "conservative" => Timing::conservative(),
        "ddr4_2400" => Timing::ddr4_2400(),
        "hbm2, per-bank refresh" => Timing { refresh: Refresh::HBM2_PER_BANK, ..Timing::hbm2() },
        _ => Timing::hbm2(),
    }
}

impl Run {
    fn new(timing: &'static str, reads: &str, bytes: u8, controller: Controller) -> Self {
        Self {
            timing,
            reads: reads.to_owned(),
            controller,
            beats: bytes / 32,
            ids: 64,
            lines: CHANNEL,
            outstanding: u64::MAX,
            mps: 0.0,
            idle_ns: 0.0,
            mean_ns: 0.0,
            p99_ns: 0.0,
        }
    }

    /// Measures one read alone, then as many as the port accepts.
    fn measured(mut self) -> Self {
        let mut channel = Channel::new(timing(self.timing), self.controller);
        let ns = |clocks: u64| clocks as f64 * f64::from(self.controller.clock_ps) / 1000.0;
        let mut asked = vec![VecDeque::new(); self.ids];
        let (mut random, mut next, mut latencies, warm) = (1u64, 0, Vec::new(), CLOCKS / 10);
        let mut idle = None;
        for clock in 0..CLOCKS {
            let alone = idle.is_none() && clock != 0;
            if !alone && channel.can_read() && channel.outstanding() < self.outstanding {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let line = (random >> 33) % self.lines;
                if channel.read(next as u8, 64 * line, self.beats).is_ok() {
                    asked[next].push_back(clock);
                    next = (next + 1) % self.ids;
                }
            }
            channel.tick();
            let last = channel.r().is_some_and(|beat| beat.last);
            let id = channel.r().map_or(0, |beat| usize::from(beat.id));
            channel.accept_r();
            if last && let Some(sent) = asked[id].pop_front() {
                let latency = clock + 1 - sent;
                idle.get_or_insert(latency);
                latencies.extend((clock >= warm).then_some(latency));
            }
        }
        latencies.sort_unstable();
        let count = latencies.len().max(1);
        self.mps = latencies.len() as f64 / ns(CLOCKS - warm) * 1000.0;
        self.idle_ns = ns(idle.unwrap_or(0));
        self.mean_ns = ns(latencies.iter().sum()) / count as f64;
        self.p99_ns = ns(latencies.get(count * 99 / 100).copied().unwrap_or(0));
        self
    }

    fn json(&self) -> String {
        let Self { timing, reads, ids, lines, outstanding, mps, idle_ns, mean_ns, p99_ns, .. } = self;
        let Controller { window, in_order, row_hits, clock_ps, .. } = self.controller;
        let bytes = 32 * self.beats;
        format!(
            r#"{{"timing":"{timing}","reads":"{reads}","bytes":{bytes},"ids":{ids},"lines":{lines},"outstanding":{outstanding},"window":{window},"in_order":{in_order},"row_hits":{row_hits},"clock_ps":{clock_ps},"mps":{mps:.1},"idle_ns":{idle_ns:.0},"mean_ns":{mean_ns:.0},"p99_ns":{p99_ns:.0}}}"#
        )
    }
}

/// Measures rates by order and window. Also returns the figures expected for the third column, which are from a
/// different model with nearly the same parameters: 64 bytes, no port.
fn rates() -> Vec<(Run, Run, Run, &'static str)> {
    let expected = [
        ("hbm2", ["42", "70-88", "112", "203", "231", "240"]),
        ("hbm2, per-bank refresh", ["40", "70-88", "110", "207", "240", "249"]),
        ("hbm2_1800", ["-"; 6]),
        ("conservative", ["47", "70-88", "110", "124", "125", "125"]),
        ("ddr4_2400", ["53", "-", "128", "176", "177", "177"]),
    ];
    let orders = [
        ("one by one", true, 64, 32),
        ("one ID", false, 1, 32),
        ("window 4", false, 64, 4),
        ("window 16", false, 64, 16),
        ("window 32", false, 64, 32),
        ("window 64", false, 64, 64),
    ];
    let mut rates = Vec::new();
    for (timing, expected) in expected {
        for ((reads, in_order, ids, window), expected) in orders.into_iter().zip(expected) {
            let run = |clock_ps, bytes| {
                let controller = Controller { window, in_order, clock_ps, ..Controller::default() };
                Run { ids, ..Run::new(timing, reads, bytes, controller) }.measured()
            };
            rates.push((run(CARD, 32), run(CARD, 64), run(FAST, 64), expected));
        }
    }
    rates
}

/// Measures the latency by the number of outstanding reads, at 250 MHz.
fn latencies() -> Vec<Run> {
    let mut runs = Vec::new();
    for timing in ["hbm2", "conservative"] {
        for bytes in [32, 64] {
            for outstanding in [1, 4, 8, 16, 32, 64] {
                let controller = Controller { window: 64, ..Controller::default() };
                let run = Run::new(timing, &format!("{outstanding} outstanding"), bytes, controller);
                runs.push(Run { outstanding, ..run }.measured());
            }
        }
    }
    runs
}

/// Returns published figures, and the runs that correspond to them.
fn points() -> Vec<(Run, f64, &'static str)> {
    let controller = Controller::default();
    let in_order = Controller { in_order: true, ..controller };
    let row_hits = Controller { row_hits: 16, ..controller };
    let fast = Controller { clock_ps: FAST, ..controller };
    let hot = |reads, bytes, controller| Run { lines: 1, ..Run::new("hbm2", reads, bytes, controller) };
    let one_id = |reads, bytes| Run { ids: 1, ..Run::new("hbm2", reads, bytes, fast) };
    let points = [
        (hot("one line, closed page", 32, controller), 1.0, "1/tRC: 20.8"),
        (hot("one line, closed page", 64, controller), 1.0, "1/tRC: 20.8"),
        (hot("one line, 16 hits a row", 32, row_hits), 1.0, "-"),
        (hot("one line, 16 hits a row", 64, row_hits), 1.0, "-"),
        (Run::new("hbm2", "4 channels one by one", 32, in_order), 4.0, "FPGA vRouter: 191, simulated 200"),
        (Run::new("hbm2", "4 channels one by one", 64, in_order), 4.0, "FPGA vRouter: 191, simulated 200"),
        (one_id("one ID, 500 MHz", 32), 1.0, "-"),
        (one_id("one ID, 500 MHz", 64), 1.0, "Vitis tutorial: 4.75379 GB/s = 74.3"),
    ];
    points.into_iter().map(|(run, channels, published)| (run.measured(), channels, published)).collect()
}

fn main() {
    let (rates, latencies, points) = (rates(), latencies(), points());
    if std::env::args().any(|arg| arg == "--json") {
        let rates = rates.iter().flat_map(|(a, b, c, _)| [a, b, c]);
        let runs = rates.chain(&latencies).chain(points.iter().map(|(run, ..)| run));
        let lines: Vec<_> = runs.map(Run::json).collect();
        println!("[\n{}\n]", lines.join(",\n"));
        return;
    }
    println!("| timing | reads | 32 B | 64 B | 64 B at 500 MHz | expected |\n|---|---|---|---|---|---|");
    for (a, b, c, expected) in &rates {
        println!("| {} | {} | {:.1} | {:.1} | {:.1} | {expected} |", a.timing, a.reads, a.mps, b.mps, c.mps);
    }
    println!("\n| timing | bytes | outstanding | M/s | mean ns | p99 ns |\n|---|---|---|---|---|---|");
    for Run { timing, beats, outstanding, mps, mean_ns, p99_ns, .. } in &latencies {
        println!("| {timing} | {} | {outstanding} | {mps:.1} | {mean_ns:.0} | {p99_ns:.0} |", 32 * beats);
    }
    println!("\n| reads | bytes | M/s | idle ns | published M/s |\n|---|---|---|---|---|");
    for (Run { reads, beats, mps, idle_ns, .. }, channels, published) in &points {
        println!("| {reads} | {} | {:.1} | {idle_ns:.0} | {published} |", 32 * beats, mps * channels);
    }
}
