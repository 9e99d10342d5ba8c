//! Two guests for benchmarks that cost next to nothing: one sends, the other receives, and both only advance
//! the indexes of their rings.
//!
//! A driver touches each packet, even if it does nothing with it, and at 64 bytes that takes as long as a
//! switch does. Here every descriptor of the sender always points to the same packet, and every one of the
//! receiver to the same buffer. The device thus sees as many flows as the sender has descriptors, at most
//! 32768, and reaches its limit before these guests do.
//!
//! It obeys the commands of the DPDK generator beside it, and prints the same output
//! (`bench/generator/generator.h`): `run SECONDS`, and `share SECONDS` for the same without real-time
//! priority.

mod frames;
mod guest;
mod memory;
mod ring;
mod run;

use anyhow::{Context, Result, bail};
use clap::Parser;
use guest::{Guest, Role};
use std::io::{BufRead, Write};
use std::path::PathBuf;

/// Turns the indexes of a sending and a receiving guest's ring.
#[derive(Parser)]
struct Arguments {
    /// Socket of the guest that sends.
    #[arg(long)]
    sender: PathBuf,
    /// Socket of the guest that receives.
    #[arg(long)]
    receiver: PathBuf,
    /// Distinct flows, at most the sender's descriptors.
    #[arg(long, default_value_t = 1)]
    flows: u32,
    /// Descriptors of the sender, a power of two.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(64..=32768))]
    ring: u16,
    /// Frame size in bytes, FCS included.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1518))]
    size: u16,
}

/// Descriptors of the receiver. The ring is no larger than needed.
const RECEIVE_RING: u16 = 1024;

fn main() -> Result<()> {
    let args = Arguments::parse();
    if !args.ring.is_power_of_two() || args.flows > u32::from(args.ring) {
        bail!("--ring is a power of two, and --flows at most that");
    }
    let sender =
        Guest::connect(&args.sender, Role::Sender { ring: args.ring, flows: args.flows, size: args.size })
            .context("sender")?;
    let receiver =
        Guest::connect(&args.receiver, Role::Receiver { ring: RECEIVE_RING }).context("receiver")?;
    let mut pair = run::Pair::new(sender, receiver, args.size);

    let mut output = std::io::stdout();
    writeln!(output, r#"{{"event": "ready"}}"#)?;
    output.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (real_time, seconds) = match line.split_once(' ') {
            Some(("run", seconds)) => (true, seconds),
            Some(("share", seconds)) => (false, seconds),
            _ => bail!("unknown command: {line}"),
        };
        let done = pair.run(seconds.parse().context("SECONDS")?, real_time)?;
        writeln!(output, "{done}")?;
        output.flush()?;
    }
    Ok(())
}
