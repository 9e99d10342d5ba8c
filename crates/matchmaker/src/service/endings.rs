//! The ends of pairs and of programs.

use super::{Ending, RETURN, Shared, State};
use crate::counters::Reason;
use crate::pairs::Pair;
use sockring::Message;
use std::sync::Arc;

impl State {
    /// Has pairs return to TCP.
    pub fn return_pairs(&mut self, shared: &Arc<Shared>, why: Reason, which: impl Fn(&Pair) -> bool) {
        let mut told = Vec::new();
        for (number, pair) in self.pairs.iter_mut().filter(|(_, pair)| which(pair)) {
            if !pair.is_returned() {
                self.counters.return_pair(why);
            }
            let (shared, number) = (Arc::downgrade(shared), *number);
            let tell = move || {
                shared.upgrade().iter().for_each(|shared| shared.lock().tell_both(number, RETURN, shared));
            };
            if pair.return_to_tcp(why.text(), tell) {
                told.push(number);
            }
        }
        told.into_iter().for_each(|number| self.tell_both(number, RETURN, shared));
    }

    /// Forgets a program.
    pub(super) fn end(&mut self, program: u64, shared: &Arc<Shared>) {
        let Some(client) = self.clients.remove(&program) else { return };
        for key in client.offers.values() {
            self.unwait(&client.guest, key);
            self.release(&client.who(), 1);
        }
        if !client.ends_in_order() {
            // Nobody tells it to return by itself.
            self.return_pairs(shared, Reason::Agent, |pair| pair.has(program));
            self.pairs.values_mut().filter(|pair| pair.has(program)).for_each(Pair::lose);
            if let Some(window) = client.window().cloned() {
                window.clone().later(Box::new(move || window.lose()));
            }
        }
        self.close_files(program, shared);
        let is_lent = client.lent.is_some();
        self.all_gone(program, |pair| !is_lent || !pair.is_in_window(), shared);
        if let Some(lent) = client.lent.filter(|_| self.pairs.values().any(|pair| pair.has(program))) {
            self.ending.push(Ending { program, process: lent.process, is_late: false });
        }
    }

    /// Notes that a program has let go of those of its pairs.
    fn all_gone(&mut self, program: u64, which: impl Fn(&Pair) -> bool, shared: &Arc<Shared>) {
        let its = |pair: &Pair| pair.has(program) && which(pair);
        let pairs: Vec<u64> =
            self.pairs.iter().filter(|(_, pair)| its(pair)).map(|(number, _)| *number).collect();
        pairs.into_iter().for_each(|pair| self.gone(program, pair, None, shared));
    }

    /// Looks which programs have ended that may use memory of a window. Those that have not return to TCP.
    pub(super) fn end_processes(&mut self, shared: &Arc<Shared>) {
        let (over, mut alive): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.ending).into_iter().partition(Ending::is_over);
        over.iter().for_each(|ending| self.all_gone(ending.program, |_| true, shared));
        for ending in alive.iter_mut().filter(|ending| !ending.is_late) {
            ending.is_late = true;
            self.return_pairs(shared, Reason::Agent, |pair| pair.has(ending.program));
        }
        alive.retain(|ending| self.pairs.values().any(|pair| pair.has(ending.program)));
        self.ending = alive;
    }

    pub(super) fn gone(&mut self, program: u64, number: u64, token: Option<u64>, shared: &Arc<Shared>) {
        let Some(pair) = self.pairs.get_mut(&number).filter(|pair| pair.has(program)) else { return };
        if pair.forget(program, token) {
            self.remove(number, shared);
        }
    }

    /// Removes a pair that nobody has any more.
    fn remove(&mut self, number: u64, shared: &Arc<Shared>) {
        let Some(mut pair) = self.pairs.remove(&number) else { return };
        let (a, b) = pair.news().unwrap_or_default();
        self.counters.bytes = self.counters.bytes.saturating_add(a.saturating_add(b));
        pair.end(number);
        match pair.slot() {
            Some((file, slot)) => self.give_back(file, slot, shared),
            None => pair.parties.iter().for_each(|party| self.release(&party.who(), 1)),
        }
    }

    /// Gives back a slot of a file for many connections.
    pub(super) fn give_back(&mut self, file: u64, slot: u8, shared: &Arc<Shared>) {
        let told = self.files.give_back(file, slot).into_iter().flatten();
        told.for_each(|program| self.tell(program, Message::Full { file }, &[], shared));
        self.release_files();
    }

    /// Puts no more connections into the files of a program, which has ended or forks.
    pub(super) fn close_files(&mut self, program: u64, shared: &Arc<Shared>) {
        for (file, both) in self.files.close(program) {
            both.into_iter().for_each(|program| self.tell(program, Message::Full { file }, &[], shared));
        }
        self.release_files();
    }

    fn release_files(&mut self) {
        for (who, slots) in self.files.take_freed() {
            self.release(&who, slots);
        }
    }
}
