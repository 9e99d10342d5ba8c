//! Connections with programs of other hosts, for one guest: the two daemons find out that they have its two ends, and
//! carry what each program writes into its memory to that of the other.
//!
//! A line between the daemons ([`hca::Freight`]) brings messages in order, or ends. The first end of a connection, by
//! address and port, calls ([`Kind::Call`]). The other daemon then sees its own socket alive, and answers; then the
//! first sees its socket alive again, and joins. So both sockets, which mirror each other, were alive at one time.

mod carried;
mod letter;
mod peer;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

use crate::offer::{End, Key};
use crate::pairs::Header;
use crate::service::Shared;
use carried::Carried;
use hca::{Ends, Freight, HEAD, Load};
use letter::{Kind, Letter};
use peer::Peer;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long nobody calls an address that did not answer.
const SILENCE: Duration = Duration::from_secs(10);
/// Bells that are heard at a time.
const HEARD: usize = 64;
/// Nobody asks whose bell it was.
const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);

/// An event of the service of which the carriage is told.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// A socket that was offered was seen alive.
    Seen(Key, Instant),
    /// The offer of a socket has ended.
    Withdrawn(Key),
    /// No program of this host has its end of a pair any more.
    Ended(u64),
}

/// The place at which the service and programs leave word for a guest's carriage.
pub struct Desk {
    commands: Mutex<Vec<Command>>,
    /// The service rings by it.
    own: OwnedFd,
    /// The set of that and of the programs' bells.
    bells: OwnedFd,
}

impl Desk {
    fn new() -> rustix::io::Result<Self> {
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&bells, &own, NO_DATA, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(Self { commands: Mutex::default(), own, bells })
    }

    /// Hears a program's bell from now on, by which it tells that it has written or read.
    pub fn listen(&self, bell: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.bells, bell, NO_DATA, epoll::EventFlags::OUT | epoll::EventFlags::ET)
    }

    pub fn forget(&self, bell: BorrowedFd<'_>) {
        _ = epoll::delete(&self.bells, bell);
    }

    /// Notes that what was told so far is heard.
    fn hear(&self) {
        let mut events = [MaybeUninit::uninit(); HEARD];
        _ = epoll::wait(&self.bells, &mut events, Some(&Timespec::default()));
    }

    pub fn ring(&self) {
        _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    pub fn tell(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.ring();
    }
}

/// A new pair.
pub struct New {
    pub number: u64,
    pub memory: Arc<Header>,
    pub wake: Wake,
}

/// The way in which a program is woken.
pub enum Wake {
    /// By its bells: for anything, and for room.
    Bells([OwnedFd; 2]),
    /// By its agent, to which it has this name of the connection.
    Agent { program: u64, token: u64 },
}

/// Carries connections of one guest's programs. The thread of its device's lines calls it.
pub struct Carriage {
    guest: String,
    service: Weak<Shared>,
    desk: Arc<Desk>,
    peers: HashMap<Ends, Peer>,
    pairs: HashMap<u64, Carried>,
}

/// Returns an address as devices have it.
const fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

const fn ends(key: &Key) -> Ends {
    Ends { own: mapped(key.own.addr), peer: mapped(key.peer.addr) }
}

/// Returns whether this end of a connection is its first one, which calls.
pub fn is_first(key: &Key) -> bool {
    let order = |end: &End| (mapped(end.addr), end.port);
    order(&key.own) < order(&key.peer)
}

impl Carriage {
    /// Makes a carriage, and the desk where word is left for it.
    pub fn new(guest: &str, service: &Arc<Shared>) -> rustix::io::Result<(Self, Arc<Desk>)> {
        let desk = Arc::new(Desk::new()?);
        let (guest, service) = (guest.to_owned(), Arc::downgrade(service));
        let (peers, pairs) = Default::default();
        Ok((Self { guest, service, desk: desk.clone(), peers, pairs }, desk))
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Seen(key, at) if is_first(&key) => {
                let peer = self.peers.entry(ends(&key)).or_default();
                if peer.is_silent(at) {
                    self.refuse(&key);
                } else if let Some(answer) = peer.call(key) {
                    self.join(key, answer);
                }
            }
            Command::Seen(key, at) => {
                let Some(peer) = self.peers.get_mut(&ends(&key)) else { return };
                if peer.answer(&key, at) == peer::Answer::AskAgain {
                    self.ask(&key);
                }
            }
            Command::Withdrawn(key) => {
                if let Some(peer) = self.peers.get_mut(&ends(&key)) {
                    peer.withdraw(&key);
                }
            }
            Command::Ended(pair) => {
                if let Some(carried) = self.pairs.get_mut(&pair) {
                    carried.ends();
                }
            }
        }
    }

    /// Has a program offer its socket again.
    fn ask(&self, key: &Key) {
        self.service.upgrade().iter().for_each(|service| service.ask(*key));
    }

    fn refuse(&self, key: &Key) {
        self.service.upgrade().iter().for_each(|service| service.refuse_call(*key));
    }

    /// Makes the pair of the first end, whose call was answered.
    fn join(&mut self, key: Key, answer: u64) {
        let Some(new) = self.service.upgrade().and_then(|service| service.carry(key)) else { return };
        let number = new.number;
        self.pairs.insert(number, Carried::new(key, new, None));
        self.post(ends(&key), Letter::new(Kind::Join, answer, number));
    }

    fn post(&mut self, ends: Ends, letter: Letter) {
        if let Some(peer) = self.peers.get_mut(&ends) {
            peer.post(letter);
        }
    }

    /// Ends a pair of which it is not known any more what has arrived.
    fn cut(&mut self, number: u64) {
        let Some(carried) = self.pairs.remove(&number) else { return };
        if carried.is_settled() {
            // Both programs are with TCP, and have all that went by rings.
            return;
        }
        let Some(service) = self.service.upgrade() else { return };
        let is_kept = carried.abandon();
        service.cut(number, is_kept);
        if let Some(theirs) = carried.theirs {
            self.post(ends(&carried.key), Letter::new(Kind::Gone, theirs, number));
        }
    }

    /// Handles a message that is none of a pair. `own` and `peer` are addresses that it names.
    fn handle(&mut self, at: Ends, letter: &Letter) {
        match letter.kind {
            Kind::Call => {
                let (own, peer) = letter.addresses();
                let canonical = |address: SocketAddr| mapped(address.ip());
                if (canonical(own), canonical(peer)) != (at.own, at.peer) {
                    return;
                }
                let key =
                    self.service.upgrade().and_then(|service| service.elsewhere(&self.guest, own, peer));
                if let (Some(key), Some(there)) = (key, self.peers.get_mut(&at)) {
                    there.called(key, letter.ours);
                    self.ask(&key);
                }
            }
            Kind::Withdraw => {
                if let Some(peer) = self.peers.get_mut(&at) {
                    peer.uncalled(letter.ours);
                }
            }
            Kind::Answer => {
                if let Some(key) =
                    self.peers.get_mut(&at).and_then(|peer| peer.answered(letter.theirs, letter.ours))
                {
                    self.ask(&key);
                }
            }
            Kind::Join => {
                let key = self.peers.get_mut(&at).and_then(|peer| peer.joined(letter.theirs));
                let new = key.and_then(|key| Some((key, self.service.upgrade()?.carry(key)?)));
                match new {
                    Some((key, new)) => {
                        let number = new.number;
                        self.pairs.insert(number, Carried::new(key, new, Some(letter.ours)));
                    }
                    None => self.post(at, Letter::new(Kind::Gone, letter.ours, 0)),
                }
            }
            Kind::Gone => {
                if let Some(carried) = self.pairs.get(&letter.theirs)
                    && ends(&carried.key) == at
                    && carried.theirs.is_none_or(|theirs| theirs == letter.ours || letter.ours == 0)
                {
                    if carried.is_over() {
                        self.pairs.remove(&letter.theirs);
                    } else {
                        self.cut(letter.theirs);
                    }
                }
            }
            Kind::State => {}
        }
    }

    /// Returns the pair of a message, if it is one of this line.
    fn pair(&mut self, at: Ends, letter: &Letter) -> Option<&mut Carried> {
        let found = self.pairs.get_mut(&letter.theirs).filter(|carried| ends(&carried.key) == at)?;
        (*found.theirs.get_or_insert(letter.ours) == letter.ours).then_some(found)
    }
}

impl Freight for Carriage {
    fn bell(&self) -> BorrowedFd<'_> {
        self.desk.bells.as_fd()
    }

    fn look(&mut self) -> bool {
        // Whoever rings after this is seen by the next look.
        let commands =
            std::mem::take(&mut *self.desk.commands.lock().unwrap_or_else(PoisonError::into_inner));
        let mut has_any = !commands.is_empty();
        commands.into_iter().for_each(|command| self.obey(command));
        let mut wrong = Vec::new();
        for (number, carried) in &mut self.pairs {
            let Some(peer) = self.peers.get_mut(&ends(&carried.key)) else { continue };
            if !peer.is_up || carried.theirs.is_none() || carried.is_queued {
                continue;
            }
            match carried.has_news() {
                Ok(true) => {
                    carried.is_queued = true;
                    peer.ready.push_back(*number);
                    has_any = true;
                }
                Ok(false) => {}
                Err(_) => wrong.push(*number),
            }
        }
        wrong.into_iter().for_each(|number| self.cut(number));
        has_any
    }

    fn arm(&mut self) -> bool {
        self.desk.hear();
        self.pairs.values().for_each(Carried::arm);
        self.look()
    }

    fn wanted(&mut self) -> Vec<Ends> {
        let mut wanted: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.is_up && peer.calls())
            .map(|(ends, _)| *ends)
            .collect();
        for carried in self.pairs.values() {
            let ends = ends(&carried.key);
            if self.peers.get(&ends).is_none_or(|peer| !peer.is_up) && !wanted.contains(&ends) {
                wanted.push(ends);
            }
        }
        wanted
    }

    fn up(&mut self, at: Ends, is_same: bool) {
        let its: Vec<u64> = self
            .pairs
            .iter()
            .filter(|(_, carried)| ends(&carried.key) == at)
            .map(|(number, _)| *number)
            .collect();
        self.peers.entry(at).or_default().rises();
        for number in its {
            let knows = self.pairs.get(&number).is_some_and(|carried| carried.theirs.is_some());
            if is_same && knows {
                self.pairs.get_mut(&number).into_iter().for_each(Carried::resume);
            } else {
                self.cut(number);
            }
        }
    }

    fn down(&mut self, at: Ends) {
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.falls();
        }
        let its = self.pairs.values_mut().filter(|carried| ends(&carried.key) == at);
        its.for_each(|carried| carried.is_queued = false);
    }

    fn unreachable(&mut self, at: Ends) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        peer.silent_until = Some(Instant::now() + SILENCE);
        let calls = peer.take_calls();
        calls.iter().for_each(|key| self.refuse(key));
    }

    fn next(&mut self, at: Ends) -> Option<Load> {
        let peer = self.peers.get_mut(&at)?;
        if let Some(letter) = peer.letters.pop_front() {
            return Some(Load { head: letter.head(), len: 0, cargo: None, from: 0 });
        }
        while let Some(number) = peer.ready.pop_front() {
            let Some(carried) = self.pairs.get_mut(&number) else { continue };
            carried.is_queued = false;
            let Some((letter, len)) = carried.letter(number) else { continue };
            let load = Load {
                head: letter.head(),
                len,
                cargo: (len > 0).then(|| carried.memory.clone() as Arc<dyn hca::Cargo>),
                from: letter.from,
            };
            if carried.is_finished() {
                self.pairs.remove(&number);
            }
            return Some(load);
        }
        None
    }

    fn store(&mut self, at: Ends, head: &[u8; HEAD], offset: u32, bytes: &[u8]) {
        if let Some(letter) = Letter::read(head).filter(|letter| letter.kind == Kind::State)
            && let Some(carried) = self.pair(at, &letter)
        {
            carried.store(&letter, offset, bytes);
        }
    }

    fn arrived(&mut self, at: Ends, head: &[u8; HEAD], len: u32) {
        let Some(letter) = Letter::read(head) else { return };
        if letter.kind != Kind::State {
            return self.handle(at, &letter);
        }
        let Some(carried) = self.pair(at, &letter) else {
            if !letter.is_last {
                self.post(at, Letter::new(Kind::Gone, letter.ours, letter.theirs));
            }
            return;
        };
        let arrived = carried.arrived(&letter, len);
        let woken = carried.take_woken();
        let Some(service) = self.service.upgrade() else { return };
        if let Some((program, token, room)) = woken {
            service.wake(program, token, room);
        }
        match arrived {
            Ok(true) => service.look(letter.theirs),
            Ok(false) => {}
            Err(_) => self.cut(letter.theirs),
        }
    }
}

impl Drop for Carriage {
    fn drop(&mut self) {
        let all: Vec<u64> = self.pairs.keys().copied().collect();
        all.into_iter().for_each(|number| self.cut(number));
    }
}
