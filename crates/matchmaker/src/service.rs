//! The service and its thread.

use crate::Ways;
use crate::client::{CONNECTIONS, Client, Limits, PROGRAMS};
use crate::closing::{Closers, Who};
use crate::offer::{Key, Offered};
use crate::pairs::{Header, Pair, PairStatus, Pairs, Party};
use crate::receive::receive;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};
use seqpacket::Connection;
use sockets::{Closing, Listener, ListeningFile, Place, Sockets, Untrusted};
use sockring::Message;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
/// Connections of a guest's programs that other threads may be closing; meanwhile no more are accepted.
const CLOSING: usize = 64;

/// A guest whose programs may offer connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSpec {
    /// The guest.
    pub guest: String,
    /// The path of its socket.
    pub socket: PathBuf,
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
    /// Offers ever made, those that were matched, and those that were refused.
    pub counts: [u64; 3],
}

struct Open {
    listener: Arc<Listener>,
    /// Connections that came by it, while other threads close them.
    closing: Arc<Closing>,
    _file: Arc<dyn ListeningFile>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<String, (GuestSpec, Open)>,
    clients: BTreeMap<u64, Client>,
    next: u64,
    waiting: HashMap<Key, (u64, u64)>,
    pairs: Pairs,
    next_pair: u64,
    /// Offers and pairs of each user of a guest.
    held: HashMap<(String, u32), usize>,
    closers: Closers,
    counts: [u64; 3],
    wanted: Vec<GuestSpec>,
    /// Makes sockets; `None` before any are wanted.
    maker: Option<Arc<dyn Sockets>>,
    /// Guests whose sockets can't be opened, with the reasons. It is tried again.
    problems: BTreeMap<String, String>,
}

struct Shared {
    ways: Box<dyn Ways>,
    limits: Limits,
    state: Mutex<State>,
    wake: OwnedFd,
}

/// The sockets of guests, and the thread that serves them.
pub struct Service(Arc<Shared>);

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

    fn wake(&self) {
        _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }

    /// Opens the sockets of `wanted`, and closes all others. Programs of guests that are not wanted any more lose
    /// their pairs. What can't be opened is tried again.
    pub fn keep(&self, wanted: Vec<GuestSpec>, maker: Arc<dyn Sockets>) {
        let mut state = self.0.lock();
        let gone: Vec<_> = state
            .open
            .iter()
            .filter(|(_, (spec, _))| !wanted.contains(spec))
            .map(|(guest, _)| guest.clone())
            .collect();
        for guest in gone {
            state.open.remove(&guest);
            let clients: Vec<_> = state
                .clients
                .iter()
                .filter(|(_, client)| client.guest == guest)
                .map(|(number, _)| *number)
                .collect();
            state.return_pairs("the guest has no sockets", |pair| {
                pair.parties.iter().any(|party| party.guest == guest)
            });
            clients.into_iter().for_each(|number| state.end(number));
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
        state.return_pairs("a rule, a mirror, a rate or a capture", |pair| !ways_allow(&**ways, pair));
    }

    /// Returns what there is.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = self.0.lock();
        let programs =
            |guest: &String| state.clients.values().filter(|client| client.guest == *guest).count();
        Status {
            guests: state.open.keys().map(|guest| (guest.clone(), programs(guest))).collect(),
            pairs: state.pairs.values().map(Pair::status).collect(),
            offers: state.waiting.len(),
            counts: state.counts,
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
    pair.key.within.is_some() || ways.may_share((&a.guest, &b.guest), &pair.key)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Opens the sockets that are wanted and not open. A daemon that is being replaced has them until it ends.
    fn open_wanted(&mut self) {
        let Some(maker) = self.maker.clone() else { return };
        self.problems.clear();
        for spec in self.wanted.clone() {
            if self.open.contains_key(&spec.guest) {
                continue;
            }
            // Any user of the container may connect: users are told apart by their credentials.
            let place = Place { path: spec.socket.clone(), owner: None, mode: 0o666 };
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

    /// Has pairs return to TCP.
    fn return_pairs(&mut self, why: &'static str, which: impl Fn(&Pair) -> bool) {
        let mut told = Vec::new();
        for pair in self.pairs.values_mut().filter(|pair| which(pair)) {
            if pair.return_to_tcp(why) {
                told.extend(pair.parties.iter().flat_map(|party| party.programs.clone()));
            }
        }
        for (program, token) in told {
            self.tell(program, Message::Look { token }, &[]);
        }
    }

    /// Sends a message. A program that does not read its messages is disconnected, and stays with what it has.
    fn tell(&mut self, program: u64, message: Message, descriptors: &[BorrowedFd<'_>]) {
        let Some(client) = self.clients.get_mut(&program) else { return };
        if client.connection.send_bytes(&message.bytes(), descriptors).is_err() {
            self.end(program);
        }
    }

    /// Forgets a program.
    fn end(&mut self, program: u64) {
        let Some(client) = self.clients.remove(&program) else { return };
        for key in client.offers.values() {
            self.waiting.remove(key);
            self.release(&client.guest, client.user);
        }
        let pairs: Vec<u64> =
            self.pairs.iter().filter(|(_, pair)| pair.has(program)).map(|(number, _)| *number).collect();
        pairs.into_iter().for_each(|pair| self.gone(program, pair, None));
    }

    fn gone(&mut self, program: u64, number: u64, token: Option<u64>) {
        let Some(pair) = self.pairs.get_mut(&number).filter(|pair| pair.has(program)) else { return };
        if pair.forget(program, token)
            && let Some(pair) = self.pairs.remove(&number)
        {
            for party in &pair.parties {
                self.release(&party.guest, party.user);
            }
        }
    }

    fn release(&mut self, guest: &str, user: u32) {
        let who = (guest.to_owned(), user);
        if let Some(held) = self.held.get_mut(&who) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&who);
            }
        }
    }

    fn cancel(&mut self, program: u64, token: u64) {
        let Some(client) = self.clients.get_mut(&program) else { return };
        let (guest, user) = (client.guest.clone(), client.user);
        if let Some(key) = client.offers.remove(&token) {
            self.waiting.remove(&key);
            self.release(&guest, user);
        }
    }

    fn accept(&mut self, guest: &str, socket: Untrusted, shared: &Shared) {
        if !self.open.contains_key(guest) {
            return;
        }
        let Ok(uverbs::Peer { uid: user, pid }) = uverbs::peer(&socket) else { return };
        let of_guest = self.clients.values().filter(|client| client.guest == guest).count();
        let own = self.clients.values().filter(|client| client.user == user && client.guest == guest).count();
        if own >= shared.limits.programs || of_guest >= half_of(PROGRAMS, self.clients.len() - of_guest) {
            return;
        }
        if !self.closers.admit(&(guest.to_owned(), user)) {
            return;
        }
        let socket = Arc::new(socket);
        let connection = Connection::serving(socket.clone());
        let client = Client {
            socket,
            connection,
            guest: guest.to_owned(),
            user,
            pid,
            offers: BTreeMap::new(),
            credit: CREDIT,
        };
        self.next += 1;
        self.clients.insert(self.next, client);
    }

    /// Reads what a program says. Returns whether it goes on.
    fn serve(&mut self, program: u64, shared: &Shared) -> bool {
        for _ in 0..TURN {
            let Some(client) = self.clients.get_mut(&program) else { return true };
            if client.credit == 0 {
                return true;
            }
            client.credit -= 1;
            let (message, descriptors) = match receive(&*client.socket) {
                Ok(received) => received,
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            };
            let who = (client.guest.clone(), client.user);
            let offered = descriptors.first().and_then(Offered::read);
            // Copies here would hold the ends of streams back.
            let mut is_closed = true;
            for descriptor in descriptors {
                is_closed &= self.closers.close(&who, descriptor);
            }
            if !is_closed {
                return false;
            }
            match message {
                Some(Message::Offer { token }) => self.offer(program, token, offered, shared),
                Some(Message::Cancel { token }) => self.cancel(program, token),
                Some(Message::Poke { pair }) => self.poke(program, pair),
                Some(Message::Gone { token, pair }) => self.gone(program, pair, Some(token)),
                Some(Message::Adopt { token, pair }) => self.adopt(program, token, pair),
                _ => return false,
            }
        }
        true
    }

    /// Returns whether a user of a guest may have one more offer.
    fn has_room(&self, guest: &str, user: u32, limit: usize) -> bool {
        let (mut own, mut of_guest, mut of_others) = (0, 0, 0);
        for ((its, of), count) in &self.held {
            *if its == guest { &mut of_guest } else { &mut of_others } += count;
            own += if its == guest && *of == user { *count } else { 0 };
        }
        own < limit && of_guest < half_of(CONNECTIONS, of_others)
    }

    fn offer(&mut self, program: u64, token: u64, offered: Option<Offered>, shared: &Shared) {
        self.counts[0] += 1;
        let Some(client) = self.clients.get(&program) else { return };
        let (guest, user, pid) = (client.guest.clone(), client.user, client.pid);
        let key = offered.and_then(|offered| match offered.is_within() {
            true => Some(offered.within()),
            false => shared.ways.inside(&guest, offered.own, offered.peer),
        });
        let Some(key) = key.filter(|_| self.has_room(&guest, user, shared.limits.connections)) else {
            self.counts[2] += 1;
            return self.tell(program, Message::Refused { token }, &[]);
        };
        let is_taken = self.waiting.contains_key(&key) || client.offers.contains_key(&token);
        if is_taken {
            // Two sockets can't be the same end of a connection. Neither is believed.
            self.counts[2] += 1;
            if let Some((other, their)) = self.waiting.get(&key).copied() {
                self.cancel(other, their);
                self.tell(other, Message::Refused { token: their }, &[]);
            }
            return self.tell(program, Message::Refused { token }, &[]);
        }
        *self.held.entry((guest.clone(), user)).or_default() += 1;
        if let Some((other, their)) = self.waiting.get(&key.reverse()).copied()
            && let Some(peer) = self.clients.get_mut(&other)
        {
            let allowed = key.within.is_some() || shared.ways.may_share((&guest, &peer.guest), &key);
            if !allowed {
                self.release(&guest, user);
                self.counts[2] += 1;
                self.cancel(other, their);
                self.tell(other, Message::Refused { token: their }, &[]);
                return self.tell(program, Message::Refused { token }, &[]);
            }
            peer.offers.remove(&their);
            let party = Party {
                guest: peer.guest.clone(),
                user: peer.user,
                pid: peer.pid,
                programs: vec![(other, their)],
            };
            let own = Party { guest, user, pid, programs: vec![(program, token)] };
            self.waiting.remove(&key.reverse());
            return self.pair(key, [own, party]);
        }
        self.waiting.insert(key, (program, token));
        if let Some(client) = self.clients.get_mut(&program) {
            client.offers.insert(token, key);
        }
    }

    fn pair(&mut self, key: Key, parties: [Party; 2]) {
        let ends: Vec<_> = parties.iter().flat_map(|party| party.programs.clone()).collect();
        let Ok((header, file)) = Header::new() else {
            for party in &parties {
                self.release(&party.guest, party.user);
            }
            for (program, token) in ends {
                self.tell(program, Message::Refused { token }, &[]);
            }
            return;
        };
        self.next_pair += 1;
        self.counts[1] += 1;
        let pair = self.next_pair;
        self.pairs.insert(pair, Pair::new(key, parties, header));
        for (side, (program, token)) in ends.into_iter().enumerate() {
            self.tell(program, Message::Matched { token, pair, second: side == 1 }, &[file.as_fd()]);
        }
    }

    fn poke(&mut self, program: u64, pair: u64) {
        let Some(client) = self.clients.get(&program) else { return };
        let Some(pair) = self.pairs.get(&pair) else { return };
        // A fork that has not told of its pairs yet may ask, too.
        if !pair.parties.iter().any(|party| (&party.guest, party.user) == (&client.guest, client.user)) {
            return;
        }
        let told: Vec<_> = pair.parties.iter().flat_map(|party| party.programs.clone()).collect();
        // Each message is paid for by who has it sent.
        if let Some(client) = self.clients.get_mut(&program) {
            client.credit = client.credit.saturating_sub(told.len() as u32);
        }
        for (program, token) in told {
            self.tell(program, Message::Look { token }, &[]);
        }
    }

    fn adopt(&mut self, program: u64, token: u64, pair: u64) {
        let Some(client) = self.clients.get(&program) else { return };
        let Some(pair) = self.pairs.get_mut(&pair) else { return };
        let is_own = |party: &&mut Party| (&party.guest, party.user) == (&client.guest, client.user);
        let has_room =
            |party: &&mut Party| party.programs.len() < 64 && !party.programs.contains(&(program, token));
        // Both ends may be of one user. Then both are told of what concerns one.
        for party in pair.parties.iter_mut().filter(is_own).filter(has_room) {
            party.programs.push((program, token));
        }
    }

    fn tick(&mut self, shared: &Shared, turn: u32) {
        self.clients.values_mut().for_each(|client| client.credit = CREDIT);
        let clients = &self.clients;
        let has_programs = |(guest, user): &Who| {
            clients.values().any(|client| client.user == *user && client.guest == *guest)
        };
        self.closers.tidy(has_programs);
        if self.open.len() < self.wanted.len() {
            self.open_wanted();
        }
        if turn.is_multiple_of(LOOK) {
            for pair in self.pairs.values_mut().filter(|pair| pair.key.within.is_none()) {
                if let Some(bytes) = pair.news() {
                    shared.ways.in_use(&pair.key, bytes);
                }
            }
        }
    }
}

/// Returns half of what others leave of a number.
const fn half_of(all: usize, others: usize) -> usize {
    all.saturating_sub(others) / 2
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
            let programs: Vec<(u64, Arc<Untrusted>)> =
                credited.map(|(number, client)| (*number, client.socket.clone())).collect();
            let open = state.open.iter().filter(|(_, (_, open))| open.closing.count() < CLOSING);
            let listeners: Vec<(String, Arc<Listener>, Arc<Closing>)> = open
                .map(|(guest, (_, open))| (guest.clone(), open.listener.clone(), open.closing.clone()))
                .collect();
            (programs, listeners)
        };
        let accepts = programs.len() < PROGRAMS;
        let mut wanted = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        wanted.extend(programs.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)));
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
        for ((program, _), _) in programs.iter().zip(&came[1..]).filter(|(_, came)| **came) {
            if !state.serve(*program, &shared) {
                state.end(*program);
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
