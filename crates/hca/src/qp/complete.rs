//! What an application is told of its requests: completions.

use super::{IS_RECEIVE, Own};
use crate::control::MAX_WORK;
use crate::counters::Counter;
use crate::objects::Objects;
use rdma::Status;
use uverbs::{Completion, Placement, QpType, completion};

impl Own {
    /// Puts a completion into the queue it belongs to.
    pub fn complete(&mut self, done: &rdma::Completion, objects: &mut Objects) {
        let status = status_number(done.status);
        let failed = done.status != Status::Success;
        let mut completion =
            Completion { qpn: self.qpn, status, byte_len: done.len, ..Completion::default() };
        completion.timestamp = crate::client::monotonic_nanoseconds();
        let (cq, solicited) = if done.id & IS_RECEIVE != 0 {
            completion.placement = if self.takes_shared() { Placement::Done } else { Placement::There };
            completion.id = self.receive.id;
            completion.opcode = completion::opcode::RECV;
            if let Some(received) = &done.received {
                describe(received, self.kind, &mut completion);
            }
            (self.recv_cq, done.received.is_some_and(|received| received.solicited))
        } else {
            let slot = self.slot(done.id);
            let work = &mut self.works[slot];
            completion.id = work.id;
            completion.opcode = completion::opcode::of(work.opcode);
            work.inline.clear();
            self.sends.release_before((done.id as u32).wrapping_add(1));
            (self.send_cq, false)
        };
        if failed && done.status != Status::Flushed {
            let receives = done.id & IS_RECEIVE != 0;
            objects.counters.add(if receives { Counter::ResponderError } else { Counter::RequesterError }, 1);
        }
        if !objects.complete(cq, &completion, solicited || failed) {
            self.broken = Some("its completion queue overran");
        }
    }

    /// Flushes a receive that was taken from a shared queue and not completed.
    pub fn flush_receive(&mut self, id: u64, objects: &mut Objects) {
        self.receive.id = id;
        let flushed = rdma::Completion { id: IS_RECEIVE, status: Status::Flushed, len: 0, received: None };
        self.complete(&flushed, objects);
    }

    pub(super) fn flush_sends(&mut self, objects: &mut Objects) {
        for _ in 0..MAX_WORK {
            let Ok(Some((number, _))) = self.take_send() else { break };
            let id = number.into();
            let flushed = rdma::Completion { id, status: Status::Flushed, len: 0, received: None };
            self.complete(&flushed, objects);
        }
    }
}

fn describe(received: &rdma::Received, kind: QpType, completion: &mut Completion) {
    if received.by == rdma::Arrival::WriteWithImmediate {
        completion.opcode = completion::opcode::RECV_RDMA_WITH_IMM;
    }
    if let Some(immediate) = received.immediate {
        completion.flags |= completion::flags::WITH_IMM;
        completion.immediate = u32::from_ne_bytes(immediate);
    }
    if let Some(key) = received.invalidated {
        completion.flags |= completion::flags::WITH_INV;
        completion.immediate = key;
    }
    if kind == QpType::Ud {
        completion.flags |= completion::flags::GRH;
    }
    completion.source_qpn = received.source.unwrap_or(0);
}

/// `ibv_wc_status`.
const fn status_number(status: Status) -> u8 {
    match status {
        Status::Success => 0,
        Status::LocalLength => 1,
        Status::LocalOperation => 2,
        Status::LocalProtection => 4,
        Status::Flushed => 5,
        Status::RemoteInvalidRequest => 9,
        Status::RemoteAccess => 10,
        Status::RemoteOperation => 11,
        Status::RetryExceeded => 12,
        Status::RnrRetryExceeded => 13,
    }
}
