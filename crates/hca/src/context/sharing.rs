//! The memory that a queue pair shares with its peer, and closed sessions that are still in use.

use crate::base::ids::{CqId, Qpn};
use crate::memory::keys::KeyUsers;
use crate::program::grants::Process;
use crate::window::source::MemoryBacking;
use std::sync::Arc;
use uverbs::{DirectSession, Hold, MessageRing};

/// Messages and bytes that applications copied to their peers themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectTraffic {
    pub sent: (u64, u64),
    pub received: (u64, u64),
}

impl DirectTraffic {
    /// Adds messages and bytes, received or sent.
    pub fn add(&mut self, received: bool, more: (u64, u64)) {
        let (messages, bytes) = if received { &mut self.received } else { &mut self.sent };
        (*messages, *bytes) = (messages.wrapping_add(more.0), bytes.wrapping_add(more.1));
    }
}

/// The invalidation of a key, kept by those who wait until the key's users are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalidation {
    pub users: KeyUsers,
    /// Later invalidations have higher numbers.
    pub number: u64,
}

/// The turn of a peer in which keys were invalidated, and the number of the first of those invalidations. A peer in a
/// later turn no longer uses any of those keys.
#[derive(Debug, Default)]
pub(crate) struct Seen(Option<(u32, u64)>);

impl Seen {
    pub fn note(&mut self, turn: Option<u32>, number: u64) {
        if self.0.map(|(seen, _)| seen) != turn {
            self.0 = turn.map(|turn| (turn, number));
        }
    }

    /// Is true if the peer is still in the turn in which the key with this number was invalidated.
    pub fn is_in(&self, turn: Option<u32>, number: u64) -> bool {
        self.0.is_some_and(|(seen, first)| turn == Some(seen) && first <= number)
    }
}

/// The session through which a peer uses the queues of this queue pair.
#[derive(Debug)]
pub(crate) struct InboundSession {
    pub session: DirectSession,
    pub process: Arc<Process>,
    pub seen: Seen,
}

impl InboundSession {
    pub const fn new(session: DirectSession, process: Arc<Process>) -> Self {
        Self { session, process, seen: Seen(None) }
    }

    pub fn is_gone(&self) -> bool {
        self.session.is_gone() || !self.process.is_there()
    }

    /// Is true if the peer may still use a key that was invalidated.
    pub fn may_use(&self, invalidation: Invalidation) -> bool {
        self.seen.is_in(self.session.turn(), invalidation.number) && !self.is_gone()
    }
}

/// A closed session whose user may not have stopped yet.
#[derive(Debug)]
pub(crate) struct ClosedSession {
    pub session: DirectSession,
    pub qpn: Qpn,
    /// The completion queue to which its user adds completions.
    pub cq: CqId,
    /// The peer's process; `None`: its user is the application itself.
    pub process: Option<Arc<Process>>,
    /// The counts of the session when it was closed.
    pub counted: (u64, u64),
}

impl ClosedSession {
    pub fn is_gone(&self) -> bool {
        self.process.as_ref().is_some_and(|process| self.session.is_gone() || !process.is_there())
    }

    pub fn is_at_work(&self) -> bool {
        self.session.turn().is_some()
    }

    /// Is true if its user may still write to the application's memory.
    pub fn may_write(&self) -> bool {
        self.process.is_some() && self.is_at_work() && !self.is_gone()
    }

    /// Is true if its user tries to get this place in a completion queue, or has it.
    pub fn tries(&self, cq: CqId, place: u32) -> bool {
        let place_of = if self.process.is_some() { self.session.place() } else { self.session.own_place() };
        self.cq == cq && is_of(place_of, place) && !self.is_gone()
    }
}

/// Is true if the place that a session's user noted is this one.
pub(crate) fn is_of(noted: Option<Hold>, place: u32) -> bool {
    matches!(noted, Some(Hold::Tries(at) | Hold::Has(at)) if at == place)
}

/// The memory that a queue pair shares with its peer.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The peer stores messages in the queues of this queue pair.
    pub inbound: Option<InboundSession>,
    /// The application stores messages in the queues of the peer.
    pub outbound: Option<DirectSession>,
    /// The memory of the last such session. The application's library may look there to see whether the session is
    /// closed, so until it gets another session, pages of a window are used for nothing else.
    pub last_outbound: Option<MemoryBacking>,
    /// Messages and bytes that closed sessions counted.
    pub traffic: DirectTraffic,
    /// The trust in which memory is or was shared with the peer.
    pub trust: Option<String>,
    /// The ring in which peers store messages that are too long for a slot, and its offset in the memory of the
    /// queue pair.
    pub message_ring: Option<(MessageRing, u32)>,
}

impl Sharing {
    pub fn new(message_ring: Option<(MessageRing, u32)>) -> Self {
        Self { message_ring, ..Self::default() }
    }

    /// Returns all messages that the application, or its peers, copied themselves.
    pub fn traffic(&self) -> DirectTraffic {
        let mut traffic = self.traffic;
        self.outbound.iter().for_each(|session| traffic.add(false, session.counted()));
        self.inbound.iter().for_each(|inbound| traffic.add(true, inbound.session.counted()));
        traffic
    }

    /// Is true if the application stores messages in the queues of the peer now.
    pub fn is_direct(&self) -> bool {
        self.outbound.as_ref().is_some_and(|session| !session.is_closed())
    }

    /// Closes the sessions: their users see that, and stop.
    pub fn close_sessions(&self) {
        self.outbound.iter().chain(self.inbound.iter().map(|it| &it.session)).for_each(DirectSession::close);
    }

    /// Sets where the application stores messages from now on.
    pub fn set_outbound(&mut self, session: DirectSession, memory: MemoryBacking) {
        self.last_outbound = Some(memory);
        if let Some(old) = self.outbound.replace(session) {
            self.traffic.add(false, old.counted());
        }
    }

    /// Resets traffic and trust. No session may be open.
    pub fn reset(&mut self) {
        (self.traffic, self.trust) = (DirectTraffic::default(), None);
        if let Some((message_ring, _)) = &self.message_ring {
            message_ring.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_turn_waits_for_no_later_one() {
        let mut seen = Seen::default();
        seen.note(Some(5), 1);
        assert!(seen.is_in(Some(5), 1) && !seen.is_in(None, 1) && !seen.is_in(Some(6), 1));
        // It is still in that turn, and then in the next one.
        seen.note(Some(5), 2);
        assert!(seen.is_in(Some(5), 1) && seen.is_in(Some(5), 2));
        seen.note(Some(6), 3);
        assert!(!seen.is_in(Some(6), 1) && !seen.is_in(Some(6), 2) && seen.is_in(Some(6), 3));
        seen.note(None, 4);
        assert!(!seen.is_in(Some(6), 4));
    }
}
