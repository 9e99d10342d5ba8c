//! Requests that a queue pair executes without its peer: binding memory windows and invalidating their keys.
//!
//! A local request starts once all requests before it are done, and later requests wait for its end, as after a fence.
//! So the device need not track what is in progress (IBTA 10.8.3.3 requires less).

use crate::base::ids::Key;
use crate::context::Context;
use crate::context::endpoint::Endpoint;
use crate::context::send_queue::LocalRequest;
use crate::memory::keys::KeyUsers;
use crate::transfer::unshare::AGAIN;
use rdma::{Fault, Status};
use std::time::Duration;
use uverbs::work::opcode;
use uverbs::{QpType, WorkRequest};

/// Is true if queue pairs of this kind execute the request without their peers.
pub(crate) fn is_local(request: &WorkRequest, kind: QpType) -> bool {
    kind != QpType::Ud && matches!(request.opcode, opcode::BIND_MW | opcode::LOCAL_INV)
}

/// The state of a local request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is done, or there is none.
    Done,
    /// It waits for requests before it, or for peers that may still use a key that it invalidated.
    Waits,
    /// It failed, and the send queue with it.
    Failed,
}

impl Endpoint {
    /// Continues the local request. `is_sending` tells whether requests before it are in progress.
    pub fn advance_local(&mut self, is_sending: bool, context: &mut Context) -> Progress {
        let Some(local) = &self.send.local else { return Progress::Done };
        if local.invalidation.is_some() {
            if self.awaits_peers(context) {
                return Progress::Waits;
            }
            self.end_local(Status::Success, context);
            return Progress::Done;
        }
        if is_sending {
            return Progress::Waits;
        }
        let request = local.request;
        match self.bind_or_invalidate(&request, context) {
            Ok(None) => {
                self.end_local(Status::Success, context);
                Progress::Done
            }
            Ok(Some(users)) => {
                context.pending_invalidation = Some(context.invalidate_for(users));
                self.send
                    .local
                    .iter_mut()
                    .for_each(|local| local.invalidation = context.pending_invalidation);
                Progress::Waits
            }
            Err(_) => {
                self.end_local(Status::WindowBind, context);
                Progress::Failed
            }
        }
    }

    /// Returns when to check the local request again if nothing else wakes the queue pair.
    pub fn local_deadline(&self, is_sending: bool, now: Duration, context: &Context) -> Option<Duration> {
        match &self.send.local {
            Some(LocalRequest { invalidation: Some(_), .. }) if context.pending_invalidation.is_some() => {
                Some(now)
            }
            Some(LocalRequest { invalidation: Some(_), .. }) => Some(now + AGAIN),
            Some(_) if !is_sending => Some(now),
            _ => None,
        }
    }

    /// Executes the request. Returns the users of the key that it invalidated, if it did.
    fn bind_or_invalidate(
        &self,
        request: &WorkRequest,
        context: &mut Context,
    ) -> Result<Option<KeyUsers>, Fault> {
        if request.opcode == opcode::BIND_MW {
            context.regions.bind(self.scope(), request)
        } else {
            context.regions.invalidate_local(Key(request.immediate), self.pd).map(Some)
        }
    }
}
