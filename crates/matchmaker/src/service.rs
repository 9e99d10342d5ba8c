//! The service and its thread.

mod endings;
mod offers;
mod pairing;
mod programs;

use crate::Ways;
use crate::carriage::Desk;
use crate::client::{Client, Limits, Line, PROGRAMS};
use crate::closing::{Closers, Who};
use crate::counters::{Counters, Reason};
use crate::files::Files;
use crate::offer::{Key, Waiting};
use crate::pairs::{Pair, PairStatus, Pairs};
use crate::window::Window;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SocketFlags, SocketType, accept_with};
use sockets::{Closing, Listener, ListeningFile, Place, Sockets, Untrusted};
use sockring::Message;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Programs that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Messages of a program that are read in one turn.
const TURN: usize = 32;
/// Requests that a program may make between two ticks.
const CREDIT: u32 = 20_000;
/// The clock of the thread.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between looks at what pairs do.
const LOOK: u32 = 10;
/// Time between which both sockets of a connection must be seen.
pub const TOGETHER: Duration = Duration::from_secs(2);
/// Connections of a guest's programs that other threads may be closing; meanwhile no more are accepted.
const CLOSING: usize = 64;

/// A guest whose programs may offer connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSpec {
    /// The guest.
    pub guest: String,
    /// The path of its socket. `None`: its programs come by an agent.
    pub socket: Option<PathBuf>,
}

/// A program in a virtual machine, whose agent passes on its messages ([`crate::Frame`]).
pub struct Agent {
    /// The guest.
    pub guest: String,
    /// The user in the machine.
    pub user: u32,
    /// The process number there.
    pub pid: i32,
    /// The stream from the agent.
    pub socket: Arc<Untrusted>,
    /// The window of which its memory is.
    pub window: Arc<dyn Window>,
}

/// Why a socket can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket has no place.
    #[error(transparent)]
    Socket(#[from] sockets::Error),
    /// The kernel has no memory, descriptors or threads.
    #[error("the service of sockets: {0}")]
    Kernel(#[from] std::io::Error),
}

/// Guests, pairs and counters, for showing.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Guests with the programs that are connected.
    pub guests: Vec<(String, usize)>,
    /// Pairs.
    pub pairs: Vec<PairStatus>,
    /// Offers that wait for another end.
    pub offers: usize,
    /// Counts since the start.
    pub counters: Counters,
}

struct Open {
    listener: Arc<Listener>,
    /// Connections that came by it, while other threads close them.
    closing: Arc<Closing>,
    _file: Arc<dyn ListeningFile>,
}

#[derive(Default)]
pub struct State {
    open: BTreeMap<String, (GuestSpec, Open)>,
    pub clients: BTreeMap<u64, Client>,
    next: u64,
    pub waiting: HashMap<Key, Waiting>,
    pub pairs: Pairs,
    files: Files,
    pub next_pair: u64,
    /// Offers and pairs of each user of a guest, and slots of files instead of the pairs there.
    held: HashMap<Who, usize>,
    closers: Closers,
    /// Programs that have left, and may still use memory of a window.
    ending: Vec<Ending>,
    /// Places to leave word for what carries a guest's connections to other hosts.
    pub desks: BTreeMap<String, Arc<Desk>>,
    /// Whether the daemon is about to be replaced.
    pub is_parting: bool,
    pub counters: Counters,
    pub wanted: Vec<GuestSpec>,
    /// Makes sockets; `None` before any are wanted.
    maker: Option<Arc<dyn Sockets>>,
    /// Guests whose sockets can't be opened, with the reasons. It is tried again.
    problems: BTreeMap<String, String>,
}

/// A program of this kernel that has left, and may use memory of a window until its process ends.
struct Ending {
    program: u64,
    process: OwnedFd,
    /// Whether the clock has found it alive since.
    is_late: bool,
}

impl Ending {
    fn is_over(&self) -> bool {
        poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|n| n > 0)
    }
}

pub struct Shared {
    pub ways: Box<dyn Ways>,
    limits: Limits,
    state: Mutex<State>,
    wake: OwnedFd,
}

/// The sockets of guests, and the thread that serves them.
pub struct Service(pub(crate) Arc<Shared>);

impl Service {
    /// Starts without sockets.
    ///
    /// # Errors
    /// The kernel has no descriptor or thread.
    pub fn start(ways: Box<dyn Ways>, limits: Limits) -> Result<Self, Error> {
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        let shared = Arc::new(Shared { ways, limits, state: Mutex::default(), wake });
        let served = Arc::downgrade(&shared);
        std::thread::Builder::new().name("sockets".into()).spawn(move || run(&served))?;
        Ok(Self(shared))
    }

    /// Has the service wait until the result is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.0.lock()
    }

    /// Returns what the users of a guest are charged with.
    #[cfg(test)]
    pub(crate) fn held(&self, guest: &str) -> usize {
        self.0.lock().held.iter().filter(|(who, _)| who.0 == guest).map(|(_, held)| held).sum()
    }

    fn wake(&self) {
        _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }

    /// Opens the sockets of `wanted`, and closes all others. Programs of guests that are not wanted any more lose
    /// their pairs. What can't be opened is tried again.
    pub fn keep(&self, wanted: Vec<GuestSpec>, maker: Arc<dyn Sockets>) {
        let mut state = self.0.lock();
        let old = std::mem::take(&mut state.wanted);
        for GuestSpec { guest, .. } in old.into_iter().filter(|spec| !wanted.contains(spec)) {
            state.open.remove(&guest);
            let clients: Vec<_> = state
                .clients
                .iter()
                .filter(|(_, client)| client.guest == guest)
                .map(|(number, _)| *number)
                .collect();
            state.return_pairs(&self.0, Reason::Guest, |pair| {
                pair.parties.iter().any(|party| party.guest == guest)
            });
            clients.into_iter().for_each(|number| state.end(number, &self.0));
        }
        (state.wanted, state.maker) = (wanted, Some(maker));
        state.open_wanted();
        drop(state);
        self.wake();
    }

    /// Returns the guests whose sockets can't be opened, with the reasons.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        self.0.lock().problems.clone().into_iter().collect()
    }

    /// Returns all pairs to TCP for which the tables no longer allow memory in common.
    pub fn review(&self) {
        let mut state = self.0.lock();
        let ways = &self.0.ways;
        state.return_pairs(&self.0, Reason::Tables, |pair| !ways_allow(&**ways, pair));
    }

    /// Lets in a program of a virtual machine. Returns false if there is no room, or it is of no guest with sockets.
    pub fn admit(&self, agent: Agent) -> bool {
        let Agent { guest, user, pid, socket, window } = agent;
        let stream = uverbs::Stream::serving(socket.clone());
        let line = Line::Agent { stream, window, has_ended: false };
        let mut state = self.0.lock();
        let is_known = state.wanted.iter().any(|spec| spec.guest == guest && spec.socket.is_none());
        let admitted = is_known && state.admit(&guest, (user, pid), socket, line, &self.0);
        drop(state);
        self.wake();
        admitted
    }

    /// Returns what there is.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = self.0.lock();
        let programs =
            |guest: &String| state.clients.values().filter(|client| client.guest == *guest).count();
        Status {
            guests: state.wanted.iter().map(|spec| (spec.guest.clone(), programs(&spec.guest))).collect(),
            pairs: state.pairs.values().map(Pair::status).collect(),
            offers: state.waiting.len(),
            counters: state.counters.clone(),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.wake();
    }
}

fn ways_allow(ways: &dyn Ways, pair: &Pair) -> bool {
    let [a, b] = &pair.parties;
    if pair.desk().is_some() {
        return ways.may_carry(&a.guest, &pair.key);
    }
    pair.key.within.is_some() || ways.may_share((&a.guest, &b.guest), &pair.key)
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has an end return to TCP.
const RETURN: fn(u64) -> Message = |token| Message::Return { token };

impl State {
    /// Opens the sockets that are wanted and not open. A daemon that is being replaced has them until it ends.
    fn open_wanted(&mut self) {
        let Some(maker) = self.maker.clone() else { return };
        self.problems.clear();
        for spec in self.wanted.clone() {
            let Some(path) = spec.socket.clone().filter(|_| !self.open.contains_key(&spec.guest)) else {
                continue;
            };
            // Any user of the container may connect: users are told apart by their credentials.
            let place = Place { path, owner: None, mode: 0o666 };
            match maker.listen(&place, SocketType::SEQPACKET, BACKLOG) {
                Ok((socket, file)) => {
                    let listener = Arc::new(socket.into());
                    let open = Open { listener, closing: Arc::default(), _file: file };
                    self.open.insert(spec.guest.clone(), (spec, open));
                }
                Err(error) => _ = self.problems.insert(spec.guest, error.to_string()),
            }
        }
    }

    /// Sends a message about their end to both ends of a pair.
    pub fn tell_both(&mut self, number: u64, says: fn(u64) -> Message, shared: &Arc<Shared>) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let told: Vec<_> = pair.parties.iter().flat_map(|party| party.programs.clone()).collect();
        for (program, token) in told {
            self.tell(program, says(token), &[], shared);
        }
    }

    /// Sends a message. A program that does not read its messages is disconnected, and stays with what it has.
    pub fn tell(
        &mut self,
        program: u64,
        message: Message,
        descriptors: &[BorrowedFd<'_>],
        shared: &Arc<Shared>,
    ) {
        let Some(client) = self.clients.get_mut(&program) else { return };
        if !client.tell(message, descriptors) {
            self.end(program, shared);
        }
    }

    fn tick(&mut self, shared: &Arc<Shared>, turn: u32) {
        self.end_processes(shared);
        self.clients.values_mut().for_each(|client| client.credit = CREDIT);
        self.closers.tidy(self.clients.values().map(|client| (&*client.guest, client.user)));
        if self.open.len() < self.wanted.iter().filter(|spec| spec.socket.is_some()).count() {
            self.open_wanted();
        }
        if turn.is_multiple_of(LOOK) {
            for pair in self.pairs.values_mut() {
                let Some(bytes) = pair.news() else { continue };
                self.counters.bytes = self.counters.bytes.saturating_add(bytes.0.saturating_add(bytes.1));
                if pair.key.within.is_none() {
                    shared.ways.in_use(&pair.key, bytes);
                }
            }
        }
    }
}

/// Runs the thread, until the service is dropped.
fn run(service: &Weak<Shared>) {
    let (mut last, mut turn) = (Instant::now(), 0);
    loop {
        let Some(shared) = service.upgrade() else { return };
        // Others may change what is open meanwhile.
        let (programs, listeners) = {
            let state = shared.lock();
            let credited = state.clients.iter().filter(|(_, client)| client.credit > 0);
            let programs: Vec<(u64, Arc<Untrusted>, PollFlags)> =
                credited.map(|(number, client)| (*number, client.socket.clone(), client.wanted())).collect();
            let open = state.open.iter().filter(|(_, (_, open))| open.closing.count() < CLOSING);
            let listeners: Vec<(String, Arc<Listener>, Arc<Closing>)> = open
                .map(|(guest, (_, open))| (guest.clone(), open.listener.clone(), open.closing.clone()))
                .collect();
            (programs, listeners)
        };
        let accepts = programs.len() < PROGRAMS;
        let mut wanted = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        wanted.extend(programs.iter().map(|(_, socket, flags)| PollFd::new(socket, *flags)));
        if accepts {
            wanted.extend(listeners.iter().map(|(_, listener, _)| PollFd::new(&**listener, PollFlags::IN)));
        }
        let left = TICK.saturating_sub(last.elapsed());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        _ = poll(&mut wanted, Some(&time));
        let came: Vec<bool> = wanted.iter().map(|one| !one.revents().is_empty()).collect();
        drop(wanted);
        if came[0] {
            _ = rustix::io::read(&shared.wake, &mut [0; 8]);
        }
        let mut state = shared.lock();
        for ((program, ..), _) in programs.iter().zip(&came[1..]).filter(|(_, came)| **came) {
            if !state.serve(*program, &shared) {
                state.end(*program, &shared);
            }
        }
        for ((guest, listener, closing), _) in listeners
            .iter()
            .zip(came.get(1 + programs.len()..).unwrap_or_default())
            .filter(|(_, came)| **came)
        {
            // Whatever waits in it is closed by another thread.
            if let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
                && let Ok(socket) = Untrusted::new(socket, closing)
            {
                state.accept(guest, socket, &shared);
            }
        }
        if last.elapsed() >= TICK {
            (last, turn) = (Instant::now(), turn + 1);
            state.tick(&shared, turn);
        }
    }
}
