//! Offers that wait for another end, and who may have how many.

use super::{Shared, State, TOGETHER};
use crate::carriage::Command;
use crate::client::{CONNECTIONS, half_of};
use crate::closing::Who;
use crate::counters::Refusal;
use crate::offer::{Key, Offered, Waiting};
use sockring::Message;
use std::sync::Arc;
use std::time::Instant;

impl State {
    /// Returns whether a user may have so many more offers, pairs or slots of files.
    fn has_room(&self, who: &Who, more: usize, limit: usize) -> bool {
        let (mut own, mut of_guest, mut of_others) = (more, more, 0);
        for (its, count) in &self.held {
            *if its.0 == who.0 { &mut of_guest } else { &mut of_others } += count;
            own += if its == who { *count } else { 0 };
        }
        own <= limit && of_guest <= half_of(CONNECTIONS, of_others)
    }

    pub(super) fn offer(&mut self, program: u64, token: u64, offered: Option<Offered>, shared: &Arc<Shared>) {
        self.counters.offered += 1;
        let Some(client) = self.clients.get(&program) else { return };
        let who = client.who();
        let known = client.offers.get(&token).copied();
        let Some(offered) = offered else {
            return self.refuse(program, token, Refusal::NoConnection, shared);
        };
        let key = match offered.is_within() {
            // A machine's own connections are its own affair.
            true => client.window().is_none().then(|| offered.within()),
            false => shared.ways.inside(&who.0, offered.own, offered.peer),
        };
        let desk = self.desks.get(&who.0).filter(|_| client.may_carry && !offered.is_within()).cloned();
        let elsewhere = || shared.ways.elsewhere(&who.0, offered.own, offered.peer);
        let (desk, key) = match key {
            None => (desk.clone(), desk.and_then(|_| elsewhere())),
            here => (None, here),
        };
        let Some(key) = key else { return self.refuse(program, token, Refusal::Addresses, shared) };
        let own = Waiting::new(program, token, &offered, desk.is_some());
        let answers = match self.waiting.get_mut(&key) {
            Some(there) if there.is_of(&own) => {
                there.seen = own.seen;
                there.asked.take().is_some()
            }
            Some(there) => {
                // One namespace has no two such sockets: the earlier one was closed, and its offer is stale. Of two in
                // two namespaces, neither is believed.
                let their = *there;
                if their.socket.0 != own.socket.0 || their.socket == own.socket {
                    self.refuse(their.program, their.token, Refusal::Twice, shared);
                    return self.refuse(program, token, Refusal::Twice, shared);
                }
                self.refuse(their.program, their.token, Refusal::Stale, shared);
                return self.add(own, who, key, shared);
            }
            None if known.is_some() => return self.refuse(program, token, Refusal::Twice, shared),
            None => return self.add(own, who, key, shared),
        };
        if let Some(desk) = desk.filter(|_| answers) {
            return desk.tell(Command::Seen(key, own.seen));
        }
        if let Some(other) = self.waiting.get(&key.reverse()).copied().filter(|_| answers) {
            match other.seen.elapsed() < TOGETHER {
                true => self.unite(key, (own, other), shared),
                false => self.ask_again(key.reverse(), shared),
            }
        }
    }

    /// Adds an offer, and has the other end offer again if it is there: its connection may be gone meanwhile, and this
    /// one be another that has the same ports.
    fn add(&mut self, own: Waiting, who: Who, key: Key, shared: &Arc<Shared>) {
        if !self.has_room(&who, 1, shared.limits.connections) {
            return self.refuse(own.program, own.token, Refusal::Limit, shared);
        }
        let Some(client) = self.clients.get_mut(&own.program) else { return };
        client.offers.insert(own.token, key);
        let desk = self.desks.get(&who.0).filter(|_| own.is_elsewhere).cloned();
        *self.held.entry(who).or_default() += 1;
        self.waiting.insert(key, own);
        match desk {
            Some(desk) => desk.tell(Command::Seen(key, own.seen)),
            None => self.ask_again(key.reverse(), shared),
        }
    }

    pub fn ask_again(&mut self, key: Key, shared: &Arc<Shared>) {
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        if waiting.asked.is_none_or(|at| at.elapsed() >= TOGETHER) {
            waiting.asked = Some(Instant::now());
            let (program, token) = (waiting.program, waiting.token);
            self.tell(program, Message::Again { token }, &[], shared);
        }
    }

    /// Ends an offer that has no use.
    pub fn refuse(&mut self, program: u64, token: u64, why: Refusal, shared: &Arc<Shared>) {
        self.counters.refuse(why);
        self.cancel(program, token);
        self.tell(program, Message::Refused { token }, &[], shared);
    }

    /// Charges both users of a file with its slots, if there is room. Returns whether it is done.
    pub(super) fn charge_both(&mut self, users: &[Who; 2], slots: usize, limit: usize) -> bool {
        for (at, user) in users.iter().enumerate() {
            if !self.has_room(user, slots, limit) {
                users[..at].iter().for_each(|user| self.release(user, slots));
                return false;
            }
            *self.held.entry(user.clone()).or_default() += slots;
        }
        true
    }

    pub(super) fn release(&mut self, who: &Who, count: usize) {
        if let Some(held) = self.held.get_mut(who) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.held.remove(who);
            }
        }
    }

    pub(super) fn cancel(&mut self, program: u64, token: u64) {
        let Some(client) = self.clients.get_mut(&program) else { return };
        if let Some(key) = client.offers.remove(&token) {
            let who = client.who();
            self.unwait(&who.0, &key);
            self.release(&who, 1);
        }
    }

    /// Forgets an offer that waits.
    pub(super) fn unwait(&mut self, guest: &str, key: &Key) {
        if self.waiting.remove(key).is_some_and(|waiting| waiting.is_elsewhere)
            && let Some(desk) = self.desks.get(guest)
        {
            desk.tell(Command::Withdrawn(*key));
        }
    }
}
