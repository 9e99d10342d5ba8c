//! The things that a carriage has the service do.

use crate::bells::{Heard, bell};
use crate::carriage::{Carriage, New, is_first};
use crate::client::Client;
use crate::counters::{Reason, Refusal};
use crate::offer::Key;
use crate::pairs::{Header, Memory, Pair, Party};
use crate::service::{Service, Shared, TOGETHER};
use sockring::{Message, Side};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Service {
    /// Makes what carries connections of a guest's programs to other hosts. `None`: the guest has no sockets here, or no
    /// descriptor is left.
    #[must_use]
    pub fn carriage(&self, guest: &str) -> Option<Carriage> {
        let mut state = self.0.lock();
        state.wanted.iter().find(|spec| spec.guest == guest && spec.socket.is_some())?;
        let (carriage, desk) = Carriage::new(guest, &self.0).ok()?;
        state.desks.insert(guest.to_owned(), desk);
        Some(carriage)
    }

    /// Returns all connections with other hosts to TCP, before this daemon is replaced. Waits until that is done, but
    /// not longer than `patience`. There are no new ones until [`Self::stay`].
    pub fn part(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let mut state = self.0.lock();
        state.is_parting = true;
        state.return_pairs(&self.0, Reason::Daemon, |pair| !pair.is_parted());
        while !state.pairs.values().all(Pair::is_parted) && Instant::now() < end {
            drop(state);
            std::thread::sleep(LOOK);
            state = self.0.lock();
        }
    }

    /// Notes that this daemon is not replaced.
    pub fn stay(&self) {
        self.0.lock().is_parting = false;
    }
}

/// Time between looks at pairs that return.
const LOOK: Duration = Duration::from_millis(5);

impl Shared {
    /// Has a program offer its socket again, if it is offered.
    pub fn ask(self: &Arc<Self>, key: Key) {
        let mut state = self.lock();
        if state.waiting.get(&key).is_some_and(|waiting| waiting.is_elsewhere) {
            state.ask_again(key, self);
        }
    }

    /// Ends the offer of a connection whose other end nobody answers for.
    pub fn refuse_call(self: &Arc<Self>, key: Key) {
        let mut state = self.lock();
        if let Some(waiting) = state.waiting.get(&key).copied() {
            state.refuse(waiting.program, waiting.token, Refusal::Unreachable, self);
        }
    }

    pub fn elsewhere(&self, guest: &str, own: SocketAddr, peer: SocketAddr) -> Option<Key> {
        self.ways.elsewhere(guest, own, peer)
    }

    /// Has the programs of a pair look at its directions.
    pub fn look(self: &Arc<Self>, pair: u64) {
        self.lock().tell_both(pair, |token| Message::Look { token }, self);
    }

    /// Tells the programs of a pair that it has to end, or return to TCP if it `is_kept`.
    pub fn cut(self: &Arc<Self>, number: u64, is_kept: bool) {
        let mut state = self.lock();
        let Some(pair) = state.pairs.get_mut(&number) else { return };
        if !pair.is_returned() {
            _ = pair.return_to_tcp(Reason::Line.text(), || {});
            state.counters.return_pair(Reason::Line);
        }
        let says: fn(u64) -> Message =
            if is_kept { |token| Message::Return { token } } else { |token| Message::Cut { token } };
        state.tell_both(number, says, self);
    }

    /// Makes a pair of an offer whose other end is on another host, if that may be.
    pub fn carry(self: &Arc<Self>, key: Key) -> Option<New> {
        let mut state = self.lock();
        let own = state.waiting.get(&key).copied().filter(|waiting| waiting.is_elsewhere)?;
        if state.is_parting {
            return None;
        }
        let client = state.clients.get(&own.program)?;
        let desk = state.desks.get(&client.guest).cloned()?;
        let why = if !self.ways.may_carry(&client.guest, &key) {
            Some(Refusal::NotAllowed)
        } else if !client.reads() {
            Some(Refusal::Unread)
        } else {
            None
        };
        if let Some(why) = why {
            state.refuse(own.program, own.token, why, self);
            return None;
        }
        if own.seen.elapsed() >= TOGETHER {
            state.ask_again(key, self);
            return None;
        }
        let side = if is_first(&key) { Side::First } else { Side::Second };
        let heard = client.heard.clone().filter(|heard| Arc::ptr_eq(&heard.desk, &desk));
        let heard = heard.map_or_else(|| Heard::new(&desk).map(Arc::new), Ok);
        let made = Header::new(side).and_then(|made| Ok((made, heard?, [bell()?, bell()?])));
        let Ok(((header, file), heard, wake)) = made else {
            state.refuse(own.program, own.token, Refusal::Memory, self);
            return None;
        };
        let memory = Arc::new(header);
        let elsewhere = Party { guest: String::new(), user: 0, pid: 0, programs: Vec::new() };
        let parties = [Client::party(client, own), elsewhere];
        state.waiting.remove(&key);
        if let Some(client) = state.clients.get_mut(&own.program) {
            client.offers.remove(&own.token);
            client.heard = Some(heard.clone());
        }
        state.next_pair += 1;
        state.counters.matched += 1;
        let number = state.next_pair;
        state.pairs.insert(number, Pair::new(key, parties, Memory::Carried(memory.clone(), heard.clone())));
        let says = Message::Carried { token: own.token, pair: number, second: side == Side::Second };
        state.tell(own.program, says, &[file.as_fd(), heard.bell(), wake[0].as_fd(), wake[1].as_fd()], self);
        Some(New { number, memory, wake })
    }
}
