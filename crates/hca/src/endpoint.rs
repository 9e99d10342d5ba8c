//! A queue pair without its transport: what the transport of the queue pair works on.

use crate::budget::Held;
use crate::clock::monotonic_nanoseconds;
use crate::context::{Context, Receive, take_receive};
use crate::counters::Counter;
use crate::events::Event;
use crate::inbox::{Inbox, Packet};
use crate::limits::MAX_WORK;
use crate::path::{Path, Way};
use crate::question::Question;
use crate::sharing::{DirectTraffic, InboundBond, Invalidation};
use crate::spec::DeviceSpec;
use crate::terms::{describe, status_number};
use packet::roce::Nak;
use rdma::{Mtu, Status};
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use uverbs::completion;
use uverbs::work::send_flags;
use uverbs::{
    Bond, Capacity, Completion, Corrupt, Parcels, Placement, QpAttributes, QpState, QpType, Segment, Shape,
    WorkRequest, WorkSource,
};

/// Packets of one queue pair at a time, before others have their turn.
pub(crate) const BUDGET: usize = 64;
/// Bytes of headers of most frames.
const HEADERS: u64 = 14 + 20 + 8 + 12 + 4;
/// When a full ring towards the vRouter is looked at again.
const NO_ROOM: Duration = Duration::from_micros(50);
/// The longest time that what the guest's rate does not let go waits unseen.
const LONG: Duration = Duration::from_millis(10);
/// So many wrong keys of an unreliable peer, and it is heard no more.
const WRONG_KEYS: u32 = 16;
/// Set in what we call receives, to tell them from sends.
const IS_RECEIVE: u64 = 1 << 63;
/// Longest message (IBTA 9.7.1.1).
const LONGEST_MESSAGE: u64 = 1 << 31;

/// A request that is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u8,
    pub segments: Vec<Segment>,
    /// The message itself, where it came inline.
    pub inline: Vec<u8>,
    pub len: u32,
    /// What the library calls it.
    pub number: u32,
}

/// The list, or the bytes, of a request.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    segments: Vec<Segment>,
    inline: Vec<u8>,
}

/// Where receives come from.
#[derive(Debug)]
pub(crate) enum Receives {
    Private(WorkSource),
    Shared(u32),
}

/// A queue pair without its transport.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub qpn: u32,
    pub pd: u32,
    pub kind: QpType,
    pub state: QpState,
    pub attributes: QpAttributes,
    /// Its queue key, for those who copy what comes for its groups.
    pub queue_key: Arc<AtomicU32>,
    pub capacity: Capacity,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub sends: WorkSource,
    pub receives: Receives,
    /// By which number a peer takes from a shared queue: that of no other queue pair of the application.
    pub taker: u32,
    /// Requests under way, by their slot.
    pub works: Vec<Work>,
    /// Their share of what the device may have.
    pub _held: Held,
    /// What is taken from the send queue: room that is used again.
    pub taken: Taken,
    /// Receives flushed in this turn.
    pub flushed: u32,
    /// The receive that was taken last.
    pub receive: Receive,
    pub all_signaled: bool,
    /// Its memory, to share.
    pub file: OwnedFd,
    pub receive_shape: Option<Shape>,
    /// Where peers that share memory put messages, and where that is in its memory, which has so many bytes.
    pub parcels: Option<(Parcels, u32)>,
    pub memory: u64,
    /// A peer does what we would do here.
    pub inbound: Option<InboundBond>,
    /// The application does what the peer's device would do.
    pub outbound: Option<Bond>,
    /// What was done so before.
    pub direct_traffic: DirectTraffic,
    /// The trust in which memory is, or was, shared with the peer.
    pub shared_in: Option<String>,
    /// Of connections.
    pub path: Option<Path>,
    /// The thread that has the peer, where that is on this host.
    pub peer: Option<Arc<Inbox<Question>>>,
    /// What the peer did wrong.
    pub nak: Option<Nak>,
    pub wrong_keys: u32,
    /// Why it is in the error state, for people.
    pub reason: Option<&'static str>,
    /// It can't go on: something of the application's is broken.
    pub broken: Option<&'static str>,
    /// The application need not announce sends.
    pub spares_doorbell: bool,
    /// The peer was heard of.
    pub established: bool,
    /// When the peer was told of congestion.
    pub told_congestion: Option<Duration>,
    /// The application is to be told once nothing is under way.
    pub tells_drained: bool,
    /// The application is to be told once no receive of a shared queue is under way any more.
    pub tells_last: bool,
    /// Receives are to be looked for once more that were posted when it went to the error state.
    pub looks_again: bool,
    /// A request that needs no peer, and waits for those before it; those after it wait for it.
    pub local: Option<LocalRequest>,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct LocalRequest {
    /// Of its slot.
    pub number: u32,
    pub request: WorkRequest,
    /// It is done, but for peers that may be at work with the key that it took away.
    pub invalidation: Option<Invalidation>,
}

impl LocalRequest {
    pub const fn new(number: u32, request: WorkRequest) -> Self {
        Self { number, request, invalidation: None }
    }
}

impl Endpoint {
    const fn slot(&self, number: u64) -> usize {
        number as usize & (self.works.len() - 1)
    }

    /// The request that the transport calls so.
    pub fn work(&self, number: u64) -> &Work {
        &self.works[self.slot(number)]
    }

    /// Takes a receive. What the transport calls it.
    pub fn take_receive(&mut self, context: &mut Context) -> Option<u64> {
        let taken = match &mut self.receives {
            Receives::Private(source) => take_receive(source, &mut self.receive).unwrap_or_else(|Corrupt| {
                self.broken = Some("its receive queue was overwritten");
                false
            }),
            Receives::Shared(srq) => context.take_shared(*srq, &mut self.receive),
        };
        taken.then_some(IS_RECEIVE)
    }

    /// Takes a receive to be flushed: of a shared queue none, and no more at a time than a queue has, whatever the
    /// application writes there meanwhile.
    pub fn take_flushed(&mut self, context: &mut Context) -> Option<u64> {
        if self.takes_shared() || self.flushed >= MAX_WORK || context.is_still_used(self.qpn) {
            return None;
        }
        self.flushed += 1;
        self.take_receive(context)
    }

    /// Whether packets to the peer leave by the vRouter.
    pub const fn is_remote(&self) -> bool {
        matches!(self.path, Some(Path { way: Way::Wire, .. }))
    }

    pub const fn takes_shared(&self) -> bool {
        matches!(self.receives, Receives::Shared(_))
    }

    /// Bytes of a frame at most.
    fn longest(&self) -> u64 {
        let is_far = self.is_remote() || self.kind == QpType::Ud;
        let code = if is_far { self.attributes.path_mtu } else { Mtu::Bytes32768 as u32 };
        HEADERS + code.checked_sub(1).map_or(0, |code| 256 << code)
    }

    /// How many frames may leave now: for the vRouter, or for a peer on this host.
    pub fn frames(&self, now: Duration, context: &Context) -> usize {
        let is_far = self.is_remote() || self.kind == QpType::Ud;
        let room = if is_far { context.uplink.room().min(BUDGET) } else { BUDGET };
        context.adapter.room(now, self.longest(), room)
    }

    /// When what may not leave now is looked at again.
    pub fn later(&self, now: Duration, context: &Context) -> Duration {
        now + context.adapter.wait(now, self.longest()).clamp(NO_ROOM, LONG)
    }

    /// Says whether the application has to announce sends.
    pub fn spare_doorbell(&mut self, spared: bool) {
        if std::mem::replace(&mut self.spares_doorbell, spared) != spared {
            self.sends.spare_doorbell(spared);
        }
    }

    /// Takes the next request of the send queue: the number of its slot, and the request.
    pub fn take_send(&mut self) -> Result<Option<(u32, WorkRequest)>, Corrupt> {
        let Taken { segments, inline } = &mut self.taken;
        segments.clear();
        inline.clear();
        let Some((number, request)) = self.sends.take(segments, inline)? else { return Ok(None) };
        let sum: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
        let len = sum.max(inline.len() as u64);
        if len > LONGEST_MESSAGE {
            return Err(Corrupt);
        }
        let slot = self.slot(number.into());
        let work = &mut self.works[slot];
        (work.id, work.opcode, work.len) = (request.id, request.opcode, len as u32);
        work.number = request.number;
        std::mem::swap(&mut work.segments, &mut self.taken.segments);
        std::mem::swap(&mut work.inline, &mut self.taken.inline);
        Ok(Some((number, request)))
    }

    /// Puts a completion into the queue it belongs to.
    pub fn complete(&mut self, done: &rdma::Completion, context: &mut Context) {
        let status = status_number(done.status);
        let failed = done.status != Status::Success;
        let mut completion =
            Completion { qpn: self.qpn, status, byte_len: done.len, ..Completion::default() };
        completion.timestamp = monotonic_nanoseconds();
        let (cq, solicited) = if done.id & IS_RECEIVE != 0 {
            completion.placement = self.placement();
            completion.id = self.receive.id;
            completion.opcode = completion::opcode::RECV;
            if let Some(received) = &done.received {
                describe(received, self.kind, &mut completion);
            }
            (self.recv_cq, done.received.is_some_and(|received| received.solicited))
        } else {
            let slot = self.slot(done.id);
            let work = &mut self.works[slot];
            (completion.id, completion.number) = (work.id, work.number);
            completion.opcode = completion::opcode::of(work.opcode);
            work.inline.clear();
            (self.send_cq, false)
        };
        if failed && done.status != Status::Flushed {
            let receives = done.id & IS_RECEIVE != 0;
            context.counters.add(if receives { Counter::ResponderError } else { Counter::RequesterError }, 1);
        }
        if !context.complete(cq, &completion, solicited || failed) {
            self.broken = Some("its completion queue overran");
        }
        // Only now: the library completes the next request itself where it finds the queue done with.
        if done.id & IS_RECEIVE == 0 {
            self.sends.release_before((done.id as u32).wrapping_add(1));
        }
    }

    /// Flushes a receive that was taken from a shared queue and not completed.
    pub fn flush_receive(&mut self, id: u64, context: &mut Context) {
        self.receive.id = id;
        let flushed = rdma::Completion { id: IS_RECEIVE, status: Status::Flushed, len: 0, received: None };
        self.complete(&flushed, context);
    }

    /// What such a receive is completed with, where the place for it is there already.
    pub fn flushed_receive(&self, id: u64) -> Completion {
        Completion {
            id,
            qpn: self.qpn,
            status: status_number(Status::Flushed),
            opcode: completion::opcode::RECV,
            placement: self.placement(),
            ..Completion::default()
        }
    }

    const fn placement(&self) -> Placement {
        if self.takes_shared() { Placement::Done } else { Placement::There }
    }

    pub fn flush_sends(&mut self, context: &mut Context) {
        self.flush_local(context);
        for _ in 0..MAX_WORK {
            let Ok(Some((number, _))) = self.take_send() else { break };
            let id = number.into();
            let flushed = rdma::Completion { id, status: Status::Flushed, len: 0, received: None };
            self.complete(&flushed, context);
        }
    }

    /// Counts a key that is not right.
    pub fn wrong_key(&mut self) {
        self.wrong_keys += 1;
        if self.kind == QpType::Uc && self.wrong_keys >= WRONG_KEYS {
            self.broken = Some("too many wrong keys of its peer");
        }
    }

    /// Whether a packet comes from the peer of the connection, and by the way that leads there.
    pub fn is_from_peer(&self, packet: &Packet) -> bool {
        self.path.as_ref().is_some_and(|path| {
            packet.header.source == path.header.destination
                && packet.header.destination == path.header.source
                && packet.is_local == matches!(path.way, Way::Local(_))
        })
    }

    /// The peer was heard of for the first time, while we can't send yet.
    pub fn establish(&mut self, context: &mut Context) {
        if !std::mem::replace(&mut self.established, true) && self.state == QpState::ReadyToReceive {
            context.tell(Event::CommunicationEstablished, self.qpn);
        }
    }

    /// All messages that this application, or its peers, copied themselves.
    pub fn direct_traffic(&self) -> DirectTraffic {
        let mut direct_traffic = self.direct_traffic;
        self.outbound.iter().for_each(|bond| direct_traffic.add(false, bond.counted()));
        self.inbound.iter().for_each(|inbound| direct_traffic.add(true, inbound.bond.counted()));
        direct_traffic
    }

    /// Whether the trust in which memory was shared still holds. True if none was shared.
    pub fn is_trusted(&self, spec: &DeviceSpec) -> bool {
        let Some(trust) = &self.shared_in else { return true };
        let Some(Path { way: Way::Local(adapter), .. }) = &self.path else { return false };
        spec.trusts(trust) && adapter.spec().trusts(trust)
    }

    /// The thread of the peer, if memory may be shared with it.
    pub fn sharing_peer(&self) -> Option<Arc<Inbox<Question>>> {
        let Some(Path { way: Way::Local(adapter), .. }) = &self.path else { return None };
        self.shared_in.as_ref().and_then(|_| adapter.owner(self.attributes.dest_qp_num))
    }

    /// The thread of the peer into whose queues the application puts messages.
    pub fn direct_peer(&self) -> Option<Arc<Inbox<Question>>> {
        self.outbound.as_ref().and_then(|_| self.sharing_peer())
    }

    pub fn is_bonded_with(&self, from: (Ipv6Addr, u32)) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend) && self.is_peer(from)
    }

    /// Asks the peer's thread to notify the peer's completion channel.
    pub fn tell_peer(&self) {
        let peer = self.attributes.dest_qp_num;
        if let Some(Path { header, way: Way::Local(adapter), .. }) = &self.path
            && let Some(inbox) = adapter.owner(peer)
        {
            inbox.ask(Question::Notify(peer, (header.source, self.qpn)));
        }
    }

    /// Whether it is connected with this queue pair, and both are on this host.
    pub fn is_peer(&self, from: (Ipv6Addr, u32)) -> bool {
        self.kind == QpType::Rc
            && self.attributes.dest_qp_num == from.1
            && matches!(&self.path, Some(Path { header, way: Way::Local(_), .. }) if header.destination == from.0)
    }

    /// The key that was taken away with which peers may be at work that it waits for.
    pub fn awaited(&self) -> Option<Invalidation> {
        self.local.as_ref().and_then(|local| local.invalidation)
    }

    pub fn end_local(&mut self, status: Status, context: &mut Context) {
        let Some(LocalRequest { number, request, .. }) = self.local.take() else { return };
        let is_wanted = self.all_signaled || request.flags & send_flags::SIGNALED != 0;
        if is_wanted || status != Status::Success {
            self.complete(&rdma::Completion { id: number.into(), status, len: 0, received: None }, context);
        }
    }

    /// Whether it waits for peers at work with a key that was taken away.
    pub fn awaits_peers(&self, context: &Context) -> bool {
        self.awaited().is_some() && !context.peers_are_done
    }

    /// Flushes the request that waits, once no peers are waited for: its completion says that they are done.
    pub fn flush_local(&mut self, context: &mut Context) {
        let status = if self.awaited().is_some() { Status::Success } else { Status::Flushed };
        self.end_local(status, context);
    }
}
