//! Short messages of the peer, which come without packets.

use super::{Done, Redo, Responder};
use crate::queue_pair::Attributes;
use crate::short_message::{LocalVerbs, ShortMessage};
use crate::work::{Arrival, Completion, Received, SendOperation, Status, With};
use packet::roce::Reth;

impl Responder {
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Executes a short message, and counts it as answered. Returns false if that is left to the message's packet: then
    /// nothing has changed, except that a receive may be ready.
    pub fn serve(
        &mut self,
        message: &ShortMessage,
        bytes: &mut [u8],
        attributes: &Attributes,
        verbs: &mut impl LocalVerbs,
    ) -> bool {
        let is_next = message.psn == self.expected && self.arriving.is_none() && !self.has_answers();
        if !is_next || bytes.len() > ShortMessage::MAX_LEN {
            return false;
        }
        let len = bytes.len() as u32;
        let is_done = match message.operation {
            SendOperation::Send(with) => self.take(with, message.solicited, bytes, verbs),
            SendOperation::Write { address, rkey, .. } => {
                bytes.is_empty() || verbs.try_write(rkey, address, bytes)
            }
            SendOperation::Read { address, rkey } => {
                let is_read =
                    attributes.peer_reads > 0 && (bytes.is_empty() || verbs.try_read(rkey, address, bytes));
                if is_read {
                    let what = Redo::Read(Reth { address, rkey, len });
                    self.remember(Done { first: message.psn, last: message.psn, what }, attributes);
                }
                is_read
            }
            SendOperation::Atomic { .. } => false,
        };
        if is_done {
            self.finish_message();
            self.told = false;
            self.expected = message.psn.plus(1);
        }
        is_done
    }

    /// Completes a receive with these bytes. If they don't fit, the receive waits for the packet, which completes
    /// it with an error.
    fn take(&mut self, with: With, solicited: bool, bytes: &[u8], verbs: &mut impl LocalVerbs) -> bool {
        let Some(id) = self.spare.take().or_else(|| verbs.take_receive()) else { return false };
        if verbs.fill(0, bytes).is_err() {
            self.spare = Some(id);
            return false;
        }
        let immediate = match with {
            With::Immediate(immediate) => Some(immediate),
            _ => None,
        };
        let (by, invalidated) = (Arrival::Send, None);
        let received = Received { by, immediate, invalidated, solicited, source: None, by_ipv4: false };
        let len = bytes.len() as u32;
        verbs.complete(Completion { id, status: Status::Success, len, received: Some(received) });
        true
    }
}
