//! What is measured, and what is asked of it.

use crate::run::{Flows, Load, PACE};
use crate::world::Hops;

/// What is asked.
#[derive(Clone, Copy)]
pub enum Gate {
    /// Mpps down and up, at least.
    Mpps(f64, f64),
    /// Gbit/s of guests' frames, at least.
    Gbits(f64),
    /// This part of what the beats allow, in both directions.
    Limit(f64),
    /// Latency, clocks, at most: the median of a packet whose reads do not wait for each other, and the 99.9th
    /// percentile.
    Clocks(u32, u32),
}

/// A measurement.
pub struct Point {
    pub name: String,
    pub load: Load,
    pub conservative: bool,
    /// Memory refreshes all banks at once, and not one after the other.
    pub refresh_at_once: bool,
    pub hops: Hops,
    pub gate: Gate,
    /// To miss it is no failure.
    pub known_missed: bool,
}

/// Sizes of guests' frames that rates are drawn over, bytes.
const SIZES: [usize; 9] = [64, 82, 96, 128, 192, 256, 512, 1024, 1518];

/// Those for so many pipes of each direction.
pub fn points(pipes: usize, quick: bool) -> Vec<Point> {
    let clocks = if quick { 4000 } else { 20_000 };
    let both =
        Load { down: true, up: true, size: 64, flows: Flows::Random, part: None, updates: false, clocks };
    let (down, up) = (Load { up: false, ..both }, Load { down: false, ..both });
    // Of 125: what the beats of a packet allow.
    let rate = 122.5 * pipes as f64;
    let mut all = vec![
        point("down 64", down, Gate::Mpps(rate, 0.0)),
        point("up 64", up, Gate::Mpps(0.0, rate)),
        point("both 64", both, Gate::Mpps(rate, rate)),
    ];
    // At nine tenths of the load, queues rise and fall over thousands of clocks: with other arrivals the median of
    // 4000 clocks is anywhere between 270 and 350, that of 40,000 between 280 and 292.
    let latency = Load { part: Some(0.9), clocks: 40_000, ..both };
    if quick {
        let one = point("one flow", Load { flows: Flows::One, ..both }, Gate::Mpps(122.5, 122.5));
        all.push(one);
        all.push(point("latency 64", latency, Gate::Clocks(180, 500)));
        return if pipes == 1 { all } else { Vec::new() };
    }
    let straight = Load { flows: Flows::Straight, ..both };
    all.extend(
        SIZES.map(|size| point(&format!("size {size}"), Load { size, ..straight }, Gate::Limit(0.98))),
    );
    if pipes == 1 {
        return all;
    }
    all.extend([
        point("mixed 64", Load { flows: Flows::Mixed, ..both }, Gate::Mpps(0.95 * rate, 0.95 * rate)),
        point("both 1518", Load { size: 1518, ..both }, Gate::Gbits(475.0)),
        // One nexthop leaves by one wire, which takes a packet each two clocks.
        point("one flow a pipe", Load { flows: Flows::OnePerPipe, ..both }, Gate::Mpps(122.5, rate)),
        point("one flow", Load { flows: Flows::One, ..both }, Gate::Mpps(122.5, 122.5)),
        Point { conservative: true, ..point("conservative 64", both, Gate::Mpps(rate, rate)) },
        point("updates 64", Load { updates: true, clocks: PACE, ..both }, Gate::Mpps(rate, rate)),
        point("latency 64", latency, Gate::Clocks(180, 500)),
        Point {
            refresh_at_once: true,
            known_missed: true,
            ..point("latency 64, refresh at once", latency, Gate::Clocks(180, 500))
        },
        Point { refresh_at_once: true, ..point("both 64, refresh at once", both, Gate::Mpps(rate, rate)) },
        Point { hops: Hops::InMemory, ..point("nexthops in HBM 64", both, Gate::Mpps(rate, rate)) },
        Point {
            hops: Hops::InMemory,
            ..point("latency 64, nexthops in HBM", latency, Gate::Clocks(180, 500))
        },
        point("latency 64, a tenth of the load", Load { part: Some(0.1), ..both }, Gate::Clocks(180, 500)),
    ]);
    all
}

fn point(name: &str, load: Load, gate: Gate) -> Point {
    Point {
        name: name.to_owned(),
        load,
        conservative: false,
        refresh_at_once: false,
        hops: Hops::OnChip,
        gate,
        known_missed: false,
    }
}
