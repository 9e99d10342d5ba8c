//! Programs, and what they say.

use super::{CREDIT, Shared, State, TURN};
use crate::client::{Client, Line, PROGRAMS, Said, half_of};
use crate::pairs::{Pair, Party};
use rustix::io::Errno;
use seqpacket::Connection;
use sockets::Untrusted;
use sockring::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    pub(super) fn accept(&mut self, guest: &str, socket: Untrusted, shared: &Arc<Shared>) {
        let Ok(uverbs::Peer { uid: user, pid }) = uverbs::peer(&socket) else { return };
        if !self.open.contains_key(guest) {
            return;
        }
        let socket = Arc::new(socket);
        let line = Line::Here(Connection::serving(socket.clone()));
        self.admit(guest, (user, pid), socket, line, shared);
    }

    /// Adds a program, if there is room. Returns whether there is.
    pub(super) fn admit(
        &mut self,
        guest: &str,
        (user, pid): (u32, i32),
        socket: Arc<Untrusted>,
        line: Line,
        shared: &Arc<Shared>,
    ) -> bool {
        let of_guest = self.clients.values().filter(|client| client.guest == guest).count();
        let own = self.clients.values().filter(|client| client.user == user && client.guest == guest).count();
        if own >= shared.limits.programs || of_guest >= half_of(PROGRAMS, self.clients.len() - of_guest) {
            return false;
        }
        // Descriptors come only from programs of this kernel.
        if matches!(line, Line::Here(_)) && !self.closers.admit(&(guest.to_owned(), user)) {
            return false;
        }
        let (guest, offers) = (guest.to_owned(), BTreeMap::new());
        let client = Client {
            socket,
            line,
            guest,
            user,
            pid,
            offers,
            credit: CREDIT,
            lent: None,
            has_doors: false,
            may_carry: false,
            heard: None,
        };
        self.next += 1;
        self.clients.insert(self.next, client);
        true
    }

    /// Reads what a program says. Returns whether it goes on.
    pub(super) fn serve(&mut self, program: u64, shared: &Arc<Shared>) -> bool {
        for _ in 0..TURN {
            let Some(client) = self.clients.get_mut(&program) else { return true };
            if client.credit == 0 {
                return true;
            }
            client.credit -= 1;
            let Said { message, offered, descriptors } = match client.hear() {
                Ok(said) => said,
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            };
            let who = client.who();
            // Copies here would hold the ends of streams back.
            let mut is_closed = true;
            for descriptor in descriptors {
                is_closed &= self.closers.close(&who, descriptor);
            }
            if !is_closed {
                return false;
            }
            match message {
                Some(Message::Offer { token, doors, carries, relays }) => {
                    let is_here = client.window().is_none();
                    client.has_doors |= doors && is_here;
                    client.may_carry |= carries && (is_here || relays);
                    self.offer(program, token, offered, shared);
                }
                Some(Message::Cancel { token }) => self.cancel(program, token),
                Some(Message::Poke { pair }) => self.poke(program, pair, shared),
                Some(Message::Gone { token, pair }) => self.gone(program, pair, Some(token), shared),
                Some(Message::Adopt { token, pair }) => self.adopt(program, token, pair),
                Some(Message::Wake { .. }) if client.window().is_some() => {
                    self.desks.get(&who.0).iter().for_each(|desk| desk.ring());
                }
                Some(Message::Full { file: 0 }) => self.close_files(program, shared),
                _ => return false,
            }
        }
        true
    }

    pub(super) fn poke(&mut self, program: u64, pair: u64, shared: &Arc<Shared>) {
        let Some(client) = self.clients.get(&program) else { return };
        let Some(found) = self.pairs.get(&pair) else { return };
        // A fork that has not told of its pairs yet may ask, too.
        if !found.parties.iter().any(|party| (&party.guest, party.user) == (&client.guest, client.user)) {
            return;
        }
        let told: usize = found.parties.iter().map(|party| party.programs.len()).sum();
        // Each message is paid for by who has it sent.
        if let Some(client) = self.clients.get_mut(&program) {
            client.credit = client.credit.saturating_sub(told as u32);
        }
        // The other host's program of a carried pair is told by what goes there.
        match self.pairs.get(&pair).and_then(Pair::desk) {
            Some(desk) => desk.ring(),
            None => self.tell_both(pair, |token| Message::Look { token }, shared),
        }
    }

    pub(super) fn adopt(&mut self, program: u64, token: u64, pair: u64) {
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
}
