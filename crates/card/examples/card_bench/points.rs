//! The measurements, and the results that they must reach.

use crate::load::{Flows, Load, Sizes, Updating};
use crate::run::PACE;
use crate::shape::Shape;
use crate::world::Hops;
use hbm::{Refresh, Timing};

/// The result that a measurement must reach.
#[derive(Clone, Copy)]
pub enum Gate {
    /// At least so many Mpps downstream and upstream.
    Mpps(f64, f64),
    /// At least so many Gbit/s of guests' frames.
    Gbits(f64),
    /// At least this fraction of the rate that the beats allow, in both directions.
    Limit(f64),
    /// Latency of at most so many clocks: the median of a packet whose reads do not wait for each other, and the 99.9th
    /// percentile.
    Clocks(u32, u32),
}

#[derive(Clone)]
pub struct Point {
    pub name: String,
    pub load: Load,
    pub memory: Timing,
    pub hops: Hops,
    pub gate: Gate,
    /// Whether the card is known to miss the gate, so that missing it is no failure.
    pub known_missed: bool,
}

/// Sizes of guests' frames at which rates are measured, in bytes.
const SIZES: [usize; 9] = [64, 82, 96, 128, 192, 256, 512, 1024, 1518];

/// Size of guests' IPv6 frames: the smallest with room for the mark. It has as many beats as one of 64 bytes.
const SIZE6: usize = 82;

/// Number of packets of each direction from which a 99.9th percentile rests on a thousand packets that took longer.
const MANY: f64 = 1_020_000.0;

/// Names of the gates that two pipes of each direction miss, too; docs/card-performance.md says by how much.
const MISSED_BY_TWO: [&str; 4] =
    ["Zipf 64", "latency 64", "latency 64, memory of 1800", "latency 64, a million packets"];

/// Returns the timing of the card's memory. HBM controllers on FPGAs can refresh bank by bank, and the card's must be
/// configured to do so.
fn hbm2() -> Timing {
    Timing { refresh: Refresh::HBM2_PER_BANK, ..Timing::hbm2() }
}

/// Returns the measurements for this number of pipes in each direction.
pub fn points(pipes: usize, quick: bool) -> Vec<Point> {
    let clocks = if quick { 4000 } else { 20_000 };
    let both = Load {
        down: true,
        up: true,
        shape: Shape::Plain,
        sizes: Sizes::All(64),
        flows: Flows::Random,
        part: None,
        updating: Updating::Nothing,
        warm: 3000,
        clocks,
    };
    let (down, up) = (Load { up: false, ..both }, Load { down: false, ..both });
    // The beats of a packet allow 125.
    let rate = 122.5 * pipes as f64;
    let mut all = vec![
        point("down 64", down, Gate::Mpps(rate, 0.0)),
        point("up 64", up, Gate::Mpps(0.0, rate)),
        point("both 64", both, Gate::Mpps(rate, rate)),
    ];
    // At nine tenths of the load, queues rise and fall over thousands of clocks: with other arrivals the median of
    // 4000 clocks is anywhere between 270 and 350, that of 40,000 between 280 and 292.
    let latency =
        point("latency 64", Load { part: Some(0.9), clocks: 40_000, ..both }, Gate::Clocks(180, 500));
    if quick {
        if pipes == 2 {
            return Vec::new();
        }
        all.push(point("one flow", Load { flows: Flows::One, ..both }, Gate::Mpps(122.5, 122.5)));
        // A few clocks of each shape show that it is forwarded, in order, without loss.
        let short = Load { warm: 500, clocks: 1000, flows: Flows::Straight, ..both };
        all.extend(shapes(short).into_iter().filter(|point| point.name != "GRE"));
        all.extend(mixes(short).into_iter().filter(|point| point.name == "Zipf IMIX"));
        all.extend([latency, by_driver(both)]);
        return all;
    }
    let straight = Load { flows: Flows::Straight, ..both };
    all.extend(SIZES.map(|size| {
        point(&format!("size {size}"), Load { sizes: Sizes::All(size), ..straight }, Gate::Limit(0.98))
    }));
    all.extend(shapes(straight));
    let alone = |point: Point, name: &str, down, up| Point {
        load: Load { down, up, ..point.load },
        name: format!("{}, {name} alone", point.name),
        ..point
    };
    all.extend(shapes(straight).map(|point| alone(point, "down", true, false)));
    all.extend(shapes(straight).map(|point| alone(point, "up", false, true)));
    all.extend(mixes(straight));
    let slower = Timing { refresh: Refresh::HBM2_1800_PER_BANK, ..Timing::hbm2_1800() };
    all.extend([
        Point { memory: slower, ..point("both 64, memory of 1800", both, Gate::Mpps(rate, rate)) },
        Point { memory: slower, name: "latency 64, memory of 1800".to_owned(), ..latency.clone() },
    ]);
    if pipes == 2 {
        all.extend(pairs(both, &latency));
    } else {
        all.extend([latency.clone(), by_driver(both)]);
    }
    let clocks = (MANY * both.sizes.mean(|size| both.shape.beats(size)) / 0.9 / pipes as f64) as u64;
    let long = Load { clocks, ..latency.load };
    all.push(Point { load: long, name: "latency 64, a million packets".to_owned(), ..latency });
    if pipes == 2 {
        for point in all.iter_mut().filter(|point| MISSED_BY_TWO.contains(&point.name.as_str())) {
            point.known_missed = true;
        }
    }
    all
}

/// Returns the measurement in which the driver changes flows over PCIe.
fn by_driver(both: Load) -> Point {
    let rate = 122.5;
    point("updates by the driver 64", Load { updating: Updating::Driver, ..both }, Gate::Mpps(rate, rate))
}

/// Returns measurements of packets other than IPv4 in MPLS over UDP.
fn shapes(load: Load) -> [Point; 4] {
    let of = |name: &str, shape, size| Point {
        known_missed: shape != Shape::Gre,
        ..point(name, Load { shape, sizes: Sizes::All(size), ..load }, Gate::Limit(0.98))
    };
    [
        of("IPv6", Shape::Ipv6, SIZE6),
        of("GRE", Shape::Gre, 64),
        of("VXLAN routed", Shape::Vxlan, 64),
        of("VXLAN bridged", Shape::Bridged, 64),
    ]
}

/// Returns measurements with packets of many sizes, and with flows that come again.
fn mixes(load: Load) -> [Point; 4] {
    let of = |name: &str, flows, sizes| Point {
        known_missed: flows == Flows::Few,
        ..point(name, Load { flows, sizes, ..load }, Gate::Limit(0.98))
    };
    [
        of("IMIX", Flows::Straight, Sizes::Imix),
        of("Zipf 64", Flows::Zipf, Sizes::All(64)),
        of("Zipf IMIX", Flows::Zipf, Sizes::Imix),
        of("64 flows a pipe", Flows::Few, Sizes::All(64)),
    ]
}

/// Returns the measurements that are made only with two pipes of each direction.
fn pairs(both: Load, latency: &Point) -> Vec<Point> {
    let rate = 245.0;
    let full = Gate::Mpps(rate, rate);
    let refresh = Timing { refresh: Timing::hbm2().refresh, ..hbm2() };
    let conservative = Timing { refresh: Refresh::HBM2_PER_BANK, ..Timing::conservative() };
    let slow = |name: &str, load: Load| Point { load, name: name.to_owned(), ..latency.clone() };
    vec![
        point("mixed 64", Load { flows: Flows::Mixed, ..both }, Gate::Mpps(0.95 * rate, 0.95 * rate)),
        point("both 1518", Load { sizes: Sizes::All(1518), ..both }, Gate::Gbits(475.0)),
        // One nexthop leaves by one wire, which takes a packet each two clocks.
        point("one flow a pipe", Load { flows: Flows::OnePerPipe, ..both }, Gate::Mpps(122.5, rate)),
        point("one flow", Load { flows: Flows::One, ..both }, Gate::Mpps(122.5, 122.5)),
        Point { memory: conservative, ..point("conservative 64", both, full) },
        point("updates 64", Load { updating: Updating::Together, clocks: PACE, ..both }, full),
        latency.clone(),
        Point { memory: refresh, known_missed: true, ..slow("latency 64, refresh at once", latency.load) },
        Point { memory: refresh, ..point("both 64, refresh at once", both, full) },
        Point { hops: Hops::InMemory, ..point("nexthops in HBM 64", both, full) },
        Point { hops: Hops::InMemory, ..slow("latency 64, nexthops in HBM", latency.load) },
        slow("latency 64, a tenth of the load", Load { part: Some(0.1), ..both }),
    ]
}

fn point(name: &str, load: Load, gate: Gate) -> Point {
    Point { name: name.to_owned(), load, memory: hbm2(), hops: Hops::OnChip, gate, known_missed: false }
}
