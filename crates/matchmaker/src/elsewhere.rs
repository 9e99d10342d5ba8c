//! The things that a carriage has the service do.

use crate::bells::{Heard, bell};
use crate::carriage::{Carriage, Desk, New, Wake, is_first};
use crate::counters::{Reason, Refusal};
use crate::offer::{Key, Waiting};
use crate::pairs::{Carrier, Header, Memory, Pair, Party};
use crate::service::{Service, Shared, State, TOGETHER};
use crate::window::{InWindow, Window};
use sockring::{Message, Side};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Service {
    /// Makes what carries connections of a guest's programs to other hosts. `None`: the guest has no sockets, or no
    /// descriptor is left.
    #[must_use]
    pub fn carriage(&self, guest: &str) -> Option<Carriage> {
        let mut state = self.0.lock();
        state.wanted.iter().find(|spec| spec.guest == guest)?;
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

    /// Makes a pair of an offer whose other end is on another host, if that may be. It may wait for a window.
    pub fn carry(self: &Arc<Self>, key: Key) -> Option<New> {
        let side = if is_first(&key) { Side::First } else { Side::Second };
        let window = self.lock().window_for(&key)?;
        let mut made = match window {
            None => Header::new(side).ok().map(|(header, file)| (header, Some(file))),
            Some(window) => InWindow::new(&[window], side)
                .and_then(|piece| Header::in_window(side, piece))
                .map(|header| (header, None)),
        };
        let carried = self.lock().carry(key, &mut made, self);
        // No program has it.
        made.iter().for_each(|(header, _)| header.free());
        carried
    }

    /// Wakes a program whose agent passes bells on.
    pub fn wake(self: &Arc<Self>, program: u64, token: u64, room: bool) {
        self.lock().tell(program, Message::Wake { token, room }, &[], self);
    }
}

/// New memory, with its file unless it is of a window.
type Made = (Header, Option<OwnedFd>);

impl State {
    /// Returns the window that has the memory of a program with an offer; `None` inside: it is of this kernel.
    fn window_for(&self, key: &Key) -> Option<Option<Arc<dyn Window>>> {
        let own = self.waiting.get(key).filter(|waiting| waiting.is_elsewhere)?;
        Some(self.clients.get(&own.program)?.window().cloned())
    }

    /// Makes the pair, and takes the memory for it if there may be one.
    fn carry(&mut self, key: Key, made: &mut Option<Made>, shared: &Arc<Shared>) -> Option<New> {
        let own = self.waiting.get(&key).copied().filter(|waiting| waiting.is_elsewhere)?;
        if self.is_parting {
            return None;
        }
        let client = self.clients.get(&own.program)?;
        let desk = self.desks.get(&client.guest).cloned()?;
        let why = if !shared.ways.may_carry(&client.guest, &key) {
            Some(Refusal::NotAllowed)
        } else if !client.reads() {
            Some(Refusal::Unread)
        } else {
            None
        };
        if let Some(why) = why {
            self.refuse(own.program, own.token, why, shared);
            return None;
        }
        if own.seen.elapsed() >= TOGETHER {
            self.ask_again(key, shared);
            return None;
        }
        let Some((new, parts)) = self.equip(own, made, desk) else {
            self.refuse(own.program, own.token, Refusal::Memory, shared);
            return None;
        };
        let client = self.clients.get_mut(&own.program)?;
        client.offers.remove(&own.token);
        client.heard = parts.carrier.heard.clone().or_else(|| client.heard.take());
        let elsewhere = Party { guest: String::new(), user: 0, pid: 0, programs: Vec::new() };
        let parties = [client.party(own), elsewhere];
        self.waiting.remove(&key);
        self.counters.matched += 1;
        let (second, offset) = (!is_first(&key), new.memory.offset());
        let says = Message::Carried { token: own.token, pair: new.number, second, offset };
        let (heard, file) = (parts.carrier.heard.clone(), parts.file);
        self.pairs
            .insert(new.number, Pair::new(key, parties, Memory::Carried(new.memory.clone(), parts.carrier)));
        match (&heard, &file, &new.wake) {
            (Some(heard), Some(file), Wake::Bells([wake, room])) => {
                let descriptors = [file.as_fd(), heard.bell(), wake.as_fd(), room.as_fd()];
                self.tell(own.program, says, &descriptors, shared);
            }
            _ => self.tell(own.program, says, &[], shared),
        }
        Some(new)
    }

    /// Makes what a pair needs besides its memory. `None`: no descriptor is left, or the memory is for another program.
    fn equip(&mut self, own: Waiting, made: &mut Option<Made>, desk: Arc<Desk>) -> Option<(New, Parts)> {
        let client = self.clients.get(&own.program)?;
        let (heard, wake) = match (&made.as_ref()?.1, client.window()) {
            (Some(_), None) => {
                let heard = client.heard.clone().filter(|heard| Arc::ptr_eq(&heard.desk, &desk));
                let heard = heard.map_or_else(|| Heard::new(&desk).map(Arc::new), Ok).ok()?;
                (Some(heard), Wake::Bells([bell().ok()?, bell().ok()?]))
            }
            (None, Some(_)) => (None, Wake::Agent { program: own.program, token: own.token }),
            _ => return None,
        };
        let (header, file) = made.take()?;
        self.next_pair += 1;
        let new = New { number: self.next_pair, memory: Arc::new(header), wake };
        Some((new, Parts { file, carrier: Carrier { desk, heard } }))
    }
}

/// The file of a pair's memory, if it has one, and what carries it.
struct Parts {
    file: Option<OwnedFd>,
    carrier: Carrier,
}
