//! Creating a queue pair: its limits, and the layout of its memory.

use crate::base::budget::Kind;
use crate::base::ids::{CqId, PdId, Qpn, SrqId};
use crate::base::limits::{MAX_INLINE, MAX_SEGMENTS, MAX_WORK};
use crate::base::refusal::{no_memory, within};
use crate::context::endpoint::Endpoint;
use crate::context::peer::Peer;
use crate::context::quota::Quota;
use crate::context::receive_queue::{ReceiveQueue, Receives};
use crate::context::send_queue::{SendQueue, Work};
use crate::context::sharing::Sharing;
use crate::qp::{Qp, Transport};
use std::sync::Arc;
use uverbs::{
    Capacity, CreateQp, MessageRing, QpAttributes, QpState, Refusal, Reply, Segment, SendSource, Shape,
};

fn checked(asked: &CreateQp) -> Result<Capacity, Refusal> {
    let cap = asked.capacity;
    within("max_send_wr", cap.max_send_wr, MAX_WORK)?;
    within("max_recv_wr", cap.max_recv_wr, MAX_WORK)?;
    within("max_send_sge", cap.max_send_sge, MAX_SEGMENTS)?;
    within("max_recv_sge", cap.max_recv_sge, MAX_SEGMENTS)?;
    within("max_inline_data", cap.max_inline_data, MAX_INLINE)?;
    let receives = asked.srq.is_none();
    Ok(Capacity {
        max_recv_wr: if receives { cap.max_recv_wr } else { 0 },
        max_recv_sge: if receives { cap.max_recv_sge } else { 0 },
        ..cap
    })
}

/// The memory layout of a new queue pair.
pub(crate) struct Layout {
    cap: Capacity,
    send: Shape,
    receive: Option<Shape>,
    /// Bytes of its queues.
    queues: usize,
    shares: bool,
}

impl Layout {
    /// Lays out the memory for an application's request, within the limits. `shares` says whether peers may store
    /// messages there.
    pub fn of(asked: &CreateQp, shares: bool) -> Result<Self, Refusal> {
        let cap = checked(asked)?;
        let send = Shape::new(0, cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        let end = send.end() as u32;
        let receives = asked.srq.is_none();
        let receive = receives.then(|| Shape::of_receives(end, cap.max_recv_wr, cap.max_recv_sge));
        let queues = receive.map_or(send.end(), |receive| receive.end());
        Ok(Self { cap, send, receive, queues, shares })
    }

    /// Returns the bytes of the shared memory.
    const fn bytes(&self) -> usize {
        self.queues + if self.shares { MessageRing::BYTES } else { 0 }
    }

    /// Returns the bytes of the shared memory and of what the device keeps about requests in progress.
    const fn cost(&self) -> usize {
        let list = self.cap.max_send_sge as usize * size_of::<Segment>();
        let work = size_of::<Work>() + list + self.cap.max_inline_data as usize;
        self.bytes() + self.send.slots as usize * work
    }
}

/// Creates a queue pair with this number and doorbell. Returns it with the reply to the application.
pub(crate) fn create(
    qpn: Qpn,
    doorbell: u32,
    asked: &CreateQp,
    layout: &Layout,
    quota: &Quota,
) -> Result<(Qp, Reply), Refusal> {
    let Layout { cap, send, receive, queues, shares } = *layout;
    let bytes = layout.bytes();
    let held = quota.take(Kind::QueuePair, layout.cost(), u32::MAX)?;
    let (memory, backing) = quota.memory("queue pair", bytes)?;
    let memory = Arc::new(memory);
    let message_ring =
        shares.then(|| MessageRing::new(memory.clone(), queues as u32)).transpose().map_err(no_memory)?;
    let sends = SendSource::new(memory.clone(), send).map_err(no_memory)?;
    let receives = Receives::new(&memory, receive, asked.srq.map(SrqId)).map_err(no_memory)?;
    let endpoint = Endpoint {
        qpn,
        pd: PdId(asked.pd),
        kind: asked.qp_type,
        state: QpState::Reset,
        attributes: QpAttributes::default(),
        queue_key: Arc::default(),
        capacity: cap,
        send: SendQueue::new(sends, send.slots, CqId(asked.send_cq), asked.sq_sig_all),
        receive: ReceiveQueue::new(receives, CqId(asked.recv_cq), doorbell + 1),
        peer: Peer::default(),
        sharing: Sharing::new(message_ring.map(|message_ring| (message_ring, queues as u32))),
        backing,
        memory: bytes as u64,
        reason: None,
        broken: None,
        _reservation: held,
    };
    let qp = Qp { endpoint, transport: Transport::None, is_ready: false, deadline: None };
    let reply = Reply::Qp {
        qpn: qpn.0,
        capacity: cap,
        send,
        receive,
        message_ring: shares.then_some(queues as u32),
        memory: bytes as u64,
        doorbell,
    };
    Ok((qp, reply))
}
