//! Owns queue pairs with their transport: it moves requests and packets between queues in shared memory and the
//! transport (`rdma`). May import `transfer` and what stands below it.

pub(crate) mod create;
mod describe;
pub(crate) mod modify;
mod transitions;

use crate::base::counters::{Counter, Counters};
use crate::base::header::NetworkHeader;
use crate::context::Context;
use crate::context::endpoint::{BUDGET, Endpoint};
use crate::context::send_queue::LocalRequest;
use crate::context::sharing::DirectTraffic;
use crate::context::terms::operation;
use crate::inbox::Packet;
use crate::inbox::sync_delivery::{SyncMessage, SyncPacket};
use crate::streams::events::Event;
use crate::transfer::carry::Callbacks;
use crate::transfer::local::{Progress, is_local};
use crate::transfer::unshare::AGAIN;
use packet::roce::{self, Datagram, Nak};
use rdma::{DatagramPair, Destination, LeftOut, QueuePair, SendRequest, Status};
use std::time::Duration;
use uverbs::work::send_flags;
use uverbs::{Corrupt, QpState, WorkRequest};

/// How long after a queue pair entered the error state it checks again for receives that were posted before.
const LATER: Duration = Duration::from_millis(1);
/// How many times a queue pair sends more in its turn after it has handled answers to packets that it delivered
/// synchronously.
const ROUNDS: u32 = 2;
/// Why a queue pair is in an error state that no peer caused.
const OWN_REQUEST: &str = "a request of its own failed";

#[derive(Debug)]
pub(crate) enum Transport {
    None,
    Connected(Box<QueuePair>),
    Datagram(DatagramPair),
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub endpoint: Endpoint,
    pub transport: Transport,
    /// True if it is in the list of ready queue pairs.
    pub is_ready: bool,
    /// When it must work again at the latest.
    pub deadline: Option<Duration>,
}

impl Qp {
    /// Adds the counts of its transport and its sessions.
    pub fn count_into(&self, counters: &mut Counters) {
        if let Transport::Connected(connected) = &self.transport {
            counters.add_connection(&connected.counts());
        }
        let DirectTraffic { sent, received } = self.endpoint.sharing.traffic();
        counters.add(Counter::SentPackets, sent.0);
        counters.add(Counter::SentBytes, sent.1);
        counters.add(Counter::ReceivedPackets, received.0);
        counters.add(Counter::ReceivedBytes, received.1);
    }

    /// Handles a packet for it.
    pub fn receive(&mut self, packet: &Packet, now: Duration, context: &mut Context) {
        let Ok(datagram) = roce::parse(&packet.bytes) else {
            context.counters.add(Counter::Malformed, 1);
            return;
        };
        context.counters.add(Counter::ReceivedPackets, 1);
        context.counters.add(Counter::ReceivedBytes, packet.bytes.len() as u64);
        let mut callbacks = Callbacks { endpoint: &mut self.endpoint, context };
        match &mut self.transport {
            Transport::None => callbacks.context.counters.add(Counter::NotTaken, 1),
            Transport::Connected(connected) => {
                if callbacks.endpoint.peer.sent(&packet.header, packet.is_local) {
                    accept(connected, &datagram, &packet.header, now, &mut callbacks);
                } else {
                    callbacks.context.counters.add(Counter::NotTaken, 1);
                    return;
                }
            }
            Transport::Datagram(pair) => receive_datagram(pair, packet, &datagram, &mut callbacks),
        }
        self.settle(context);
    }

    /// Handles a packet that its peer delivers synchronously. Returns false, with nothing done, if it does not come
    /// from the peer.
    pub fn receive_sync(&mut self, delivered: &SyncPacket<'_>, context: &mut Context) -> bool {
        let Transport::Connected(connected) = &mut self.transport else { return false };
        let is_peers =
            self.endpoint.peer_qpn() == delivered.from && self.endpoint.peer.sent(delivered.header, true);
        if !is_peers {
            return false;
        }
        context.count_received(delivered.packet.bytes(delivered.packet.payload.len()));
        let mut callbacks = Callbacks { endpoint: &mut self.endpoint, context };
        accept(connected, delivered.packet, delivered.header, delivered.now, &mut callbacks);
        self.settle(context);
        true
    }

    /// Does a short message that its peer delivers synchronously. Returns false, with nothing done, if it must come
    /// in a packet.
    pub fn serve(&mut self, delivered: &mut SyncMessage<'_>, context: &mut Context) -> bool {
        let Transport::Connected(connected) = &mut self.transport else { return false };
        let is_peers =
            self.endpoint.peer_qpn() == delivered.from && self.endpoint.peer.sent(delivered.header, true);
        let mut callbacks = Callbacks { endpoint: &mut self.endpoint, context };
        if !is_peers || !connected.serve(delivered.message, delivered.bytes, &mut callbacks) {
            return false;
        }
        callbacks.endpoint.establish(callbacks.context);
        if callbacks.endpoint.broken.is_some() {
            // It fails before it answers.
            self.settle(context);
            return false;
        }
        let (request, answer) = delivered.message.packets(delivered.bytes.len());
        context.count_received(request);
        answer.into_iter().for_each(|bytes| context.count_sent(bytes));
        true
    }

    /// Handles the answers to packets that it delivered synchronously. Returns false if there were none.
    fn hear_answers(&mut self, now: Duration, context: &mut Context) -> bool {
        if context.answers.is_open() || context.answers.is_empty() {
            return false;
        }
        let mut heard = std::mem::take(&mut context.heard);
        std::mem::swap(&mut heard, &mut context.answers);
        if let Transport::Connected(connected) = &mut self.transport {
            for answer in heard.to(self.endpoint.qpn) {
                context.count_received(answer.bytes(answer.payload.len()));
                let mut callbacks = Callbacks { endpoint: &mut self.endpoint, context };
                callbacks.endpoint.establish(callbacks.context);
                connected.receive(&answer, now, &mut callbacks);
            }
        }
        heard.clear();
        context.heard = heard;
        self.settle(context);
        true
    }

    /// Works on requests and timers. Returns by when it must work again.
    pub fn work(&mut self, now: Duration, context: &mut Context) -> Option<Duration> {
        let deadline = self.try_work(now, context);
        self.settle(context);
        match self.endpoint.state {
            QpState::Error => {
                self.flush(context);
                let looks = std::mem::take(&mut self.endpoint.receive.looks_again).then_some(now + LATER);
                let waits = self.endpoint.awaits_peers(context).then_some(now + AGAIN);
                return looks.into_iter().chain(waits).min();
            }
            QpState::SendQueueError if !self.endpoint.awaits_peers(context) => {
                self.endpoint.flush_sends(context);
                self.settle(context);
            }
            _ => {}
        }
        deadline
    }

    fn try_work(&mut self, now: Duration, context: &mut Context) -> Option<Duration> {
        // Requests posted without a doorbell from here on are found below.
        self.endpoint.send.spare_doorbell(false);
        let mut budget = BUDGET;
        let is_one_enough = self.endpoint.send.begin_turn();
        // A datagram is sent when its request is taken.
        let is_datagram = matches!(self.transport, Transport::Datagram(_));
        let is_at_work = matches!(self.endpoint.state, QpState::ReadyToSend | QpState::SendQueueDrained);
        let mut may_go_on = is_at_work && self.do_local(context);
        while may_go_on && self.endpoint.state == QpState::ReadyToSend && budget > 0 {
            if is_datagram && self.endpoint.frames(now, context) == 0 {
                return Some(self.endpoint.later(now, context));
            }
            match self.endpoint.send.take() {
                Ok(None) => break,
                Ok(Some((number, request))) if is_local(&request, self.endpoint.kind) => {
                    self.endpoint.send.local = Some(LocalRequest::new(number, request));
                    may_go_on = self.do_local(context);
                }
                Ok(Some((number, request))) => self.post(number, &request, context),
                Err(Corrupt) => self.endpoint.broken = Some("its send queue was overwritten"),
            }
            self.settle(context);
            budget -= 1;
            if is_one_enough {
                break;
            }
        }
        let mut more = budget == 0;
        let mut deadline = self.transmit(now, context);
        let mut rounds = ROUNDS;
        while self.hear_answers(now, context) {
            if rounds == 0 {
                more = true;
                break;
            }
            rounds -= 1;
            deadline = self.transmit(now, context);
            more |= self.endpoint.state == QpState::ReadyToSend && self.endpoint.send.has_unannounced();
        }
        if more { Some(now) } else { deadline }
    }

    /// Has the transport send, and look at its timers. Returns by when it must do so again.
    fn transmit(&mut self, now: Duration, context: &mut Context) -> Option<Duration> {
        let mut deadline = None;
        if let Transport::Connected(connected) = &mut self.transport {
            let room = self.endpoint.frames(now, context);
            // Timers run even without room.
            deadline = connected.poll(now, room, &mut Callbacks { endpoint: &mut self.endpoint, context });
            if room == 0 {
                deadline = Some(self.endpoint.later(now, context));
            }
            // An answer or a timeout runs the queue pair again, and it then finds requests posted meanwhile.
            self.endpoint.send.spare_doorbell(deadline.is_some() && connected.awaits_answers());
            let is_sending = connected.is_sending();
            let waits = self.endpoint.local_deadline(is_sending, now, context);
            deadline = waits.into_iter().chain(deadline).min();
            if !is_sending && self.endpoint.send.local.is_none() {
                self.endpoint.send.release_all();
                if std::mem::take(&mut self.endpoint.send.tells_drained) {
                    context.tell(Event::SendQueueDrained, self.endpoint.qpn.0);
                }
            }
        }
        deadline
    }

    /// Continues the local request, if there is one. Returns whether later requests may continue.
    fn do_local(&mut self, context: &mut Context) -> bool {
        let is_sending = matches!(&self.transport, Transport::Connected(connected) if connected.is_sending());
        match self.endpoint.advance_local(is_sending, context) {
            Progress::Done => true,
            Progress::Waits => false,
            Progress::Failed => {
                if let Transport::Connected(connected) = &mut self.transport {
                    connected.fail_request(&mut Callbacks { endpoint: &mut self.endpoint, context });
                }
                self.settle(context);
                true
            }
        }
    }

    /// Passes a request to the transport.
    fn post(&mut self, number: u32, asked: &WorkRequest, context: &mut Context) {
        let endpoint = &mut self.endpoint;
        let Some(operation) = operation(asked, endpoint.kind) else {
            endpoint.complete_send(number, Status::LocalOperation, context);
            endpoint.broken = Some("it was asked for an operation that it does not have");
            return;
        };
        let request = SendRequest {
            id: number.into(),
            operation,
            len: endpoint.send.work(number.into()).len,
            signaled: endpoint.send.is_signaled(asked.flags),
            solicited: asked.flags & send_flags::SOLICITED != 0,
            fence: asked.flags & send_flags::FENCE != 0,
        };
        let mut callbacks = Callbacks { endpoint, context };
        match &mut self.transport {
            Transport::None => {}
            Transport::Connected(connected) => {
                if !connected.pass(&request, &mut callbacks) {
                    connected.post_send(request, &mut callbacks);
                }
            }
            Transport::Datagram(pair) => {
                let to = Destination {
                    address: asked.ah,
                    queue_pair: asked.remote_qpn & 0xff_ffff,
                    queue_key: asked.remote_qkey,
                };
                pair.send(&request, &to, &mut callbacks);
            }
        }
    }

    /// Follows the transport into the error states, and tells the application why.
    pub fn settle(&mut self, context: &mut Context) {
        let endpoint = &mut self.endpoint;
        let state = match &self.transport {
            Transport::None => None,
            Transport::Connected(connected) => Some(connected.state()),
            Transport::Datagram(pair) => Some(pair.state()),
        };
        let broken = endpoint.broken.take();
        if endpoint.state == QpState::Error {
            return;
        }
        match state {
            Some(rdma::State::Error) => {}
            _ if broken.is_some() => {}
            Some(rdma::State::SendQueueError) => {
                endpoint.state = QpState::SendQueueError;
                endpoint.reason = Some(OWN_REQUEST);
                return;
            }
            _ => return,
        }
        if let Some(reason) = broken {
            endpoint.reason = Some(reason);
            context.tell(Event::QpFatal, endpoint.qpn.0);
        } else if let Some(nak) = endpoint.peer.nak {
            let (event, reason) = match nak {
                Nak::RemoteAccessError => {
                    (Event::QpAccessError, "its peer accessed memory without permission")
                }
                _ => (Event::QpRequestError, "its peer sent an invalid request"),
            };
            endpoint.reason = Some(reason);
            context.tell(event, endpoint.qpn.0);
        }
        endpoint.reason.get_or_insert(OWN_REQUEST);
        self.enter_error(context);
    }

    /// Enters the error state and flushes all requests.
    pub fn enter_error(&mut self, context: &mut Context) {
        if self.endpoint.state == QpState::Error {
            return;
        }
        self.endpoint.state = QpState::Error;
        self.endpoint.send.spare_doorbell(false);
        self.endpoint.unshare(context);
        let mut callbacks = Callbacks { endpoint: &mut self.endpoint, context };
        match &mut self.transport {
            Transport::None => {}
            // A transport that failed by itself still has to tell its peer why.
            Transport::Connected(connected) if connected.state() == rdma::State::Error => {}
            Transport::Connected(connected) => connected.fail(&mut callbacks),
            Transport::Datagram(pair) => pair.fail(&mut callbacks),
        }
        self.endpoint.receive.fail();
        self.flush(context);
    }

    /// Leaves the send queue error state. Requests that were posted meanwhile are flushed.
    pub fn resume(&mut self, context: &mut Context) {
        if !self.endpoint.awaits_peers(context) {
            self.endpoint.flush_sends(context);
        }
        self.endpoint.reason = None;
        match &mut self.transport {
            Transport::None => {}
            Transport::Connected(connected) => connected.resume(),
            Transport::Datagram(pair) => pair.resume(),
        }
    }

    /// Flushes requests posted in the error state, once nobody uses earlier ones, or a key that was invalidated.
    fn flush(&mut self, context: &mut Context) {
        let endpoint = &mut self.endpoint;
        if context.is_still_used(endpoint.qpn) || endpoint.awaits_peers(context) {
            return;
        }
        endpoint.receive.flushed = 0;
        endpoint.flush_sends(context);
        while let Some(id) = endpoint.take_flushed(context) {
            endpoint.complete_flushed(id, context);
        }
        endpoint.broken = None;
        if std::mem::take(&mut endpoint.receive.tells_last) {
            context.tell(Event::LastWqeReached, endpoint.qpn.0);
        }
    }

    /// Returns to its initial state.
    pub fn reset(&mut self, context: &mut Context) {
        self.endpoint.unshare(context);
        self.count_into(&mut context.counters);
        context.regions.unbind_all(self.endpoint.qpn);
        self.transport = Transport::None;
        self.endpoint.reset();
        self.deadline = None;
    }
}

/// Handles a packet of a connection's peer.
fn accept(
    connected: &mut QueuePair,
    packet: &Datagram<'_>,
    header: &NetworkHeader,
    now: Duration,
    callbacks: &mut Callbacks<'_>,
) {
    callbacks.endpoint.establish(callbacks.context);
    callbacks.notify_congestion(packet, header, now);
    connected.receive(packet, now, callbacks);
    if connected.state() == rdma::State::Error {
        // Sends the NAK that tells the peer why, and records the reason.
        connected.poll(now, BUDGET, callbacks);
    }
}

/// Handles a datagram for a UD queue pair.
fn receive_datagram(
    pair: &mut DatagramPair,
    packet: &Packet,
    datagram: &Datagram<'_>,
    callbacks: &mut Callbacks<'_>,
) {
    let header = packet.header.received(packet.bytes.len());
    let Err(why) = pair.receive(datagram, &header, callbacks) else { return };
    let counter = match why {
        LeftOut::Foreign => Counter::NotTaken,
        LeftOut::Partition => Counter::PkeyViolation,
        LeftOut::QueueKey => Counter::QkeyViolation,
        LeftOut::NotReady => Counter::OutOfBuffer,
        LeftOut::Length => Counter::LocalLength,
    };
    callbacks.context.counters.add(counter, 1);
}
