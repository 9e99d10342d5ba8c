//! A connection's queue pair: its states, and its two halves.

use crate::Counts;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::short_message::{LocalVerbs, ShortMessage};
use crate::work::{Completion, SendRequest, Status, Verbs};
use packet::roce::{Bth, Datagram, Opcode, Operation, RnrTimer, Service};
use std::time::Duration;

/// Longest payload of a packet, with the codes of `ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // they say it
pub enum Mtu {
    Bytes256 = 1,
    Bytes512 = 2,
    Bytes1024 = 3,
    Bytes2048 = 4,
    Bytes4096 = 5,
    /// For queue pairs on the same host: packets of this size never reach a wire.
    Bytes32768 = 8,
}

impl Mtu {
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return None,
        })
    }

    #[must_use]
    pub const fn bytes(self) -> u16 {
        128 << self as u16
    }
}

/// The attributes that `ibv_modify_qp` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Whether the connection is reliable. Otherwise lost packets stay lost, and there are neither READs nor atomics.
    pub reliable: bool,
    /// Longest payload of a packet.
    pub mtu: Mtu,
    pub partition: u16,
    /// Number of the peer's queue pair.
    pub destination: u32,
    /// PSN of the first packet sent.
    pub send_psn: u32,
    /// PSN of the first packet received.
    pub receive_psn: u32,
    /// Time to wait for an answer: 4.096 us times 2 to the power of this; 0 means forever.
    pub timeout: u8,
    /// Number of times that a packet is sent again, 0 to 7.
    pub retries: u8,
    /// Number of retries if the receiver is not ready, 0 to 6; 7 means forever.
    pub rnr_retries: u8,
    /// Time for which a peer waits that finds no receive.
    pub rnr_timer: RnrTimer,
    /// Largest number of READs and atomics under way.
    pub reads: u8,
    /// Largest number of READs and atomics that the peer may have under way.
    pub peer_reads: u8,
}

impl Attributes {
    pub(crate) const fn service(&self) -> Service {
        if self.reliable { Service::Rc } else { Service::Uc }
    }

    /// Returns the time to wait for an answer; `None` means forever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let exponent = u32::from(self.timeout & 31);
        (exponent > 0).then(|| Duration::from_nanos(4096_u64 << exponent))
    }

    /// Returns the number of a message's packets, at least one.
    pub(crate) fn packets(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu.bytes().into()).max(1)
    }

    pub(crate) fn bth(&self, operation: Operation, psn: crate::Psn) -> Bth {
        Bth {
            opcode: Opcode::Of(self.service(), operation),
            solicited: false,
            migrated: true,
            partition: self.partition,
            forward_congestion: false,
            backward_congestion: false,
            destination: self.destination,
            acknowledge: false,
            psn: psn.number(),
        }
    }
}

/// State of a queue pair (IBTA 10.3.1). The owner of a queue pair keeps the earlier states, and creates the queue pair
/// once the attributes of both directions are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    ReadyToReceive,
    ReadyToSend,
    /// The queue pair only receives, because a send failed: posted requests are flushed until it is resumed. Reliable
    /// connections do not have this state.
    SendQueueError,
    /// The queue pair does nothing any more; posted requests are flushed.
    Error,
}

/// A queue pair of a connection.
#[derive(Debug)]
pub struct QueuePair {
    attributes: Attributes,
    state: State,
    requester: Requester,
    responder: Responder,
}

impl QueuePair {
    /// Creates a queue pair that is ready to receive.
    #[must_use]
    pub fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            state: State::ReadyToReceive,
            requester: Requester::new(&attributes),
            responder: Responder::new(&attributes),
        }
    }

    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Makes the queue pair ready to send, with the attributes that `ibv_modify_qp` sets in this transition.
    pub fn ready_to_send(&mut self, attributes: Attributes) {
        if self.state == State::ReadyToReceive {
            self.attributes = attributes;
            self.requester = Requester::new(&attributes);
            self.state = State::ReadyToSend;
        }
    }

    /// Resumes sending after a send queue error.
    pub fn resume(&mut self) {
        if self.state == State::SendQueueError {
            self.state = State::ReadyToSend;
        }
    }

    /// Returns the counts of both halves.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.requester.counts;
        counts += self.responder.counts;
        counts
    }

    /// Is true if the limit of packets under way is reached: nothing is sent before the peer answers, or time passes.
    #[must_use]
    pub fn awaits_answers(&self) -> bool {
        self.requester.is_full()
    }

    /// Is true if requests are under way.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        !self.requester.is_idle()
    }

    /// Sets the time for which a peer waits that finds no receive.
    pub const fn set_rnr_timer(&mut self, timer: RnrTimer) {
        self.attributes.rnr_timer = timer;
    }

    /// Queues a work request. In the error states it is flushed at once.
    pub fn post_send(&mut self, request: SendRequest, verbs: &mut impl Verbs) {
        if matches!(self.state, State::Error | State::SendQueueError) {
            return verbs.complete(flushed(request.id));
        }
        self.requester.post(request, &self.attributes);
    }

    /// Makes the peer execute a request at once, if it is short and nothing else is under way. Does nothing and returns
    /// false if that is not possible: the request must then be posted like any other.
    pub fn pass(&mut self, request: &SendRequest, verbs: &mut impl LocalVerbs) -> bool {
        if self.state != State::ReadyToSend || self.responder.has_answers() {
            return false;
        }
        let Some(is_healthy) = self.requester.pass(request, &self.attributes, verbs) else { return false };
        if !is_healthy {
            self.end(verbs);
        }
        true
    }

    /// Executes a short message of the peer. `bytes` are its bytes, or room for the bytes that it reads. Does
    /// nothing and returns false if the message must come in a packet.
    pub fn serve(&mut self, message: &ShortMessage, bytes: &mut [u8], verbs: &mut impl LocalVerbs) -> bool {
        let is_ours = message.service == self.attributes.service()
            && message.partition & 0x7fff == self.attributes.partition & 0x7fff;
        let is_able = is_ours && self.state != State::Error;
        is_able && self.responder.serve(message, bytes, &self.attributes, verbs)
    }

    /// Receives a packet from the peer at `now`, a time since a fixed moment.
    pub fn receive(&mut self, packet: &Datagram<'_>, now: Duration, verbs: &mut impl Verbs) {
        let Opcode::Of(service, operation) = packet.bth.opcode else { return };
        let is_ours = service == self.attributes.service()
            && packet.bth.partition & 0x7fff == self.attributes.partition & 0x7fff;
        if self.state == State::Error || !is_ours {
            return;
        }
        let healthy = if !self.attributes.reliable {
            self.responder.receive_unreliable(packet, operation, &self.attributes, verbs)
        } else if operation.is_answer() {
            self.state != State::ReadyToSend
                || self.requester.receive(packet, operation, &self.attributes, now, verbs)
        } else {
            self.responder.receive(packet, operation, &self.attributes, verbs)
        };
        if !healthy {
            self.end(verbs);
        }
    }

    /// Sends at most `budget` packets, and checks the clock. Returns the time by which it must be called again if
    /// nothing arrives before: at once if the budget was too small.
    pub fn poll(&mut self, now: Duration, budget: usize, verbs: &mut impl Verbs) -> Option<Duration> {
        let mut budget = budget;
        // Answers are sent in the error state, too: they tell the peer of its error.
        let answered = self.responder.answer(&mut budget, &self.attributes, verbs);
        let worked = self.state != State::ReadyToSend
            || self.requester.work(now, &mut budget, &self.attributes, verbs);
        if !worked && !self.attributes.reliable {
            self.state = State::SendQueueError;
            self.requester.flush(verbs);
        } else if !(answered && worked) {
            self.end(verbs);
        }
        if budget == 0 { Some(now) } else { self.requester.deadline() }
    }

    /// Enters the state to which a failed send leads: a request failed that the transport does not know, and that comes
    /// after all requests that it knows.
    pub fn fail_request(&mut self, verbs: &mut impl Verbs) {
        if self.attributes.reliable {
            self.end(verbs);
        } else {
            self.state = State::SendQueueError;
            self.requester.flush(verbs);
        }
    }

    /// Enters the error state: posted requests are flushed.
    pub fn fail(&mut self, verbs: &mut impl Verbs) {
        self.responder.forget();
        self.end(verbs);
    }

    fn end(&mut self, verbs: &mut impl Verbs) {
        if self.state != State::Error {
            self.state = State::Error;
            self.requester.flush(verbs);
            self.responder.flush(verbs);
        }
    }
}

/// Returns the completion of a flushed work request.
pub(crate) const fn flushed(id: u64) -> Completion {
    Completion { id, status: Status::Flushed, len: 0, received: None }
}
