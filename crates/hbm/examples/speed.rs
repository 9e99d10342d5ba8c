//! The speed of the simulation itself: card clocks per second of 32 channels, all busy or all idle, on this machine.
//!
//! `cargo run --release -p hbm --example speed [percent of clocks with a read]`

use std::time::Instant;

use hbm::{Channel, Controller, Timing};

const CHANNELS: usize = 32;

/// Runs for some clocks, and reads random lines in `percent` of them. Returns the clocks simulated per second.
fn clocks_per_second(percent: u64, clocks: u32) -> f64 {
    let new = || Channel::new(Timing::hbm2(), Controller::default());
    let mut channels: Vec<_> = std::iter::repeat_with(new).take(CHANNELS).collect();
    let mut random = 1u64;
    let start = Instant::now();
    for clock in 0..clocks {
        for channel in &mut channels {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if (random >> 33) % 100 < percent && channel.can_read() {
                let line = 64 * (random >> 42);
                channel.read(clock as u8 % 64, line, 2).unwrap_or_default();
            }
            channel.accept_r();
            channel.tick();
        }
    }
    f64::from(clocks) / start.elapsed().as_secs_f64()
}

fn main() {
    let given = std::env::args().nth(1).and_then(|percent| percent.parse().ok());
    for percent in given.map_or(vec![0, 10, 25, 40, 100], |percent| vec![percent]) {
        let speed = clocks_per_second(percent, 100_000);
        println!(
            "{CHANNELS} channels, a read of 64 bytes in {percent:>3} % of clocks: {speed:>10.0} clocks/s"
        );
    }
}
