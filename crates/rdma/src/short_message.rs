//! Short messages: short ones that need no packets between two queue pairs of one host. While nothing else is under
//! way, the requester makes the responder execute a request at once. Both are then in the same state as after the
//! request's only packet and the answer to it. Requests that can't be executed this way go in packets, whose answers
//! tell why.

use crate::Psn;
use crate::work::{SendOperation, SendRequest, Verbs, With};
use packet::roce::Service;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortMessage {
    pub(crate) operation: SendOperation,
    pub(crate) psn: Psn,
    pub(crate) service: Service,
    pub(crate) partition: u16,
    pub(crate) solicited: bool,
}

impl ShortMessage {
    /// Largest number of bytes of a short message: fewer than a packet can have.
    pub const MAX_LEN: usize = 128;

    pub(crate) const fn can_be(request: &SendRequest) -> bool {
        let has_form = matches!(
            request.operation,
            SendOperation::Send(With::Nothing | With::Immediate(_))
                | SendOperation::Write { immediate: None, .. }
                | SendOperation::Read { .. }
        );
        has_form && request.len as usize <= Self::MAX_LEN
    }

    /// Is true if the message's bytes come from the responder.
    #[must_use]
    pub const fn is_read(&self) -> bool {
        matches!(self.operation, SendOperation::Read { .. })
    }

    /// Returns the length that the message's packet would have with `len` bytes, and that of its answer, if there
    /// is one. These are lengths of UDP payloads.
    #[must_use]
    pub const fn packets(&self, len: usize) -> (usize, Option<usize>) {
        const HEADERS: usize = 12 + 4;
        let padded = len.next_multiple_of(4);
        let request = match self.operation {
            SendOperation::Send(With::Immediate(_)) => 4 + padded,
            SendOperation::Write { .. } => 16 + padded,
            SendOperation::Read { .. } => 16,
            _ => padded,
        };
        let answer = 4 + if self.is_read() { padded } else { 0 };
        let is_answered = matches!(self.service, Service::Rc);
        (HEADERS + request, if is_answered { Some(HEADERS + answer) } else { None })
    }
}

/// The interface of a queue pair to its surroundings for short messages.
pub trait LocalVerbs: Verbs {
    /// Makes the peer's queue pair execute a request at once ([`crate::QueuePair::serve`]). `bytes` has room for all of
    /// the request's bytes: bytes to send must be copied there first, and bytes that were read are there afterwards.
    /// Does nothing and returns false if that is not possible now.
    fn pass(&mut self, request: &SendRequest, message: &ShortMessage, bytes: &mut [u8]) -> bool;

    /// Counts a request that was passed, and may be complete by now.
    fn count_passed(&mut self, message: &ShortMessage, len: usize);

    /// Copies the bytes that the peer writes. Does and counts nothing, and returns false, if the peer may not
    /// write them.
    fn try_write(&mut self, rkey: u32, address: u64, bytes: &[u8]) -> bool;

    /// Copies the bytes that the peer reads. Counts nothing and returns false if the peer may not read them.
    fn try_read(&mut self, rkey: u32, address: u64, out: &mut [u8]) -> bool;
}
