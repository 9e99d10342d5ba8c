//! Reports of a measurement, for people and programs.

use crate::load::{Flows, Sizes, Updating};
use crate::points::{Gate, Point};
use crate::run::Measured;
use crate::world::Hops;
use std::fmt::Write as _;

/// Clock of the pipes, in MHz.
const CLOCK: f64 = 250.0;
/// Bytes of a frame's preamble, FCS and gap on a wire.
const WIRE: usize = 24;
/// Clocks that the gate of the median allows for each read that waits for an earlier one.
const READ: u32 = 60;
/// Number of such reads in each direction. Downstream, these are two more levels of the trie; upstream, the label gives
/// the nexthop. A nexthop in HBM adds one read.
const DEPENDENT: [u32; 2] = [2, 0];

/// A measurement, and the figures to report about it.
pub struct Report<'a> {
    name: String,
    point: &'a Point,
    pipes: usize,
    measured: Measured,
    mpps: [f64; 2],
    /// Rate that the beats allow in each direction, in Mpps.
    limit: f64,
    /// Rate of guests' frames of both directions, in Gbit/s.
    inner: f64,
    seconds: f64,
}

impl<'a> Report<'a> {
    pub fn new(pipes: usize, point: &'a Point, measured: Measured, seconds: f64) -> Self {
        let mpps = measured.rate.map(|rate| rate * CLOCK);
        let load = point.load;
        let beats = load.sizes.mean(|size| load.shape.beats(size));
        Self {
            name: format!("{pipes}+{pipes} {}", point.name),
            point,
            pipes,
            mpps,
            limit: pipes as f64 * CLOCK / beats,
            inner: (measured.bytes[0] + measured.bytes[1]) * 8.0 * CLOCK / 1000.0,
            measured,
            seconds,
        }
    }

    /// Returns the Gbit/s on wires. Packets to guests are checked and counted before they would go over a wire. On
    /// wires, each frame has `WIRE` more bytes.
    fn wires(&self) -> [f64; 2] {
        let more = self.point.load.shape.outer() + WIRE - 14;
        let bytes =
            |direction: usize| self.measured.bytes[direction] * CLOCK + self.mpps[direction] * more as f64;
        [0, 1].map(|direction| 8.0 * bytes(direction) / 1000.0)
    }

    /// Returns a direction's latency in clocks: 50th, 99th and 99.9th percentile.
    fn latency(&self, direction: usize) -> [u32; 3] {
        let all = &self.measured.latency[direction];
        let last = all.len().saturating_sub(1);
        [0.5, 0.99, 0.999].map(|part| all.get((last as f64 * part) as usize).copied().unwrap_or_default())
    }

    fn gate(&self) -> (String, bool) {
        let reach = |least: [f64; 2]| self.mpps[0] >= least[0] && self.mpps[1] >= least[1];
        let updated = self.point.load.updating == Updating::Nothing || self.measured.updates.clocks.is_some();
        match self.point.gate {
            Gate::Mpps(down, up) => (format!(">= {down:.0} and {up:.0} Mpps"), reach([down, up]) && updated),
            Gate::Gbits(least) => (format!(">= {least:.0} Gbit/s"), self.inner >= least),
            Gate::Limit(part) => {
                let (load, beats) = (self.point.load, self.measured.beats);
                let met = |on: bool, beats: f64| !on || beats >= part * self.pipes as f64;
                let met = met(load.down, beats[0]) && met(load.up, beats[1]);
                (format!(">= {:.0} % of the beats", 100.0 * part), met)
            }
            Gate::Clocks(median, tail) => {
                let hop = u32::from(self.point.hops == Hops::InMemory);
                let most = DEPENDENT.map(|reads| median + READ * (reads + hop));
                let met = (0..2).all(|direction| {
                    let [p50, _, p999] = self.latency(direction);
                    p50 <= most[direction] && p999 <= tail
                });
                (format!("p50 <= {} and {}, p99.9 <= {tail}", most[0], most[1]), met)
            }
        }
    }

    pub fn met(&self) -> bool {
        self.gate().1
    }

    /// Returns a line for people.
    pub fn text(&self) -> String {
        let (gate, met) = self.gate();
        let (mpps, wires) = (self.mpps, self.wires());
        let mut line = format!(
            "{:28} {:5.1} and {:5.1} Mpps of {:5.1}; inner {:5.1}, wires {:5.1} and {:5.1} Gbit/s; {gate}: {}",
            self.name,
            mpps[0],
            mpps[1],
            self.limit,
            self.inner,
            wires[0],
            wires[1],
            if met { "met" } else { "NOT MET" },
        );
        if self.point.load.part.is_some() {
            let (down, up) = (self.latency(0), self.latency(1));
            let _ = write!(line, "; clocks p50/p99/p99.9 down {down:?} up {up:?}");
        }
        let hits = self.measured.hits;
        if matches!(self.point.load.flows, Flows::Zipf | Flows::Few) {
            let _ = write!(
                line,
                "; {} packets of {} flows, {:.1} % of one, {:.1} % of a hundred, {:.1} % behind others of their flow",
                hits.packets,
                hits.flows,
                100.0 * hits.most,
                100.0 * hits.hundred,
                100.0 * hits.followed as f64 / hits.packets as f64
            );
        }
        let updates = self.measured.updates;
        if updates.lines > 0 {
            let (all, moves, lines, barriers) = (updates.all, updates.moves, updates.lines, updates.barriers);
            let _ = write!(line, "; {all} updates, {moves} with moves: {lines} lines, {barriers} barriers, ");
            let _ = match updates.clocks {
                Some(clocks) => write!(line, "in {clocks} clocks"),
                None => write!(line, "not done in time"),
            };
        }
        if let (Some(clocks), 1..) = (updates.clocks, updates.reads) {
            let (all, reads, writes) = (updates.all, updates.reads, updates.writes);
            let rate = f64::from(all) * CLOCK * 1e6 / clocks as f64;
            let _ = write!(line, "; {all} updates: {rate:.0} a second, {writes} writes and {reads} reads");
        }
        let _ = write!(line, " ({:.0} s)", self.seconds);
        line
    }

    /// Returns a JSON object for programs.
    pub fn json(&self) -> String {
        let (gate, met) = self.gate();
        let (updates, wires) = (self.measured.updates, self.wires());
        let number = |value: f64| format!("{value:.2}");
        let (hits, load) = (self.measured.hits, self.point.load);
        let size = if let Sizes::All(size) = load.sizes { size.to_string() } else { "null".to_owned() };
        let samples = self.measured.latency.each_ref().map(Vec::len);
        let flows = format!("{:?}", load.flows);
        object(&[
            ("name", quoted(&self.name)),
            ("size", size),
            ("shape", quoted(&format!("{:?}", load.shape))),
            ("flows", quoted(&flows)),
            ("down_mpps", number(self.mpps[0])),
            ("up_mpps", number(self.mpps[1])),
            ("limit_mpps", number(self.limit)),
            ("beats_down", format!("{:.4}", self.measured.beats[0] / self.pipes as f64)),
            ("beats_up", format!("{:.4}", self.measured.beats[1] / self.pipes as f64)),
            ("wire_gbits_down", number(wires[0])),
            ("wire_gbits_up", number(wires[1])),
            ("inner_gbits", number(self.inner)),
            ("latency_clocks_down", format!("{:?}", self.latency(0))),
            ("latency_clocks_up", format!("{:?}", self.latency(1))),
            ("latency_samples", format!("{samples:?}")),
            ("packets", hits.packets.to_string()),
            ("flows_hit", hits.flows.to_string()),
            ("most_hit_flow", format!("{:.5}", hits.most)),
            ("most_hit_hundred", format!("{:.5}", hits.hundred)),
            ("behind_others_of_their_flow", hits.followed.to_string()),
            ("updates", updates.all.to_string()),
            ("moves", updates.moves.to_string()),
            ("lines_written", updates.lines.to_string()),
            ("barriers", updates.barriers.to_string()),
            ("register_reads", updates.reads.to_string()),
            ("register_writes", updates.writes.to_string()),
            ("update_clocks", updates.clocks.map_or("null".to_owned(), |clocks| clocks.to_string())),
            ("clocks", self.measured.clocks.to_string()),
            ("gate", quoted(&gate)),
            ("met", met.to_string()),
        ])
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " "))
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}
