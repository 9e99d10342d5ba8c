//! Tickets: each is good for one stream of a program in a virtual machine, and says what the stream is for
//! (`uverbs::Opening::Ticket`).

use crate::base::random;
use crate::inbox::Inbox;
use crate::inbox::message::Message;
use sockets::Untrusted;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use uverbs::Ticket;

/// The origin of a stream: the number of the listening socket, and the CID of the machine if the socket is for
/// several. A ticket is only good for a stream from the origin of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub listener: u64,
    pub machine: Option<u32>,
}

/// A stream that carries events, once it is there.
#[derive(Debug, Default)]
pub(crate) struct Attached(OnceLock<Arc<Untrusted>>);

impl Attached {
    pub fn socket(&self) -> Option<&Arc<Untrusted>> {
        self.0.get()
    }

    pub fn set(&self, socket: Arc<Untrusted>) {
        // Each ticket is used once.
        let _ = self.0.set(socket);
    }
}

/// The purpose of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// It carries events to the program.
    Events(Arc<Attached>),
    /// It wakes a thread.
    Wake(Arc<Inbox<Message>>),
}

/// All tickets that are not used yet.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<HashMap<Ticket, (Origin, Purpose)>>);

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ticket, (Origin, Purpose)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues a ticket, which is good until the returned value is dropped.
    pub fn issue(self: &Arc<Self>, origin: Origin, purpose: Purpose) -> TicketHold {
        let mut all = self.lock();
        loop {
            let ticket = Ticket(u64::from(random::number()) << 32 | u64::from(random::number()));
            if let std::collections::hash_map::Entry::Vacant(vacant) = all.entry(ticket) {
                vacant.insert((origin, purpose));
                return TicketHold { tickets: self.clone(), ticket };
            }
        }
    }

    /// Redeems a ticket: returns the purpose, and ends the ticket.
    pub fn redeem(&self, ticket: Ticket, origin: Origin) -> Option<Purpose> {
        let mut all = self.lock();
        all.get(&ticket).filter(|(of, _)| *of == origin)?;
        all.remove(&ticket).map(|(_, purpose)| purpose)
    }
}

/// Keeps a ticket good.
#[derive(Debug)]
pub(crate) struct TicketHold {
    tickets: Arc<Tickets>,
    pub ticket: Ticket,
}

impl Drop for TicketHold {
    fn drop(&mut self) {
        let removed = self.tickets.lock().remove(&self.ticket);
        // Without the lock: it may close descriptors.
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_good_once_from_where_they_were_given_until_they_expire() {
        let tickets = Arc::new(Tickets::default());
        let origin = |machine| Origin { listener: 1, machine };
        let issue = || tickets.issue(origin(Some(3)), Purpose::Events(Arc::default()));
        let (one, other) = (issue(), issue());
        assert_ne!(one.ticket, other.ticket);
        for wrong in [origin(None), origin(Some(4)), Origin { listener: 2, machine: Some(3) }] {
            assert!(tickets.redeem(one.ticket, wrong).is_none());
        }
        assert!(tickets.redeem(one.ticket, origin(Some(3))).is_some());
        assert!(tickets.redeem(one.ticket, origin(Some(3))).is_none());
        assert!(tickets.redeem(Ticket(other.ticket.0 ^ 1), origin(Some(3))).is_none());
        let ticket = other.ticket;
        drop((one, other));
        assert!(tickets.redeem(ticket, origin(Some(3))).is_none() && tickets.lock().is_empty());
    }
}
