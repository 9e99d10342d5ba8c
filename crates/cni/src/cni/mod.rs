//! CNI, version 1.1.0 and older: the environment holds the command, standard input the configuration; results
//! and errors go to standard output as JSON (SPEC.md of the Container Network Interface).

mod commands;
mod config;
mod delegate;
mod result;
mod version;

use crate::error::{Context, Error};
use crate::records::{DATA_DIR, Records};
use config::Config;
use serde_json::json;
use std::io::{Read, Write};
use std::process::ExitCode;
use version::Version;

/// Longest configuration, bytes.
const MAX_INPUT: u64 = 4 << 20;

/// The output for unknown arguments.
const USAGE: &str = "without arguments it is a CNI plug-in, which container runtimes call; `viaduct-cni restore \
    [DIRECTORY]` plugs the taps of a restarted daemon into their containers again, those that the directory names";

/// Carries out one command. The arguments and the environment of the process say which.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = crate::arguments();
    match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (None, ..) => {}
        (Some("--version" | "-V"), None, _) => {
            println!("viaduct-cni {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        (Some("--help" | "-h"), None, _) => {
            println!("viaduct-cni: {USAGE}");
            return ExitCode::SUCCESS;
        }
        (Some("restore"), data_dir, None) if !data_dir.as_ref().is_some_and(|word| word.starts_with('-')) => {
            return restore(data_dir);
        }
        _ => {
            eprintln!("viaduct-cni: {USAGE}");
            return ExitCode::from(2);
        }
    }
    let mut input = Vec::new();
    let read = std::io::stdin().take(MAX_INPUT).read_to_end(&mut input);
    let outcome = read.context(|| "reading the configuration".to_owned()).and_then(|_| run(&input));
    let (output, status) = match outcome {
        Ok(output) => (output, ExitCode::SUCCESS),
        Err(e) => (Some(failure(&input, &e)), ExitCode::FAILURE),
    };
    // If nobody reads the output, its reader has ended.
    let _ = output.map(|output| writeln!(std::io::stdout(), "{output}"));
    status
}

/// Plugs the taps of a restarted daemon into their containers again.
fn restore(data_dir: Option<String>) -> ExitCode {
    let records = Records::new(data_dir.unwrap_or_else(|| DATA_DIR.to_owned()).into());
    match crate::attend::restore(&records) {
        Ok(restored) => {
            println!("{restored} interfaces of containers restored");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("viaduct-cni: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(input: &[u8]) -> Result<Option<serde_json::Value>, Error> {
    match variable("CNI_COMMAND")?.as_str() {
        "VERSION" => Ok(Some(version::supported(input))),
        "ADD" => commands::add(&Config::read(input)?).map(Some),
        "DEL" => commands::del(&Config::read(input)?).map(|()| None),
        "CHECK" => commands::check(&since(Version::V0_4, input)?).map(|()| None),
        "STATUS" => commands::status(&since(Version::V1_1, input)?).map(|()| None),
        "GC" => commands::gc(&since(Version::V1_1, input)?).map(|()| None),
        other => Err(Error::Environment("CNI_COMMAND", format!("there is no command {other:?}"))),
    }
}

/// Returns the configuration of a command that exists since `version` of the specification.
fn since(version: Version, input: &[u8]) -> Result<Config, Error> {
    let config = Config::read(input)?;
    if config.version < version {
        let name = config.version.name();
        return Err(Error::Version(format!(
            "cniVersion {name} has no such command; use {} or later",
            version.name()
        )));
    }
    Ok(config)
}

/// Returns an environment variable that must be set.
fn variable(name: &'static str) -> Result<String, Error> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        Ok(_) | Err(std::env::VarError::NotPresent) => {
            Err(Error::Environment(name, "it is not set".to_owned()))
        }
        Err(e) => Err(Error::Environment(name, e.to_string())),
    }
}

/// Returns whether a configuration, and the result in it, can be used.
#[cfg(test)]
pub(crate) fn is_whole(input: &[u8]) -> bool {
    let Ok(config) = Config::read(input) else { return false };
    let previous = config.previous.as_ref().map(result::Outcome::previous);
    previous.is_none_or(|previous| {
        previous.is_ok_and(|outcome| outcome.whole_routes().len() == outcome.routes.len())
    })
}

fn failure(input: &[u8], error: &Error) -> serde_json::Value {
    let code = match (error.code(), std::env::var("CNI_COMMAND").as_deref()) {
        // Containers depend on the daemon all the time (1.1.0, "STATUS").
        (11, Ok("STATUS")) => 51,
        (100, Ok("STATUS")) => 50,
        (code, _) => code,
    };
    json!({
        "cniVersion": version::of(input).map_or(Version::LATEST, |version| version).name(),
        "code": code,
        "msg": error.to_string(),
    })
}
