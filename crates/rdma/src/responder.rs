//! The responder: executes the peer's requests, once and in order, and answers (IBTA 9.7.4 and 9.7.5).

mod serving;

use crate::queue_pair::{Attributes, flushed};
use crate::work::{Access, Arrival, AtomicOperation, Completion, Fault, Payload, Received, Status, Verbs};
use crate::{Counts, Psn};
use packet::roce::{Aeth, Atomic, Datagram, Nak, Operation, Reth, Syndrome};
use std::collections::VecDeque;

/// Longest message (IBTA 9.7.1.1): in a longer one, PSNs would be ambiguous.
const LONGEST_MESSAGE: u32 = 1 << 31;

/// A message whose packets have not all arrived.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    what: What,
    /// Bytes that have arrived.
    len: u32,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A SEND into the receive with this identifier.
    Send(u64),
    /// A WRITE into this memory.
    Write(Reth),
}

/// An answer to the peer. Answers are in the order of the peer's requests.
#[derive(Debug)]
enum Answer {
    Acknowledge { syndrome: Syndrome, psn: Psn, msn: u32 },
    Atomic { original: u64, psn: Psn, msn: u32, again: bool },
    Read(Reading),
}

/// The rest of a READ's data.
#[derive(Clone, Copy, Debug)]
struct Reading {
    reth: Reth,
    /// Number of the next packet.
    psn: Psn,
    msn: u32,
    /// Whether a packet was sent.
    begun: bool,
    /// Whether the request was answered before.
    again: bool,
}

/// A finished READ or atomic, kept in case its answer is lost.
#[derive(Clone, Copy, Debug)]
struct Done {
    first: Psn,
    last: Psn,
    what: Redo,
}

#[derive(Clone, Copy, Debug)]
enum Redo {
    Read(Reth),
    Atomic { original: u64, msn: u32 },
}

/// A reason why a request isn't executed.
enum Refusal {
    /// No receive is posted.
    NotReady,
    /// The packet is treated as lost.
    Unanswered,
    /// The receive with this identifier can't hold the message.
    Receive(u64, Fault),
    /// The request fails, and with it the connection.
    Nak(Nak),
}

impl From<Nak> for Refusal {
    fn from(nak: Nak) -> Self {
        Self::Nak(nak)
    }
}

/// Returns the NAK for memory that the peer may not access.
fn access(_: Fault) -> Nak {
    Nak::RemoteAccessError
}

/// The receiving half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// PSN of the expected packet.
    expected: Psn,
    /// Number of finished messages.
    msn: u32,
    /// Whether the peer was told that a packet is missing.
    told: bool,
    arriving: Option<Arriving>,
    /// The receive of a dropped message, which is used for the next one, or flushed.
    spare: Option<u64>,
    pub counts: Counts,
    answers: VecDeque<Answer>,
    done: VecDeque<Done>,
}

impl Responder {
    pub fn new(attributes: &Attributes) -> Self {
        Self {
            expected: Psn::new(attributes.receive_psn),
            msn: 0,
            told: false,
            arriving: None,
            spare: None,
            counts: Counts::default(),
            answers: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    /// Handles a request; returns false if the connection failed because of it.
    pub fn receive(
        &mut self,
        packet: &Datagram<'_>,
        operation: Operation,
        attributes: &Attributes,
        verbs: &mut impl Verbs,
    ) -> bool {
        let psn = Psn::new(packet.bth.psn);
        let ahead = psn.since(self.expected);
        if ahead > 0 {
            self.counts.out_of_sequence += 1;
            if !std::mem::replace(&mut self.told, true) {
                self.acknowledge(Syndrome::Nak(Nak::PsnSequenceError), self.expected);
            }
            return true;
        }
        if ahead < 0 {
            self.counts.duplicate_request += 1;
            self.again(packet, operation, psn, attributes);
            return true;
        }
        self.told = false;
        match self.execute(packet, operation, psn, attributes, verbs) {
            Ok(()) => {
                if packet.bth.acknowledge && !is_answered(operation) {
                    self.acknowledge(Syndrome::NO_CREDITS, psn);
                }
                true
            }
            Err(Refusal::NotReady) => {
                self.counts.rnr_nak += 1;
                self.acknowledge(Syndrome::ReceiverNotReady(attributes.rnr_timer), psn);
                // Packets after it are not missing: they come again with it.
                self.told = true;
                true
            }
            Err(Refusal::Unanswered) => {
                self.told = true;
                true
            }
            Err(Refusal::Receive(id, fault)) => {
                let nak = match fault {
                    Fault::Length => Nak::InvalidRequest,
                    Fault::Protection | Fault::Busy => Nak::RemoteOperationalError,
                };
                verbs.complete(refused(id, fault));
                self.acknowledge(Syndrome::Nak(nak), psn);
                false
            }
            Err(Refusal::Nak(nak)) => {
                self.acknowledge(Syndrome::Nak(nak), psn);
                false
            }
        }
    }

    /// Handles a request on an unreliable connection. Drops messages that are incomplete, not permitted, or longer than
    /// their receive (IBTA 9.8.2, 9.9.3). Returns false if the connection failed.
    pub fn receive_unreliable(
        &mut self,
        packet: &Datagram<'_>,
        operation: Operation,
        attributes: &Attributes,
        verbs: &mut impl Verbs,
    ) -> bool {
        let psn = Psn::new(packet.bth.psn);
        if psn != self.expected || !operation.continues() {
            self.abandon();
            self.expected = psn;
        }
        match self.execute(packet, operation, psn, attributes, verbs) {
            Ok(()) => return true,
            Err(Refusal::Receive(id, Fault::Length)) if !verbs.shares_receives() => self.spare = Some(id),
            Err(Refusal::Receive(id, fault)) => {
                verbs.complete(refused(id, fault));
                return fault == Fault::Length;
            }
            Err(_) => self.abandon(),
        }
        true
    }

    /// Gives up a message.
    fn abandon(&mut self) {
        if let Some(Arriving { what: What::Send(receive), .. }) = self.arriving.take() {
            self.spare = Some(receive);
        }
    }

    /// Executes the expected packet's request.
    fn execute(
        &mut self,
        packet: &Datagram<'_>,
        operation: Operation,
        psn: Psn,
        attributes: &Attributes,
        verbs: &mut impl Verbs,
    ) -> Result<(), Refusal> {
        use Operation as O;
        let begins = !operation.continues();
        if begins != self.arriving.is_none() {
            return Err(Nak::InvalidRequest.into());
        }
        match operation {
            O::ReadRequest => {
                let reth = packet.reth.ok_or(Nak::InvalidRequest)?;
                return self.read(reth, psn, attributes, verbs);
            }
            O::CompareSwap | O::FetchAdd => {
                let atomic = packet.atomic.ok_or(Nak::InvalidRequest)?;
                return self.atomic(atomic, operation, psn, attributes, verbs);
            }
            _ => {}
        }
        let ends = !matches!(operation, O::SendFirst | O::SendMiddle | O::WriteFirst | O::WriteMiddle);
        let (len, mtu) = (packet.payload.len(), usize::from(attributes.mtu.bytes()));
        let right_len = if ends { len <= mtu && (begins || len > 0) } else { len == mtu };
        if !right_len {
            return Err(Nak::InvalidRequest.into());
        }
        let arriving = match self.arriving {
            Some(arriving) => arriving,
            None => self.begin(packet, operation, verbs)?,
        };
        self.store(packet, operation, arriving, ends, verbs)
    }

    /// Handles the first packet of a SEND or WRITE.
    fn begin(
        &mut self,
        packet: &Datagram<'_>,
        operation: Operation,
        verbs: &mut impl Verbs,
    ) -> Result<Arriving, Refusal> {
        let Some(reth) = packet.reth else {
            let receive = self.take_receive(verbs)?;
            return Ok(Arriving { what: What::Send(receive), len: 0 });
        };
        let is_only = operation != Operation::WriteFirst;
        let len = packet.payload.len() as u32;
        if is_only && reth.len != len || !is_only && reth.len <= len || reth.len > LONGEST_MESSAGE {
            return Err(Nak::InvalidRequest.into());
        }
        if reth.len > 0 {
            verbs.check(reth.rkey, reth.address, reth.len, Access::Write).map_err(access)?;
        }
        Ok(Arriving { what: What::Write(reth), len: 0 })
    }

    fn take_receive(&mut self, verbs: &mut impl Verbs) -> Result<u64, Refusal> {
        self.spare.take().or_else(|| verbs.take_receive()).ok_or(Refusal::NotReady)
    }

    /// Stores a packet of a SEND or WRITE, and ends the message with its last one.
    fn store(
        &mut self,
        packet: &Datagram<'_>,
        operation: Operation,
        arriving: Arriving,
        ends: bool,
        verbs: &mut impl Verbs,
    ) -> Result<(), Refusal> {
        let Arriving { what, len: before } = arriving;
        let is_send = operation.is_send();
        let len = before.checked_add(packet.payload.len() as u32).ok_or(Nak::InvalidRequest)?;
        match what {
            What::Send(id) if is_send => {
                self.fill(packet, id, before, verbs)?;
                if ends {
                    deliver(id, len, Arrival::Send, packet, verbs);
                }
            }
            What::Write(reth) if !is_send => {
                let fits = if ends { len == reth.len } else { len < reth.len };
                if !fits {
                    return Err(Nak::InvalidRequest.into());
                }
                if let Some(id) = self.write(packet, reth, before, ends, verbs)? {
                    deliver(id, len, Arrival::WriteWithImmediate, packet, verbs);
                }
            }
            _ => return Err(Nak::InvalidRequest.into()),
        }
        self.expected = self.expected.plus(1);
        self.arriving = (!ends).then_some(Arriving { what, len });
        if ends {
            self.finish_message();
        }
        Ok(())
    }

    /// Stores a packet of a SEND in the receive `id`, after `before` bytes of other packets.
    fn fill(
        &mut self,
        packet: &Datagram<'_>,
        id: u64,
        before: u32,
        verbs: &mut impl Verbs,
    ) -> Result<(), Refusal> {
        if let Err(fault) = verbs.fill(before, packet.payload) {
            self.arriving = None;
            return Err(Refusal::Receive(id, fault));
        }
        if let Some(rkey) = packet.invalidate
            && verbs.invalidate(rkey).is_err()
        {
            self.arriving = None;
            verbs.complete(Completion { id, status: Status::LocalProtection, len: 0, received: None });
            return Err(Nak::RemoteAccessError.into());
        }
        Ok(())
    }

    /// Stores a packet of a WRITE, after `before` bytes of other packets. Returns the receive that it takes, if any.
    fn write(
        &mut self,
        packet: &Datagram<'_>,
        reth: Reth,
        before: u32,
        ends: bool,
        verbs: &mut impl Verbs,
    ) -> Result<Option<u64>, Refusal> {
        // A receive, if one is needed, is taken before the last packet writes anything.
        let receive = match packet.immediate {
            Some(_) => Some(self.take_receive(verbs)?),
            None => None,
        };
        let address = reth.address.wrapping_add(before.into());
        let bytes = packet.payload;
        if !bytes.is_empty() && verbs.write(reth.rkey, address, bytes, ends).is_err() {
            self.spare = receive.or(self.spare);
            return Err(Nak::RemoteAccessError.into());
        }
        Ok(receive)
    }

    fn finish_message(&mut self) {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }

    fn read(
        &mut self,
        reth: Reth,
        psn: Psn,
        attributes: &Attributes,
        verbs: &mut impl Verbs,
    ) -> Result<(), Refusal> {
        if !self.has_room(false, attributes) || reth.len > LONGEST_MESSAGE {
            return Err(Nak::InvalidRequest.into());
        }
        if reth.len > 0 {
            verbs.check(reth.rkey, reth.address, reth.len, Access::Read).map_err(access)?;
        }
        let last = psn.plus(attributes.packets(reth.len) - 1);
        self.finish_message();
        self.remember(Done { first: psn, last, what: Redo::Read(reth) }, attributes);
        self.answers.push_back(Answer::Read(Reading {
            reth,
            psn,
            msn: self.msn,
            begun: false,
            again: false,
        }));
        self.expected = last.plus(1);
        Ok(())
    }

    fn atomic(
        &mut self,
        atomic: Atomic,
        operation: Operation,
        psn: Psn,
        attributes: &Attributes,
        verbs: &mut impl Verbs,
    ) -> Result<(), Refusal> {
        let Atomic { address, rkey, swap_add, compare } = atomic;
        if !self.has_room(false, attributes) || !address.is_multiple_of(8) {
            return Err(Nak::InvalidRequest.into());
        }
        let operation = match operation {
            Operation::CompareSwap => AtomicOperation::CompareSwap { compare, swap: swap_add },
            _ => AtomicOperation::FetchAdd(swap_add),
        };
        verbs.check(rkey, address, 8, Access::Atomic).map_err(access)?;
        let original = verbs.atomic(rkey, address, operation).map_err(|fault| match fault {
            Fault::Busy => Refusal::Unanswered,
            _ => access(fault).into(),
        })?;
        self.finish_message();
        let msn = self.msn;
        self.remember(Done { first: psn, last: psn, what: Redo::Atomic { original, msn } }, attributes);
        self.answers.push_back(Answer::Atomic { original, psn, msn, again: false });
        self.expected = psn.plus(1);
        Ok(())
    }

    /// Is true if one more READ or atomic, new or repeated, may be under way.
    fn has_room(&self, came_again: bool, attributes: &Attributes) -> bool {
        let counts = |answer: &&Answer| match answer {
            Answer::Acknowledge { .. } => false,
            Answer::Atomic { again, .. } | Answer::Read(Reading { again, .. }) => *again == came_again,
        };
        self.answers.iter().filter(counts).count() < usize::from(attributes.peer_reads)
    }

    fn remember(&mut self, done: Done, attributes: &Attributes) {
        if self.done.len() >= usize::from(attributes.peer_reads.max(1)) {
            self.done.pop_front();
        }
        self.done.push_back(done);
    }

    /// Answers a repeated packet. Only READs are executed again.
    fn again(&mut self, packet: &Datagram<'_>, operation: Operation, psn: Psn, attributes: &Attributes) {
        if !is_answered(operation) {
            // The acknowledgement was lost.
            return self.acknowledge(Syndrome::NO_CREDITS, self.expected.before());
        }
        let was = self.done.iter().find(|done| psn.since(done.first) >= 0 && done.last.since(psn) >= 0);
        let Some(Done { first, what, .. }) = was.copied() else { return };
        if !self.has_room(true, attributes) {
            return;
        }
        match (what, packet.reth) {
            (Redo::Atomic { original, msn }, None) => {
                self.answers.push_back(Answer::Atomic { original, psn, msn, again: true });
            }
            // The repeated request may ask for the rest of the former one.
            (Redo::Read(old), Some(reth)) => {
                let skipped = psn.since(first) as u64 * u64::from(attributes.mtu.bytes());
                let is_part = reth.rkey == old.rkey
                    && reth.address == old.address.wrapping_add(skipped)
                    && u64::from(reth.len) + skipped <= u64::from(old.len);
                if is_part {
                    self.answers.push_back(Answer::Read(Reading {
                        reth,
                        psn,
                        msn: self.msn,
                        begun: false,
                        again: true,
                    }));
                }
            }
            _ => {}
        }
    }

    /// Queues an acknowledgement. It includes everything before it, so it replaces waiting ones of the same kind for
    /// the same packet or an earlier one. Whatever the peer sends, therefore at most two of them wait between READs and
    /// atomics.
    fn acknowledge(&mut self, syndrome: Syndrome, psn: Psn) {
        while let Some(Answer::Acknowledge { syndrome: waiting, psn: of, .. }) = self.answers.back()
            && (matches!(waiting, Syndrome::Ack(_)) || psn.since(*of) >= 0)
        {
            self.answers.pop_back();
        }
        self.answers.push_back(Answer::Acknowledge { syndrome, psn, msn: self.msn });
    }

    /// Sends answers; returns false if the memory to be read no longer exists.
    pub fn answer(&mut self, budget: &mut usize, attributes: &Attributes, verbs: &mut impl Verbs) -> bool {
        while *budget > 0
            && let Some(answer) = self.answers.front_mut()
        {
            *budget -= 1;
            match answer {
                Answer::Acknowledge { syndrome, psn, msn } => {
                    let aeth = Aeth { syndrome: *syndrome, msn: *msn };
                    send(verbs, attributes, (Operation::Acknowledge, *psn), aeth, None);
                }
                Answer::Atomic { original, psn, msn, .. } => {
                    let aeth = Aeth { syndrome: Syndrome::NO_CREDITS, msn: *msn };
                    let as_acknowledge = (Operation::AtomicAcknowledge, *psn);
                    send(verbs, attributes, as_acknowledge, aeth, Some(*original));
                }
                Answer::Read(reading) => {
                    let psn = reading.psn;
                    match reading.send(attributes, verbs) {
                        Ok(true) => {}
                        Ok(false) => continue,
                        Err(_) => {
                            self.answers.clear();
                            self.acknowledge(Syndrome::Nak(Nak::RemoteAccessError), psn);
                            return false;
                        }
                    }
                }
            }
            self.answers.pop_front();
        }
        true
    }

    pub fn forget(&mut self) {
        self.answers.clear();
    }

    /// Completes all receives as flushed.
    pub fn flush(&mut self, verbs: &mut impl Verbs) {
        self.abandon();
        self.spare.take().into_iter().for_each(|id| verbs.complete(flushed(id)));
        while let Some(id) = verbs.take_flushed() {
            verbs.complete(flushed(id));
        }
    }
}

impl Reading {
    /// Sends a packet. Returns whether it was the last one.
    fn send(&mut self, attributes: &Attributes, verbs: &mut impl Verbs) -> Result<bool, Fault> {
        let len = self.reth.len.min(attributes.mtu.bytes().into());
        let is_last = len == self.reth.len;
        let operation = match (self.begun, is_last) {
            (false, true) => Operation::ReadOnly,
            (false, false) => Operation::ReadFirst,
            (true, false) => Operation::ReadMiddle,
            (true, true) => Operation::ReadLast,
        };
        let aeth = Aeth { syndrome: Syndrome::NO_CREDITS, msn: self.msn };
        let bth = attributes.bth(operation, self.psn);
        let aeth = operation.has_aeth().then_some(aeth);
        let payload = match len {
            0 => Payload::None,
            _ => Payload::Region { rkey: self.reth.rkey, address: self.reth.address, len },
        };
        verbs.send(None, &Datagram { aeth, ..Datagram::new(bth, &[]) }, payload)?;
        self.begun = true;
        self.psn = self.psn.plus(1);
        self.reth.address = self.reth.address.wrapping_add(len.into());
        self.reth.len -= len;
        Ok(is_last)
    }
}

/// Is true if the answer to a request is more than an acknowledgement.
const fn is_answered(operation: Operation) -> bool {
    matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd)
}

fn deliver(id: u64, len: u32, by: Arrival, packet: &Datagram<'_>, verbs: &mut impl Verbs) {
    let received = Received {
        by,
        immediate: packet.immediate,
        invalidated: packet.invalidate,
        solicited: packet.bth.solicited,
        source: None,
        by_ipv4: false,
    };
    verbs.complete(Completion { id, status: Status::Success, len, received: Some(received) });
}

/// Returns the completion of a receive that can't hold the message.
pub(crate) const fn refused(id: u64, fault: Fault) -> Completion {
    let status = match fault {
        Fault::Length => Status::LocalLength,
        Fault::Protection | Fault::Busy => Status::LocalProtection,
    };
    Completion { id, status, len: 0, received: None }
}

fn send(
    verbs: &mut impl Verbs,
    attributes: &Attributes,
    (operation, psn): (Operation, Psn),
    aeth: Aeth,
    original: Option<u64>,
) {
    let packet =
        Datagram { aeth: Some(aeth), original, ..Datagram::new(attributes.bth(operation, psn), &[]) };
    // An answer without payload can't fail to be sent.
    let _ = verbs.send(None, &packet, Payload::None);
}
