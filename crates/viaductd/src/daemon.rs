//! The daemon from its start to its end.
//!
//! While it has privileges and a single thread, it opens everything that needs privileges ([`Start`]) and
//! starts a helper that keeps them. Then it gives its privileges up, starts the executor, opens the ports,
//! takes over from the running daemon if it is to replace one, and serves clients until it is stopped.

use crate::bgp::{Bgp, Learned, Sockets as BfdSockets};
use crate::forwarder::Forwarder;
use crate::inherit::{Inheritance, Succession};
use crate::listeners::{self, Clients, Open};
use crate::machines::{self, Machines};
use crate::notify::{self, Notifier};
use crate::ovs_tables::OvsTables;
use crate::ports::{self, ExecutorPorts};
use crate::privileges::Privileges;
use crate::remotes::Remotes;
use crate::replace::{New, Old, Shared};
use crate::{Options, limits, signals, verbs};
use anyhow::Context;
use control::{Core, Missing, Process, RunDir, Sandbox, Store};
use helper::Directories;
use rustix::event::{PollFd, PollFlags, poll};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tables::FlowLimits;
use tokio::runtime::{Builder, Runtime};
use virtio::Journals;

/// Runs the daemon until a signal stops it, a new daemon replaces it, or its helper ends.
///
/// # Errors
/// The daemon can't start, or its helper has ended.
pub fn run(options: &Options, file: &config::Document) -> anyhow::Result<()> {
    limits::raise();
    // One for each worker, and some for all others.
    mem::share_arenas(file.host.workers.len().max(1) + CLIENT_THREADS);
    let mut start = Start::open(options, file)?;
    let privileges = start.privileges.clone();
    let sandbox = privileges.give_up();

    let forwarder = start.forwarder(&file.host)?;
    let ovs = ovs::Service::new(Arc::new(OvsTables::new(&forwarder)), ovs::Times::default());
    let ovs = Arc::new(ovs.context("drivers of Open vSwitch can't be served")?);
    let machines = Arc::new(Machines::new(start.shared.listeners.remove(machines::NAME)));
    let bgp = Arc::new(Bgp::new().context("BGP can't be spoken")?);
    let has_host = start.predecessor.is_none();
    let names = file.host.bgp.is_some();
    let remotes = Remotes::new(forwarder.engine(), &forwarder.executor(), (&bgp, names), has_host);
    let remotes = Arc::new(remotes);
    let inherited =
        start.predecessor.is_some().then(|| Inheritance::new(start.shared.ports, start.succession.clone()));
    let ports = Arc::new(ExecutorPorts::new(
        forwarder.clone(),
        (ovs.clone(), bgp.clone(), remotes.clone()),
        privileges.clone(),
        start.journals,
        inherited,
        (start.windows, machines.clone()),
        &file.host,
    ));
    // A daemon that is to be replaced still writes the data that it leaves, so read them later.
    let (left, left_later) = match &start.predecessor {
        None => (start.carryover, None),
        Some(_) => (None, start.carryover),
    };
    let config = privileges.config(&start.config);
    let core = Core::start(
        file,
        config,
        start.run_dir.clone(),
        start.store,
        forwarder.executor(),
        ports.clone(),
        left,
    )?;
    let core = Arc::new(core);
    // Before packets flow.
    let learned = match &file.host.bgp {
        Some(_) => Some(Learned::new(&core, start.shared.routes).context("BGP can't be spoken")?),
        None => None,
    };
    if start.predecessor.is_none() {
        forwarder.resume();
    }

    let clients = Clients {
        privileges: &privileges,
        shared: start.shared.listeners,
        succession: start.succession,
        missing: start.missing,
    };
    let Open { listeners, mut copies, replace, drivers, files: _files } =
        clients.open(&start.run_dir, file.host.readers.as_deref(), start.metrics)?;
    privileges.settle();
    let runtime = runtime()?;
    if let Some(new) = start.predecessor {
        new.take_over((&core, left_later), (&forwarder, &remotes), &privileges);
        ports.succeed();
    }
    let mut peers = Vec::new();
    for (name, listener) in start.peers {
        copies.push((name, listener.try_clone()?.into()));
        peers.push(listener);
    }
    copies.extend(start.bfd.copies()?);
    if let Some(learned) = learned {
        let bfd = (start.bfd, &start.shared.sessions[..]);
        bgp.start(&core, privileges.clone(), peers, bfd, (learned, remotes.clone()))
            .context("BGP can't be spoken")?;
    }
    ovs.serve(drivers).context("drivers of Open vSwitch can't be served")?;
    let _links = watch_links(core.clone())?;
    let old = Arc::new(Old {
        core: core.clone(),
        forwarder,
        privileges: privileges.clone(),
        notifier: start.notifier.clone(),
        locks: start.locks,
        listeners: copies,
        bgp,
        remotes,
        machines,
        matchmaker: ports.matchmaker.clone(),
        user: start.user,
    });
    old.serve(replace).context("daemons that take over can't be served")?;
    let served = serve(runtime, core, (listeners, sandbox), &privileges, start.helper_ended, &start.notifier);
    old.bgp.stop();
    old.remotes.stop();
    served?;
    tracing::info!("stopped");
    Ok(())
}

/// Things that the daemon opens while it has privileges and a single thread.
struct Start {
    run_dir: PathBuf,
    config: PathBuf,
    user: u32,
    /// The conversation with the daemon that this one is to replace, and the descriptors that it shares.
    predecessor: Option<New>,
    shared: Shared,
    succession: Arc<Succession>,
    windows: verbs::Windows,
    /// Held until the daemon ends.
    _run_dir_lock: RunDir,
    privileges: Privileges,
    journals: Option<Arc<Journals>>,
    carryover: Option<carryover::Opened>,
    store: Store,
    /// Copies of the locks of run-dir and store.
    locks: (OwnedFd, Option<OwnedFd>),
    metrics: Option<(TcpListener, Process)>,
    /// Sockets to which BGP peers connect.
    peers: Vec<(&'static str, TcpListener)>,
    /// Sockets by which the paths to them are watched.
    bfd: BfdSockets,
    /// Sockets of clients that can't be opened.
    missing: Missing,
    notifier: Arc<Notifier>,
    /// Polls readable when the helper has ended.
    helper_ended: Option<OwnedFd>,
}

impl Start {
    /// Opens everything that needs privileges.
    ///
    /// # Errors
    /// Something is missing, in use, or not permitted to this user.
    fn open(options: &Options, file: &config::Document) -> anyhow::Result<Self> {
        // The sandbox forbids asking for the working directory.
        let run_dir = std::path::absolute(&options.run_dir).context("run-dir")?;
        let config = std::path::absolute(&options.config).context("configuration file")?;
        let (predecessor, mut shared) = predecessor(options, &run_dir)?;
        let user = rustix::process::getuid().as_raw();
        // Must come before the helper, which may write there.
        let found =
            verbs::make_directories(&run_dir).with_context(|| format!("run-dir {}", run_dir.display()))?;
        // Must come before the helper, too: it then waits only for a daemon that is ending.
        let run_dir_lock = RunDir::take_from(&run_dir, shared.run_dir.take())?;
        let privileges = privileges(options, file, &config, &run_dir)?;
        let journals = ports::journals(&run_dir);
        let windows = verbs::Windows::new(found, &run_dir);
        let carryover = carry_over(&run_dir);
        let store = Store::open_from(&options.state_dir, shared.store.take())?;
        let missing = Missing::default();
        Ok(Self {
            user,
            succession: predecessor.as_ref().map(|new| new.succession.clone()).unwrap_or_default(),
            predecessor,
            windows,
            journals,
            carryover,
            locks: (run_dir_lock.share()?, store.share()?),
            store,
            metrics: listeners::metrics(file.host.metrics, &mut shared.listeners, &missing)?,
            peers: listeners::bgp(file.host.bgp.as_ref(), &mut shared.listeners, &missing),
            bfd: BfdSockets::open(file.host.bgp.as_ref(), &mut shared.listeners, &missing),
            missing,
            shared,
            notifier: Arc::new(notify::connect()),
            helper_ended: privileges.ended()?,
            privileges,
            run_dir,
            config,
            _run_dir_lock: run_dir_lock,
        })
    }

    /// Starts the executor, which leaves packets in their queues for now.
    ///
    /// # Errors
    /// The system lacks memory or threads, or a running daemon can't be replaced with this executor.
    fn forwarder(&self, host: &config::Host) -> anyhow::Result<Forwarder> {
        let flows = match &self.carryover {
            Some(opened) => opened.own.table().context("memory for connections")?,
            None => None,
        };
        let forwarder = Forwarder::start(host, flows)?;
        if self.predecessor.is_some() {
            forwarder.pause()?;
        } else if let Err(e) = forwarder.hold() {
            tracing::warn!("packets flow before all ports are open: {e:#}");
        }
        Ok(forwarder)
    }
}

/// Asks the running daemon of the run-dir to share its descriptors, if it is to be replaced.
fn predecessor(options: &Options, run_dir: &Path) -> anyhow::Result<(Option<New>, Shared)> {
    if !options.replace {
        return Ok(Default::default());
    }
    let (new, shared) = New::ask(run_dir)?;
    Ok((Some(new), shared))
}

/// Starts the helper for this file, or keeps the daemon's own privileges without a sandbox. The process must
/// have a single thread.
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
    let own = config.parent().filter(|_| file.host.has_default_socket_dirs()).map(Path::to_owned);
    let others = listed.chain(own).chain(control::socket_directories(file, run_dir));
    let directories = Directories::new(run_dir, others);
    Ok(Privileges::of_helper(&directories, config, &options.log().to_string(), options.replace)?)
}

/// Opens the data that the previous daemon left in the run-dir, and the place for those of this one. The
/// daemon also works without.
fn carry_over(run_dir: &Path) -> Option<carryover::Opened> {
    let format = control::FORMAT << 16 | tables::FORMAT;
    let opened = carryover::open(run_dir, FlowLimits::default().table_bytes(), format);
    let warn = |error: &std::io::Error| {
        let dir = run_dir.display();
        tracing::warn!(%error, "{dir}/carryover.0, carryover.1: connections will not be known after a restart");
    };
    opened.inspect_err(warn).ok()
}

/// Opens ports again when their devices come back, until the result is dropped.
fn watch_links(core: Arc<Core>) -> anyhow::Result<wire::Links> {
    let retry = move || {
        if let Err(e) = core.retry(true) {
            tracing::warn!("a port that can be opened again is not in use: {e}");
        }
    };
    wire::Links::watch(retry).context("network devices can't be watched")
}

/// Threads that read requests and write answers.
const CLIENT_THREADS: usize = 4;

/// Starts the runtime of the control plane.
fn runtime() -> anyhow::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    // Several, so that one client's long message keeps nobody else waiting.
    builder.worker_threads(CLIENT_THREADS).thread_name("control").enable_all();
    builder.build().context("the control plane can't be started")
}

/// Serves clients until a signal stops the daemon.
///
/// # Errors
/// The helper has ended, or clients can't be served.
fn serve(
    runtime: Runtime,
    core: Arc<Core>,
    (listeners, sandbox): (control::Listeners, Sandbox),
    privileges: &Privileges,
    helper_ended: Option<OwnedFd>,
    notifier: &Notifier,
) -> anyhow::Result<()> {
    let served = runtime.block_on(async {
        let stopped = signals::stop()?;
        signals::take_reloads(core.clone())?;
        let stop = async {
            stopped.await;
            privileges.stop();
        };
        let served = control::serve(core, listeners, sandbox, || ready(notifier), stop);
        tokio::select! {
            served = served => Ok(served?),
            ended = ended(helper_ended) => ended,
        }
    });
    // Requests that still run may hold ports and workers; the process ends soon enough to free them.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Waits for the helper's end. The daemon then ends too, because without the helper it can open no device
/// again.
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

fn ready(notifier: &Notifier) {
    // Whoever started the daemon may have closed its output; that is no reason to stop.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), b"ready\n");
    notifier.ready();
}
