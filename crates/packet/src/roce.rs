//! RoCEv2: InfiniBand's transport over UDP (IBTA 1.5, chapter 9 and annex A17).
//!
//! After the UDP header come the base transport header (BTH), the extended headers that its opcode requires, the
//! payload, padding to a multiple of four bytes, and the invariant CRC ([`fn@icrc`]) over all that routers leave alone.

mod aeth;
pub mod cm;
mod headers;
mod icrc;
mod opcode;
mod write;

pub use aeth::{Aeth, Nak, RnrTimer, Syndrome};
pub use headers::{Atomic, Bth, Datagram, Deth, Reth, parse};
pub use icrc::{ICRC_LEN, has_right_icrc, icrc};
pub use opcode::{Opcode, Operation, Service};
pub use write::{write, write_with};

/// Bytes of a base transport header.
pub const BTH_LEN: usize = 12;
/// Bytes of immediate data, and of the key in a SEND with invalidate.
pub const IMMEDIATE_LEN: usize = 4;

/// The reason why the payload of a UDP datagram is no RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoceError {
    /// It ends inside a header, the padding or the ICRC.
    #[error("packet ends inside its headers")]
    Truncated,
    /// A transport header version other than 0.
    #[error("unknown transport header version {0}")]
    Version(u8),
    /// An opcode that none of the services here has.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// A type of acknowledgement that is reserved.
    #[error("reserved acknowledge syndrome {0:#04x}")]
    Syndrome(u8),
    /// Padding or a length that the opcode does not allow: padding without payload, or payload after a request or an
    /// acknowledgement that has none.
    #[error("impossible length")]
    Length,
}
