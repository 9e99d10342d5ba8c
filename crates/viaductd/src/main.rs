//! The Viaduct daemon: connects executor, ports and control plane.
//!
//! Owns: the start, the privileges and when they are given up, which executor there is, and the hand-over from one
//! daemon to the next. It is the only program that knows all crates of the daemon.
#![deny(unsafe_code)]

mod bgp;
mod daemon;
mod forwarder;
mod inherit;
mod limits;
mod listeners;
mod log;
mod machines;
mod matchmaking;
mod notify;
mod ovs_tables;
mod ports;
mod privileges;
mod proxying;
mod readers;
mod relaying;
mod remotes;
mod replace;
mod resolving;
mod serving;
mod signals;
mod underlay;
mod verbs;

use clap::Parser;
use config::Texts;
use helper::{Directories, Servers};
use log::{Format, Log};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// The Viaduct daemon: the network of this host's guests.
#[derive(Parser)]
#[command(version, about)]
struct Options {
    /// Configuration of the host (host.toml)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Directory for sockets
    #[arg(long, value_name = "DIR", default_value = "/run/viaduct")]
    run_dir: PathBuf,
    /// Directory for applied state, kept over restarts
    #[arg(long, value_name = "DIR", default_value = "/var/lib/viaduct")]
    state_dir: PathBuf,
    /// The least important messages that are logged on stderr
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = log::levels())]
    log: LevelFilter,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    log_format: Format,
    /// Check the file and exit
    #[arg(long)]
    check: bool,
    /// Take over from the running daemon of the run-dir: its guests go on
    #[arg(long)]
    replace: bool,
    /// Keep all privileges, for debugging
    #[arg(long)]
    no_sandbox: bool,
}

impl Options {
    const fn log(&self) -> Log {
        Log { level: self.log, format: self.log_format }
    }
}

/// Exit status of a wrong command line or configuration.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let [_, first, level, takes_over, config, directories @ ..] = &arguments[..]
        && first == helper::ARGUMENT
        && let Some(directories) = Directories::of_words(directories)
    {
        let log = level.to_str().and_then(|words| words.parse().ok());
        log.unwrap_or(Log { level: LevelFilter::WARN, format: Format::Text }).start();
        return help(directories, config.into(), takes_over == "true");
    }
    let options = Options::parse();
    options.log().start();
    if let Err(error) = signals::hold_reloads() {
        tracing::warn!(%error, "SIGHUP ends the daemon while it starts");
    }
    let file = match read(&options.config) {
        Ok(file) => file,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(USAGE);
        }
    };
    for warning in config::warnings(&file.objects) {
        tracing::warn!("{}: {warning}", options.config.display());
    }
    if options.check {
        let readers = config::check_readers(&file, helper::lookup);
        for warning in config::check_owners(&file, helper::lookup).iter().chain(&readers) {
            tracing::warn!("{}: {warning}", options.config.display());
        }
        return ExitCode::SUCCESS;
    }
    for item in &file.objects {
        if let config::Object::Wire(wire) = &item.object
            && let Some(warning) = control::forwarding(wire)
        {
            tracing::warn!("wire \"{}\": {warning}", wire.name);
        }
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        host = file.host.name,
        config = %options.config.display(),
        run_dir = %options.run_dir.display(),
        state_dir = %options.state_dir.display(),
        "viaductd starts"
    );
    match daemon::run(&options, &file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("viaductd: {}", reasons(&e));
            ExitCode::FAILURE
        }
    }
}

/// Joins an error and its causes, each once: some errors end with their cause already.
fn reasons(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Returns the servers outside that a file names, and the files and folders beside it on which they
/// depend.
fn servers(path: &Path, file: File) -> Option<(Servers, Vec<PathBuf>)> {
    let folder = config::folder_of(path);
    let texts = Texts::read(file, |patterns| config::open_included(folder, patterns)).ok()?;
    let config::Document { host, objects, .. } = config::read(&texts).ok()?;
    let names = texts.included.iter().flatten().map(|file| folder.join(&file.name));
    let folders = config::includes(&texts.main).into_iter().map(|pattern| {
        let within = folder.join(pattern);
        within.parent().unwrap_or(folder).to_owned()
    });
    let peers = host.bgp.iter().flat_map(|bgp| bgp.peers.iter().map(|peer| bgp.way_to(peer).0));
    let mut servers = Servers { peers: peers.collect(), ..Servers::default() };
    for item in &objects {
        if let config::Object::Network(network) = &item.object {
            servers.resolvers.extend(&network.resolvers);
            servers.dhcp.extend(&network.dhcp_relay);
            servers.metadata.extend(network.metadata_proxy);
        }
    }
    Some((servers, names.chain(folders).collect()))
}

/// Runs the helper of a daemon, which sends requests on standard input.
fn help(directories: Directories, config: PathBuf, takes_over: bool) -> ExitCode {
    match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => {
            helper::serve(socket, directories, config, takes_over, (servers, config::open_included));
            // Nobody waits for the answers of requests that are still under way.
            std::process::exit(0)
        }
        Err(e) => {
            eprintln!("viaductd-helper: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Reads and checks the configuration; the error lists all of its problems, each as `FILE:LINE: ...`.
fn read(path: &Path) -> Result<config::Document, String> {
    let texts = Texts::load(path).map_err(|e| format!("{}: {e}", path.display()))?;
    config::parse_all(&texts).map_err(|problems| problems.in_file(path))
}
