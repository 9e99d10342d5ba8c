//! Writing packets.

use super::headers::CNP_RESERVED;
use super::{BTH_LEN, Datagram, ICRC_LEN, Opcode};
use crate::WriteError;

/// Writes fields front to back.
struct Out<'a>(&'a mut [u8]);

impl Out<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let all = std::mem::take(&mut self.0);
        let (place, rest) = all.split_at_mut_checked(bytes.len()).ok_or(WriteError::TooShort)?;
        place.copy_from_slice(bytes);
        self.0 = rest;
        Ok(())
    }
}

/// Combines a byte and a number of 24 bits.
const fn beside(byte: u8, number: u32) -> [u8; 4] {
    (number & 0xff_ffff | (byte as u32) << 24).to_be_bytes()
}

/// Writes a packet as the payload of a UDP datagram, with padding and room for the ICRC. The caller fills
/// that room ([`icrc`](fn@super::icrc)), because the ICRC also covers the headers before this payload. Returns
/// the length in bytes, the ICRC included.
///
/// # Errors
/// [`WriteError::Mismatch`] if a header that the opcode requires is missing, if there is one too many, or if
/// there is payload that the opcode does not allow; [`WriteError::TooShort`] if `out` has too little room.
pub fn write(packet: &Datagram<'_>, out: &mut [u8]) -> Result<usize, WriteError> {
    write_with(packet, packet.payload.len(), out, |place| {
        place.copy_from_slice(packet.payload);
        Ok(())
    })
}

/// Writes a packet as [`write()`] does, but with `len` bytes of payload that `fill` stores.
///
/// # Errors
/// As for [`write()`], and any error of `fill`.
pub fn write_with<E: From<WriteError>>(
    packet: &Datagram<'_>,
    len: usize,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let pad = len.wrapping_neg() & 3;
    let (at, room) = (write_headers(packet, len, pad, out)?, out.len());
    let rest = out.get_mut(at..).unwrap_or_default();
    let (place, rest) = rest.split_at_mut_checked(len).ok_or(WriteError::TooShort)?;
    fill(place)?;
    let mut rest = Out(rest);
    rest.put(&[0; 3][..pad])?;
    rest.put(&[0; ICRC_LEN])?;
    Ok(room - rest.0.len())
}

impl Datagram<'_> {
    /// Returns the packet's length in bytes, if [`write_with`] writes it with `len` bytes of payload; the
    /// ICRC is included.
    #[must_use]
    pub const fn bytes(&self, len: usize) -> usize {
        let Self { bth, deth, reth, atomic, aeth, original, immediate, invalidate, .. } = self;
        let headers = BTH_LEN
            + 8 * deth.is_some() as usize
            + 16 * reth.is_some() as usize
            + 28 * atomic.is_some() as usize
            + 4 * (aeth.is_some() as usize + immediate.is_some() as usize + invalidate.is_some() as usize)
            + 8 * original.is_some() as usize
            + CNP_RESERVED * matches!(bth.opcode, Opcode::CongestionNotification) as usize;
        headers + len.next_multiple_of(4) + ICRC_LEN
    }
}

/// Writes everything before the payload. Returns its length in bytes.
fn write_headers(packet: &Datagram<'_>, len: usize, pad: usize, out: &mut [u8]) -> Result<usize, WriteError> {
    let Datagram { bth, deth, reth, atomic, aeth, original, immediate, invalidate, payload: _ } = packet;
    if !packet.is_whole(len) {
        return Err(WriteError::Mismatch);
    }
    let room = out.len();
    let mut out = Out(out);

    let flags = u8::from(bth.solicited) << 7 | u8::from(bth.migrated) << 6 | (pad as u8) << 4;
    let congestion = u8::from(bth.forward_congestion) << 7 | u8::from(bth.backward_congestion) << 6;
    out.put(&[bth.opcode.byte(), flags])?;
    out.put(&bth.partition.to_be_bytes())?;
    out.put(&beside(congestion, bth.destination))?;
    out.put(&beside(u8::from(bth.acknowledge) << 7, bth.psn))?;
    if let Some(deth) = deth {
        out.put(&deth.queue_key.to_be_bytes())?;
        out.put(&beside(0, deth.source))?;
    }
    if let Some(reth) = reth {
        out.put(&reth.address.to_be_bytes())?;
        out.put(&reth.rkey.to_be_bytes())?;
        out.put(&reth.len.to_be_bytes())?;
    }
    if let Some(atomic) = atomic {
        out.put(&atomic.address.to_be_bytes())?;
        out.put(&atomic.rkey.to_be_bytes())?;
        out.put(&atomic.swap_add.to_be_bytes())?;
        out.put(&atomic.compare.to_be_bytes())?;
    }
    if let Some(aeth) = aeth {
        out.put(&beside(aeth.syndrome.byte(), aeth.msn))?;
    }
    if let Some(original) = original {
        out.put(&original.to_be_bytes())?;
    }
    if let Some(immediate) = immediate {
        out.put(immediate)?;
    }
    if let Some(rkey) = invalidate {
        out.put(&rkey.to_be_bytes())?;
    }
    if bth.opcode == Opcode::CongestionNotification {
        out.put(&[0; CNP_RESERVED])?;
    }
    Ok(room - out.0.len())
}
