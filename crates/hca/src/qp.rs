//! A queue pair: its queues in shared memory, its transport, and what moves requests from one to the other.

use crate::budget::Held;
use crate::carry::Surroundings;
use crate::control::MAX_WORK;
use crate::counters::{Counter, Counters};
use crate::direct::Brought;
use crate::events::Event;
use crate::inbox::{Inbox, Packet};
use crate::local::{Local, is_local};
use crate::objects::{Objects, Receive, take_receive};
use crate::parting::{AGAIN, Inbound};
use crate::path::{Path, Way, received_header};
use crate::terms::{describe, operation, status_number};
use packet::roce::{self, Datagram, Nak};
use rdma::{DatagramPair, Destination, LeftOut, Mtu, QueuePair, SendRequest, Status};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use uverbs::completion;
use uverbs::work::send_flags;
use uverbs::{
    Bond, Capacity, Completion, Corrupt, Parcels, Placement, QpAttributes, QpState, QpType, Segment, Shape,
    WorkRequest, WorkSource,
};

/// Packets of one queue pair at a time, before others have their turn.
const BUDGET: usize = 64;
/// Bytes of headers of most frames.
const HEADERS: u64 = 14 + 20 + 8 + 12 + 4;
/// When a full ring towards the vRouter is looked at again.
const NO_ROOM: Duration = Duration::from_micros(50);
/// The longest time that what the guest's rate does not let go waits unseen.
const LONG: Duration = Duration::from_millis(10);
/// When receives are looked for that were posted, and not yet seen, when a queue pair went to the error state.
const LATER: Duration = Duration::from_millis(1);
/// So many wrong keys of an unreliable peer, and it is heard no more.
const WRONG_KEYS: u32 = 16;
/// Set in what we call receives, to tell them from sends.
const IS_RECEIVE: u64 = 1 << 63;
/// Why a queue pair is in an error state, where it is nobody else's fault.
const OWN_REQUEST: &str = "a request of its own failed";
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
    Own(WorkSource),
    Shared(u32),
}

/// What carries its messages.
#[derive(Debug)]
pub(crate) enum Transport {
    None,
    Connected(Box<QueuePair>),
    Datagram(DatagramPair),
}

/// A queue pair without its transport.
#[derive(Debug)]
pub(crate) struct Own {
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
    pub inbound: Option<Inbound>,
    /// The application does what the peer's device would do.
    pub outbound: Option<Bond>,
    /// What was done so before.
    pub brought: Brought,
    /// The trust in which memory is, or was, shared with the peer.
    pub shared_in: Option<String>,
    /// Of connections.
    pub path: Option<Path>,
    /// The thread that has the peer, where that is on this host.
    pub peer: Option<Arc<Inbox>>,
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
    pub local: Option<Local>,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub own: Own,
    pub transport: Transport,
    /// It waits for its turn.
    pub is_ready: bool,
    /// When it wants its turn at the latest.
    pub deadline: Option<Duration>,
}

impl Own {
    const fn slot(&self, number: u64) -> usize {
        number as usize & (self.works.len() - 1)
    }

    /// The request that the transport calls so.
    pub fn work(&self, number: u64) -> &Work {
        &self.works[self.slot(number)]
    }

    /// Takes a receive. What the transport calls it.
    pub fn take_receive(&mut self, objects: &mut Objects) -> Option<u64> {
        let taken = match &mut self.receives {
            Receives::Own(source) => take_receive(source, &mut self.receive).unwrap_or_else(|Corrupt| {
                self.broken = Some("its receive queue was overwritten");
                false
            }),
            Receives::Shared(srq) => objects.take_shared(*srq, &mut self.receive),
        };
        taken.then_some(IS_RECEIVE)
    }

    /// Takes a receive to be flushed: of a shared queue none, and no more at a time than a queue has, whatever the
    /// application writes there meanwhile.
    pub fn take_flushed(&mut self, objects: &mut Objects) -> Option<u64> {
        if self.takes_shared() || self.flushed >= MAX_WORK || objects.is_shared_still(self.qpn) {
            return None;
        }
        self.flushed += 1;
        self.take_receive(objects)
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
    fn frames(&self, now: Duration, objects: &Objects) -> usize {
        let is_far = self.is_remote() || self.kind == QpType::Ud;
        let room = if is_far { objects.uplink.room().min(BUDGET) } else { BUDGET };
        objects.adapter.room(now, self.longest(), room)
    }

    /// When what may not leave now is looked at again.
    fn later(&self, now: Duration, objects: &Objects) -> Duration {
        now + objects.adapter.wait(now, self.longest()).clamp(NO_ROOM, LONG)
    }

    /// Says whether the application has to announce sends.
    fn spare_doorbell(&mut self, spared: bool) {
        if std::mem::replace(&mut self.spares_doorbell, spared) != spared {
            self.sends.spare_doorbell(spared);
        }
    }

    /// Takes the next request of the send queue: the number of its slot, and the request.
    fn take_send(&mut self) -> Result<Option<(u32, WorkRequest)>, Corrupt> {
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
    pub fn complete(&mut self, done: &rdma::Completion, objects: &mut Objects) {
        let status = status_number(done.status);
        let failed = done.status != Status::Success;
        let mut completion =
            Completion { qpn: self.qpn, status, byte_len: done.len, ..Completion::default() };
        completion.timestamp = crate::client::monotonic_nanoseconds();
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
            objects.counters.add(if receives { Counter::ResponderError } else { Counter::RequesterError }, 1);
        }
        if !objects.complete(cq, &completion, solicited || failed) {
            self.broken = Some("its completion queue overran");
        }
        // Only now: the library completes the next request itself where it finds the queue done with.
        if done.id & IS_RECEIVE == 0 {
            self.sends.release_before((done.id as u32).wrapping_add(1));
        }
    }

    /// Flushes a receive that was taken from a shared queue and not completed.
    pub fn flush_receive(&mut self, id: u64, objects: &mut Objects) {
        self.receive.id = id;
        let flushed = rdma::Completion { id: IS_RECEIVE, status: Status::Flushed, len: 0, received: None };
        self.complete(&flushed, objects);
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

    fn flush_sends(&mut self, objects: &mut Objects) {
        self.flush_local(objects);
        for _ in 0..MAX_WORK {
            let Ok(Some((number, _))) = self.take_send() else { break };
            let id = number.into();
            let flushed = rdma::Completion { id, status: Status::Flushed, len: 0, received: None };
            self.complete(&flushed, objects);
        }
    }

    /// Counts a key that is not right.
    pub fn wrong_key(&mut self) {
        self.wrong_keys += 1;
        if self.kind == QpType::Uc && self.wrong_keys >= WRONG_KEYS {
            self.broken = Some("too many wrong keys of its peer");
        }
    }
}

impl Qp {
    /// Adds what its transport counted.
    pub fn count_into(&self, counters: &mut Counters) {
        if let Transport::Connected(connected) = &self.transport {
            counters.add_connection(&connected.counts());
        }
        let Brought { sent, received } = self.own.brought();
        counters.add(Counter::SentPackets, sent.0);
        counters.add(Counter::SentBytes, sent.1);
        counters.add(Counter::ReceivedPackets, received.0);
        counters.add(Counter::ReceivedBytes, received.1);
    }

    /// Takes a packet that came for it.
    pub fn receive(&mut self, packet: &Packet, now: Duration, objects: &mut Objects) {
        let Ok(datagram) = roce::parse(&packet.bytes) else {
            objects.counters.add(Counter::Malformed, 1);
            return;
        };
        objects.counters.add(Counter::ReceivedPackets, 1);
        objects.counters.add(Counter::ReceivedBytes, packet.bytes.len() as u64);
        let mut around = Surroundings { own: &mut self.own, objects };
        match &mut self.transport {
            Transport::None => around.objects.counters.add(Counter::NotTaken, 1),
            Transport::Connected(connected) => {
                if !around.own.is_from_peer(packet) {
                    around.objects.counters.add(Counter::NotTaken, 1);
                    return;
                }
                around.hear();
                around.notify_congestion(packet, now);
                connected.receive(&datagram, now, &mut around);
                if connected.state() == rdma::State::Error {
                    // The peer is told why, and so are we.
                    connected.poll(now, BUDGET, &mut around);
                }
            }
            Transport::Datagram(pair) => receive_datagram(pair, packet, &datagram, &mut around),
        }
        self.settle(objects);
    }

    /// Does what there is to do. Returns when it wants its turn at the latest.
    pub fn work(&mut self, now: Duration, objects: &mut Objects) -> Option<Duration> {
        let deadline = self.try_work(now, objects);
        self.settle(objects);
        match self.own.state {
            QpState::Error => {
                self.flush(objects);
                let looks = std::mem::take(&mut self.own.looks_again).then_some(now + LATER);
                let waits = self.own.awaits_peers(objects).then_some(now + AGAIN);
                return looks.into_iter().chain(waits).min();
            }
            QpState::SendQueueError if !self.own.awaits_peers(objects) => {
                self.own.flush_sends(objects);
                self.settle(objects);
            }
            _ => {}
        }
        deadline
    }

    fn try_work(&mut self, now: Duration, objects: &mut Objects) -> Option<Duration> {
        // From here on: what is posted and not announced is seen below.
        self.own.spare_doorbell(false);
        let mut budget = BUDGET;
        // Datagrams are sent as they are taken.
        let is_datagram = matches!(self.transport, Transport::Datagram(_));
        let is_at_work = matches!(self.own.state, QpState::ReadyToSend | QpState::SendQueueDrained);
        let mut may_go_on = is_at_work && self.do_local(objects);
        while may_go_on && self.own.state == QpState::ReadyToSend && budget > 0 {
            if is_datagram && self.own.frames(now, objects) == 0 {
                return Some(self.own.later(now, objects));
            }
            match self.own.take_send() {
                Ok(None) => break,
                Ok(Some((number, request))) if is_local(&request, self.own.kind) => {
                    self.own.local = Some(Local::new(number, request));
                    may_go_on = self.do_local(objects);
                }
                Ok(Some((number, request))) => self.post(number, &request, objects),
                Err(Corrupt) => self.own.broken = Some("its send queue was overwritten"),
            }
            self.settle(objects);
            budget -= 1;
        }
        let more = budget == 0;
        let mut deadline = None;
        if let Transport::Connected(connected) = &mut self.transport {
            let room = self.own.frames(now, objects);
            // Time passes without room too.
            deadline = connected.poll(now, room, &mut Surroundings { own: &mut self.own, objects });
            if room == 0 {
                deadline = Some(self.own.later(now, objects));
            }
            // An answer, or a timeout, brings us here again, and what was posted meanwhile with it.
            self.own.spare_doorbell(deadline.is_some() && connected.awaits_answers());
            let is_sending = connected.is_sending();
            let waits = self.own.local_deadline(is_sending, now, objects);
            deadline = waits.into_iter().chain(deadline).min();
            if !is_sending && self.own.local.is_none() {
                self.own.sends.release_taken();
                if std::mem::take(&mut self.own.tells_drained) {
                    objects.tell(Event::SendQueueDrained, self.own.qpn);
                }
            }
        }
        if more { Some(now) } else { deadline }
    }

    /// Gives a request to the transport.
    fn post(&mut self, number: u32, asked: &WorkRequest, objects: &mut Objects) {
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

    /// Follows the transport into the error states, and tells the application why.
    pub fn settle(&mut self, objects: &mut Objects) {
        let own = &mut self.own;
        let state = match &self.transport {
            Transport::None => None,
            Transport::Connected(connected) => Some(connected.state()),
            Transport::Datagram(pair) => Some(pair.state()),
        };
        let broken = own.broken.take();
        if own.state == QpState::Error {
            return;
        }
        match state {
            Some(rdma::State::Error) => {}
            _ if broken.is_some() => {}
            Some(rdma::State::SendQueueError) => {
                own.state = QpState::SendQueueError;
                own.reason = Some(OWN_REQUEST);
                return;
            }
            _ => return,
        }
        if let Some(reason) = broken {
            own.reason = Some(reason);
            objects.tell(Event::QpFatal, own.qpn);
        } else if let Some(nak) = own.nak {
            let (event, reason) = match nak {
                Nak::RemoteAccessError => (Event::QpAccessError, "its peer used memory that it may not"),
                _ => (Event::QpRequestError, "its peer asked for what can't be done"),
            };
            own.reason = Some(reason);
            objects.tell(event, own.qpn);
        }
        own.reason.get_or_insert(OWN_REQUEST);
        self.enter_error(objects);
    }

    /// Goes to the error state: everything is flushed.
    pub fn enter_error(&mut self, objects: &mut Objects) {
        if self.own.state == QpState::Error {
            return;
        }
        self.own.state = QpState::Error;
        self.own.spare_doorbell(false);
        self.own.part(objects);
        let mut around = Surroundings { own: &mut self.own, objects };
        match &mut self.transport {
            Transport::None => {}
            // One that failed itself still has to tell its peer why.
            Transport::Connected(connected) if connected.state() == rdma::State::Error => {}
            Transport::Connected(connected) => connected.fail(&mut around),
            Transport::Datagram(pair) => pair.fail(&mut around),
        }
        if let Receives::Own(source) = &mut self.own.receives {
            source.want_doorbell(true);
            self.own.looks_again = true;
        }
        self.own.tells_last = self.own.takes_shared();
        self.flush(objects);
    }

    /// Sends again after a send queue error: not what was posted meanwhile.
    pub fn resume(&mut self, objects: &mut Objects) {
        if !self.own.awaits_peers(objects) {
            self.own.flush_sends(objects);
        }
        self.own.reason = None;
        match &mut self.transport {
            Transport::None => {}
            Transport::Connected(connected) => connected.resume(),
            Transport::Datagram(pair) => pair.resume(),
        }
    }

    /// Flushes what was posted since, once nobody is at work with what came before it, or with what it took away.
    fn flush(&mut self, objects: &mut Objects) {
        let own = &mut self.own;
        if objects.is_shared_still(own.qpn) || own.awaits_peers(objects) {
            return;
        }
        own.flushed = 0;
        own.flush_sends(objects);
        while let Some(id) = own.take_flushed(objects) {
            own.complete(&rdma::Completion { id, status: Status::Flushed, len: 0, received: None }, objects);
        }
        own.broken = None;
        if std::mem::take(&mut own.tells_last) {
            objects.tell(Event::LastWqeReached, own.qpn);
        }
    }

    /// Forgets everything: back to the beginning.
    pub fn reset(&mut self, objects: &mut Objects) {
        self.own.part(objects);
        self.count_into(&mut objects.counters);
        self.transport = Transport::None;
        let own = &mut self.own;
        own.brought = Brought::default();
        own.shared_in = None;
        own.state = QpState::Reset;
        objects.regions.unbind_all(own.qpn);
        own.attributes = QpAttributes::default();
        own.queue_key.store(0, Ordering::Relaxed);
        own.sends.reset();
        if let Receives::Own(source) = &mut own.receives {
            source.reset();
        }
        if let Some((parcels, _)) = &own.parcels {
            parcels.reset();
        }
        (own.path, own.peer, own.nak, own.reason, own.broken) = (None, None, None, None, None);
        (own.wrong_keys, own.established, own.tells_drained) = (0, false, false);
        (own.spares_doorbell, own.tells_last) = (false, false);
        (own.told_congestion, own.local) = (None, None);
        self.deadline = None;
    }
}

/// A datagram for a queue pair of datagrams.
fn receive_datagram(
    pair: &mut DatagramPair,
    packet: &Packet,
    datagram: &Datagram<'_>,
    around: &mut Surroundings<'_>,
) {
    let header = received_header(&packet.network, packet.bytes.len());
    let Err(why) = pair.receive(datagram, &header, around) else { return };
    let counter = match why {
        LeftOut::Foreign => Counter::NotTaken,
        LeftOut::Partition => Counter::PkeyViolation,
        LeftOut::QueueKey => Counter::QkeyViolation,
        LeftOut::NotReady => Counter::OutOfBuffer,
        LeftOut::Length => Counter::LocalLength,
    };
    around.objects.counters.add(counter, 1);
}
