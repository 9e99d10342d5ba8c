//! A queue pair without its transport: the part on which the transport works.

use crate::base::budget::Reservation;
use crate::base::counters::Counter;
use crate::base::ids::{CqId, PdId, Qpn};
use crate::base::limits::MAX_WORK;
use crate::base::spec::DeviceSpec;
use crate::context::Context;
use crate::context::peer::Peer;
use crate::context::receive_queue::{ReceiveQueue, Receives, take_receive};
use crate::context::send_queue::{LocalRequest, SendQueue};
use crate::context::sharing::{Invalidation, Sharing};
use crate::context::terms::{describe, status_number};
use crate::inbox::Inbox;
use crate::inbox::message::{Message, QpAddress};
use crate::memory::keys::QpScope;
use crate::streams::events::Event;
use crate::window::source::MemoryBacking;
use rdma::{Mtu, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use uverbs::{Capacity, Completion, Corrupt, Placement, QpAttributes, QpState, QpType, completion};

/// Packets of one queue pair before others have their turn.
pub(crate) const BUDGET: usize = 64;
/// Bytes of headers of most frames.
const HEADERS: u64 = 14 + 20 + 8 + 12 + 4;
/// When to check a full ring towards the vRouter again.
const NO_ROOM: Duration = Duration::from_micros(50);
/// The longest time before the device checks again what the guest's rate holds back.
const LONG: Duration = Duration::from_millis(10);
/// After this many wrong keys of an unreliable peer, nothing from that peer is accepted any more.
const WRONG_KEYS: u32 = 16;
/// Set in the transport's identifiers of receives, to distinguish them from sends.
const IS_RECEIVE: u64 = 1 << 63;

/// A queue pair without its transport.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub qpn: Qpn,
    pub pd: PdId,
    pub kind: QpType,
    pub state: QpState,
    pub attributes: QpAttributes,
    /// The queue key, for threads that copy datagrams of its multicast groups.
    pub queue_key: Arc<AtomicU32>,
    pub capacity: Capacity,
    pub send: SendQueue,
    pub receive: ReceiveQueue,
    pub peer: Peer,
    pub sharing: Sharing,
    /// The memory of its queues, and its length in bytes.
    pub backing: MemoryBacking,
    pub memory: u64,
    /// Why it is in the error state, for display.
    pub reason: Option<&'static str>,
    /// The application broke something: the queue pair goes to the error state.
    pub broken: Option<&'static str>,
    /// The queue pair's share of the device's limits.
    pub _reservation: Reservation,
}

impl Endpoint {
    /// Takes a receive. Returns the transport's identifier for it.
    pub fn take_receive(&mut self, context: &mut Context) -> Option<u64> {
        let taken = match &mut self.receive.receives {
            Receives::Private(source, _) => {
                take_receive(source, &mut self.receive.last).unwrap_or_else(|Corrupt| {
                    self.broken = Some("its receive queue was overwritten");
                    false
                })
            }
            Receives::Shared(srq) => context.take_shared(*srq, &mut self.receive.last),
        };
        taken.then_some(IS_RECEIVE)
    }

    /// Takes a receive to flush it. Receives of a shared queue are not flushed. In one turn, at most as many are
    /// flushed as a queue holds, whatever the application writes there meanwhile.
    pub fn take_flushed(&mut self, context: &mut Context) -> Option<u64> {
        if self.receive.is_shared() || self.receive.flushed >= MAX_WORK || context.is_still_used(self.qpn) {
            return None;
        }
        self.receive.flushed += 1;
        self.take_receive(context)
    }

    /// Returns number and protection domain, on which the validity of keys depends.
    pub const fn scope(&self) -> QpScope {
        QpScope { pd: self.pd, qpn: self.qpn }
    }

    /// Returns the number of the peer's queue pair.
    pub const fn peer_qpn(&self) -> Qpn {
        Qpn(self.attributes.dest_qp_num)
    }

    /// Is true if its completions go to this queue.
    pub fn completes_to(&self, cq: CqId) -> bool {
        self.send.cq == cq || self.receive.cq == cq
    }

    /// Is true if its packets leave through the vRouter.
    fn uses_wire(&self) -> bool {
        self.peer.is_remote() || self.kind == QpType::Ud
    }

    /// Returns the most bytes that a frame may have.
    fn longest(&self) -> u64 {
        let code = if self.uses_wire() { self.attributes.path_mtu } else { Mtu::Bytes32768 as u32 };
        HEADERS + code.checked_sub(1).map_or(0, |code| 256 << code)
    }

    /// Returns how many frames may leave now.
    pub fn frames(&self, now: Duration, context: &Context) -> usize {
        let room = if self.uses_wire() { context.uplink.room().min(BUDGET) } else { BUDGET };
        context.adapter.room(now, self.longest(), room)
    }

    /// Returns when the device checks again what may not leave now.
    pub fn later(&self, now: Duration, context: &Context) -> Duration {
        now + context.adapter.wait(now, self.longest()).clamp(NO_ROOM, LONG)
    }

    /// Adds a completion to the completion queue.
    pub fn complete(&mut self, done: &rdma::Completion, context: &mut Context) {
        let status = status_number(done.status);
        let failed = done.status != Status::Success;
        let mut completion =
            Completion { qpn: self.qpn.0, status, byte_len: done.len, ..Completion::default() };
        let is_receive = done.id & IS_RECEIVE != 0;
        let (cq, solicited) = if is_receive {
            completion.placement = self.placement();
            completion.id = self.receive.last.id;
            completion.opcode = completion::opcode::RECV;
            if let Some(received) = &done.received {
                describe(received, self.kind, &mut completion);
            }
            (self.receive.cq, done.received.is_some_and(|received| received.solicited))
        } else {
            self.send.complete(done.id, &mut completion);
            (self.send.cq, false)
        };
        if failed && done.status != Status::Flushed {
            let counter = if is_receive { Counter::ResponderError } else { Counter::RequesterError };
            context.counters.add(counter, 1);
        }
        if !context.complete(cq, &completion, solicited || failed) {
            self.broken = Some("its completion queue overran");
        }
        // Only now: if the library finds all requests done, it completes the next one itself.
        if !is_receive {
            self.send.release(done.id);
        }
    }

    /// Completes the request in this slot, for which no bytes arrived.
    pub fn complete_send(&mut self, number: u32, status: Status, context: &mut Context) {
        self.complete(&rdma::Completion { id: number.into(), status, len: 0, received: None }, context);
    }

    /// Flushes a receive that was taken from a shared queue and not completed.
    pub fn flush_receive(&mut self, id: u64, context: &mut Context) {
        self.receive.last.id = id;
        self.complete_flushed(IS_RECEIVE, context);
    }

    /// Completes as flushed the request or receive with the transport's identifier `id`.
    pub fn complete_flushed(&mut self, id: u64, context: &mut Context) {
        self.complete(&rdma::Completion { id, status: Status::Flushed, len: 0, received: None }, context);
    }

    /// Makes the completion of a flushed receive, for a place in the completion queue that is already taken.
    pub fn flushed_receive(&self, id: u64) -> Completion {
        Completion {
            id,
            qpn: self.qpn.0,
            status: status_number(Status::Flushed),
            opcode: completion::opcode::RECV,
            placement: self.placement(),
            ..Completion::default()
        }
    }

    const fn placement(&self) -> Placement {
        if self.receive.is_shared() { Placement::Done } else { Placement::There }
    }

    /// Flushes the requests of the send queue.
    pub fn flush_sends(&mut self, context: &mut Context) {
        self.flush_local(context);
        for _ in 0..MAX_WORK {
            let Ok(Some((number, _))) = self.send.take() else { break };
            self.complete_send(number, Status::Flushed, context);
        }
    }

    /// Counts a wrong key of the peer.
    pub fn wrong_key(&mut self) {
        self.peer.wrong_keys += 1;
        if self.kind == QpType::Uc && self.peer.wrong_keys >= WRONG_KEYS {
            self.broken = Some("too many wrong keys of its peer");
        }
    }

    /// Returns to its initial state. Nothing is shared.
    pub fn reset(&mut self) {
        self.state = QpState::Reset;
        self.attributes = QpAttributes::default();
        self.queue_key.store(0, Ordering::Relaxed);
        self.send.reset();
        self.receive.reset();
        self.peer = Peer::default();
        self.sharing.reset();
        (self.reason, self.broken) = (None, None);
    }

    /// Records that the peer sent something. The application is told if it can't send yet.
    pub fn establish(&mut self, context: &mut Context) {
        if !std::mem::replace(&mut self.peer.established, true) && self.state == QpState::ReadyToReceive {
            context.tell(Event::CommunicationEstablished, self.qpn.0);
        }
    }

    /// Is true if the trust in which memory was shared still exists, or if none was shared.
    pub fn is_trusted(&self, spec: &DeviceSpec) -> bool {
        let Some(trust) = &self.sharing.trust else { return true };
        let Some((_, adapter)) = self.peer.local() else { return false };
        spec.trusts(trust) && adapter.spec().trusts(trust)
    }

    /// Returns the inbox of the peer's thread, if memory may be shared with the peer.
    pub fn sharing_peer(&self) -> Option<Arc<Inbox<Message>>> {
        let (_, adapter) = self.peer.local()?;
        self.sharing.trust.as_ref().and_then(|_| adapter.owner(self.peer_qpn()))
    }

    /// Returns the inbox of the peer's thread, if the application stores messages in the peer's queues.
    pub fn direct_peer(&self) -> Option<Arc<Inbox<Message>>> {
        self.sharing.outbound.as_ref().and_then(|_| self.sharing_peer())
    }

    /// Is true if it is connected to this queue pair, and may share memory with it now.
    pub fn may_share_with(&self, from: QpAddress) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend) && self.is_peer(from)
    }

    /// Asks the peer's thread to notify the peer's completion channel.
    pub fn tell_peer(&self) {
        let peer = self.peer_qpn();
        if let Some((path, adapter)) = self.peer.local()
            && let Some(inbox) = adapter.owner(peer)
        {
            let own = QpAddress { gid: path.header.source, qpn: self.qpn };
            inbox.send(Message::Notify(peer, own));
        }
    }

    /// Is true if it is connected to this queue pair, and both are on this host.
    pub fn is_peer(&self, from: QpAddress) -> bool {
        self.kind == QpType::Rc
            && self.peer_qpn() == from.qpn
            && self.peer.local().is_some_and(|(path, _)| path.header.destination == from.gid)
    }

    /// Returns the invalidation whose users the local request awaits.
    pub fn awaited(&self) -> Option<Invalidation> {
        self.send.local.as_ref().and_then(|local| local.invalidation)
    }

    /// Ends the local request.
    pub fn end_local(&mut self, status: Status, context: &mut Context) {
        let Some(LocalRequest { number, request, .. }) = self.send.local.take() else { return };
        if self.send.is_signaled(request.flags) || status != Status::Success {
            self.complete_send(number, status, context);
        }
    }

    /// Is true if the local request waits for peers that may still use a key.
    pub fn awaits_peers(&self, context: &Context) -> bool {
        self.awaited().is_some() && !context.peers_are_done
    }

    /// Flushes the local request, once it awaits no peers. Its completion tells the application that they are done.
    pub fn flush_local(&mut self, context: &mut Context) {
        let status = if self.awaited().is_some() { Status::Success } else { Status::Flushed };
        self.end_local(status, context);
    }
}
