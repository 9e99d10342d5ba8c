//! Translates between the verbs of applications and the terms of the transport.

use rdma::{AtomicOperation, SendOperation, Status, With};
use uverbs::completion;
use uverbs::work::opcode;
use uverbs::{Completion, QpType, WorkRequest};

/// Adds the data of a message to its completion.
pub(crate) fn describe(received: &rdma::Received, kind: QpType, completion: &mut Completion) {
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
        completion.flags |= if received.by_ipv4 { completion::flags::BY_IPV4 } else { 0 };
    }
    completion.source_qpn = received.source.unwrap_or(0);
}

/// Returns the number of `ibv_wc_status`.
pub(crate) const fn status_number(status: Status) -> u8 {
    match status {
        Status::Success => 0,
        Status::LocalLength => 1,
        Status::LocalOperation => 2,
        Status::LocalProtection => 4,
        Status::Flushed => 5,
        Status::WindowBind => 6,
        Status::RemoteInvalidRequest => 9,
        Status::RemoteAccess => 10,
        Status::RemoteOperation => 11,
        Status::RetryExceeded => 12,
        Status::RnrRetryExceeded => 13,
    }
}

/// Returns the operation of a request; `None` if queue pairs of this type do not support it.
pub(crate) fn operation(asked: &WorkRequest, kind: QpType) -> Option<SendOperation> {
    let immediate = asked.immediate.to_ne_bytes();
    let (address, rkey) = (asked.address, asked.rkey);
    let operation = match asked.opcode {
        opcode::SEND => SendOperation::Send(With::Nothing),
        opcode::SEND_WITH_IMM => SendOperation::Send(With::Immediate(immediate)),
        opcode::SEND_WITH_INV if kind == QpType::Rc => SendOperation::Send(With::Invalidate(asked.immediate)),
        opcode::RDMA_WRITE if kind != QpType::Ud => SendOperation::Write { address, rkey, immediate: None },
        opcode::RDMA_WRITE_WITH_IMM if kind != QpType::Ud => {
            SendOperation::Write { address, rkey, immediate: Some(immediate) }
        }
        opcode::RDMA_READ if kind == QpType::Rc => SendOperation::Read { address, rkey },
        opcode::ATOMIC_CMP_AND_SWP if kind == QpType::Rc => SendOperation::Atomic {
            address,
            rkey,
            operation: AtomicOperation::CompareSwap { compare: asked.compare_add, swap: asked.swap },
        },
        opcode::ATOMIC_FETCH_AND_ADD if kind == QpType::Rc => {
            SendOperation::Atomic { address, rkey, operation: AtomicOperation::FetchAdd(asked.compare_add) }
        }
        _ => return None,
    };
    Some(operation)
}
