//! The Viaduct daemon: puts executor, ports and control plane together.
#![deny(unsafe_code)]

mod forwarder;
mod notify;
mod ports;
mod users;
mod verbs;

use anyhow::Context;
use clap::Parser;
use control::{Core, RunDir, Store};
use forwarder::Forwarder;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ports::ExecutorPorts;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// The Viaduct daemon: the network of this host's guests.
#[derive(Parser)]
#[command(version, about)]
struct Options {
    /// What the host is (host.toml)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Directory of sockets
    #[arg(long, value_name = "DIR", default_value = "/run/viaduct")]
    run_dir: PathBuf,
    /// Directory of what outlives the daemon
    #[arg(long, value_name = "DIR", default_value = "/var/lib/viaduct")]
    state_dir: PathBuf,
    /// What is logged to stderr: error, warn, info, debug, trace or off
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: tracing_subscriber::filter::LevelFilter,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

/// Exit status of a wrong command line or configuration.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_max_level(options.log)
        .init();
    let file = match read(&options.config) {
        Ok(file) => file,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(USAGE);
        }
    };
    for warning in file.objects.iter().filter_map(config::Item::warning) {
        tracing::warn!("{}: {warning}", options.config.display());
    }
    if options.check {
        return ExitCode::SUCCESS;
    }
    match run(&options, file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("viaductd: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Reads and checks the configuration; the error lists all of its problems, each as `FILE:LINE: ...`.
fn read(path: &Path) -> Result<config::Document, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
    config::parse(&text).map_err(|problems| problems.in_file(path))
}

/// A guest takes a dozen descriptors or more: all that may be open without asking anybody. A host of few guests does without.
fn allow_open_files() {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    if let Err(error) = limits.and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most)) {
        tracing::warn!(%error, "no more files can be opened than usual");
    }
}

fn run(options: &Options, file: config::Document) -> anyhow::Result<()> {
    allow_open_files();
    let run_dir = RunDir::take(&options.run_dir)?;
    let store = Store::open(&options.state_dir)?;
    let host = file.host.clone();
    let forwarder = Forwarder::start(&host)?;
    let ports = Box::new(ExecutorPorts::new(forwarder.clone()));
    let core = Core::start(file, options.run_dir.clone(), store, forwarder.executor(), ports)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .context("the control plane can't be started")?;
    let served = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        control::serve(Arc::new(core), &run_dir, host.metrics, ready, stop).await?;
        anyhow::Ok(())
    });
    // Ports and workers are held by requests still running, if any; the process ends soon enough for them.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    if served.is_ok() {
        tracing::info!("stopped");
    }
    served
}

fn ready() {
    // Whoever started the daemon may have closed its output; that is no reason to stop.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), b"ready\n");
    notify::ready();
}
