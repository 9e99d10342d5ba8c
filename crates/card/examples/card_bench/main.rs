//! The card's cycle gates: packets a clock, and clocks a packet takes, of the simulated card at 250 MHz, every packet
//! checked. Exit status 1 where a gate is missed that is known to be met.
//!
//! `cargo run --profile card -p card --features card-sim-2x2 --example card_bench [-- --quick] [--json] [--only NAME]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod points;
mod run;
mod world;

use card::sim::SimCard;
use hbm::Timing;
use points::{Gate, Point, points};
use run::{Measured, beats, run};
use std::process::ExitCode;
use std::time::Instant;
use world::World;

/// Clock of the pipes, MHz.
const CLOCK: f64 = 250.0;
/// Preamble, FCS and gap of a frame on a wire, bytes.
const WIRE: usize = 24;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let (quick, json) = (has("--quick"), has("--json"));
    let only =
        arguments.iter().position(|argument| argument == "--only").and_then(|at| arguments.get(at + 1));
    let flows = if quick { 1 << 16 } else { 1 << 20 };
    let mut broken = false;
    for pipes in [1, 2] {
        let all = points(pipes, quick);
        let chosen: Vec<_> = all.iter().filter(|point| only.is_none_or(|only| *only == point.name)).collect();
        if chosen.is_empty() {
            continue;
        }
        let mut world = World::new(flows, pipes).expect("the tables have room");
        for point in chosen {
            let timing = if point.conservative { Timing::conservative() } else { Timing::hbm2() };
            let began = Instant::now();
            let result = sim(pipes, timing).and_then(|sim| {
                let mut card = run::open(&world, sim)?;
                run(&mut card, &mut world, point.load)
            });
            broken |= report(pipes, point, &result, json, began.elapsed().as_secs_f64());
        }
    }
    ExitCode::from(u8::from(broken))
}

#[cfg(feature = "card-sim-2x2")]
fn sim(pipes: usize, timing: Timing) -> Result<SimCard, String> {
    Ok(if pipes == 1 { SimCard::new(timing) } else { SimCard::new_2x2(timing) })
}

#[cfg(not(feature = "card-sim-2x2"))]
fn sim(pipes: usize, timing: Timing) -> Result<SimCard, String> {
    if pipes == 1 { Ok(SimCard::new(timing)) } else { Err("built without card-sim-2x2".to_owned()) }
}

/// Tells of a point; whether it is one that was met before and is not now.
fn report(pipes: usize, point: &Point, result: &Result<Measured, String>, json: bool, seconds: f64) -> bool {
    let name = format!("{pipes}+{pipes} {}", point.name);
    let measured = match result {
        Ok(measured) => measured,
        Err(error) => {
            let error: String = error.chars().take(600).collect();
            if json {
                println!("{}", object(&[("name", quoted(&name)), ("error", quoted(&error))]));
            } else {
                println!("{name:32} FAILED: {error}");
            }
            return true;
        }
    };
    let mpps = measured.rate.map(|rate| rate * CLOCK);
    let size = point.load.size;
    // What is sent to guests is checked and counted before it would go over a wire; what comes and goes there has `WIRE` more.
    let wire = |mpps: f64| mpps * 8.0 * (size - 14 + 46 + WIRE) as f64 / 1000.0;
    let inner = (mpps[0] + mpps[1]) * 8.0 * size as f64 / 1000.0;
    let limit = pipes as f64 * CLOCK / beats(size) as f64;
    let percentile = |part: f64| {
        let last = measured.latency.len().saturating_sub(1);
        measured.latency.get((last as f64 * part) as usize).copied().unwrap_or_default()
    };
    let latency = [0.5, 0.99, 0.999].map(percentile);
    let (gate, met) = match point.gate {
        Gate::Mpps(down, up) => (format!(">= {down:.0} and {up:.0} Mpps"), mpps[0] >= down && mpps[1] >= up),
        Gate::Gbits(least) => (format!(">= {least:.0} Gbit/s"), inner >= least),
        Gate::Limit(part) => {
            let least = part * limit;
            (format!(">= {:.0} % of the beats", 100.0 * part), mpps[0] >= least && mpps[1] >= least)
        }
        Gate::Clocks(median, tail) => {
            (format!("p50 <= {median}, p99.9 <= {tail}"), latency[0] <= median && latency[2] <= tail)
        }
        Gate::None => ("-".to_owned(), true),
    };
    if json {
        println!(
            "{}",
            object(&[
                ("name", quoted(&name)),
                ("size", size.to_string()),
                ("down_mpps", format!("{:.2}", mpps[0])),
                ("up_mpps", format!("{:.2}", mpps[1])),
                ("limit_mpps", format!("{limit:.2}")),
                ("wire_gbits_down", format!("{:.2}", wire(mpps[0]))),
                ("wire_gbits_up", format!("{:.2}", wire(mpps[1]))),
                ("inner_gbits", format!("{inner:.2}")),
                ("latency_clocks", format!("{latency:?}")),
                ("lines_written", measured.updates.0.to_string()),
                ("barriers", measured.updates.1.to_string()),
                ("clocks", measured.clocks.to_string()),
                ("gate", quoted(&gate)),
                ("met", met.to_string()),
            ])
        );
    } else {
        let more = if point.load.part.is_some() {
            format!(" latency p50/p99/p99.9 {latency:?}")
        } else {
            String::new()
        };
        let updates = measured.updates;
        let more =
            if updates.0 > 0 { format!("{more} {} lines, {} barriers", updates.0, updates.1) } else { more };
        println!(
            "{name:32} down {:6.1} up {:6.1} Mpps of {limit:5.1}; inner {inner:6.1}, wires {:6.1} and {:6.1} Gbit/s; {gate}: {}{more} ({seconds:.0} s)",
            mpps[0],
            mpps[1],
            wire(mpps[0]),
            wire(mpps[1]),
            if met { "met" } else { "NOT MET" },
        );
    }
    point.known_met && !met
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " "))
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}
