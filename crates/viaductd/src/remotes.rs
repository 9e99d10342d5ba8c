//! Whether the remotes of tunnels are there: their BFD sessions (RFC 5883), whose packets go and come as those of tunnels
//! do. One thread has the sessions; another tells the tables, so that no change of routes delays packets.

mod paths;
mod sessions;

use crate::bgp::{Bgp, HeldSession};
use control::{RemoteStatus, Watched};
use engine::{Asked, Engine};
use executor::Executor;
use model::{Change, Lookup};
use packet::{Headers, L4, proto};
use paths::Way;
use serde::{Deserialize, Serialize};
use sessions::{Lines, Listed, Sessions};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How soon a change of what is to be watched is noticed.
const TICK: Duration = Duration::from_millis(50);
/// Packets that are heard at once: the sessions have their turn after these. As many as can wait when this thread had
/// no CPU for some intervals, so that nobody is given up whose packet waits.
const HEARD: usize = 16_384;
/// Most remotes that are down that `status` names.
const MOST_TOLD: usize = 8;

/// Remotes on their way to the daemon that takes over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRemotes {
    /// Sessions that are up.
    up: Vec<HeldSession>,
    /// Remotes that were up once.
    down: Vec<IpAddr>,
}

impl HeldRemotes {
    /// Adds what came in another message.
    pub fn extend(&mut self, other: Self) {
        self.up.extend(other.up);
        self.down.extend(other.down);
    }

    /// Returns these remotes in parts of so many at most.
    pub fn parts(&self, most: usize) -> impl Iterator<Item = Self> {
        let up = self.up.chunks(most).map(|up| Self { up: up.to_vec(), ..Self::default() });
        up.chain(self.down.chunks(most).map(|down| Self { down: down.to_vec(), ..Self::default() }))
    }
}

/// Remotes that BGP routes name, also if no tunnel leads there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    pub remotes: BTreeSet<IpAddr>,
    /// Whether peers have sent all of them: until then nobody is given up.
    pub is_all: bool,
}

/// The sessions with remotes, once there are some.
pub struct Remotes {
    shared: Arc<Shared>,
    engine: Weak<Engine>,
    tables: Tables,
    threads: OnceLock<Mutex<Option<JoinHandle<()>>>>,
}

struct Shared {
    sessions: Mutex<Sessions>,
    wanted: Mutex<Option<Watched>>,
    named: Mutex<Named>,
    /// Remotes that are watched.
    watched: Mutex<Arc<BTreeSet<IpAddr>>>,
    /// These, and those that BGP routes name.
    followed: Mutex<Arc<BTreeSet<IpAddr>>>,
    has_new: AtomicBool,
    /// Whether this daemon has the host: then it sends.
    has_host: AtomicBool,
    /// Whether another daemon is about to take over.
    leaves: AtomicBool,
    /// Whether no packets come, because that daemon takes over.
    rests: AtomicBool,
    ends: AtomicBool,
    began: Instant,
}

impl Shared {
    fn watched(&self) -> Arc<BTreeSet<IpAddr>> {
        lock(&self.watched).clone()
    }

    fn follow_anew(&self) {
        let mut all = lock(&self.named).remotes.clone();
        all.extend(self.watched().iter().copied());
        *lock(&self.followed) = Arc::new(all);
    }
}

impl Remotes {
    /// Returns no sessions yet. `bgp` is told of remotes that are down; if it `names` remotes, it will tell which.
    /// `has_host`: no other daemon has to give it to this one.
    pub fn new(
        engine: &Arc<Engine>,
        executor: &Arc<dyn Executor>,
        (bgp, names): (&Arc<Bgp>, bool),
        has_host: bool,
    ) -> Self {
        let flag = AtomicBool::new;
        let shared = Shared {
            sessions: Mutex::new(Sessions::new()),
            wanted: Mutex::default(),
            named: Mutex::new(Named { remotes: BTreeSet::new(), is_all: !names }),
            watched: Mutex::default(),
            followed: Mutex::default(),
            has_new: flag(false),
            has_host: flag(has_host),
            leaves: flag(false),
            rests: flag(false),
            ends: flag(false),
            began: Instant::now(),
        };
        let tables = Tables { executor: Arc::downgrade(executor), bgp: Arc::downgrade(bgp) };
        Self { shared: Arc::new(shared), engine: Arc::downgrade(engine), tables, threads: OnceLock::new() }
    }

    /// Watches these from now on.
    pub fn keep(&self, wanted: Option<Watched>) {
        if self.threads.get().is_none() && wanted.is_none() {
            return;
        }
        *lock(&self.shared.wanted) = wanted;
        self.shared.has_new.store(true, Ordering::Release);
        self.threads.get_or_init(|| Mutex::new(self.start()));
    }

    /// Watches also these.
    pub fn name(&self, named: Named) {
        *lock(&self.shared.named) = named;
        self.shared.follow_anew();
        self.shared.has_new.store(true, Ordering::Release);
    }

    /// Returns the remotes that are watched.
    pub fn watched(&self) -> Arc<BTreeSet<IpAddr>> {
        self.shared.watched()
    }

    /// Returns the remotes that are watched or that BGP routes name, even if no tunnel leads there.
    pub fn followed(&self) -> Arc<BTreeSet<IpAddr>> {
        lock(&self.shared.followed).clone()
    }

    /// Tells BGP which of these the kernel can't reach.
    pub fn set_unreachable(&self, remotes: BTreeSet<IpAddr>) {
        if let Some(bgp) = self.tables.bgp.upgrade() {
            bgp.follow_unreachable(remotes);
        }
    }

    /// Goes on with the remotes of the daemon before, which has stopped.
    pub fn adopt(&self, held: HeldRemotes) {
        let mut sessions = lock(&self.shared.sessions);
        sessions.adopt(held);
        // If nobody is watched, nothing would change this again.
        if self.threads.get().is_some() {
            self.tables.put(&sessions.take_changes());
        }
    }

    /// Sends, because this daemon has the host now.
    pub fn succeed(&self) {
        self.shared.has_host.store(true, Ordering::Release);
    }

    /// Has remotes wait longer for packets, because a daemon is about to take over.
    pub fn leave(&self) {
        self.shared.leaves.store(true, Ordering::Release);
    }

    /// Stops, since no packets come any more, and returns the remotes for the daemon that takes over.
    pub fn rest(&self) -> HeldRemotes {
        let sessions = lock(&self.shared.sessions);
        self.shared.rests.store(true, Ordering::Release);
        sessions.held()
    }

    /// Goes on, because no daemon takes over.
    pub fn stay(&self) {
        let mut sessions = lock(&self.shared.sessions);
        self.shared.leaves.store(false, Ordering::Release);
        if self.shared.rests.swap(false, Ordering::AcqRel) {
            sessions.wait_anew(self.shared.began.elapsed());
        }
    }

    /// Tells remotes that nothing arrives here any more, and ends the thread.
    pub fn stop(&self) {
        self.shared.ends.store(true, Ordering::Release);
        let thread = self.threads.get().and_then(|thread| lock(thread).take());
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Returns the remotes that are watched.
    pub fn list(&self) -> Vec<RemoteStatus> {
        let list = lock(&self.shared.sessions).list();
        let status = |listed: Listed| RemoteStatus {
            remote: listed.remote,
            is_down: listed.is_down,
            paths_down: listed.down.len(),
            session: crate::bgp::session(&listed.status),
        };
        list.into_iter().map(status).collect()
    }

    /// Returns what is wrong, as pairs of an object and a text.
    pub fn problems(&self) -> Vec<(String, String)> {
        let sessions = lock(&self.shared.sessions);
        let list = sessions.list();
        let down = list.iter().filter(|listed| listed.is_down);
        let told = down.clone().take(MOST_TOLD).map(|Listed { remote, status, .. }| {
            let what = format!(
                "down by BFD ({}): tunnels to it are used only where there is no other path",
                status.diagnostic.name()
            );
            (format!("remote {remote}"), what)
        });
        let more = down.count().saturating_sub(MOST_TOLD);
        let more = (more > 0).then(|| ("remotes".to_owned(), format!("{more} more are down by BFD")));
        let unwatched = sessions.unwatched();
        let unwatched = (unwatched > 0).then(|| {
            let what = format!(
                "{unwatched} are not watched by BFD, which has {} sessions at most: they count as up",
                sessions::MOST
            );
            ("remotes".to_owned(), what)
        });
        told.chain(more).chain(self.broken_paths(&list)).chain(unwatched).collect()
    }

    fn broken_paths(&self, list: &[Listed]) -> Vec<(String, String)> {
        let Some(engine) = self.engine.upgrade() else { return Vec::new() };
        let broken = || list.iter().filter(|listed| !listed.is_down && !listed.down.is_empty());
        let told = broken().take(MOST_TOLD).map(|Listed { remote, paths, down, .. }| {
            let ways: Vec<_> = down.iter().map(|way| named(&engine, *way)).collect();
            let what = format!("{} of {paths} paths are down by BFD: {}", down.len(), ways.join(", "));
            (format!("remote {remote}"), what)
        });
        let more = broken().count().saturating_sub(MOST_TOLD);
        let more =
            (more > 0).then(|| ("remotes".to_owned(), format!("{more} more have paths that are down")));
        let silent = list.iter().filter(|listed| listed.is_silent);
        let silent = silent.clone().next().map(|first| {
            let what = format!(
                "{} answer no questions about paths (UDP 7784), so a broken path to them is not noticed: {}{}",
                silent.clone().count(),
                first.remote,
                if silent.count() > 1 { ", ..." } else { "" }
            );
            ("remotes".to_owned(), what)
        });
        told.chain(more).chain(silent).collect()
    }

    fn start(&self) -> Option<JoinHandle<()>> {
        let heard = self.engine.upgrade()?.bfd()?;
        let started = self.start_with(heard);
        started.inspect_err(|e| tracing::error!("tunnels' remotes are not watched by BFD: {e}")).ok()
    }

    fn start_with(&self, heard: Receiver<Asked>) -> io::Result<JoinHandle<()>> {
        let (tell, told) = channel();
        let tables = self.tables.clone();
        let builder = |name: &str| std::thread::Builder::new().name(name.into());
        builder("bfd-tables").spawn(move || tables.follow(&told))?;
        let thread = Thread {
            shared: self.shared.clone(),
            engine: self.engine.clone(),
            heard,
            tell,
            epoch: Cell::default(),
            looked: Cell::default(),
            lines: Cell::default(),
        };
        builder("bfd-tunnels").spawn(move || thread.run())
    }
}

impl Drop for Remotes {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
    }
}

/// Those who are told which remotes are down: the tables, which pass them over among equal paths at once, and BGP,
/// which chooses others.
#[derive(Clone)]
struct Tables {
    executor: Weak<dyn Executor>,
    bgp: Weak<Bgp>,
}

impl Tables {
    /// Puts changes in force until nobody makes any more.
    fn follow(&self, told: &Receiver<Change>) {
        while let Ok(first) = told.recv() {
            let changes: Vec<_> = std::iter::once(first).chain(told.try_iter()).collect();
            self.put(&changes);
        }
    }

    fn put(&self, changes: &[Change]) {
        let Some(executor) = self.executor.upgrade() else { return };
        if let Err(error) = executor.apply(changes) {
            tracing::error!("the tables do not learn which remotes are down: {error}");
        }
        if let Some(bgp) = self.bgp.upgrade() {
            bgp.follow_remotes(changes);
        }
    }
}

struct Thread {
    shared: Arc<Shared>,
    engine: Weak<Engine>,
    heard: Receiver<Asked>,
    tell: Sender<Change>,
    /// The epoch of the tables when paths were last looked for.
    epoch: Cell<u64>,
    looked: Cell<Duration>,
    /// Lines about paths.
    lines: Cell<Lines>,
}

impl Thread {
    fn run(self) {
        while !self.shared.ends.load(Ordering::Acquire) {
            let patience = self.patience();
            let first = match self.heard.recv_timeout(patience) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let Some(engine) = self.engine.upgrade() else { return };
            self.turn(&engine, first);
        }
        let (Some(engine), now) = (self.engine.upgrade(), self.shared.began.elapsed()) else { return };
        let mut sessions = lock(&self.shared.sessions);
        sessions.fail(now);
        send(&engine, &mut sessions, now);
    }

    fn patience(&self) -> Duration {
        let deadline = lock(&self.shared.sessions).deadline();
        let until = deadline.map(|deadline| deadline.saturating_sub(self.shared.began.elapsed()));
        let works =
            self.shared.has_host.load(Ordering::Acquire) && !self.shared.rests.load(Ordering::Acquire);
        match works {
            true => until.unwrap_or(TICK).min(TICK),
            false => TICK,
        }
    }

    /// Hears what came, before anybody is given up, and says what is due.
    fn turn(&self, engine: &Engine, first: Option<Asked>) {
        let shared = &self.shared;
        let has_host = shared.has_host.load(Ordering::Acquire);
        let mut sessions = lock(&shared.sessions);
        if shared.rests.load(Ordering::Acquire) {
            return;
        }
        let now = shared.began.elapsed();
        let mut has_new = has_host && shared.has_new.swap(false, Ordering::Acquire);
        if has_new {
            let (wanted, named) = (lock(&shared.wanted).clone(), lock(&shared.named).clone());
            sessions.name(named);
            sessions.want(wanted, now);
            let (watched, before) = (sessions.watched(), self.shared.watched());
            for remote in watched.symmetric_difference(&before) {
                let is_watched = watched.contains(remote);
                let _ = self.tell.send(Change::SetWatched { remote: *remote, is_watched });
            }
            *lock(&shared.watched) = Arc::new(watched);
            shared.follow_anew();
        }
        let epoch = engine.view(|view| view.snapshot().epoch());
        // Any change of the tables may be one of the paths, and remotes can cause changes.
        let may_look = now >= self.looked.get() + TICK && self.epoch.get() != epoch;
        if has_host && (has_new || may_look) {
            self.epoch.set(epoch);
            self.looked.set(now);
            has_new |= sessions.follow_ways(|remote| engine.ways_to(remote, paths::MOST), now);
        }
        if has_new {
            engine.know_bfd(&sessions.numbers());
        }
        for asked in first.into_iter().chain(self.heard.try_iter().take(HEARD)) {
            hear(engine, &mut sessions, &asked, now);
        }
        if has_host {
            sessions.leave(shared.leaves.load(Ordering::Acquire));
            sessions.tick(now);
            send(engine, &mut sessions, now);
        }
        for change in sessions.take_changes() {
            self.log(engine, &change, now);
            // The other thread ends with the daemon.
            let _ = self.tell.send(change);
        }
    }

    fn log(&self, engine: &Engine, change: &Change, now: Duration) {
        let Change::SetPathDown { remote, wire, hop, is_down } = change else { return };
        let mut lines = self.lines.get();
        if lines.may_write(now) {
            let state = if *is_down { "down" } else { "not down any more" };
            let path = named(engine, (*wire, *hop));
            tracing::warn!(%remote, path, "one of the paths to a remote is {state}");
        }
        self.lines.set(lines);
    }
}

fn send(engine: &Engine, sessions: &mut Sessions, now: Duration) {
    for (remote, packet) in sessions.output(now) {
        engine.send_to_remote(remote, packet.by, packet.ports, &packet.payload);
    }
}

/// Returns a path in words.
fn named(engine: &Engine, (wire, hop): Way) -> String {
    let name = engine.view(|view| view.vif(wire).map(|vif| vif.name.clone()));
    name.map_or_else(|| hop.to_string(), |name| format!("{hop} by {name}"))
}

/// Takes a packet that came: of a session, a question about a path, or an answer to one.
fn hear(engine: &Engine, sessions: &mut Sessions, asked: &Asked, now: Duration) {
    match read(&asked.frame) {
        Some((remote, (_, proto::PORT_SBFD), payload)) => {
            let answer = sessions.reflect(remote, payload);
            answer.iter().for_each(|answer| engine.answer_remote(asked, answer));
        }
        Some((remote, (proto::PORT_SBFD, _), payload)) => sessions.answered(remote, payload, now),
        Some((remote, _, payload)) => sessions.received(remote, payload, now),
        None => {}
    }
}

/// Returns the sender of a frame with a UDP datagram, its ports, and its payload.
fn read(frame: &[u8]) -> Option<(IpAddr, (u16, u16), &[u8])> {
    let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
    let ip = headers.ip()?;
    let at = usize::from(headers.l4_at) + proto::UDP_LEN;
    let end = usize::from(ip.at) + ip.len as usize;
    let L4::Udp { src, dst } = headers.l4 else { return None };
    Some((ip.src, (src, dst), frame.get(at..end)?))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
