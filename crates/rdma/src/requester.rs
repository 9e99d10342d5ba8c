//! The requester: makes packets of work requests, and processes their answers (IBTA 9.7.2 to 9.7.5).
//!
//! Every packet gets its number when its request is posted. So one cursor suffices, the number of the packet to send
//! next, and going back means setting it back. These numbers don't wrap around: requests posted together may have more
//! packets than there are PSNs.

use crate::congestion::Congestion;
use crate::queue_pair::{Attributes, Mtu, flushed};
use crate::short_message::{LocalVerbs, ShortMessage};
use crate::work::{AtomicOperation, Completion, Payload, SendOperation, SendRequest, Status, Verbs, With};
use crate::{Counts, Psn};
use packet::roce::{Aeth, Atomic, Datagram, Nak, Operation, Reth, Syndrome};
use std::collections::VecDeque;
use std::time::Duration;

/// Number of a packet, from 0.
type Number = u64;

/// Returns the largest window of a connection. Longer packets have a smaller window, so that
/// they stay in the host's cache, and less is sent again after a loss.
const fn window(attributes: &Attributes) -> Number {
    match attributes.mtu {
        Mtu::Bytes32768 => 32,
        Mtu::Bytes4096 => 128,
        _ => 256,
    }
}

/// Number of answers that are requested in a window, besides those to the last packet of each message; but each answer
/// is to so many packets at least, if the window allows.
const ANSWERS: Number = 8;
/// Bytes of an atomic operation's operand.
const ATOMIC: u32 = 8;
/// The value of `rnr_retries` that means forever.
const FOR_EVER: u8 = 7;

/// A request and the numbers of its packets.
#[derive(Debug)]
struct Posted {
    request: SendRequest,
    first: Number,
    last: Number,
}

impl Posted {
    /// Is true if the request's responses complete it, rather than an acknowledgement.
    const fn is_answered(&self) -> bool {
        matches!(self.request.operation, SendOperation::Read { .. } | SendOperation::Atomic { .. })
    }

    /// Returns the offset in the message at which the packet with this number begins.
    const fn offset(&self, number: Number, mtu: u16) -> u32 {
        (number - self.first) as u32 * mtu as u32
    }
}

enum Sent {
    Yes,
    /// The request's memory is not available now; what was sent before must finish first.
    Waits,
    Failed,
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    /// PSN of packet 0.
    start: Psn,
    /// Unfinished requests, in order.
    posted: VecDeque<Posted>,
    /// Number after the last posted packet.
    end: Number,
    /// Number of the packet to send next.
    next: Number,
    /// Number after the last packet that was ever sent.
    sent: Number,
    /// Number of the first packet without an answer.
    unanswered: Number,
    /// Whether the requester went back since the last progress: further signs of the same loss are not new.
    recovering: bool,
    /// The number of packets that may be under way.
    congestion: Congestion,
    /// Number of unfinished READs and atomics before `next`.
    open: usize,
    pub counts: Counts,
    /// Numbers of retries that are left.
    retries: u8,
    rnr_retries: u8,
    /// Time at which the first unanswered packet is sent again.
    timeout: Option<Duration>,
    /// Time until which nothing is sent, because the receiver was not ready.
    pause: Option<Duration>,
}

impl Requester {
    pub fn new(attributes: &Attributes) -> Self {
        Self {
            start: Psn::new(attributes.send_psn),
            posted: VecDeque::new(),
            end: 0,
            next: 0,
            sent: 0,
            unanswered: 0,
            recovering: false,
            congestion: Congestion::new(window(attributes), attributes.mtu == Mtu::Bytes32768),
            open: 0,
            counts: Counts::default(),
            retries: attributes.retries,
            rnr_retries: attributes.rnr_retries,
            timeout: None,
            pause: None,
        }
    }

    pub fn post(&mut self, request: SendRequest, attributes: &Attributes) {
        let packets = match request.operation {
            SendOperation::Atomic { .. } => 1,
            _ => attributes.packets(request.len).into(),
        };
        let (first, last) = (self.end, self.end + packets - 1);
        self.posted.push_back(Posted { request, first, last });
        self.end += packets;
    }

    /// Makes the peer execute a request at once, as if its packet were sent and answered, if it is short and
    /// nothing else is under way. Does nothing and returns `None` if that is not possible; otherwise returns
    /// whether the connection is healthy.
    pub fn pass(
        &mut self,
        request: &SendRequest,
        attributes: &Attributes,
        verbs: &mut impl LocalVerbs,
    ) -> Option<bool> {
        let number = self.end;
        let is_alone = self.posted.is_empty() && [self.next, self.sent, self.unanswered] == [number; 3];
        if !is_alone || self.pause.is_some() || !ShortMessage::can_be(request) {
            return None;
        }
        let message = ShortMessage {
            operation: request.operation,
            psn: self.psn(number),
            service: attributes.service(),
            partition: attributes.partition,
            solicited: request.solicited,
        };
        let mut bytes = [0; ShortMessage::MAX_LEN];
        let bytes = &mut bytes[..request.len as usize];
        if !verbs.pass(request, &message, bytes) {
            return None;
        }
        let after = number + 1;
        (self.end, self.next, self.sent, self.unanswered) = (after, after, after, after);
        self.begin_afresh(attributes);
        let is_healthy = !message.is_read() || verbs.scatter(request, 0, bytes).is_ok();
        let status = if is_healthy { Status::Success } else { Status::LocalProtection };
        if request.signaled || !is_healthy {
            verbs.complete(Completion { id: request.id, status, len: request.len, received: None });
        }
        // This is done last: programs that wait for the completion need not wait for it.
        verbs.count_passed(&message, bytes.len());
        Some(is_healthy)
    }

    /// Is true if the limit of packets under way is reached: sending waits for answers.
    pub fn is_full(&self) -> bool {
        self.next - self.unanswered >= self.congestion.window()
    }

    /// Is true if nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.posted.is_empty()
    }

    const fn psn(&self, number: Number) -> Psn {
        self.start.plus(number as u32)
    }

    /// Returns the packet to which a PSN refers, if it was sent and has no answer yet.
    fn under_way(&self, psn: Psn) -> Option<Number> {
        let since = Number::try_from(psn.since(self.psn(self.unanswered))).ok()?;
        Some(self.unanswered + since).filter(|number| *number < self.sent)
    }

    /// Returns the time by which the requester must work again.
    pub fn deadline(&self) -> Option<Duration> {
        self.pause.or(self.timeout)
    }

    /// Sends the packets that may be sent; returns false if the connection failed.
    pub fn work(
        &mut self,
        now: Duration,
        budget: &mut usize,
        attributes: &Attributes,
        verbs: &mut impl Verbs,
    ) -> bool {
        if self.pause.is_some_and(|until| now < until) {
            return true;
        }
        self.pause = None;
        if self.timeout.is_some_and(|at| now >= at) {
            self.counts.local_ack_timeout_err += 1;
            self.congestion.timed_out(self.sent);
            if !self.try_again(verbs) {
                return false;
            }
        }
        while *budget > 0 && self.may_send(attributes) {
            match self.send_next(now, attributes, verbs) {
                Sent::Yes => {
                    *budget -= 1;
                    if !attributes.reliable {
                        self.is_gone(verbs);
                    }
                }
                Sent::Waits => break,
                Sent::Failed => return false,
            }
        }
        self.watch(now, attributes);
        true
    }

    /// Completes a message that was sent on an unreliable connection.
    fn is_gone(&mut self, verbs: &mut impl Verbs) {
        self.unanswered = self.next;
        if self.posted.front().is_some_and(|posted| posted.last < self.next) {
            self.end_first(Status::Success, verbs);
        }
    }

    /// Starts the timeout while something is unanswered. After a failed attempt it waits longer, because both ends may
    /// lack CPU time. The standard allows four times the requested timeout (IBTA 9.7.6.1.3).
    fn watch(&mut self, now: Duration, attributes: &Attributes) {
        if self.sent == self.unanswered {
            self.timeout = None;
        } else if self.timeout.is_none() {
            let attempts = attributes.retries.saturating_sub(self.retries);
            let times = 1 << attempts.min(2);
            let patience = attributes.patience().map(|patience| self.congestion.patience(patience));
            self.timeout = patience.map(|patience| now + patience * times);
        }
    }

    /// Is true if the packet at the cursor may be sent.
    fn may_send(&self, attributes: &Attributes) -> bool {
        if self.next == self.end || self.is_full() {
            return false;
        }
        let Some(at) = self.at(self.next) else { return false };
        let posted = &self.posted[at];
        let fits = !posted.is_answered() || self.open < usize::from(attributes.reads.max(1));
        fits && !(posted.request.fence && self.open > 0)
    }

    /// Returns the index of the request with the packet of this number.
    fn at(&self, number: Number) -> Option<usize> {
        if let Some(front) = self.posted.front()
            && (front.first..=front.last).contains(&number)
        {
            return Some(0);
        }
        let at = self.posted.partition_point(|posted| posted.last < number);
        self.posted.get(at).filter(|posted| posted.first <= number).map(|_| at)
    }

    /// Sends the packet at the cursor.
    fn send_next(&mut self, now: Duration, attributes: &Attributes, verbs: &mut impl Verbs) -> Sent {
        let Some(at) = self.at(self.next) else { return Sent::Waits };
        let posted = &self.posted[at];
        let (request, number, mtu) = (posted.request, self.next, attributes.mtu.bytes());
        let (psn, offset) = (self.psn(number), posted.offset(number, mtu));
        let (is_first, is_last) = (number == posted.first, number == posted.last);
        let left = request.len - offset.min(request.len);
        let mut packet = Datagram::new(attributes.bth(Operation::Acknowledge, psn), &[]);
        let operation = describe(&mut packet, &request, offset, (is_first, is_last));
        // A READ request asks for all that is left at once.
        let after = if operation == Operation::ReadRequest { posted.last + 1 } else { number + 1 };
        packet.bth = attributes.bth(operation, psn);
        packet.bth.solicited = request.solicited && is_last && operation.has_payload();
        let window = self.congestion.window();
        let asks = is_last
            || posted.is_answered()
            || number.is_multiple_of((window / ANSWERS).max(ANSWERS))
            || after - self.unanswered >= window;
        packet.bth.acknowledge = attributes.reliable && asks;
        let payload = match operation.has_payload() {
            true => Payload::Message { request: &request, offset, len: left.min(mtu.into()) },
            false => Payload::None,
        };
        if verbs.send(None, &packet, payload).is_err() {
            if at > 0 {
                return Sent::Waits;
            }
            self.end_first(Status::LocalProtection, verbs);
            return Sent::Failed;
        }
        self.open += usize::from(posted.is_answered());
        if packet.bth.acknowledge && number >= self.sent {
            self.congestion.sent(number, now);
        }
        self.next = after;
        self.sent = self.sent.max(after);
        Sent::Yes
    }

    /// Processes an answer; returns false if the connection failed.
    pub fn receive(
        &mut self,
        packet: &Datagram<'_>,
        operation: Operation,
        attributes: &Attributes,
        now: Duration,
        verbs: &mut impl Verbs,
    ) -> bool {
        let Some(number) = self.under_way(Psn::new(packet.bth.psn)) else { return true };
        match (operation, packet.aeth) {
            (Operation::Acknowledge, Some(Aeth { syndrome, .. })) => {
                self.acknowledged(number, syndrome, attributes, now, verbs)
            }
            _ => match packet.original.map(u64::to_ne_bytes) {
                Some(original) => self.answered(number, operation, &original, attributes, now, verbs),
                None => self.answered(number, operation, packet.payload, attributes, now, verbs),
            },
        }
    }

    /// Handles an acknowledgement of the packet with this number: packets before it are done. Returns false if the
    /// connection failed.
    fn acknowledged(
        &mut self,
        number: Number,
        syndrome: Syndrome,
        attributes: &Attributes,
        now: Duration,
        verbs: &mut impl Verbs,
    ) -> bool {
        let through = if matches!(syndrome, Syndrome::Ack(_)) { number + 1 } else { number };
        if !self.done_before(through, attributes, now, verbs) {
            return self.response_lost(verbs);
        }
        match syndrome {
            Syndrome::Ack(_) => true,
            Syndrome::Nak(Nak::PsnSequenceError) => {
                self.counts.packet_seq_err += 1;
                self.congestion.lost(number, self.sent);
                self.try_again(verbs)
            }
            Syndrome::ReceiverNotReady(timer) => {
                self.counts.rnr_nak_retry_err += 1;
                if self.rnr_retries == 0 {
                    self.end_first(Status::RnrRetryExceeded, verbs);
                    return false;
                }
                self.rnr_retries -= u8::from(self.rnr_retries != FOR_EVER);
                self.pause = Some(now + timer.duration());
                self.go_back();
                true
            }
            Syndrome::Nak(nak) => {
                let status = match nak {
                    Nak::RemoteAccessError => Status::RemoteAccess,
                    Nak::RemoteOperationalError => Status::RemoteOperation,
                    _ => Status::RemoteInvalidRequest,
                };
                self.end_first(status, verbs);
                false
            }
        }
    }

    /// Handles a response: a packet of a READ's data, or the answer to an atomic. Returns false if the connection
    /// failed.
    fn answered(
        &mut self,
        number: Number,
        operation: Operation,
        bytes: &[u8],
        attributes: &Attributes,
        now: Duration,
        verbs: &mut impl Verbs,
    ) -> bool {
        let Some(first) = self.at(number).map(|at| self.posted[at].first) else { return true };
        // Sends and writes before it are done; unfinished reads are not.
        if !self.done_before(first, attributes, now, verbs) {
            return self.response_lost(verbs);
        }
        let Some(posted) = self.posted.front().filter(|posted| posted.is_answered()) else { return true };
        if number != self.unanswered {
            return self.response_lost(verbs);
        }
        let (request, mtu) = (posted.request, attributes.mtu.bytes());
        let offset = posted.offset(number, mtu);
        let (is_atomic, len) = match request.operation {
            SendOperation::Atomic { .. } => (true, ATOMIC),
            _ => (false, request.len),
        };
        let expected = (len - offset).min(mtu.into()) as usize;
        let is_last = !matches!(operation, Operation::ReadFirst | Operation::ReadMiddle);
        let fits = is_atomic == (operation == Operation::AtomicAcknowledge)
            && is_last == (number == posted.last)
            && bytes.len() == expected;
        if !fits {
            self.end_first(Status::LocalLength, verbs);
            return false;
        }
        if verbs.scatter(&request, offset, bytes).is_err() {
            self.end_first(Status::LocalProtection, verbs);
            return false;
        }
        self.progress(number + 1, attributes, now);
        if is_last {
            self.end_first(Status::Success, verbs);
        }
        true
    }

    /// Completes the requests whose packets all come before `through`; returns false if one of them still waits for a
    /// response.
    fn done_before(
        &mut self,
        through: Number,
        attributes: &Attributes,
        now: Duration,
        verbs: &mut impl Verbs,
    ) -> bool {
        while let Some(posted) = self.posted.front() {
            if through <= posted.first {
                break;
            }
            if posted.is_answered() {
                return false;
            }
            if through <= posted.last {
                break;
            }
            let after = posted.last + 1;
            self.end_first(Status::Success, verbs);
            self.progress(after, attributes, now);
        }
        if through > self.unanswered {
            self.progress(through, attributes, now);
        }
        true
    }

    /// Notes that everything before `to` has its answer.
    fn progress(&mut self, to: Number, attributes: &Attributes, now: Duration) {
        let under_way = self.sent - self.unanswered;
        self.congestion.answered(to, under_way, self.sent, attributes.patience(), now);
        self.unanswered = to;
        self.next = self.next.max(to);
        self.begin_afresh(attributes);
        self.watch(now, attributes);
    }

    /// Resets the numbers of retries, after an answer.
    const fn begin_afresh(&mut self, attributes: &Attributes) {
        (self.retries, self.rnr_retries) = (attributes.retries, attributes.rnr_retries);
        (self.recovering, self.timeout) = (false, None);
    }

    fn go_back(&mut self) {
        (self.next, self.open, self.timeout) = (self.unanswered, 0, None);
        self.congestion.sent_again();
    }

    /// Handles an answer that came although an earlier one is missing. Later answers that were on the way show the same
    /// loss again. Returns false if the retries are used up.
    fn response_lost(&mut self, verbs: &mut impl Verbs) -> bool {
        self.counts.implied_nak_seq_err += 1;
        let first_heard = !std::mem::replace(&mut self.recovering, true);
        if first_heard {
            self.congestion.lost(self.unanswered, self.sent);
        }
        !first_heard || self.try_again(verbs)
    }

    /// Sends everything unanswered again; returns false if the retries are used up.
    fn try_again(&mut self, verbs: &mut impl Verbs) -> bool {
        if self.retries == 0 {
            self.end_first(Status::RetryExceeded, verbs);
            return false;
        }
        self.retries -= 1;
        self.go_back();
        true
    }

    fn end_first(&mut self, status: Status, verbs: &mut impl Verbs) {
        let Some(posted) = self.posted.pop_front() else { return };
        self.open = self.open.saturating_sub(posted.is_answered().into());
        let request = posted.request;
        if request.signaled || status != Status::Success {
            let len =
                if matches!(request.operation, SendOperation::Atomic { .. }) { ATOMIC } else { request.len };
            verbs.complete(Completion { id: request.id, status, len, received: None });
        }
    }

    /// Ends all requests. Later requests continue with the first packet that was not sent.
    pub fn flush(&mut self, verbs: &mut impl Verbs) {
        for posted in self.posted.drain(..) {
            verbs.complete(flushed(posted.request.id));
        }
        (self.end, self.unanswered) = (self.next, self.next);
        (self.timeout, self.pause) = (None, None);
    }
}

/// Gives a packet the headers of its request, `offset` bytes into the message. Returns the packet's operation.
fn describe(
    packet: &mut Datagram<'_>,
    request: &SendRequest,
    offset: u32,
    (is_first, is_last): (bool, bool),
) -> Operation {
    match request.operation {
        SendOperation::Send(with) => {
            match with {
                With::Immediate(immediate) if is_last => packet.immediate = Some(immediate),
                With::Invalidate(rkey) if is_last => packet.invalidate = Some(rkey),
                _ => {}
            }
            send_operation(is_first, is_last, with)
        }
        SendOperation::Write { address, rkey, immediate } => {
            packet.immediate = immediate.filter(|_| is_last);
            packet.reth = is_first.then_some(Reth { address, rkey, len: request.len });
            write_operation(is_first, is_last, immediate.is_some())
        }
        SendOperation::Read { address, rkey } => {
            let address = address.wrapping_add(offset.into());
            packet.reth = Some(Reth { address, rkey, len: request.len - offset.min(request.len) });
            Operation::ReadRequest
        }
        SendOperation::Atomic { address, rkey, operation } => {
            let (swap_add, compare, operation) = match operation {
                AtomicOperation::CompareSwap { compare, swap } => (swap, compare, Operation::CompareSwap),
                AtomicOperation::FetchAdd(add) => (add, 0, Operation::FetchAdd),
            };
            packet.atomic = Some(Atomic { address, rkey, swap_add, compare });
            operation
        }
    }
}

const fn send_operation(first: bool, last: bool, with: With) -> Operation {
    match (first, last, with) {
        (true, true, With::Nothing) => Operation::SendOnly,
        (true, true, With::Immediate(_)) => Operation::SendOnlyImmediate,
        (true, true, With::Invalidate(_)) => Operation::SendOnlyInvalidate,
        (true, false, _) => Operation::SendFirst,
        (false, false, _) => Operation::SendMiddle,
        (false, true, With::Nothing) => Operation::SendLast,
        (false, true, With::Immediate(_)) => Operation::SendLastImmediate,
        (false, true, With::Invalidate(_)) => Operation::SendLastInvalidate,
    }
}

const fn write_operation(first: bool, last: bool, immediate: bool) -> Operation {
    match (first, last) {
        (true, true) if immediate => Operation::WriteOnlyImmediate,
        (true, true) => Operation::WriteOnly,
        (true, false) => Operation::WriteFirst,
        (false, false) => Operation::WriteMiddle,
        (false, true) if immediate => Operation::WriteLastImmediate,
        (false, true) => Operation::WriteLast,
    }
}
