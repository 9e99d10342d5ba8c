//! Requests that a queue pair does without its peer: binding memory windows and invalidating their keys.
//!
//! One is begun once all before it are done, and those after it wait for its end: its own order is that of a fence. So
//! nothing is to be known of what is under way (IBTA 10.8.3.3 asks for less).

use crate::carry::Surroundings;
use crate::objects::Objects;
use crate::parting::{AGAIN, TakenAway, Users};
use crate::qp::{Own, Qp, Transport};
use rdma::{Fault, Status};
use std::time::Duration;
use uverbs::work::{opcode, send_flags};
use uverbs::{QpType, WorkRequest};

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Local {
    /// Of its slot.
    number: u32,
    request: WorkRequest,
    /// It is done, but for peers that may be at work with the key that it took away.
    taken: Option<TakenAway>,
}

/// Whether queue pairs of this kind do it without their peers.
pub(crate) fn is_local(request: &WorkRequest, kind: QpType) -> bool {
    kind != QpType::Ud && matches!(request.opcode, opcode::BIND_MW | opcode::LOCAL_INV)
}

impl Local {
    pub const fn new(number: u32, request: WorkRequest) -> Self {
        Self { number, request, taken: None }
    }
}

impl Own {
    /// The key that was taken away with which peers may be at work that it waits for.
    pub fn awaited(&self) -> Option<TakenAway> {
        self.local.as_ref().and_then(|local| local.taken)
    }

    /// When the request that waits is to be looked at again, where nothing else tells.
    pub fn local_deadline(&self, is_sending: bool, now: Duration, objects: &Objects) -> Option<Duration> {
        match &self.local {
            Some(Local { taken: Some(_), .. }) if objects.took_away.is_some() => Some(now),
            Some(Local { taken: Some(_), .. }) => Some(now + AGAIN),
            Some(_) if !is_sending => Some(now),
            _ => None,
        }
    }

    fn end_local(&mut self, status: Status, objects: &mut Objects) {
        let Some(Local { number, request, .. }) = self.local.take() else { return };
        let is_wanted = self.all_signaled || request.flags & send_flags::SIGNALED != 0;
        if is_wanted || status != Status::Success {
            self.complete(&rdma::Completion { id: number.into(), status, len: 0, received: None }, objects);
        }
    }

    /// Whether it waits for peers at work with a key that was taken away.
    pub fn awaits_peers(&self, objects: &Objects) -> bool {
        self.awaited().is_some() && !objects.are_peers_done
    }

    /// Flushes the request that waits, once no peers are waited for: its completion says that they are done.
    pub fn flush_local(&mut self, objects: &mut Objects) {
        let status = if self.awaited().is_some() { Status::Success } else { Status::Flushed };
        self.end_local(status, objects);
    }

    /// Does it; from whom it took a key away, if it did.
    fn bind_or_invalidate(
        &self,
        request: &WorkRequest,
        objects: &mut Objects,
    ) -> Result<Option<Users>, Fault> {
        if request.opcode == opcode::BIND_MW {
            objects.regions.bind((self.pd, self.qpn), request)
        } else {
            objects.regions.invalidate_local(request.immediate, self.pd).map(Some)
        }
    }
}

impl Qp {
    /// Goes on with the request that waits, if there is one. Returns whether those after it may go on.
    pub fn do_local(&mut self, objects: &mut Objects) -> bool {
        let Some(local) = &self.own.local else { return true };
        if local.taken.is_some() {
            if self.own.awaits_peers(objects) {
                return false;
            }
            self.own.end_local(Status::Success, objects);
            return true;
        }
        if matches!(&self.transport, Transport::Connected(connected) if connected.is_sending()) {
            return false;
        }
        let request = local.request;
        match self.own.bind_or_invalidate(&request, objects) {
            Ok(None) => self.own.end_local(Status::Success, objects),
            Ok(Some(users)) => {
                objects.took_away = Some(objects.take_away(users));
                self.own.local.iter_mut().for_each(|local| local.taken = objects.took_away);
                return false;
            }
            Err(_) => {
                self.own.end_local(Status::WindowBind, objects);
                if let Transport::Connected(connected) = &mut self.transport {
                    connected.fail_request(&mut Surroundings { own: &mut self.own, objects });
                }
                self.settle(objects);
            }
        }
        true
    }
}
