//! Queue pairs for unreliable datagrams (IBTA 9.8.3): a message is one packet, and each has its own destination.

use crate::queue_pair::{Mtu, flushed};
use crate::responder::refused;
use crate::work::{
    Arrival, Completion, Fault, Payload, Received, SendOperation, SendRequest, Status, Verbs, With,
};
use crate::{Psn, State};
use packet::roce::{Bth, Datagram, Deth, Opcode, Operation, Service};

/// Bytes before each received message: its network header, which is IPv6's, or IPv4's after 20 zeroes.
pub const NETWORK_HEADER: usize = 40;

/// Flag in a queue key that stands for the sender's own key (IBTA 10.2.5).
const OWN_KEY: u32 = 1 << 31;

/// The attributes that `ibv_modify_qp` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramAttributes {
    /// Longest message.
    pub mtu: Mtu,
    pub partition: u16,
    /// The queue pair's own number.
    pub number: u32,
    /// Key that a packet must have.
    pub queue_key: u32,
    /// PSN of the first packet sent.
    pub send_psn: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub address: u32,
    pub queue_pair: u32,
    /// The key that the destination demands.
    pub queue_key: u32,
}

/// A reason why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeftOut {
    /// The packet is not a datagram, or the queue pair is in the error state.
    #[error("not for this queue pair")]
    Foreign,
    /// The packet is for another partition.
    #[error("wrong partition key")]
    Partition,
    /// The packet has the wrong queue key.
    #[error("wrong queue key")]
    QueueKey,
    /// No receive is posted.
    #[error("no receive is posted")]
    NotReady,
    /// The message is longer than the receive.
    #[error("longer than the receive")]
    Length,
}

/// A queue pair for unreliable datagrams.
#[derive(Debug)]
pub struct DatagramPair {
    attributes: DatagramAttributes,
    state: State,
    next: Psn,
    /// A receive that was too short for a message, and is used for the next one.
    spare: Option<u64>,
}

impl DatagramPair {
    /// Creates a queue pair that is ready to send.
    #[must_use]
    pub const fn new(attributes: DatagramAttributes) -> Self {
        let next = Psn::new(attributes.send_psn);
        Self { attributes, state: State::ReadyToSend, next, spare: None }
    }

    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    pub const fn set_queue_key(&mut self, key: u32) {
        self.attributes.queue_key = key;
    }

    /// Resumes sending after a send queue error.
    pub fn resume(&mut self) {
        if self.state == State::SendQueueError {
            self.state = State::ReadyToSend;
        }
    }

    /// Sends a message and completes its request. In the error states, the request is flushed.
    pub fn send(&mut self, request: &SendRequest, to: &Destination, verbs: &mut impl Verbs) {
        if self.state != State::ReadyToSend {
            return verbs.complete(flushed(request.id));
        }
        let status = match self.emit(request, to, verbs) {
            Ok(()) => Status::Success,
            Err(status) => status,
        };
        if request.signaled || status != Status::Success {
            verbs.complete(Completion { id: request.id, status, len: request.len, received: None });
        }
        if status != Status::Success {
            self.state = State::SendQueueError;
        }
    }

    fn emit(
        &mut self,
        request: &SendRequest,
        to: &Destination,
        verbs: &mut impl Verbs,
    ) -> Result<(), Status> {
        let immediate = match request.operation {
            SendOperation::Send(With::Nothing) => None,
            SendOperation::Send(With::Immediate(immediate)) => Some(immediate),
            _ => return Err(Status::LocalOperation),
        };
        if request.len > self.attributes.mtu.bytes().into() {
            return Err(Status::LocalLength);
        }
        let operation = if immediate.is_some() { Operation::SendOnlyImmediate } else { Operation::SendOnly };
        let bth = Bth {
            opcode: Opcode::Of(Service::Ud, operation),
            solicited: request.solicited,
            migrated: true,
            partition: self.attributes.partition,
            forward_congestion: false,
            backward_congestion: false,
            destination: to.queue_pair,
            acknowledge: false,
            psn: self.next.number(),
        };
        let own = to.queue_key & OWN_KEY != 0;
        let queue_key = if own { self.attributes.queue_key } else { to.queue_key };
        let deth = Some(Deth { queue_key, source: self.attributes.number });
        let packet = Datagram { deth, immediate, ..Datagram::new(bth, &[]) };
        let payload = Payload::Message { request, offset: 0, len: request.len };
        verbs.send(Some(to.address), &packet, payload).map_err(|_| Status::LocalProtection)?;
        self.next = self.next.plus(1);
        Ok(())
    }

    /// Receives a packet that came with this network header.
    ///
    /// # Errors
    /// The reason why the packet is dropped.
    pub fn receive(
        &mut self,
        packet: &Datagram<'_>,
        network_header: &[u8; NETWORK_HEADER],
        verbs: &mut impl Verbs,
    ) -> Result<(), LeftOut> {
        let Some(deth) = packet.deth.filter(|_| self.state != State::Error) else {
            return Err(LeftOut::Foreign);
        };
        if packet.bth.partition & 0x7fff != self.attributes.partition & 0x7fff {
            return Err(LeftOut::Partition);
        }
        if deth.queue_key != self.attributes.queue_key {
            return Err(LeftOut::QueueKey);
        }
        let id = self.spare.take().or_else(|| verbs.take_receive()).ok_or(LeftOut::NotReady)?;
        let filled =
            verbs.fill(0, network_header).and_then(|()| verbs.fill(NETWORK_HEADER as u32, packet.payload));
        match filled {
            Ok(()) => {
                let received = Received {
                    by: Arrival::Send,
                    immediate: packet.immediate,
                    invalidated: None,
                    solicited: packet.bth.solicited,
                    source: Some(deth.source),
                    by_ipv4: network_header[0] >> 4 != 6,
                };
                let len = (NETWORK_HEADER + packet.payload.len()) as u32;
                verbs.complete(Completion { id, status: Status::Success, len, received: Some(received) });
                Ok(())
            }
            Err(Fault::Length) => {
                if verbs.shares_receives() {
                    verbs.complete(refused(id, Fault::Length));
                } else {
                    self.spare = Some(id);
                }
                Err(LeftOut::Length)
            }
            Err(fault) => {
                verbs.complete(refused(id, fault));
                self.fail(verbs);
                Ok(())
            }
        }
    }

    /// Enters the error state: receives are flushed.
    pub fn fail(&mut self, verbs: &mut impl Verbs) {
        self.state = State::Error;
        self.spare.take().into_iter().for_each(|id| verbs.complete(flushed(id)));
        while let Some(id) = verbs.take_flushed() {
            verbs.complete(flushed(id));
        }
    }
}
