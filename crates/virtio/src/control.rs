//! The control thread of a port: waits for VMMs and serves them, one after the other.

mod budget;
mod hand_over;
mod unshared;
mod watch;

pub(crate) use hand_over::{Command, Freezing};
pub(crate) use unshared::Lack;
pub use watch::{VmmEvent, Watch};

use crate::GuestPort;
use crate::backend::Backend;
use crate::features::Features;
use crate::journals::Journals;
use crate::log::Log;
use crate::queue::Shared;
use crate::socket::{Listener, connect};
use crate::{Role, messages};
use budget::Budget;
use hand_over::Adoption;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_oobinline, socket_peercred};
use sockets::Sockets;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::debug;
use unshared::Unshared;
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

/// Pause between two attempts to connect: the first and the longest. A connection that lasts as long as the longest one is
/// made again at once when it ends.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Pause between two looks for the rest of a message, or for room for its answer.
const REST: Duration = Duration::from_millis(10);

/// Returns the number of the process that connected, or that listens: the VMM, or the one that gave it the
/// socket. 0: that process has no number here.
fn process(stream: &UnixStream) -> i32 {
    socket_peercred(stream).map_or(0, |peer| rustix::process::Pid::as_raw(Some(peer.pid)))
}

/// State that the control thread and the port that owns it share.
pub(crate) struct Control {
    pub(crate) config: GuestPort,
    /// Creates its socket, or connects to the VMM's.
    pub(crate) sockets: Arc<dyn Sockets>,
    /// The file in which packed rings keep their positions, if they outlive this process.
    pub(crate) journals: Option<Arc<Journals>>,
    pub(crate) log: Arc<Log>,
    /// Is told of the VMM's doings.
    pub(crate) watch: Option<Watch>,
    pub(crate) shared: Arc<Shared>,
    /// Signalled to make the thread check whether it must end.
    pub(crate) wake: OwnedFd,
    pub(crate) closing: AtomicBool,
    /// Whether the guest's link is down: then the guest's VMM finds nobody.
    pub(crate) is_down: AtomicBool,
    /// The current connection, so that closing can end a wait for the VMM.
    pub(crate) stream: Mutex<Option<UnixStream>>,
    /// A command that the thread did not see yet.
    pub(crate) command: Mutex<Option<Command>>,
    /// The answer to a command to stop, once it comes, and the time until which it is awaited.
    pub(crate) freezing: Mutex<Option<Freezing>>,
    /// The last refused request, in words.
    pub(crate) refused: Mutex<Option<String>>,
}

impl Control {
    /// Runs until closed. `listener` is set in server role.
    pub(crate) fn run(&self, listener: Option<&Listener>) {
        if let Err(e) = mem::prepare_to_signal() {
            self.log.warn(format_args!("can't send interrupts to drivers: {e}"));
        }
        let (mut pause, mut failure) = (RETRY.0, None);
        let mut budget = Budget::of_thread();
        let mut adopted = if self.config.waits { self.park() } else { None };
        while !self.is_closing() {
            if adopted.is_none() {
                budget.lower();
            }
            let connected = match (adopted.take(), listener) {
                (Some((stream, adoption)), _) => Some((stream, Some(adoption))),
                (None, Some(listener)) => {
                    if let Some(pause) = budget.pause() {
                        self.wait(None, Some(pause));
                        adopted = self.obey();
                        continue;
                    }
                    // A VMM that waited for an answer would stand still: it is turned away.
                    self.accept(listener).filter(|_| !self.is_down()).map(|stream| (stream, None))
                }
                (None, None) if self.is_down() => None,
                (None, None) => self.connect(&mut failure).map(|stream| (stream, None)),
            };
            let is_brief = match connected {
                Some((stream, adoption)) => {
                    let since = Instant::now();
                    let way = if adoption.is_some() { "taken over" } else { "connected" };
                    self.log.info(format_args!("VMM {way}"));
                    self.tell(VmmEvent::Came(process(&stream)));
                    self.serve(stream, adoption, &mut budget);
                    self.log.info(format_args!("VMM disconnected"));
                    // While the link is down, or the port closes, that is our doing.
                    if !self.is_down() && !self.is_closing() {
                        self.tell(VmmEvent::Left);
                    }
                    since.elapsed() < RETRY.1
                }
                None => true,
            };
            // A VMM that ends each connection is no better than one that is not there.
            if self.config.role == Role::Client {
                pause = match is_brief {
                    true => {
                        self.wait(None, Some(pause));
                        (pause * 2).min(RETRY.1)
                    }
                    false => RETRY.0,
                };
            }
            adopted = self.obey();
        }
    }

    fn tell(&self, event: VmmEvent) {
        self.watch.iter().for_each(|watch| watch(event));
    }

    /// Tells the watcher if the VMM just stopped all queues; before, `pairs` pairs of queues ran.
    fn tell_stop(&self, pairs: u16) {
        if pairs > 0 && self.shared.pairs.load(Ordering::Relaxed) == 0 {
            self.tell(VmmEvent::Stopped);
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    /// Asks the thread to end.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        mem::wake(self.wake.as_fd());
        self.disconnect();
    }

    /// Sets the guest's link. vhost-user has no message for it; VMMs take the link down with the connection.
    pub(crate) fn set_link(&self, up: bool) {
        if self.is_down.swap(!up, Ordering::AcqRel) == up {
            mem::wake(self.wake.as_fd());
            if !up {
                self.disconnect();
            }
        }
    }

    fn disconnect(&self) {
        if let Some(stream) = &*lock(&self.stream) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connects to the VMM. It retries forever, and logs a failure only if it differs from the last one.
    fn connect(&self, last: &mut Option<String>) -> Option<UnixStream> {
        let connected = connect(&self.config.socket, &*self.sockets).map_err(|e| e.to_string());
        let failure = connected.as_ref().err().cloned();
        if let Some(why) = &failure
            && last != &failure
        {
            self.log.info(format_args!("no VMM yet: {why}"));
        }
        *last = failure;
        connected.ok()
    }

    fn accept(&self, listener: &Listener) -> Option<UnixStream> {
        self.wait(Some(listener.as_fd()), None).then(|| {
            listener.accept().unwrap_or_else(|e| {
                self.log.warn(format_args!("can't accept a VMM's connection: {e}"));
                // Most likely out of descriptors: wait for others to close some.
                self.wait(None, Some(RETRY.1));
                None
            })
        })?
    }

    /// Waits for `fd`, the timeout or being closed. Returns whether `fd` was the reason.
    fn wait(&self, fd: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        if let Some(fd) = fd {
            fds[1] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
        }
        let count = 1 + usize::from(fd.is_some());
        let _ = poll(&mut fds[..count], timeout.as_ref());
        fd.is_some() && fds[0].revents().is_empty() && !fds[1].revents().is_empty()
    }

    /// Serves one connection to its end.
    fn serve(&self, stream: UnixStream, adoption: Option<Adoption>, budget: &mut Budget) {
        *lock(&self.refused) = None;
        let served = (|| {
            let closing = stream.try_clone()?;
            *lock(&self.stream) = Some(closing);
            if self.is_down() {
                return Ok(());
            }
            self.handle_requests(stream, adoption, budget)
        })();
        // Descriptors waiting in it are closed with it, which may take long: so not under the lock.
        let closing = lock(&self.stream).take();
        drop(closing);
        if let Err(e) = served {
            self.log.warn(format_args!("connection to the VMM: {e}"));
            *lock(&self.refused) = Some(e.to_string());
        }
    }

    fn handle_requests(
        &self,
        mut stream: UnixStream,
        adoption: Option<Adoption>,
        budget: &mut Budget,
    ) -> io::Result<()> {
        // Otherwise a byte out of band would count as one of the message, but never be read.
        set_socket_oobinline(&stream, true)?;
        let config = &self.config;
        let offered = Features::offered(config.offload, config.migrates);
        let journals = self.journals.clone();
        let (log, watch) = (self.log.clone(), self.watch.clone());
        let backend = Backend::new(log, self.shared.clone(), (journals, watch), offered, config.mtu);
        let backend = Arc::new(Mutex::new(backend));
        let mut handler = match adoption {
            None => BackendReqHandler::from_stream(stream.try_clone()?, backend.clone()),
            Some(adoption) => {
                let handler = self.handler(&stream, &backend, adoption);
                // The other process may still go on itself, and then it answers what the VMM asks.
                drop(self.park());
                budget.lower();
                handler?
            }
        };
        let mut unshared = Unshared::default();
        loop {
            lock(&backend).tell_use();
            let lack = lock(&backend).lack();
            let patience = unshared.tell(lack, &mut lock(&self.refused), &self.log);
            let pause = budget.pause();
            let waits_for = if pause.is_none() { Some(stream.as_fd()) } else { None };
            if !self.wait(waits_for, pause.or(patience)) {
                if self.is_closing() {
                    return Ok(());
                }
                self.obey_serving(&stream, &backend);
                continue;
            }
            if !messages::is_due(&stream)? {
                // Polling does not tell when the rest of the message arrives.
                self.wait(None, Some(REST));
                continue;
            }
            let pairs = self.shared.pairs.load(Ordering::Relaxed);
            if messages::handle(&mut stream, &mut lock(&backend))? {
                self.tell_stop(pairs);
                continue;
            }
            let handled = handler.handle_request();
            lock(&backend).answered();
            self.tell_stop(pairs);
            match handled {
                Ok(()) => {}
                Err(VhostError::Disconnected | VhostError::SocketBroken(_)) => return Ok(()),
                // The VMM was told if it asked for a reply; what it does next is its decision.
                Err(VhostError::ReqHandlerError(e)) => {
                    self.log.warn(format_args!("{e}"));
                    *lock(&self.refused) = Some(e.to_string());
                }
                Err(e) => {
                    debug!(guest = config.name, "{e}");
                    return Err(io::Error::other(e));
                }
            }
        }
    }
}

/// Locks a value that is only ever replaced as a whole, so a panic elsewhere leaves nothing half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
