//! The Viaduct command line: queries and controls the daemon through its API.
//!
//! It depends only on `api` and `config`, and for `doctor` on `sandbox`; it links no other code of the daemon.
#![deny(unsafe_code)]

mod args;
mod client;
mod commands;
mod complete;
mod doctor;
mod help;
mod input;
mod lists;
mod output;
mod pcap;
mod pcapng;
mod target;

use args::Options;
use clap::{CommandFactory, Parser};
use client::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    // If a shell asks for completions, this answers and exits.
    clap_complete::CompleteEnv::with_factory(Options::command).complete();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) if e.use_stderr() && asked_for_json() => {
            let text = e.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            return fail(&Failure::Usage(text.to_owned()), true);
        }
        Err(e) => e.exit(),
    };
    let json = options.is_json();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(options)),
        Err(e) => Err(Failure::Refused(format!("no runtime: {e}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has seen enough.
        Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(failure @ (Failure::Dropped | Failure::Held)) => ExitCode::from(failure.status()),
        Err(failure) => fail(&failure, json),
    }
}

/// Prints why the command failed.
fn fail(failure: &Failure, json: bool) -> ExitCode {
    let status = failure.status();
    if json {
        let text = failure.to_string();
        eprintln!("{}", serde_json::json!({ "error": text.trim_end(), "status": status }));
    } else {
        eprintln!("viaduct: {failure}");
    }
    ExitCode::from(status)
}

/// Returns the words of the command line. A word that is not UTF-8 matches no command, and causes no panic.
fn words() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// Is true if a command line that makes no sense asks for JSON.
fn asked_for_json() -> bool {
    let words: Vec<String> = words().collect();
    words.iter().any(|word| matches!(&**word, "--json" | "-ojson" | "--output=json"))
        || words.windows(2).any(|pair| matches!(&*pair[0], "-o" | "--output") && pair[1] == "json")
}
