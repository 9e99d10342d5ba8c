//! Requests of an application, as the transport takes them.

use super::{Qp, Transport};
use crate::carry::Surroundings;
use crate::objects::Objects;
use rdma::{AtomicOperation, Destination, SendOperation, SendRequest, Status, With};
use uverbs::work::{opcode, send_flags};
use uverbs::{QpType, WorkRequest};

impl Qp {
    /// Gives a request to the transport.
    pub(super) fn post(&mut self, number: u32, asked: &WorkRequest, objects: &mut Objects) {
        let own = &mut self.own;
        let work = own.work(number.into());
        let request = SendRequest {
            id: number.into(),
            operation: match operation(asked, own.kind) {
                Some(operation) => operation,
                None => {
                    let wrong = rdma::Completion {
                        id: number.into(),
                        status: Status::LocalOperation,
                        len: 0,
                        received: None,
                    };
                    own.complete(&wrong, objects);
                    own.broken = Some("it was asked for an operation that it does not have");
                    return;
                }
            },
            len: work.len,
            signaled: own.all_signaled || asked.flags & send_flags::SIGNALED != 0,
            solicited: asked.flags & send_flags::SOLICITED != 0,
            fence: asked.flags & send_flags::FENCE != 0,
        };
        let mut around = Surroundings { own, objects };
        match &mut self.transport {
            Transport::None => {}
            Transport::Connected(connected) => connected.post_send(request, &mut around),
            Transport::Datagram(pair) => {
                let to = Destination {
                    address: asked.ah,
                    queue_pair: asked.remote_qpn & 0xff_ffff,
                    queue_key: asked.remote_qkey,
                };
                pair.send(&request, &to, &mut around);
            }
        }
    }
}

/// What a request asks for; `None` where queue pairs of this kind do not have it.
fn operation(asked: &WorkRequest, kind: QpType) -> Option<SendOperation> {
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
