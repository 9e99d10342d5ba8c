//! Taps outlive the daemon: the helper keeps a descriptor of each queue. After the daemon's end it waits for
//! the next daemon's helper, gives it the taps and ends. It also ends once none of the devices is left.
//!
//! So a container keeps its interface, with addresses and routes, over a restart or a crash of the daemon. An
//! interface of the host itself is kept for [`HOST_PATIENCE`], so that nothing stays on a host without a daemon.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
};
use seqpacket::{Connection, MOST_DESCRIPTORS, SocketError};
use sockets::{ListeningFile, Place, Sockets};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::TapPort;

/// Time between two checks whether devices still exist. A notification would come only by reading packets,
/// which wait for the next daemon.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The longest wait for an earlier daemon's helper to answer, for the end of that daemon, or for the [`Turn`]. A
/// helper that was stopped must not keep this daemon from starting.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two attempts to get the [`Turn`], or the taps of a daemon that is ending.
const AGAIN: Duration = Duration::from_millis(5);

/// How long after the daemon's end interfaces of the host are kept.
const HOST_PATIENCE: Duration = Duration::from_secs(30);

/// The inode of a network namespace, and its file system's device.
type Namespace = (u64, u64);

/// A tap that outlives the daemon.
#[derive(Debug)]
struct Kept {
    queues: Vec<OwnedFd>,
    /// Descriptors that stay open as long as the tap ([`wire::set_up_host_side`]).
    beside: Vec<OwnedFd>,
    /// It is an interface of the host: nobody moves it.
    is_host: bool,
}

impl Kept {
    /// Makes it of descriptors that a helper or a daemon handed over.
    fn received(descriptors: Vec<OwnedFd>) -> Self {
        let is_rules = |fd: &OwnedFd| socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::NETLINK);
        let (beside, queues) = descriptors.into_iter().partition(is_rules);
        Self { queues, beside, is_host: false }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().chain(&self.beside).map(AsFd::as_fd).collect()
    }

    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        self.queues.iter().map(OwnedFd::try_clone).collect()
    }

    fn exists(&self) -> bool {
        self.queues.iter().all(exists)
    }
}

/// The taps of this daemon, and those of the daemon before it.
#[derive(Debug, Default)]
pub(crate) struct Taps(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By the name under which they were created.
    kept: BTreeMap<String, Kept>,
    /// The taps that the daemon has not asked for yet.
    inherited: BTreeMap<String, Kept>,
    /// The daemon has opened its ports, and inherits no more taps.
    is_settled: bool,
    /// The taps belong to another daemon: one from which this daemon takes over, or one that takes over from
    /// this daemon.
    are_anothers: bool,
    /// This helper got its taps at the start from the helper of a daemon that had ended: nobody else has
    /// them.
    is_heir: bool,
    /// The daemon is stopping: the taps that it drops now are kept, if somebody moved them.
    is_stopping: bool,
    /// The daemon's namespace, if it is known. The sandbox does not let the helper ask for it later.
    here: Option<Namespace>,
}

impl Taps {
    /// Returns the taps of the daemon before this one. If this one `takes_over`, the other one has them.
    fn of_earlier(run_dir: &Path, user: u32, takes_over: bool) -> Self {
        // A daemon that died while it took over has its socket at the second path.
        let inherited = [path(run_dir), path_beside(run_dir)].into_iter().flat_map(|socket| {
            let received = if takes_over { receive(&socket, user) } else { await_end(&socket, user) };
            received.unwrap_or_else(|e| {
                tracing::debug!("{}: no taps of an earlier daemon: {e}", socket.display());
                BTreeMap::new()
            })
        });
        let inherited: BTreeMap<_, _> = inherited.collect();
        let is_heir = !inherited.is_empty();
        Self(Mutex::new(State { is_heir, inherited, here: namespace(), ..State::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the queues of a tap that the daemon before this one had; `None` if it had no such tap. The
    /// helper keeps them from now on: the daemon may end at any instant.
    pub(crate) fn take(&self, port: &TapPort) -> Option<Vec<OwnedFd>> {
        let mut state = self.lock();
        let Kept { queues, beside: former, .. } = state.inherited.remove(&port.device)?;
        if queues.len() != usize::from(port.queues.max(1)) || !queues.iter().all(exists) {
            return None;
        }
        queues.iter().try_for_each(|queue| wire::set_tap_offload(queue.as_fd(), port.offload)).ok()?;
        let beside = match &port.host {
            Some(host) if wire::has_host_side(queues[0].as_fd(), host) => {
                wire::set_up_host_side(queues[0].as_fd(), host).ok()?.into_iter().collect()
            }
            Some(_) => return None,
            None => Vec::new(),
        };
        // The rules of the daemon before go once there are new ones.
        drop(former);
        let tap = Kept { queues, beside, is_host: port.host.is_some() };
        let given = tap.copies().ok()?;
        state.kept.insert(port.device.clone(), tap);
        Some(given)
    }

    /// Keeps a new tap. Returns its queues, for the daemon.
    pub(crate) fn keep(&self, port: &TapPort, mut opened: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        let beside = opened.split_off(opened.len().min(port.queues.max(1).into()));
        let tap = Kept { queues: opened, beside, is_host: port.host.is_some() };
        let given = tap.copies()?;
        self.lock().kept.insert(port.device.clone(), tap);
        Ok(given)
    }

    /// Lets go of a tap that the daemon drops. Keeps the tap if the daemon drops everything, and somebody
    /// moved the tap or it is the host's. Other taps are gone before the daemon is, so that a daemon without a
    /// helper can make them again at once.
    pub(crate) fn forget(&self, device: &str) {
        let mut state = self.lock();
        let State { kept, is_stopping, here, .. } = &mut *state;
        if !(*is_stopping && kept.get(device).is_some_and(|tap| outlives(tap, *here))) {
            kept.remove(device);
        }
    }

    /// Returns whether somebody moved a tap out of the daemon's namespace, if that is known.
    pub(crate) fn is_elsewhere(&self, queue: &OwnedFd) -> Option<bool> {
        let here = self.lock().here?;
        Some(namespace_of(queue)? != here)
    }

    /// Lets go of taps that the daemon did not ask for: their guests are gone.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        state.inherited.clear();
        state.is_settled = true;
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.lock().is_settled
    }

    /// Takes a tap that another daemon hands over.
    pub(crate) fn inherit_one(&self, device: &str, queues: &[OwnedFd]) -> io::Result<()> {
        let queues = queues.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        self.lock().inherited.insert(device.to_owned(), Kept::received(queues));
        Ok(())
    }

    /// Sets whether the taps belong to another daemon, which keeps them.
    pub(crate) fn set_anothers(&self, are_anothers: bool) {
        self.lock().are_anothers = are_anothers;
    }

    /// Records that the daemon is about to drop everything.
    pub(crate) fn stop(&self) {
        self.lock().is_stopping = true;
    }

    /// Returns the taps for the next daemon, after this one's end. Taps that this daemon did not come to ask
    /// for are among them. Taps that nobody moved out of the daemon's namespace end, except the host's.
    fn for_heir(&self) -> BTreeMap<String, Kept> {
        let mut state = self.lock();
        let here = state.here;
        let mut taps = std::mem::take(&mut state.inherited);
        taps.values_mut().for_each(|tap| tap.is_host = !is_elsewhere(&tap.queues, here));
        taps.append(&mut state.kept);
        // A daemon from which this one was to take over may have died before this helper started.
        if state.are_anothers && (state.is_settled || !state.is_heir) {
            return BTreeMap::new();
        }
        drop(state);
        taps.retain(|_, tap| outlives(tap, here));
        taps
    }
}

/// Returns whether somebody moved a tap out of the namespace `here`.
fn is_elsewhere(queues: &[OwnedFd], here: Option<Namespace>) -> bool {
    queues.first().and_then(namespace_of) != here
}

/// Returns whether a tap outlives its daemon.
fn outlives(tap: &Kept, here: Option<Namespace>) -> bool {
    tap.is_host || is_elsewhere(&tap.queues, here)
}

fn exists(queue: &OwnedFd) -> bool {
    wire::tap_exists(queue.as_fd())
}

fn namespace_of(queue: &OwnedFd) -> Option<Namespace> {
    let namespace = fstat(wire::tap_namespace(queue.as_fd()).ok()?).ok()?;
    Some((namespace.st_ino, namespace.st_dev))
}

/// Returns the namespace of this process.
fn namespace() -> Option<Namespace> {
    let namespace = rustix::fs::stat("/proc/self/ns/net").ok()?;
    Some((namespace.st_ino, namespace.st_dev))
}

fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("taps.sock")
}

/// Returns the path at which a helper listens while its daemon takes over from another one. The other
/// daemon's helper listens at [`path`].
fn path_beside(run_dir: &Path) -> PathBuf {
    run_dir.join("taps-next.sock")
}

/// Moves the socket of a daemon that took over to the place of the other daemon's socket, unless it is there
/// already. The same process still listens on it.
///
/// # Errors
/// The kernel's.
pub(crate) fn move_in(socket: &Path, run_dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::rename(socket, path(run_dir))?)
}

/// A tap that changes hands: the name under which it was created, with its queues. `None` marks the end.
type Message = Option<String>;

/// The right to ask for taps, until dropped. Daemons that die quickly leave helpers that still start. Each
/// helper holds the right from before it asks until it listens, so that the next helper that asks finds the
/// one that has the taps.
struct Turn {
    _lock: OwnedFd,
}

impl Turn {
    /// Waits for the right.
    ///
    /// # Errors
    /// Another helper holds it for too long, or the lock can't be opened.
    fn take(run_dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(run_dir)?;
        let lock = sockets::open_own_file(&run_dir.join("taps.lock")).map_err(io::Error::other)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _lock: lock }),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(AGAIN),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Takes the taps of the daemon before this one, and listens for the helper that will take over this daemon's
/// taps. This daemon `takes_over` from one that runs, or has the run-dir alone.
pub(crate) fn inherit(run_dir: &Path, user: u32, takes_over: bool) -> (Taps, Result<Heir, sockets::Error>) {
    let turn = Turn::take(run_dir).inspect_err(|e| {
        tracing::warn!("{}: taps of an earlier daemon may be lost: {e}", run_dir.display());
    });
    let taps = Taps::of_earlier(run_dir, user, takes_over);
    let heir = match Heir::listen(run_dir, user) {
        // A daemon runs there. This one does not stay, or it takes over.
        Err(sockets::Error::InUse(_)) => {
            taps.set_anothers(true);
            Heir::listen_beside(run_dir, user)
        }
        other => other.inspect_err(|e| tracing::warn!("taps will end with the daemon: {e}")),
    };
    drop(turn);
    (taps, heir)
}

/// Receives the taps from the helper of an earlier daemon. If that daemon was killed and has not quite ended, its
/// helper gives nothing yet: waits for it.
fn await_end(from: &Path, user: u32) -> Result<BTreeMap<String, Kept>, SocketError> {
    let mut end = None;
    loop {
        match receive(from, user) {
            Err(SocketError::Closed) => {
                let end = *end.get_or_insert_with(|| {
                    tracing::info!("waiting for the end of the daemon that has the taps");
                    Instant::now() + PATIENCE
                });
                if Instant::now() >= end {
                    tracing::warn!("a daemon that does not end keeps its taps: this one makes new ones");
                    return Err(SocketError::Closed);
                }
                std::thread::sleep(AGAIN);
            }
            received => return received,
        }
    }
}

/// Receives the taps from the helper of an earlier daemon.
fn receive(from: &Path, user: u32) -> Result<BTreeMap<String, Kept>, SocketError> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for way in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, way, Some(PATIENCE))?;
    }
    connect(&socket, &SocketAddrUnix::new(from)?)?;
    if !may_have(&socket, user) {
        return Err(Errno::PERM.into());
    }
    let mut connection = Connection::carrying(socket, MOST_DESCRIPTORS);
    let mut taps = BTreeMap::new();
    while let (Some(device), descriptors) = connection.receive::<Message>()? {
        taps.insert(device, Kept::received(descriptors));
    }
    Ok(taps)
}

/// Returns whether the other end belongs to root, or to the user that starts daemons here.
fn may_have(socket: &OwnedFd, user: u32) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid.is_root() || peer.uid.as_raw() == user)
}

/// The socket by which the next daemon's helper asks for the taps.
pub(crate) struct Heir {
    pub(crate) path: PathBuf,
    /// The socket's file. Dropped before the socket is closed, so that it does not remove the file of the
    /// next helper that listens there.
    _file: Arc<dyn ListeningFile>,
    socket: OwnedFd,
    /// The user that starts daemons here, besides root.
    user: u32,
}

impl Heir {
    /// Listens in the run-dir.
    ///
    /// # Errors
    /// If that fails, or another daemon's helper listens there.
    fn listen(run_dir: &Path, user: u32) -> Result<Self, sockets::Error> {
        Self::listen_at(path(run_dir), user)
    }

    /// Listens at [`path_beside`], while the helper of another daemon listens at [`path`].
    ///
    /// # Errors
    /// As for [`Self::listen`].
    fn listen_beside(run_dir: &Path, user: u32) -> Result<Self, sockets::Error> {
        Self::listen_at(path_beside(run_dir), user)
    }

    fn listen_at(path: PathBuf, user: u32) -> Result<Self, sockets::Error> {
        let place = Place { path: path.clone(), owner: None, mode: 0o600 };
        let (socket, _file) = sockets::Here.listen(&place, SocketType::SEQPACKET, 1)?;
        Ok(Self { path, socket, _file, user })
    }

    /// Waits for the daemon's end, calls `ended`, and gives the taps to the next daemon's helper. Returns
    /// when that is done, or when none of the devices is left.
    pub(crate) fn serve(self, daemon: &[OwnedFd], taps: &Taps, ended: impl FnOnce()) {
        // If both are ready, the daemon's end comes first: only a helper that asks after that end is the
        // heir.
        let all: Vec<_> = daemon.iter().chain([&self.socket]).collect();
        while wait(&all, None).is_none_or(|first| first == daemon.len()) {
            // A second daemon of this run-dir asks. It does not stay.
            drop(accept_with(&self.socket, SocketFlags::CLOEXEC));
        }
        ended();
        let mut taps = taps.for_heir();
        let mut here = self;
        let end = Instant::now() + HOST_PATIENCE;
        loop {
            taps.retain(|_, tap| tap.exists() && !(tap.is_host && Instant::now() >= end));
            if taps.is_empty() {
                return;
            }
            if wait(&[&here.socket], Some(&LOOK)) == Some(0)
                && let Some(heir) = here.heir()
            {
                match here.give(heir, &taps) {
                    Ok(()) => return,
                    Err(again) => here = again,
                }
            }
        }
    }

    /// Accepts a helper that asks for the taps. Returns `None` if it may not have them.
    fn heir(&self) -> Option<OwnedFd> {
        let peer = accept_with(&self.socket, SocketFlags::CLOEXEC).ok()?;
        may_have(&peer, self.user).then_some(peer)
    }

    /// Gives the heir the taps, and then this socket's place. Returns `self` if the heir is gone because it
    /// waited too long.
    fn give(self, heir: OwnedFd, taps: &BTreeMap<String, Kept>) -> Result<(), Self> {
        let mut connection = Connection::carrying(heir, MOST_DESCRIPTORS);
        for (device, tap) in taps {
            if let Err(e) = connection.send(&Some(device), &tap.descriptors()) {
                tracing::warn!(device, "a daemon does not get the taps: {e}");
                return Err(self);
            }
        }
        // The heir listens here itself after the last message.
        drop(self);
        let _ = connection.send(&None::<String>, &[]);
        Ok(())
    }
}

/// Waits until one of these is readable or failed, or until the time is over. Returns the index of the first
/// that is ready.
pub(crate) fn wait(on: &[&OwnedFd], most: Option<&Timespec>) -> Option<usize> {
    let mut fds: Vec<_> = on.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    let _ = rustix::event::poll(&mut fds, most);
    fds.iter().position(|fd| !fd.revents().is_empty())
}

pub(crate) fn is_closed(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let _ = rustix::event::poll(&mut fds, Some(&Timespec::default()));
    fds[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn user() -> u32 {
        rustix::process::getuid().as_raw()
    }

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn no_tap() -> Kept {
        Kept { queues: vec![null()], beside: Vec::new(), is_host: false }
    }

    fn port(device: &str, host: Option<wire::HostSide>) -> TapPort {
        TapPort { device: device.to_owned(), queues: 1, mtu: 1500, mac: None, offload: true, host }
    }

    /// Returns a helper's work that gives a tap of this name to the first who asks.
    fn give_one(heir: Heir, device: &str) -> impl FnOnce() + use<> {
        let taps = BTreeMap::from([(device.to_owned(), no_tap())]);
        move || {
            wait(&[&heir.socket], None);
            let asks = heir.heir().unwrap();
            assert!(heir.give(asks, &taps).is_ok());
        }
    }

    #[test]
    fn taps_of_a_daemon_that_died_while_it_took_over_are_inherited() {
        let dir = tempfile::tempdir().unwrap();
        let heirs =
            [Heir::listen(dir.path(), user()), Heir::listen_beside(dir.path(), user())].map(Result::unwrap);
        let given = ["a", "b"]
            .into_iter()
            .zip(heirs)
            .map(|(device, heir)| std::thread::spawn(give_one(heir, device)));
        let given: Vec<_> = given.collect();
        let (taps, heir) = inherit(dir.path(), user(), false);
        given.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(taps.lock().inherited.keys().collect::<Vec<_>>(), ["a", "b"]);
        // Both helpers have given up their places.
        assert_eq!(heir.unwrap().path, path(dir.path()));
        Heir::listen_beside(dir.path(), user()).unwrap();
    }

    #[test]
    fn who_asks_waits_for_a_daemon_that_is_still_ending() {
        let dir = tempfile::tempdir().unwrap();
        let heir = Heir::listen(dir.path(), user()).unwrap();
        let asks = {
            let run_dir = dir.path().to_owned();
            std::thread::spawn(move || inherit(&run_dir, user(), false))
        };
        for _ in 0..3 {
            wait(&[&heir.socket], None);
            drop(accept_with(&heir.socket, SocketFlags::CLOEXEC));
        }
        give_one(heir, "a")();
        let (taps, heir) = asks.join().unwrap();
        assert_eq!(taps.lock().inherited.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(heir.unwrap().path, path(dir.path()));
    }

    #[test]
    fn who_asks_waits_for_a_helper_that_does_not_listen_yet() {
        let dir = tempfile::tempdir().unwrap();
        let is_lock = |to: PathBuf| to == dir.path().join("taps.lock");
        let open_locks = || {
            let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
            descriptors.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(is_lock)).count()
        };
        let turn = Turn::take(dir.path()).unwrap();
        let run_dir = dir.path().to_owned();
        let asks = std::thread::spawn(move || inherit(&run_dir, user(), false));
        while open_locks() < 2 && !asks.is_finished() {
            std::thread::yield_now();
        }
        let gives = give_one(Heir::listen(dir.path(), user()).unwrap(), "a");
        drop(turn);
        gives();
        let (taps, heir) = asks.join().unwrap();
        assert_eq!(taps.lock().inherited.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(heir.unwrap().path, path(dir.path()));
    }

    #[test]
    fn an_heir_that_is_gone_gets_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let heir = Heir::listen(dir.path(), user()).unwrap();
        let (asks, gone) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        assert!(!is_closed(&asks));
        drop(gone);
        assert!(is_closed(&asks));
        let taps = BTreeMap::from([("a".to_owned(), no_tap())]);
        let heir = heir.give(asks, &taps).unwrap_err();
        assert!(heir.path.exists());
    }

    #[test]
    fn taps_of_a_daemon_that_died_are_passed_on_by_one_that_was_to_take_over_from_it() {
        let received = || {
            let inherited = BTreeMap::from([("a".to_owned(), no_tap())]);
            Taps(Mutex::new(State { inherited, is_heir: true, here: Some((0, 0)), ..State::default() }))
        };
        let gives_up = received();
        gives_up.set_anothers(true);
        assert_eq!(gives_up.for_heir().len(), 1);
        // Later this daemon is replaced itself.
        let replaced = received();
        let tap = replaced.lock().inherited.remove("a").unwrap();
        replaced.keep(&port("a", None), tap.queues).unwrap();
        replaced.settle();
        replaced.set_anothers(true);
        assert_eq!(replaced.for_heir().len(), 0);
    }

    #[test]
    fn a_daemon_that_stops_leaves_the_taps_that_somebody_moved() {
        // A file that is no tap has no namespace. So it counts as here for a daemon that does not know its
        // own namespace, and as elsewhere for others.
        let host = || Some(wire::HostSide::default());
        for (here, host, are_kept) in [(Some((0, 0)), None, true), (None, None, false), (None, host(), true)]
        {
            let taps = Taps(Mutex::new(State { here, ..State::default() }));
            let given = taps.keep(&port("a", host), vec![null(), null()]).unwrap();
            assert_eq!(given.len(), 1, "the rules stay here");
            taps.stop();
            taps.forget("a");
            assert_eq!(taps.lock().kept.contains_key("a"), are_kept);
            assert_eq!(taps.for_heir().contains_key("a"), are_kept);
        }
    }
}
