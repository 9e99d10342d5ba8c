//! What is measured, and what is asked of it.

use crate::run::{Flows, Load};

/// What is asked.
#[derive(Clone, Copy)]
pub enum Gate {
    /// Mpps down and up, at least.
    Mpps(f64, f64),
    /// Gbit/s of guests' frames, at least.
    Gbits(f64),
    /// This part of what the beats allow, in both directions.
    Limit(f64),
    /// Latency, clocks: median and 99.9th percentile at most.
    Clocks(u32, u32),
    /// Nothing.
    None,
}

/// A measurement.
pub struct Point {
    pub name: String,
    pub load: Load,
    pub conservative: bool,
    pub gate: Gate,
    /// To miss it is a failure.
    pub known_met: bool,
}

/// Those for so many pipes of each direction.
pub fn points(pipes: usize, quick: bool) -> Vec<Point> {
    let clocks = if quick { 4000 } else { 20_000 };
    let both =
        Load { down: true, up: true, size: 64, flows: Flows::Random, part: None, updates: None, clocks };
    let (down, up) = (Load { up: false, ..both }, Load { down: false, ..both });
    // Of 125: what the beats of a packet allow.
    let rate = 122.5 * pipes as f64;
    let mut all = vec![
        point("down 64", down, Gate::Mpps(rate, 0.0)),
        point("up 64", up, Gate::Mpps(0.0, rate)),
        point("both 64", both, Gate::Mpps(rate, rate)),
    ];
    if pipes == 1 && quick {
        all[1].known_met = true;
        let one = point("one flow", Load { flows: Flows::One, ..both }, Gate::Mpps(122.5, 122.5));
        all.push(Point { known_met: true, ..one });
        all.push(point("latency 64", Load { part: Some(0.9), ..both }, Gate::Clocks(180, 500)));
        return all;
    }
    if pipes == 1 || quick {
        return if quick { Vec::new() } else { all };
    }
    all.extend([
        point("mixed 64", Load { flows: Flows::Mixed, ..both }, Gate::None),
        point("both 1518", Load { size: 1518, ..both }, Gate::Gbits(475.0)),
        // One nexthop leaves by one wire, which takes a packet each two clocks.
        point("one flow a pipe", Load { flows: Flows::OnePerPipe, ..both }, Gate::Mpps(122.5, rate)),
        point("one flow", Load { flows: Flows::One, ..both }, Gate::Mpps(122.5, 122.5)),
        Point { conservative: true, ..point("conservative 64", both, Gate::Mpps(rate, rate)) },
        point("updates 64", Load { updates: Some(125), ..both }, Gate::Mpps(rate, rate)),
        point("latency 64", Load { part: Some(0.9), ..both }, Gate::Clocks(180, 500)),
    ]);
    for size in [82, 96, 128, 192, 256, 512, 1024, 1518] {
        all.push(point(&format!("size {size}"), Load { size, ..both }, Gate::Limit(0.98)));
    }
    all
}

fn point(name: &str, load: Load, gate: Gate) -> Point {
    Point { name: name.to_owned(), load, conservative: false, gate, known_met: false }
}
