//! Follows the kernel's routes and neighbours, by which tunnel packets leave on wires that the kernel keeps, and looks
//! whether kernel and other daemons leave wires alone.

mod paths;
mod trouble;

use crate::remotes::Remotes;
use control::Underlay;
use executor::Executor;
use model::Change;
use paths::{Kernel, Paths};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use trouble::Trouble;
use wire::{Opener, Routes, Way};

/// The pause after questions to the kernel, so that routes that change without end do not take a CPU.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// How often neighbours are looked after, and wires that somebody else has.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Lines of the log in a minute. `status` shows all.
const LINES: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// The thread that follows, once there is a wire to follow. It ends with this value.
pub struct Follower {
    shared: Arc<Shared>,
    executor: Weak<dyn Executor>,
    remotes: Arc<Remotes>,
    opener: Arc<dyn Opener>,
    started: OnceLock<()>,
}

struct Shared {
    wanted: Mutex<Underlay>,
    has_new: AtomicBool,
    /// Whether this daemon has the host: then it claims its wires.
    has_host: AtomicBool,
    ends: AtomicBool,
    /// `None`: the system has no more descriptors, and nothing is followed.
    wake: Option<OwnedFd>,
    problems: Mutex<Vec<(String, String)>>,
}

impl Kernel for Routes {
    fn way(&self, from: IpAddr, to: IpAddr) -> io::Result<Way> {
        Self::way(self, from, to)
    }

    fn neighbour(&self, device: i32, addr: IpAddr) -> io::Result<Option<[u8; 6]>> {
        Self::neighbour(self, device, addr)
    }

    fn has(&self, addr: IpAddr) -> io::Result<bool> {
        Self::has(self, addr)
    }

    fn device(&self, name: &str) -> io::Result<i32> {
        Self::device(self, name)
    }
}

impl Follower {
    /// Follows nothing yet. The paths to `remotes` are followed as well, and BGP gets to know by them which ones the
    /// kernel can't reach.
    pub fn new(
        executor: &Arc<dyn Executor>,
        remotes: Arc<Remotes>,
        opener: Arc<dyn Opener>,
        has_host: bool,
    ) -> Self {
        let shared = Shared {
            wanted: Mutex::default(),
            has_new: AtomicBool::new(false),
            has_host: AtomicBool::new(has_host),
            ends: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
            problems: Mutex::default(),
        };
        let (executor, started) = (Arc::downgrade(executor), OnceLock::new());
        Self { shared: Arc::new(shared), executor, remotes, opener, started }
    }

    /// Follows this from now on.
    pub fn keep(&self, wanted: Underlay) {
        if self.started.get().is_none() && wanted.wires.is_empty() {
            return;
        }
        *lock(&self.shared.wanted) = wanted;
        self.shared.has_new.store(true, Ordering::Release);
        self.started.get_or_init(|| self.start());
        self.shared.wake();
    }

    /// Claims wires, because this daemon has the host now.
    pub fn succeed(&self) {
        self.shared.has_host.store(true, Ordering::Release);
        self.shared.wake();
    }

    pub fn problems(&self) -> Vec<(String, String)> {
        lock(&self.shared.problems).clone()
    }

    fn start(&self) {
        let (shared, executor, opener) = (self.shared.clone(), self.executor.clone(), self.opener.clone());
        let remotes = self.remotes.clone();
        let started = Routes::open().and_then(|routes| {
            let thread = std::thread::Builder::new().name("underlay".into());
            thread.spawn(move || follow(&shared, &routes, (&executor, &remotes), &*opener)).map(drop)
        });
        if let Err(error) = started {
            tracing::error!(
                "the kernel's routes are not followed, and tunnels by shared wires are dead: {error}"
            );
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.shared.wake();
    }
}

impl Shared {
    fn wake(&self) {
        // A full counter wakes as well.
        self.wake.iter().for_each(|wake| _ = rustix::io::write(wake, &1u64.to_ne_bytes()));
    }

    /// Waits until something changed, or a second has passed.
    fn wait(&self, routes: &Routes, has_asked: bool) {
        let Some(wake) = &self.wake else { return };
        let changes = routes.changes();
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(&changes, PollFlags::IN)];
        // An interruption only causes another look.
        let _ = match has_asked {
            true => poll(&mut fds[..1], Some(&PAUSE)),
            false => poll(&mut fds, Some(&TICK)),
        };
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }

    /// Shows problems, and logs those that are new: not too many, because peers can cause some.
    fn show(&self, problems: Vec<(String, String)>, logged: &mut Logged) {
        let mut shown = lock(&self.problems);
        for (object, what) in problems.iter().filter(|problem| !shown.contains(problem)) {
            if logged.has_room() {
                tracing::warn!("{object}: {what}");
            }
        }
        *shown = problems;
    }
}

/// The lines that were logged in this minute.
struct Logged {
    since: Instant,
    lines: u32,
}

impl Logged {
    fn has_room(&mut self) -> bool {
        if self.since.elapsed() >= MINUTE {
            *self = Self { since: Instant::now(), lines: 0 };
        }
        self.lines += 1;
        self.lines <= LINES
    }
}

fn follow(
    shared: &Shared,
    routes: &Routes,
    (executor, remotes): (&Weak<dyn Executor>, &Remotes),
    opener: &dyn Opener,
) {
    let (mut paths, mut trouble) = (Paths::default(), Trouble::default());
    let mut logged = Logged { since: Instant::now(), lines: 0 };
    let mut unreachable = BTreeSet::new();
    while !shared.ends.load(Ordering::Acquire) && shared.wake.is_some() {
        let events = routes.take_events();
        let followed = remotes.followed();
        if shared.has_new.swap(false, Ordering::Acquire) {
            let wanted = lock(&shared.wanted).clone();
            trouble.want(&wanted);
            paths.want(routes, wanted, followed);
        } else {
            paths.follow(followed);
        }
        let is_new = paths.note(routes, &events);
        let changes = paths.ask(routes);
        let has_asked = is_new || !changes.is_empty() || paths.is_due();
        if !changes.is_empty() && !apply(executor, &changes) {
            return;
        }
        let now_unreachable = paths.unreachable();
        if now_unreachable != unreachable {
            unreachable.clone_from(&now_unreachable);
            remotes.set_unreachable(now_unreachable);
        }
        let now = Instant::now();
        for some in paths.take_sought(now).chunks(paths::MOST_SOUGHT) {
            if let Err(error) = opener.seek(some) {
                tracing::debug!("the kernel does not look for neighbours: {error}");
            }
        }
        trouble.look(routes, &events, shared.has_host.load(Ordering::Acquire));
        shared.show(trouble.problems().chain(paths.problems()).collect(), &mut logged);
        shared.wait(routes, has_asked);
    }
}

/// Puts changes in force. Returns false if the daemon ends.
fn apply(executor: &Weak<dyn Executor>, changes: &[Change]) -> bool {
    let Some(executor) = executor.upgrade() else { return false };
    if let Err(error) = executor.apply(changes) {
        tracing::error!("paths of the kernel are not taken: {error}");
    }
    true
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
