//! Brief messages: short ones that need no packets between two queue pairs of one host. While nothing else is under
//! way, the requester has the responder do a request at once. That leaves both as the request's only packet, and the
//! answer to it, would leave them. Whatever can't be done is left to packets, which tell why.

use crate::Psn;
use crate::work::{SendOperation, SendRequest, Verbs, With};
use packet::roce::Service;

/// A brief message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    pub(crate) operation: SendOperation,
    pub(crate) psn: Psn,
    pub(crate) service: Service,
    pub(crate) partition: u16,
    pub(crate) solicited: bool,
}

impl Brief {
    /// Most bytes of it: fewer than a packet can have.
    pub const MOST: usize = 128;

    /// Whether a request may be one.
    pub(crate) const fn may_be(request: &SendRequest) -> bool {
        let has_form = matches!(
            request.operation,
            SendOperation::Send(With::Nothing | With::Immediate(_))
                | SendOperation::Write { immediate: None, .. }
                | SendOperation::Read { .. }
        );
        has_form && request.len as usize <= Self::MOST
    }

    /// Whether its bytes come from the responder.
    #[must_use]
    pub const fn is_read(&self) -> bool {
        matches!(self.operation, SendOperation::Read { .. })
    }

    /// How long its packet would be if it has `len` bytes, and the answer to that, if there is one: UDP payloads.
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

/// What queue pairs need for brief messages from their surroundings.
pub trait Nearby: Verbs {
    /// Has the peer's queue pair do a request at once ([`crate::QueuePair::serve`]). `bytes` is room for all of its
    /// bytes: those of the request are to be copied there first; those that are read are there afterwards. False, with
    /// nothing done, if that is not possible now.
    fn pass(&mut self, request: &SendRequest, brief: &Brief, bytes: &mut [u8]) -> bool;

    /// Counts a request that was passed, and may be complete by now.
    fn count_passed(&mut self, brief: &Brief, len: usize);

    /// Copies the bytes that the peer writes. False, with nothing done or counted, if it may not.
    fn try_write(&mut self, rkey: u32, address: u64, bytes: &[u8]) -> bool;

    /// Copies the bytes that the peer reads. False, with nothing counted, if it may not.
    fn try_read(&mut self, rkey: u32, address: u64, out: &mut [u8]) -> bool;
}
