//! Opcodes: a packet's service and operation, and so its headers (IBTA 9.2.1, tables 38 and 39).

/// Transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// A packet's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the standard's names
pub enum Operation {
    SendFirst,
    SendMiddle,
    SendLast,
    SendLastImmediate,
    SendOnly,
    SendOnlyImmediate,
    WriteFirst,
    WriteMiddle,
    WriteLast,
    WriteLastImmediate,
    WriteOnly,
    WriteOnlyImmediate,
    ReadRequest,
    ReadFirst,
    ReadMiddle,
    ReadLast,
    ReadOnly,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    SendLastInvalidate,
    SendOnlyInvalidate,
}

use Operation as O;

/// Operations, the lower five bits of their opcodes, and their names.
const OPERATIONS: [(Operation, u8, &str); 23] = [
    (O::SendFirst, 0x00, "send-first"),
    (O::SendMiddle, 0x01, "send-middle"),
    (O::SendLast, 0x02, "send-last"),
    (O::SendLastImmediate, 0x03, "send-last-imm"),
    (O::SendOnly, 0x04, "send-only"),
    (O::SendOnlyImmediate, 0x05, "send-only-imm"),
    (O::WriteFirst, 0x06, "write-first"),
    (O::WriteMiddle, 0x07, "write-middle"),
    (O::WriteLast, 0x08, "write-last"),
    (O::WriteLastImmediate, 0x09, "write-last-imm"),
    (O::WriteOnly, 0x0a, "write-only"),
    (O::WriteOnlyImmediate, 0x0b, "write-only-imm"),
    (O::ReadRequest, 0x0c, "read-request"),
    (O::ReadFirst, 0x0d, "read-first"),
    (O::ReadMiddle, 0x0e, "read-middle"),
    (O::ReadLast, 0x0f, "read-last"),
    (O::ReadOnly, 0x10, "read-only"),
    (O::Acknowledge, 0x11, "ack"),
    (O::AtomicAcknowledge, 0x12, "atomic-ack"),
    (O::CompareSwap, 0x13, "compare-swap"),
    (O::FetchAdd, 0x14, "fetch-add"),
    (O::SendLastInvalidate, 0x16, "send-last-inv"),
    (O::SendOnlyInvalidate, 0x17, "send-only-inv"),
];

impl Operation {
    /// Returns all operations.
    pub fn all() -> impl Iterator<Item = Self> {
        OPERATIONS.into_iter().map(|(operation, ..)| operation)
    }

    /// Returns the operation's name in lower-case words.
    #[must_use]
    pub fn name(self) -> &'static str {
        OPERATIONS[self as usize].2
    }

    /// Returns whether the packet has an RDMA extended transport header.
    #[must_use]
    pub const fn has_reth(self) -> bool {
        matches!(self, O::WriteFirst | O::WriteOnly | O::WriteOnlyImmediate | O::ReadRequest)
    }

    /// Returns whether the packet has an atomic extended transport header.
    #[must_use]
    pub const fn has_atomic(self) -> bool {
        matches!(self, O::CompareSwap | O::FetchAdd)
    }

    /// Returns whether the packet has an acknowledge extended transport header.
    #[must_use]
    pub const fn has_aeth(self) -> bool {
        matches!(self, O::ReadFirst | O::ReadLast | O::ReadOnly | O::Acknowledge | O::AtomicAcknowledge)
    }

    /// Returns whether the packet has immediate data.
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(
            self,
            O::SendLastImmediate | O::SendOnlyImmediate | O::WriteLastImmediate | O::WriteOnlyImmediate
        )
    }

    /// Returns whether the packet names a key to invalidate.
    #[must_use]
    pub const fn has_invalidate(self) -> bool {
        matches!(self, O::SendLastInvalidate | O::SendOnlyInvalidate)
    }

    /// Returns whether the packet belongs to a SEND.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            O::SendFirst
                | O::SendMiddle
                | O::SendLast
                | O::SendLastImmediate
                | O::SendLastInvalidate
                | O::SendOnly
                | O::SendOnlyImmediate
                | O::SendOnlyInvalidate
        )
    }

    /// Returns whether the packet continues a SEND or WRITE that an earlier packet began.
    #[must_use]
    pub const fn continues(self) -> bool {
        matches!(
            self,
            O::SendMiddle
                | O::SendLast
                | O::SendLastImmediate
                | O::SendLastInvalidate
                | O::WriteMiddle
                | O::WriteLast
                | O::WriteLastImmediate
        )
    }

    /// Returns whether a responder sends the packet.
    #[must_use]
    pub const fn is_answer(self) -> bool {
        self.has_aeth() || matches!(self, O::ReadMiddle)
    }

    /// Returns whether the packet may have payload.
    #[must_use]
    pub const fn has_payload(self) -> bool {
        !matches!(self, O::ReadRequest | O::Acknowledge | O::AtomicAcknowledge | O::CompareSwap | O::FetchAdd)
    }
}

/// An opcode: the first byte of a base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// An operation of a service.
    Of(Service, Operation),
    /// Congestion notification packet (annex A17.9.3).
    CongestionNotification,
}

/// Congestion notification packet.
const CNP: u8 = 0x81;

impl Opcode {
    /// Decodes an opcode. `None` if none of the services here has it.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        if byte == CNP {
            return Some(Self::CongestionNotification);
        }
        let service = match byte & 0xe0 {
            0x00 => Service::Rc,
            0x20 => Service::Uc,
            0x60 => Service::Ud,
            _ => return None,
        };
        let (operation, ..) = *OPERATIONS.iter().find(|(_, code, _)| *code == byte & 0x1f)?;
        Self::of(service, operation)
    }

    /// Returns the opcode of a service's operation. `None` if the service has no such operation.
    #[must_use]
    pub fn of(service: Service, operation: Operation) -> Option<Self> {
        let offered = match service {
            Service::Rc => true,
            Service::Uc => operation <= O::WriteOnlyImmediate,
            Service::Ud => matches!(operation, O::SendOnly | O::SendOnlyImmediate),
        };
        offered.then_some(Self::Of(service, operation))
    }

    /// Encodes the opcode.
    #[must_use]
    pub fn byte(self) -> u8 {
        let Self::Of(service, operation) = self else { return CNP };
        let service = match service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Ud => 0x60,
        };
        service | OPERATIONS[operation as usize].1
    }

    /// Returns the operation, if the opcode belongs to a service.
    #[must_use]
    pub const fn operation(self) -> Option<Operation> {
        match self {
            Self::Of(_, operation) => Some(operation),
            Self::CongestionNotification => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_in_their_order() {
        for (index, operation) in Operation::all().enumerate() {
            assert_eq!(operation as usize, index, "{}", operation.name());
        }
    }

    #[test]
    fn opcodes_come_back_from_the_wire() {
        let known: Vec<u8> = (0..=255).filter(|byte| Opcode::from_byte(*byte).is_some()).collect();
        // RC 23, UC 12, UD 2, and CNP.
        assert_eq!(known.len(), 38);
        for byte in known {
            assert_eq!(Opcode::from_byte(byte).map(Opcode::byte), Some(byte));
        }
        assert_eq!(Opcode::from_byte(0x64), Some(Opcode::Of(Service::Ud, Operation::SendOnly)));
        assert_eq!(Opcode::of(Service::Uc, Operation::ReadRequest), None);
    }
}
