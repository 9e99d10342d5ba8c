//! Synchronous delivery: a thread has a queue pair of another application handle a short message or packet at once,
//! without an inbox, between programs whose memory is in windows. A short message needs no packets; the answers to
//! a packet come back the same way.

use crate::base::header::NetworkHeader;
use crate::base::ids::Qpn;
use packet::roce::Datagram;
use rdma::ShortMessage;
use std::ops::Range;
use std::time::Duration;

/// Most bytes of payload of a packet that is delivered synchronously.
pub(crate) const SHORT: usize = ShortMessage::MAX_LEN;
/// Most answers that wait: those to all packets of a turn.
const MOST: usize = 128;

/// A packet that is delivered synchronously.
pub(crate) struct SyncPacket<'a> {
    pub packet: &'a Datagram<'a>,
    pub header: &'a NetworkHeader,
    /// The sending queue pair.
    pub from: Qpn,
    pub now: Duration,
}

/// A message that is delivered synchronously, without a packet.
pub(crate) struct SyncMessage<'a> {
    pub message: &'a ShortMessage,
    /// The bytes of the message, or room for those that it reads.
    pub bytes: &'a mut [u8],
    pub header: &'a NetworkHeader,
    pub from: Qpn,
    pub to: Qpn,
    pub now: Duration,
}

/// Answers to packets that were delivered synchronously, in order.
#[derive(Debug, Default)]
pub(crate) struct SyncAnswers {
    /// The answers, without their payloads, which are in `payloads`.
    packets: Vec<(Datagram<'static>, Range<usize>)>,
    payloads: Vec<u8>,
    /// The queue pair whose answers are collected.
    of: Option<Qpn>,
}

impl SyncAnswers {
    /// Begins to collect the answers of a queue pair to a packet that is delivered to it.
    pub const fn open(&mut self, of: Qpn) {
        self.of = Some(of);
    }

    pub const fn close(&mut self) {
        self.of = None;
    }

    pub const fn is_open(&self) -> bool {
        self.of.is_some()
    }

    /// Is true if this packet of a queue pair is to be collected.
    pub fn wants(&self, packet: &Datagram<'_>, of: Qpn) -> bool {
        let is_answer =
            matches!(packet.bth.opcode, packet::roce::Opcode::Of(_, operation) if operation.is_answer());
        self.of == Some(of) && is_answer && self.packets.len() < MOST
    }

    /// Adds an answer with this payload.
    pub fn push(&mut self, packet: &Datagram<'_>, payload: &[u8]) {
        let start = self.payloads.len();
        self.payloads.extend_from_slice(payload);
        self.packets.push((Datagram { payload: &[], ..*packet }, start..self.payloads.len()));
    }

    pub const fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the answers to a queue pair.
    pub fn to(&self, qpn: Qpn) -> impl Iterator<Item = Datagram<'_>> {
        let whole = |(packet, part): &(Datagram<'static>, Range<usize>)| Datagram {
            payload: self.payloads.get(part.clone()).unwrap_or_default(),
            ..*packet
        };
        self.packets.iter().filter(move |(packet, _)| packet.bth.destination == qpn.0).map(whole)
    }

    pub fn clear(&mut self) {
        self.packets.clear();
        self.payloads.clear();
    }
}
