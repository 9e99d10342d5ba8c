//! The card's cycle gates: packets a clock, and clocks a packet takes, of the simulated card at 250 MHz, every packet
//! checked. Exit status 1 where a gate is missed, but for those that are known to be.
//!
//! `cargo run --profile card -p card --features card-sim-2x2 --example card_bench -- [--quick] [--only 'NAME;NAME']
//! [--clocks NUMBER] [--json FILE]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod driven;
mod load;
mod packets;
mod points;
mod report;
mod run;
mod shape;
mod world;

use card::sim::SimCard;
use hbm::Timing;
use load::Updating;
use points::{Point, points};
use report::Report;
use run::run;
use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;
use world::{Hops, World};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let only = value("--only");
    let mut json = value("--json").map(|path| File::create(path).expect("a file for the results"));
    let clocks = value("--clocks").map(|clocks| clocks.parse().expect("a number of clocks"));
    let flows = if quick { 1 << 16 } else { 1 << 20 };
    let mut broken = false;
    for pipes in [1, 2] {
        let mut all = points(pipes, quick);
        all.iter_mut().for_each(|point| point.load.clocks = clocks.unwrap_or(point.load.clocks));
        let chosen: Vec<_> = all
            .iter()
            .filter(|point| only.is_none_or(|only| only.split(';').any(|name| name == point.name)))
            .collect();
        if chosen.is_empty() {
            continue;
        }
        let (mut world, mut hops) = (None, Hops::OnChip);
        for point in chosen {
            if point.hops != hops {
                (world, hops) = (None, point.hops);
            }
            let began = Instant::now();
            let measured = if point.load.updating == Updating::Driver {
                sim(pipes, point.memory).and_then(driven::run)
            } else {
                let fill = !quick;
                let world = world.get_or_insert_with(|| {
                    World::new(flows, pipes, fill, hops).expect("the tables have room")
                });
                measure(world, pipes, point)
            };
            broken |= match measured {
                Ok(measured) => {
                    let report = Report::new(pipes, point, measured, began.elapsed().as_secs_f64());
                    println!("{}", report.text());
                    if let Some(file) = &mut json {
                        writeln!(file, "{}", report.json()).expect("the results are written");
                    }
                    !point.known_missed && !report.met()
                }
                Err(error) => {
                    let error: String = error.chars().take(600).collect();
                    println!("{pipes}+{pipes} {:24} FAILED: {error}", point.name);
                    true
                }
            };
        }
    }
    ExitCode::from(u8::from(broken))
}

fn measure(world: &mut World, pipes: usize, point: &Point) -> Result<run::Measured, String> {
    let mut card = run::open(world, sim(pipes, point.memory)?)?;
    run(&mut card, world, point.load)
}

#[cfg(feature = "card-sim-2x2")]
fn sim(pipes: usize, timing: Timing) -> Result<SimCard, String> {
    Ok(if pipes == 1 { SimCard::new(timing) } else { SimCard::new_2x2(timing) })
}

#[cfg(not(feature = "card-sim-2x2"))]
fn sim(pipes: usize, timing: Timing) -> Result<SimCard, String> {
    if pipes == 1 { Ok(SimCard::new(timing)) } else { Err("built without card-sim-2x2".to_owned()) }
}
