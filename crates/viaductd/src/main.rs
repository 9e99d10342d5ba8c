//! The Viaduct daemon: connects executor, ports and control plane.
#![deny(unsafe_code)]

mod forwarder;
mod inherit;
mod listeners;
mod log;
mod machines;
mod notify;
mod ovs_tables;
mod ports;
mod privileges;
mod replace;
mod verbs;

use anyhow::Context;
use clap::Parser;
use control::{Core, RunDir, Store};
use forwarder::Forwarder;
use helper::Directories;
use inherit::Inheritance;
use listeners::{Clients, Open};
use log::{Format, Log};
use machines::Machines;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use ovs_tables::OvsTables;
use ports::ExecutorPorts;
use privileges::Privileges;
use replace::{New, Old, Shared};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tables::FlowLimits;
use tokio::signal::unix::{SignalKind, signal};
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
    /// What is logged on stderr: this and what is more important
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
    if let [_, first, level, config, directories @ ..] = &arguments[..]
        && first == helper::ARGUMENT
        && let Some(directories) = Directories::of_words(directories)
    {
        let log = level.to_str().and_then(|words| words.parse().ok());
        log.unwrap_or(Log { level: LevelFilter::WARN, format: Format::Text }).start();
        return help(directories, config.into());
    }
    let options = Options::parse();
    options.log().start();
    if let Err(error) = hold_reloads() {
        tracing::warn!(%error, "SIGHUP ends the daemon while it starts");
    }
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
    match run(&options, file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("viaductd: {}", reasons(&e));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each once: some errors end with their cause already.
fn reasons(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Runs the helper of a daemon, which sends requests by standard input.
fn help(directories: Directories, config: PathBuf) -> ExitCode {
    match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => {
            helper::serve(socket, directories, config);
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
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
    config::parse(&text).map_err(|problems| problems.in_file(path))
}

/// A guest takes a dozen descriptors or more: all that may be open without asking anybody. A host of few guests does
/// without.
fn allow_open_files() {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    if let Err(error) = limits.and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most)) {
        tracing::warn!(%error, "no more files can be opened than usual");
    }
}

/// Lets threads of verbs programs that were many, and are few again, weigh what they did (setrlimit(2): 20 is nice
/// value 0). A daemon that may not raise the limit leaves them as they are.
fn allow_weight() {
    const NICE_0: u64 = 20;
    let limits = getrlimit(Resource::RLIMIT_NICE);
    if limits.is_ok_and(|(soft, _)| soft < NICE_0) {
        let _ = setrlimit(Resource::RLIMIT_NICE, NICE_0, NICE_0);
    }
}

/// Has SIGHUP wait until the daemon can take it ([`take_reloads`]). The daemon still has one thread.
fn hold_reloads() -> nix::Result<()> {
    SigSet::from(Signal::SIGHUP).thread_block()
}

/// Takes SIGHUP from now on: each reads the configuration file again.
fn take_reloads(core: Arc<Core>) -> anyhow::Result<()> {
    let mut reloads = signal(SignalKind::hangup())?;
    // One thread that does not block it is enough.
    SigSet::from(Signal::SIGHUP).thread_unblock()?;
    tokio::spawn(async move {
        while reloads.recv().await.is_some() {
            let core = core.clone();
            let _ = tokio::task::spawn_blocking(move || core.reload()).await;
        }
    });
    Ok(())
}

/// What the daemon before left in the run-dir, and what this one leaves there. Without it the daemon works as well.
fn carry_over(run_dir: &Path) -> Option<carryover::Opened> {
    let format = control::FORMAT << 16 | tables::FORMAT;
    let opened = carryover::open(run_dir, FlowLimits::default().table_bytes(), format);
    let warn = |error: &std::io::Error| {
        let dir = run_dir.display();
        tracing::warn!(%error, "{dir}/carryover.0, carryover.1: connections will not be known after a restart");
    };
    opened.inspect_err(warn).ok()
}

/// What a daemon shares from which this one takes over, and the way to it.
type Predecessor = (Option<New>, Shared);

/// Asks the running daemon of the run-dir, if it is to be replaced.
fn predecessor(options: &Options, run_dir: &Path) -> anyhow::Result<Predecessor> {
    if !options.replace {
        return Ok(Predecessor::default());
    }
    let (new, shared) = New::ask(run_dir)?;
    Ok((Some(new), shared))
}

/// The privileges of the daemon of this file, which still has one thread.
fn privileges(
    options: &Options,
    file: &config::Document,
    config: &Path,
    run_dir: &Path,
) -> anyhow::Result<Privileges> {
    if options.no_sandbox {
        return Ok(Privileges::here());
    }
    let listed = file.host.socket_dirs.iter().map(PathBuf::from);
    let others = listed.chain(control::socket_directories(file, run_dir));
    Ok(Privileges::of_helper(&Directories::new(run_dir, others), config, &options.log().to_string())?)
}

fn run(options: &Options, file: config::Document) -> anyhow::Result<()> {
    allow_open_files();
    allow_weight();
    // The sandbox forbids asking for the working directory.
    let run_dir = std::path::absolute(&options.run_dir).context("run-dir")?;
    let config = std::path::absolute(&options.config).context("configuration file")?;
    let (predecessor, mut shared) = predecessor(options, &run_dir)?;
    let is_ours = predecessor.as_ref().map(|new| new.is_ours.clone()).unwrap_or_default();
    let user = rustix::process::getuid().as_raw();
    // Before the helper, which may write there.
    let windows =
        verbs::make_directories(&run_dir).with_context(|| format!("run-dir {}", run_dir.display()))?;
    let privileges = privileges(options, &file, &config, &run_dir)?;
    let run_dir_lock = RunDir::take_from(&run_dir, shared.run_dir.take())?;
    let journals = ports::journals(&run_dir);
    let carryover = carry_over(&run_dir);
    let store = Store::open_from(&options.state_dir, shared.store.take())?;
    let locks = (run_dir_lock.share()?, store.share()?);
    let host = file.host.clone();
    let metrics = listeners::metrics(host.metrics, &mut shared.listeners)?;
    let notifier = Arc::new(notify::connect());
    let helper_ended = privileges.ended()?;
    let sandbox = privileges.give_up();

    let flows = match &carryover {
        Some(opened) => opened.own.table().context("memory for connections")?,
        None => None,
    };
    let forwarder = Forwarder::start(&host, flows)?;
    let inherited = predecessor.as_ref().map(|_| Inheritance::new(shared.ports, is_ours.clone()));
    // The running daemon still writes what it leaves.
    let (carryover, later) = match &predecessor {
        Some(_) => {
            forwarder.pause()?;
            (None, carryover)
        }
        None => {
            // What waits for this daemon is moved once all ports are open that can be.
            if let Err(e) = forwarder.hold() {
                tracing::warn!("packets flow before all ports are open: {e:#}");
            }
            (carryover, None)
        }
    };
    let ovs = ovs::Service::new(Arc::new(OvsTables::new(&forwarder)), ovs::Times::default());
    let ovs = Arc::new(ovs.context("drivers of Open vSwitch can't be served")?);
    let machines = Arc::new(Machines::new(shared.listeners.remove(machines::NAME)));
    let verbs = (windows, machines.clone());
    let ports =
        ExecutorPorts::new(forwarder.clone(), ovs.clone(), privileges.clone(), journals, inherited, verbs);
    let ports = Arc::new(ports);
    let config = privileges.config(&config);
    let core = Core::start(&file, config, run_dir.clone(), store, forwarder.executor(), ports, carryover)?;
    let core = Arc::new(core);
    if predecessor.is_none() {
        forwarder.resume();
    }
    let clients = Clients { privileges: &privileges, shared: &mut shared.listeners, is_ours };
    let Open { listeners, copies, replace, drivers, files: _files } =
        clients.open(&run_dir, host.readers.as_deref(), metrics)?;
    privileges.settle();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .context("the control plane can't be started")?;
    if let Some(new) = predecessor {
        new.take_over((&core, later), &forwarder, &privileges);
    }
    ovs.serve(drivers).context("drivers of Open vSwitch can't be served")?;
    let links = core.clone();
    let _links = wire::Links::watch(move || {
        if let Err(e) = links.retry(true) {
            tracing::warn!("a port that can be opened again is not in use: {e}");
        }
    })
    .context("network devices can't be watched")?;
    let old = Arc::new(Old {
        core: core.clone(),
        forwarder,
        privileges: privileges.clone(),
        notifier: notifier.clone(),
        locks,
        listeners: copies,
        machines,
        user,
    });
    old.serve(replace).context("daemons that take over can't be served")?;
    let served = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        take_reloads(core.clone())?;
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            privileges.stop();
        };
        let served = control::serve(core, listeners, sandbox, || ready(&notifier), stop);
        tokio::select! {
            served = served => Ok(served?),
            ended = ended(helper_ended) => ended,
        }
    });
    // Ports and workers are held by requests still running, if any; the process ends soon enough for them.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    if served.is_ok() {
        tracing::info!("stopped");
    }
    served
}

/// Waits for the helper's end, which is the daemon's: without it no device comes back.
async fn ended(helper: Option<OwnedFd>) -> anyhow::Result<()> {
    let Some(helper) = helper else { return std::future::pending().await };
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("helper-watch".into()).spawn(move || {
        let mut gone = [PollFd::new(&helper, PollFlags::IN)];
        while poll(&mut gone, None) == Err(rustix::io::Errno::INTR) {}
        tell.send(())
    })?;
    let _ = told.await;
    anyhow::bail!("the helper process has ended, without which no device or socket can be opened")
}

fn ready(notifier: &notify::Notifier) {
    // Whoever started the daemon may have closed its output; that is no reason to stop.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), b"ready\n");
    notifier.ready();
}
