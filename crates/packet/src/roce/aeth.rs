//! Acknowledgements: syndromes and the times of "receiver not ready" (IBTA 9.7.5).

use super::RoceError;
use std::time::Duration;

/// Acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// The responder's answer.
    pub syndrome: Syndrome,
    /// Message sequence number: messages finished so far, modulo 2^24.
    pub msn: u32,
}

/// A responder's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// The request is done. Holds the code of the credit count (table 46); 31 means that the responder counts
    /// no credits.
    Ack(u8),
    /// No receive was posted: retry after this time.
    ReceiverNotReady(RnrTimer),
    /// The request is not done.
    Nak(Nak),
}

/// The reason why a request is not done (IBTA 9.7.5.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Nak {
    PsnSequenceError,
    InvalidRequest,
    RemoteAccessError,
    RemoteOperationalError,
    InvalidRdRequest,
}

const NAKS: [Nak; 5] = [
    Nak::PsnSequenceError,
    Nak::InvalidRequest,
    Nak::RemoteAccessError,
    Nak::RemoteOperationalError,
    Nak::InvalidRdRequest,
];

/// The code of the time that a requester waits before it retries, 0 to 31 (IBTA table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

/// The times of the codes, in tens of microseconds.
const TIMES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl RnrTimer {
    /// Returns the timer with this code. Only the lower five bits of the code count.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time to wait.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(TIMES[self.0 as usize] as u64 * 10)
    }
}

const ACK: u8 = 0x00;
const RNR: u8 = 0x20;
const NAK: u8 = 0x60;
const TYPE: u8 = 0xe0;

impl Syndrome {
    /// An acknowledgement without credits.
    pub const NO_CREDITS: Self = Self::Ack(31);

    /// Decodes a syndrome.
    ///
    /// # Errors
    /// [`RoceError::Syndrome`] if the byte is reserved.
    pub fn from_byte(byte: u8) -> Result<Self, RoceError> {
        let value = byte & !TYPE;
        match byte & TYPE {
            ACK => Ok(Self::Ack(value)),
            RNR => Ok(Self::ReceiverNotReady(RnrTimer(value))),
            NAK => NAKS.get(usize::from(value)).map(|nak| Self::Nak(*nak)).ok_or(RoceError::Syndrome(byte)),
            _ => Err(RoceError::Syndrome(byte)),
        }
    }

    /// Encodes the syndrome.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack(credits) => ACK | credits & !TYPE,
            Self::ReceiverNotReady(timer) => RNR | timer.0,
            Self::Nak(nak) => NAK | nak as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_come_back_from_the_wire() {
        let known = (0..=255).filter(|byte| {
            let syndrome = Syndrome::from_byte(*byte);
            assert!(syndrome.is_ok_and(|syndrome| syndrome.byte() == *byte) || syndrome.is_err());
            syndrome.is_ok()
        });
        assert_eq!(known.count(), 32 + 32 + 5);
    }

    #[test]
    fn timers_are_those_of_the_table() {
        assert_eq!(RnrTimer::new(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(1).duration(), Duration::from_micros(10));
        assert_eq!(RnrTimer::new(14).duration(), Duration::from_micros(1280));
        assert_eq!(RnrTimer::new(31).duration(), Duration::from_micros(491_520));
    }
}
