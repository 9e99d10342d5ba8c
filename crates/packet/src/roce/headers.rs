//! The headers of a packet, and their parser.

use super::{Aeth, BTH_LEN, ICRC_LEN, IMMEDIATE_LEN, Opcode, Operation, RoceError, Service, Syndrome};

/// Base transport header (IBTA 9.2). Padding follows from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The service and operation of the packet.
    pub opcode: Opcode,
    /// The receiver wakes its program when the message is complete.
    pub solicited: bool,
    /// State of path migration.
    pub migrated: bool,
    /// Partition key.
    pub partition: u16,
    /// The packet met congestion (FECN).
    pub forward_congestion: bool,
    /// The packet that this one answers met congestion (BECN).
    pub backward_congestion: bool,
    /// Number of the receiving queue pair; 24 bits.
    pub destination: u32,
    /// The sender wants an acknowledgement.
    pub acknowledge: bool,
    /// Packet sequence number; 24 bits.
    pub psn: u32,
}

/// RDMA extended transport header: memory of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

/// Atomic extended transport header: eight bytes in the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// The value that is swapped in, or added.
    pub swap_add: u64,
    /// The value that memory must hold for the swap.
    pub compare: u64,
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Key that the receiver demands.
    pub queue_key: u32,
    /// Number of the sending queue pair; 24 bits.
    pub source: u32,
}

/// A RoCEv2 packet. The opcode determines which headers it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// For datagrams.
    pub deth: Option<Deth>,
    /// For the first packet of a WRITE and for READ requests.
    pub reth: Option<Reth>,
    /// For atomic requests.
    pub atomic: Option<Atomic>,
    /// For acknowledgements, and for READ responses except middle ones.
    pub aeth: Option<Aeth>,
    /// The value in memory before an atomic operation.
    pub original: Option<u64>,
    /// Immediate data, in the order of the wire.
    pub immediate: Option<[u8; IMMEDIATE_LEN]>,
    /// The remote key that is invalid from now on.
    pub invalidate: Option<u32>,
    /// Payload, without padding.
    pub payload: &'a [u8],
}

/// Bytes that follow the base transport header of a congestion notification packet, all zero (annex A17.9.3).
pub(super) const CNP_RESERVED: usize = 16;

/// Reads big-endian fields front to back.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], RoceError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(RoceError::Truncated)?;
        self.0 = rest;
        Ok(first)
    }

    fn u8(&mut self) -> Result<u8, RoceError> {
        self.take::<1>().map(|[byte]| *byte)
    }

    fn u24(&mut self) -> Result<u32, RoceError> {
        self.take().map(|&[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }

    fn u32(&mut self) -> Result<u32, RoceError> {
        self.take().map(|bytes| u32::from_be_bytes(*bytes))
    }

    fn u64(&mut self) -> Result<u64, RoceError> {
        self.take().map(|bytes| u64::from_be_bytes(*bytes))
    }
}

/// Returns the header that `read` parses, if the packet has that header (`there`).
fn optional<T>(there: bool, read: impl FnOnce() -> Result<T, RoceError>) -> Result<Option<T>, RoceError> {
    if there { read().map(Some) } else { Ok(None) }
}

/// Parses the payload of a UDP datagram to port [`PORT_ROCE`](crate::proto::PORT_ROCE). The payload includes
/// the ICRC, which is not checked here.
///
/// # Errors
/// [`RoceError`].
pub fn parse(bytes: &[u8]) -> Result<Datagram<'_>, RoceError> {
    let (bytes, _icrc) = bytes.split_last_chunk::<ICRC_LEN>().ok_or(RoceError::Truncated)?;
    let mut fields = Fields(bytes);
    let (bth, pad) = base(&mut fields)?;
    let (operation, is_datagram) = match bth.opcode {
        Opcode::Of(service, operation) => (Some(operation), service == Service::Ud),
        Opcode::CongestionNotification => (None, false),
    };
    let has = |header: fn(Operation) -> bool| operation.is_some_and(header);
    let deth = optional(is_datagram, || {
        let queue_key = fields.u32()?;
        fields.u8()?;
        Ok(Deth { queue_key, source: fields.u24()? })
    })?;
    let reth = optional(has(Operation::has_reth), || {
        Ok(Reth { address: fields.u64()?, rkey: fields.u32()?, len: fields.u32()? })
    })?;
    let atomic = optional(has(Operation::has_atomic), || {
        let (address, rkey) = (fields.u64()?, fields.u32()?);
        Ok(Atomic { address, rkey, swap_add: fields.u64()?, compare: fields.u64()? })
    })?;
    let aeth = optional(has(Operation::has_aeth), || {
        Ok(Aeth { syndrome: Syndrome::from_byte(fields.u8()?)?, msn: fields.u24()? })
    })?;
    let is_atomic_ack = operation == Some(Operation::AtomicAcknowledge);
    let original = optional(is_atomic_ack, || fields.u64())?;
    let immediate = optional(has(Operation::has_immediate), || fields.take().copied())?;
    let invalidate = optional(has(Operation::has_invalidate), || fields.u32())?;
    let payload = payload(fields.0, pad, &bth)?;
    Ok(Datagram { bth, deth, reth, atomic, aeth, original, immediate, invalidate, payload })
}

/// Returns the base transport header, and the length of the padding, bytes.
fn base(fields: &mut Fields<'_>) -> Result<(Bth, usize), RoceError> {
    let &[opcode, flags, p0, p1, congestion, d0, d1, d2, acknowledge, s0, s1, s2] =
        fields.take::<BTH_LEN>()?;
    if flags & 0x0f != 0 {
        return Err(RoceError::Version(flags & 0x0f));
    }
    let bth = Bth {
        opcode: Opcode::from_byte(opcode).ok_or(RoceError::Opcode(opcode))?,
        solicited: flags & 0x80 != 0,
        migrated: flags & 0x40 != 0,
        partition: u16::from_be_bytes([p0, p1]),
        forward_congestion: congestion & 0x80 != 0,
        backward_congestion: congestion & 0x40 != 0,
        destination: u32::from_be_bytes([0, d0, d1, d2]),
        acknowledge: acknowledge & 0x80 != 0,
        psn: u32::from_be_bytes([0, s0, s1, s2]),
    };
    Ok((bth, usize::from(flags >> 4 & 3)))
}

/// Returns the bytes after the headers, without padding and ICRC.
fn payload<'a>(rest: &'a [u8], pad: usize, bth: &Bth) -> Result<&'a [u8], RoceError> {
    match bth.opcode.operation() {
        None => return if rest.len() == CNP_RESERVED { Ok(&[]) } else { Err(RoceError::Length) },
        Some(operation) if !operation.has_payload() => {
            return if rest.is_empty() && pad == 0 { Ok(&[]) } else { Err(RoceError::Length) };
        }
        Some(_) => {}
    }
    if !rest.len().is_multiple_of(4) || pad > 0 && rest.is_empty() {
        return Err(RoceError::Length);
    }
    Ok(&rest[..rest.len() - pad])
}

impl<'a> Datagram<'a> {
    /// Returns a packet without extended headers.
    #[must_use]
    pub const fn new(bth: Bth, payload: &'a [u8]) -> Self {
        Self {
            bth,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            immediate: None,
            invalidate: None,
            payload,
        }
    }

    /// Returns whether the packet has exactly the headers that its opcode requires, and no payload if the
    /// opcode has none.
    pub(super) fn is_whole(&self, payload: usize) -> bool {
        let operation = self.bth.opcode.operation();
        let has = |header: fn(Operation) -> bool| operation.is_some_and(header);
        self.deth.is_some() == matches!(self.bth.opcode, Opcode::Of(Service::Ud, _))
            && self.reth.is_some() == has(Operation::has_reth)
            && self.atomic.is_some() == has(Operation::has_atomic)
            && self.aeth.is_some() == has(Operation::has_aeth)
            && self.original.is_some() == (operation == Some(Operation::AtomicAcknowledge))
            && self.immediate.is_some() == has(Operation::has_immediate)
            && self.invalidate.is_some() == has(Operation::has_invalidate)
            && (payload == 0 || has(Operation::has_payload))
    }
}
