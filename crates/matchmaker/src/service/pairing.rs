//! Making pairs: which memory two programs get in common, and how they are told.

use super::{Shared, State};
use crate::bells::bell;
use crate::counters::Refusal;
use crate::files::Slot;
use crate::offer::{Key, Waiting};
use crate::pairs::{Header, Memory, Pair, Party};
use crate::window::{InWindow, Window};
use sockring::{Message, Side};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

impl State {
    /// Makes a pair of two offers, if they may share memory.
    pub(super) fn unite(&mut self, key: Key, (own, other): (Waiting, Waiting), shared: &Arc<Shared>) {
        let windows = self.windows([own.program, other.program]);
        let [Some(a), Some(b)] = [own, other].map(|end| self.clients.get(&end.program)) else { return };
        let is_allowed = key.within.is_some() || shared.ways.may_share((&a.guest, &b.guest), &key);
        let (true, Some(windows), true) = (is_allowed, windows, a.reads() && b.reads()) else {
            let reads = a.reads() && b.reads();
            let why = if reads { Refusal::NotAllowed } else { Refusal::Unread };
            self.refuse(other.program, other.token, why, shared);
            return self.refuse(own.program, own.token, why, shared);
        };
        let has_doors = a.has_doors && b.has_doors;
        let parties = [a.party(own), b.party(other)];
        for (key, end) in [(key, own), (key.reverse(), other)] {
            self.waiting.remove(&key);
            self.clients.get_mut(&end.program).and_then(|client| client.offers.remove(&end.token));
        }
        match windows {
            None if has_doors => self.pair_in_file(key, parties, shared),
            None => self.pair_alone(key, parties, shared),
            Some(windows) => self.pair_later(key, parties, windows, shared),
        }
    }

    /// Returns the windows in which two programs can have memory in common; none inside if both are of this kernel.
    fn windows(&mut self, programs: [u64; 2]) -> Option<Option<[Arc<dyn Window>; 2]>> {
        let window = |program| self.clients.get(&program).and_then(|client| client.window().cloned());
        Some(Some(match programs.map(window) {
            [None, None] => return Some(None),
            [Some(a), Some(b)] => (a.id() == b.id()).then_some([a, b])?,
            [None, Some(b)] => [self.clients.get_mut(&programs[0])?.borrow(&b)?, b],
            [Some(a), None] => {
                let b = self.clients.get_mut(&programs[1])?.borrow(&a)?;
                [a, b]
            }
        }))
    }

    /// Refuses both ends, for which there is no memory.
    fn part(&mut self, parties: &[Party; 2], shared: &Arc<Shared>) {
        for party in parties {
            self.release(&party.who(), 1);
        }
        for (program, token) in parties.iter().flat_map(|party| &party.programs) {
            self.refuse(*program, *token, Refusal::Memory, shared);
        }
    }

    /// Makes a pair with memory of its own.
    fn pair_alone(&mut self, key: Key, parties: [Party; 2], shared: &Arc<Shared>) {
        match Header::new(Side::First) {
            Ok((header, file)) => {
                let given = [(Some(file.as_fd()), 0); 2];
                self.pair(key, parties, Memory::File(header), given, shared);
            }
            Err(_) => self.part(&parties, shared),
        }
    }

    /// Makes a pair with memory in a file that its programs have for many.
    fn pair_in_file(&mut self, key: Key, parties: [Party; 2], shared: &Arc<Shared>) {
        let programs = |parties: &[Party; 2]| [0, 1].map(|at| parties[at].programs[0].0);
        let [a, b] = programs(&parties);
        // The sides are those of the file.
        let (key, parties) = if !self.files.has([a, b]) && self.files.has([b, a]) {
            let [a, b] = parties;
            (key.reverse(), [b, a])
        } else {
            (key, parties)
        };
        let users = parties.each_ref().map(Party::who);
        let mut files = std::mem::take(&mut self.files);
        let taken = files.take(programs(&parties), users.each_ref(), |slots| {
            self.charge_both(&users, slots, shared.limits.connections)
        });
        self.files = files;
        match taken {
            Ok(Some(Slot { file, slot, mapped, new })) => {
                if let Some(new) = new {
                    self.introduce(file, programs(&parties), &new, shared);
                }
                // Whoever does not take messages is gone now.
                if !programs(&parties).iter().all(|program| self.clients.contains_key(program)) {
                    self.give_back(file, slot, shared);
                    return self.part(&parties, shared);
                }
                // The slot was paid for with the file.
                users.iter().for_each(|user| self.release(user, 1));
                self.pair(key, parties, Memory::Slot(mapped, file, slot), [(None, file); 2], shared);
            }
            Ok(None) => self.pair_alone(key, parties, shared),
            Err(_) => self.part(&parties, shared),
        }
    }

    /// Gives both programs a new file and its bells. Without bells they are woken by their sockets.
    fn introduce(&mut self, file: u64, programs: [u64; 2], descriptor: &OwnedFd, shared: &Arc<Shared>) {
        let bells = [bell(), bell()];
        for (side, program) in programs.into_iter().enumerate() {
            let second = side == 1;
            self.tell(program, Message::File { file, second }, &[descriptor.as_fd()], shared);
            if let [Ok(first), Ok(other)] = &bells {
                let (own, other) = if second { (other, first) } else { (first, other) };
                self.tell(program, Message::Bell { file, second, own: true }, &[own.as_fd()], shared);
                self.tell(program, Message::Bell { file, second, own: false }, &[other.as_fd()], shared);
            }
        }
    }

    fn pair(
        &mut self,
        key: Key,
        parties: [Party; 2],
        memory: Memory,
        given: [(Option<BorrowedFd<'_>>, u64); 2],
        shared: &Arc<Shared>,
    ) {
        let ends: Vec<_> = parties.iter().flat_map(|party| party.programs.clone()).collect();
        self.next_pair += 1;
        self.counters.matched += 1;
        let pair = self.next_pair;
        let slot = if let Memory::Slot(.., slot) = &memory { *slot } else { 0 };
        self.pairs.insert(pair, Pair::new(key, parties, memory));
        for (side, ((program, token), (descriptor, offset))) in ends.into_iter().zip(given).enumerate() {
            let matched = Message::Matched { token, pair, second: side == 1, offset, slot };
            self.tell(program, matched, descriptor.as_slice(), shared);
        }
    }

    /// Makes a pair once a window's thread has memory for it.
    fn pair_later(
        &mut self,
        key: Key,
        parties: [Party; 2],
        windows: [Arc<dyn Window>; 2],
        shared: &Arc<Shared>,
    ) {
        let shared = Arc::downgrade(shared);
        let window = windows[0].clone();
        window.later(Box::new(move || {
            let memory = InWindow::new(&windows, Side::First);
            let Some(shared) = shared.upgrade() else { return };
            let mut state = shared.lock();
            let is_here = |party: &Party| state.clients.contains_key(&party.programs[0].0);
            match memory {
                Some(memory) if parties.iter().all(is_here) => {
                    let offset = memory.offset();
                    let given = [0, 1].map(|at| {
                        // A program in a machine has its window already.
                        let is_lent = state.is_lent(parties[at].programs[0].0);
                        let (file, base) = windows[at].file();
                        if is_lent { (Some(file), base + offset) } else { (None, offset) }
                    });
                    state.pair(key, parties, Memory::Window(memory), given, &shared);
                }
                unused => {
                    unused.iter().for_each(InWindow::free);
                    state.part(&parties, &shared);
                }
            }
        }));
    }

    fn is_lent(&self, program: u64) -> bool {
        self.clients.get(&program).is_some_and(|client| client.window().is_none())
    }
}
