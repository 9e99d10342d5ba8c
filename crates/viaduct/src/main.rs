//! The Viaduct command line: queries and controls the daemon through its API.
//!
//! It depends only on `api` and `config`, and for `doctor` on `sandbox`; it links no other code of the daemon.
#![deny(unsafe_code)]

mod args;
mod client;
mod commands;
mod doctor;
mod help;
mod input;
mod output;
mod pcap;
mod pcapng;
mod target;

use args::Options;
use clap::Parser;
use client::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(options)),
        Err(e) => Err(Failure::Refused(format!("no runtime: {e}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(failure @ (Failure::Dropped | Failure::Held)) => ExitCode::from(failure.status()),
        Err(failure) => {
            eprintln!("viaduct: {failure}");
            ExitCode::from(failure.status())
        }
    }
}
