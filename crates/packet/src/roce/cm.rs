//! Messages of the connection manager, on queue pair 1 (IBTA 1.5, chapter 12): management datagrams of 256 bytes.
//!
//! Alternate paths are not offered: LAP and APR are unknown here, and the alternate path of a REQ is left zero.

use std::net::Ipv6Addr;

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;
/// Queue pair of the connection manager.
pub const QUEUE_PAIR: u32 = 1;
/// Queue key of queue pair 1.
pub const QUEUE_KEY: u32 = 0x8001_0000;

/// Bytes of the header of a management datagram.
const HEADER: usize = 24;
/// Version, class (communication management), class version, method (send).
const START: [u8; 4] = [1, 7, 2, 3];

/// A message and its transaction. An answer belongs to the same transaction as its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction.
    pub transaction: u64,
    /// Message.
    pub message: Message,
}

/// The identifiers that the two ends gave a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ids {
    /// The sender's identifier.
    pub local: u32,
    /// The receiver's identifier.
    pub remote: u32,
}

/// A message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Message {
    Req(Req),
    Mra { ids: Ids, which: u8, timeout: u8, private: [u8; 222] },
    Rej(Rej),
    Rep(Rep),
    Rtu { ids: Ids, private: [u8; 224] },
    Dreq { ids: Ids, queue_pair: u32, private: [u8; 220] },
    Drep { ids: Ids, private: [u8; 224] },
    SidrReq { request: u32, partition: u16, service: u64, private: [u8; 216] },
    SidrRep(SidrRep),
}

/// Request for a connection. Times are exponents: a code `n` stands for 4.096 us times 2^n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's identifier of the connection.
    pub local: u32,
    /// The service to connect to. For rdma_cm, this is the port space and port.
    pub service: u64,
    /// The sender's adapter.
    pub guid: u64,
    /// Queue key.
    pub queue_key: u32,
    /// The sender's queue pair; 24 bits.
    pub queue_pair: u32,
    /// READs and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that the sender has under way.
    pub initiator_depth: u8,
    /// Time within which the receiver must answer.
    pub remote_timeout: u8,
    /// Code of the transport: 0 reliable, 1 unreliable connection.
    pub transport: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// First PSN that the sender expects; 24 bits.
    pub psn: u32,
    /// Time that the sender takes to answer.
    pub local_timeout: u8,
    /// Retries.
    pub retries: u8,
    /// Partition key.
    pub partition: u16,
    /// Code of the path MTU.
    pub mtu: u8,
    /// Whether the RDC is known to exist.
    pub rdc: bool,
    /// Retries if no receive is posted.
    pub rnr_retries: u8,
    /// Retries of messages of the connection manager.
    pub cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub shared_receives: bool,
    /// Local identifiers of the two ends: all ones over RoCE.
    pub lids: [u16; 2],
    /// Global identifiers of the two ends: their addresses.
    pub gids: [Ipv6Addr; 2],
    /// Flow label; 20 bits.
    pub flow_label: u32,
    /// Code of the path's rate.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: u8,
    /// Whether the path does not leave the subnet.
    pub subnet_local: bool,
    /// Longest time until an acknowledgement.
    pub ack_timeout: u8,
    /// The applications' own data.
    pub private: [u8; 92],
}

/// Refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// Identifiers of the connection.
    pub ids: Ids,
    /// The refused message: 0 REQ, 1 REP, 2 neither of these.
    pub which: u8,
    /// Reason (table 108). 28 means that the application refused.
    pub reason: u16,
    /// Number of valid bytes in `info`.
    pub info_len: u8,
    /// Details of the reason.
    pub info: [u8; 72],
    /// The applications' own data.
    pub private: [u8; 148],
}

/// Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// Identifiers of the connection.
    pub ids: Ids,
    /// Queue key.
    pub queue_key: u32,
    /// The sender's queue pair; 24 bits.
    pub queue_pair: u32,
    /// First PSN that the sender expects; 24 bits.
    pub psn: u32,
    /// READs and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that the sender has under way.
    pub initiator_depth: u8,
    /// Time that the sender takes to acknowledge.
    pub ack_delay: u8,
    /// Answer to an alternate path: 2 bits.
    pub failover: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries if no receive is posted.
    pub rnr_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub shared_receives: bool,
    /// The sender's adapter.
    pub guid: u64,
    /// The applications' own data.
    pub private: [u8; 196],
}

/// Reply to the question for a service's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The request that this answers.
    pub request: u32,
    /// 0 if the service has a queue pair here; otherwise the reason why not.
    pub status: u8,
    /// Number of valid bytes in `info`.
    pub info_len: u8,
    /// Queue pair; 24 bits.
    pub queue_pair: u32,
    /// Service.
    pub service: u64,
    /// Queue key of the queue pair.
    pub queue_key: u32,
    /// Details of the status.
    pub info: [u8; 72],
    /// The applications' own data.
    pub private: [u8; 136],
}

/// The reason why a datagram on queue pair 1 is no message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// Not 256 bytes long.
    #[error("{0} bytes, not 256")]
    Length(usize),
    /// Class, version or method are not the connection manager's.
    #[error("not of the connection manager")]
    Class,
    /// A message that is not understood here; holds its attribute.
    #[error("unknown message {0:#06x}")]
    Message(u16),
}

/// The body of a message, for reading.
struct Body<'a>(&'a [u8; MAD_LEN - HEADER]);

impl Body<'_> {
    /// Returns the bytes from an offset on.
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        // Every offset here lies within the body.
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn u8(&self, at: usize) -> u8 {
        let [byte] = self.bytes(at);
        byte
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    fn u24(&self, at: usize) -> u32 {
        self.u32(at) >> 8
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    fn ids(&self) -> Ids {
        Ids { local: self.u32(0), remote: self.u32(4) }
    }

    fn req(&self) -> Req {
        let (timing, retrying) = (self.u8(43), self.u8(47));
        let (path, more) = (self.u8(50), self.u8(51));
        let label = self.u32(88);
        Req {
            local: self.u32(0),
            service: self.u64(8),
            guid: self.u64(16),
            queue_key: self.u32(28),
            queue_pair: self.u24(32),
            responder_resources: self.u8(35),
            initiator_depth: self.u8(39),
            remote_timeout: timing >> 3,
            transport: timing >> 1 & 3,
            flow_control: timing & 1 != 0,
            psn: self.u24(44),
            local_timeout: retrying >> 3,
            retries: retrying & 7,
            partition: self.u16(48),
            mtu: path >> 4,
            rdc: path & 8 != 0,
            rnr_retries: path & 7,
            cm_retries: more >> 4,
            shared_receives: more & 8 != 0,
            lids: [self.u16(52), self.u16(54)],
            gids: [Ipv6Addr::from(self.bytes::<16>(56)), Ipv6Addr::from(self.bytes::<16>(72))],
            flow_label: label >> 12,
            rate: label as u8 & 0x3f,
            traffic_class: self.u8(92),
            hop_limit: self.u8(93),
            service_level: self.u8(94) >> 4,
            subnet_local: self.u8(94) & 8 != 0,
            ack_timeout: self.u8(95) >> 3,
            private: self.bytes(140),
        }
    }

    fn rep(&self) -> Rep {
        let (accepting, retrying) = (self.u8(26), self.u8(27));
        Rep {
            ids: self.ids(),
            queue_key: self.u32(8),
            queue_pair: self.u24(12),
            psn: self.u24(20),
            responder_resources: self.u8(24),
            initiator_depth: self.u8(25),
            ack_delay: accepting >> 3,
            failover: accepting >> 1 & 3,
            flow_control: accepting & 1 != 0,
            rnr_retries: retrying >> 5,
            shared_receives: retrying & 0x10 != 0,
            guid: self.u64(28),
            private: self.bytes(36),
        }
    }

    fn rej(&self) -> Rej {
        Rej {
            ids: self.ids(),
            which: self.u8(8) >> 6,
            info_len: self.u8(9) >> 1,
            reason: self.u16(10),
            info: self.bytes(12),
            private: self.bytes(84),
        }
    }

    fn sidr_rep(&self) -> SidrRep {
        SidrRep {
            request: self.u32(0),
            status: self.u8(4),
            info_len: self.u8(5),
            queue_pair: self.u24(8),
            service: self.u64(12),
            queue_key: self.u32(20),
            info: self.bytes(24),
            private: self.bytes(96),
        }
    }
}

/// Parses the payload of a datagram to queue pair 1.
///
/// # Errors
/// [`CmError`].
pub fn parse(bytes: &[u8]) -> Result<Mad, CmError> {
    let mad: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| CmError::Length(bytes.len()))?;
    let (header, body) = mad.split_first_chunk::<HEADER>().ok_or(CmError::Class)?;
    let body = Body(body.try_into().map_err(|_| CmError::Class)?);
    if header[..START.len()] != START {
        return Err(CmError::Class);
    }
    let [.., t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, _, _, _, _] = *header;
    let ids = body.ids();
    let message = match u16::from_be_bytes([a0, a1]) {
        REQ => Message::Req(body.req()),
        MRA => {
            Message::Mra { ids, which: body.u8(8) >> 6, timeout: body.u8(9) >> 3, private: body.bytes(10) }
        }
        REJ => Message::Rej(body.rej()),
        REP => Message::Rep(body.rep()),
        RTU => Message::Rtu { ids, private: body.bytes(8) },
        DREQ => Message::Dreq { ids, queue_pair: body.u24(8), private: body.bytes(12) },
        DREP => Message::Drep { ids, private: body.bytes(8) },
        SIDR_REQ => Message::SidrReq {
            request: body.u32(0),
            partition: body.u16(4),
            service: body.u64(8),
            private: body.bytes(16),
        },
        SIDR_REP => Message::SidrRep(body.sidr_rep()),
        other => return Err(CmError::Message(other)),
    };
    Ok(Mad { transaction: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]), message })
}

// Attributes.
const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// A message under construction.
struct Made([u8; MAD_LEN]);

impl Made {
    fn new(transaction: u64, attribute: u16) -> Self {
        let mut made = Self([0; MAD_LEN]);
        made.0[..START.len()].copy_from_slice(&START);
        made.0[8..16].copy_from_slice(&transaction.to_be_bytes());
        made.0[16..18].copy_from_slice(&attribute.to_be_bytes());
        made
    }

    /// Puts bytes at an offset of the body, which has room for them.
    fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[HEADER + at..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u8(self, at: usize, value: u8) -> Self {
        self.put(at, &[value])
    }

    fn u16(self, at: usize, value: u16) -> Self {
        self.put(at, &value.to_be_bytes())
    }

    fn u24(self, at: usize, value: u32) -> Self {
        let [_, a, b, c] = value.to_be_bytes();
        self.put(at, &[a, b, c])
    }

    fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_be_bytes())
    }

    fn u64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_be_bytes())
    }

    fn ids(self, ids: Ids) -> Self {
        self.u32(0, ids.local).u32(4, ids.remote)
    }

    fn req(self, req: &Req) -> Self {
        let path = req.mtu << 4 | u8::from(req.rdc) << 3 | req.rnr_retries & 7;
        self.u32(0, req.local)
            .u64(8, req.service)
            .u64(16, req.guid)
            .u32(28, req.queue_key)
            .u24(32, req.queue_pair)
            .u8(35, req.responder_resources)
            .u8(39, req.initiator_depth)
            .u8(43, req.remote_timeout << 3 | (req.transport & 3) << 1 | u8::from(req.flow_control))
            .u24(44, req.psn)
            .u8(47, req.local_timeout << 3 | req.retries & 7)
            .u16(48, req.partition)
            .u8(50, path)
            .u8(51, req.cm_retries << 4 | u8::from(req.shared_receives) << 3)
            .u16(52, req.lids[0])
            .u16(54, req.lids[1])
            .put(56, &req.gids[0].octets())
            .put(72, &req.gids[1].octets())
            .u32(88, req.flow_label << 12 | u32::from(req.rate & 0x3f))
            .u8(92, req.traffic_class)
            .u8(93, req.hop_limit)
            .u8(94, req.service_level << 4 | u8::from(req.subnet_local) << 3)
            .u8(95, req.ack_timeout << 3)
            .put(140, &req.private)
    }

    fn rep(self, rep: &Rep) -> Self {
        self.ids(rep.ids)
            .u32(8, rep.queue_key)
            .u24(12, rep.queue_pair)
            .u24(20, rep.psn)
            .u8(24, rep.responder_resources)
            .u8(25, rep.initiator_depth)
            .u8(26, rep.ack_delay << 3 | (rep.failover & 3) << 1 | u8::from(rep.flow_control))
            .u8(27, rep.rnr_retries << 5 | u8::from(rep.shared_receives) << 4)
            .u64(28, rep.guid)
            .put(36, &rep.private)
    }

    fn rej(self, rej: &Rej) -> Self {
        self.ids(rej.ids)
            .u8(8, rej.which << 6)
            .u8(9, rej.info_len << 1)
            .u16(10, rej.reason)
            .put(12, &rej.info)
            .put(84, &rej.private)
    }

    fn sidr_rep(self, rep: &SidrRep) -> Self {
        self.u32(0, rep.request)
            .u8(4, rep.status)
            .u8(5, rep.info_len)
            .u24(8, rep.queue_pair)
            .u64(12, rep.service)
            .u32(20, rep.queue_key)
            .put(24, &rep.info)
            .put(96, &rep.private)
    }
}

/// Returns a message as the payload of a datagram. Fields that are too large for their bits lose the upper
/// ones.
#[must_use]
pub fn write(mad: &Mad) -> [u8; MAD_LEN] {
    let made = |attribute| Made::new(mad.transaction, attribute);
    let Made(bytes) = match &mad.message {
        Message::Req(req) => made(REQ).req(req),
        Message::Mra { ids, which, timeout, private } => {
            made(MRA).ids(*ids).u8(8, which << 6).u8(9, timeout << 3).put(10, private)
        }
        Message::Rej(rej) => made(REJ).rej(rej),
        Message::Rep(rep) => made(REP).rep(rep),
        Message::Rtu { ids, private } => made(RTU).ids(*ids).put(8, private),
        Message::Dreq { ids, queue_pair, private } => {
            made(DREQ).ids(*ids).u24(8, *queue_pair).put(12, private)
        }
        Message::Drep { ids, private } => made(DREP).ids(*ids).put(8, private),
        Message::SidrReq { request, partition, service, private } => {
            made(SIDR_REQ).u32(0, *request).u16(4, *partition).u64(8, *service).put(16, private)
        }
        Message::SidrRep(rep) => made(SIDR_REP).sidr_rep(rep),
    };
    bytes
}
