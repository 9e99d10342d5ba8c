//! The daemon's sockets: the API on RUN_DIR/viaduct.sock, its read-only part on RUN_DIR/viaduct-read.sock,
//! and metrics over HTTP.

use crate::answers::Answers;
use crate::clients::{Bounds, Clients, Counted};
use crate::core::Core;
use crate::metrics;
use crate::process::Process;
use crate::run_dir_lock::Lock;
use crate::service::{Missing, ReadOnly, Sandbox, Service};
use api::v1::viaduct_server::{Viaduct, ViaductServer};
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};

/// How often we look for changes that nobody requested.
const REFRESH: Duration = Duration::from_secs(1);
/// How often we look if there are guests on standby, and for guests that come up if others are told of them: until an
/// arrival is noticed, nobody reaches the guest.
const ARRIVAL: Duration = Duration::from_millis(20);

/// How often we ask a client whether it is still there. A client that does not answer is disconnected.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

struct Limits {
    /// Largest request, bytes.
    request: usize,
    /// Most requests of a connection that are under way or have unread answers. `None`: HTTP/2's default.
    streams: Option<u32>,
    connections: Bounds,
}

/// For those who control the host: room for a request of a million routes.
const CONTROL: Limits = Limits { request: 256 << 20, streams: None, connections: Bounds::DEFAULT };

/// For those who read: an answer may take 100 MB, and stays in memory until somebody reads it.
const READING: Limits =
    Limits { request: 1 << 20, streams: Some(4), connections: Bounds { connections: 16, ..Bounds::DEFAULT } };

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A different daemon runs in this directory.
    #[error("another viaductd runs in {}: stop it first, or give this one its own --run-dir", .0.display())]
    Running(PathBuf),
    /// The daemon's user may not write to the run-dir.
    #[error("run-dir {}: start viaductd as root, or give it a --run-dir where it may write: {source}", path.display())]
    Denied { path: PathBuf, source: std::io::Error },
    /// Something other than a directory is in the place of the run-dir.
    #[error("run-dir {} is no directory: remove what is there, or name another --run-dir", .0.display())]
    NoDirectory(PathBuf),
    /// A socket or file can't be opened.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        source: std::io::Error,
    },
}

fn at<T>(what: impl Into<String>, result: std::io::Result<T>) -> Result<T, ServeError> {
    result.map_err(|source| ServeError::Io { what: what.into(), source })
}

fn in_run_dir<T>(path: &Path, result: std::io::Result<T>) -> Result<T, ServeError> {
    match result {
        Err(source) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(ServeError::Denied { path: path.to_owned(), source })
        }
        // `create_dir_all` returns this for a file.
        Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(ServeError::NoDirectory(path.to_owned()))
        }
        other => at(format!("run-dir {}", path.display()), other),
    }
}

/// The run-dir, taken by this daemon alone.
pub struct RunDir {
    lock: Lock,
}

impl RunDir {
    /// Makes the directory and takes it.
    ///
    /// # Errors
    /// [`ServeError::Running`], or that the directory can't be made.
    pub fn take(path: &Path) -> Result<Self, ServeError> {
        Self::take_from(path, None)
    }

    /// Takes the directory from the daemon that has it and handed over its lock `other`.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn take_from(path: &Path, other: Option<OwnedFd>) -> Result<Self, ServeError> {
        in_run_dir(path, std::fs::create_dir_all(path))?;
        let taken = match other {
            None => Lock::take(path),
            other => Lock::take_from(path, other),
        };
        match in_run_dir(path, taken)? {
            Some(lock) => Ok(Self { lock }),
            None => Err(ServeError::Running(path.to_owned())),
        }
    }

    /// Duplicates the lock, for a daemon that takes over.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        self.lock.share()
    }
}

pub struct Listeners {
    /// Unix socket of the API.
    pub api: OwnedFd,
    /// Unix socket of the API for those who only read, if wanted.
    pub readers: Option<OwnedFd>,
    /// Socket of metrics, if wanted, with the process that they describe.
    pub metrics: Option<(std::net::TcpListener, Process)>,
    /// Problems of other sockets that `[host]` wants.
    pub missing: Missing,
}

fn unix(socket: OwnedFd) -> std::io::Result<UnixListener> {
    let socket = std::os::unix::net::UnixListener::from(socket);
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket)
}

fn tcp((listener, process): (std::net::TcpListener, Process)) -> std::io::Result<(TcpListener, Process)> {
    listener.set_nonblocking(true)?;
    Ok((TcpListener::from_std(listener)?, process))
}

/// Logs if the configuration file differs from what is in force.
fn tell_difference(core: &Core) {
    if let Some(difference) = core.config().difference(&core.view()) {
        tracing::warn!("{}: {difference}", core.config().path().display());
    }
}

/// Serves the API, and metrics if they have a listener, until `stop`. Calls `ready` first. Clients can ask
/// for the daemon's `sandbox`.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    core: Arc<Core>,
    listeners: Listeners,
    sandbox: Sandbox,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let what = "sockets of clients";
    let (listener, readers) =
        (at(what, unix(listeners.api))?, at(what, listeners.readers.map(unix).transpose())?);
    let scrapes = at(what, listeners.metrics.map(tcp).transpose())?
        .map(|(listener, process)| metrics::serve(core.clone(), process, listener));
    let answers = Answers::default();
    let service = Service { core: core.clone(), sandbox, missing: listeners.missing, answers };
    let readers = readers.map(|listener| answer(listener, ReadOnly(service.clone()), READING));
    ready();
    let started = core.clone();
    tokio::task::spawn_blocking(move || tell_difference(&started));
    tokio::select! {
        result = answer(listener, service, CONTROL) => at("control socket", result)?,
        result = or_never(readers) => at("socket of readers", result)?,
        () = or_never(scrapes) => {}
        () = refresh(&core) => {}
        () = keep(&core) => {}
        () = stop => {}
    }
    let _ = tokio::task::spawn_blocking(move || core.leave()).await;
    Ok(())
}

async fn answer(listener: UnixListener, service: impl Viaduct, limits: Limits) -> std::io::Result<()> {
    let service = ViaductServer::new(service).max_decoding_message_size(limits.request);
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .max_concurrent_streams(limits.streams)
        .add_service(Counted(service))
        .serve_with_incoming(Clients::new(listener, limits.connections));
    server.await.map_err(std::io::Error::other)
}

async fn or_never<T>(work: Option<impl Future<Output = T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

async fn refresh(core: &Arc<Core>) {
    let mut present = None;
    loop {
        pause(core, &mut present).await;
        let core = core.clone();
        let work = move || core.refresh().and_then(|()| core.retry(false));
        if let Ok(Err(e)) = tokio::task::spawn_blocking(work).await {
            tracing::warn!("can't follow a wire's new address, or a guest that came or went: {e}");
        }
    }
}

/// Waits until it is time to look again: sooner if BGP peers are to be told of a guest that has come or gone.
async fn pause(core: &Arc<Core>, present: &mut Option<u64>) {
    let view = core.view();
    if view.standby || view.host.bgp.is_none() {
        return tokio::time::sleep(if view.standby { ARRIVAL } else { REFRESH }).await;
    }
    let (begun, mut pause) = (Instant::now(), ARRIVAL);
    while begun.elapsed() < REFRESH {
        tokio::time::sleep(pause).await;
        let core = core.clone();
        let look = move || {
            let start = cpu_time();
            (core.present(), cpu_time().saturating_sub(start))
        };
        let Ok((now, took)) = tokio::task::spawn_blocking(look).await else { return };
        if present.replace(now).is_some_and(|before| before != now) {
            return;
        }
        // Use a hundredth of a CPU at most. What a look waited for others does not count, so that guests are noticed
        // as soon on a busy host.
        pause = ARRIVAL.max(100 * took).min(REFRESH.saturating_sub(begun.elapsed()));
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Keeps the data for the next daemon up to date: what this one learns and counts.
async fn keep(core: &Arc<Core>) {
    let mut pause = REFRESH;
    loop {
        tokio::time::sleep(pause).await;
        let (core, start) = (core.clone(), Instant::now());
        let _ = tokio::task::spawn_blocking(move || core.keep()).await;
        // Use a twentieth of a CPU at most.
        pause = REFRESH.max(20 * start.elapsed());
    }
}

#[cfg(test)]
mod tests;
