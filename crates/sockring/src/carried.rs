//! The state and the bytes that a daemon carries between the memory of its own program and that of another host. The
//! program may write all of its memory at any time.

use crate::Breach;
use crate::layout::{Link, SIZE};

/// Bytes of an end's state.
const LEN: usize = 80;

/// How an end is: of the direction in which it sends, and of the one in which it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndState {
    /// The sender's part.
    pub sent: Sent,
    /// Bytes that the reader has taken from its ring.
    pub rd: u64,
    /// Bytes that it has taken from the kernel's stream.
    pub rx_k: u64,
    /// The epoch in which it reads.
    pub rx_epoch: u32,
    /// Whether it follows switches.
    pub is_ready: bool,
    /// Whether it wants the other end to send by TCP ([`crate::Direction::wanted`]).
    pub wants: u8,
}

/// How a sender is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes ever written to the ring.
    pub wr: u64,
    /// How often it switched.
    pub epoch: u32,
    /// Whether it stays with TCP for good.
    pub has_left: bool,
    /// The switches to the epoch before, and to this one: positions in the kernel's stream and in the ring.
    pub switches: [(u64, u64); 2],
}

impl EndState {
    /// Returns the bytes of the state.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let Sent { wr, epoch, has_left, switches: [(k0, r0), (k1, r1)] } = self.sent;
        let mut bytes = [0; LEN];
        let words = [wr, k0, r0, k1, r1, self.rd, self.rx_k];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes[56..60].copy_from_slice(&epoch.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.rx_epoch.to_le_bytes());
        bytes[64..67].copy_from_slice(&[has_left.into(), self.is_ready.into(), self.wants]);
        bytes
    }

    /// Reads a state.
    #[must_use]
    pub fn read(bytes: &[u8; LEN]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_le_bytes(word)
        };
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let switches = [(word(1), word(2)), (word(3), word(4))];
        let sent = Sent { wr: word(0), epoch: half(56), has_left: bytes[64] == 1, switches };
        let (rd, rx_k, rx_epoch) = (word(5), word(6), half(60));
        Self { sent, rd, rx_k, rx_epoch, is_ready: bytes[65] == 1, wants: bytes[66] }
    }
}

/// For the daemon, whose program has this end.
impl Link {
    /// Returns the state of the program's end.
    #[must_use]
    pub fn end_state(&self) -> EndState {
        let (tx, rx) = (self.tx(), self.rx());
        // The words that were written later are read first.
        let has_left = tx.has_left();
        let epoch = tx.epoch();
        let switches = [tx.switch(epoch.wrapping_sub(1)), tx.switch(epoch)];
        let sent = Sent { wr: tx.wr(), epoch, has_left, switches };
        let wants = rx.wanted() as u8;
        let is_ready = rx.is_ready();
        let rx_epoch = rx.rx_epoch();
        EndState { sent, rd: rx.rd(), rx_k: rx.rx_k(), rx_epoch, is_ready, wants }
    }

    /// Writes the state of the other host's end into the program's memory, whose bytes are here up to the sender's
    /// position. Returns whether the program must look at what is wanted.
    ///
    /// # Errors
    /// [`Breach`]: the other end has read more than `sent` bytes, or a position went back.
    pub fn set_other(&self, other: &EndState, sent: u64) -> Result<bool, Breach> {
        let (tx, rx) = (self.tx(), self.rx());
        let before = tx.rd();
        if other.rd.wrapping_sub(before) > sent.wrapping_sub(before) {
            return Err(Breach::Position);
        }
        rx.set_wr(other.sent.wr);
        if rx.epoch() != other.sent.epoch {
            for (back, (k, r)) in [1, 0].into_iter().zip(other.sent.switches) {
                rx.log_only(other.sent.epoch.wrapping_sub(back), k, r);
            }
            rx.set_epoch(other.sent.epoch);
        }
        if other.sent.has_left {
            rx.set_left();
        }
        tx.set_rd(other.rd);
        tx.set_rx_k(other.rx_k);
        let is_followed = tx.rx_epoch() != other.rx_epoch;
        tx.acknowledge(other.rx_epoch);
        if other.is_ready {
            tx.set_ready();
        }
        let is_wanted = u32::from(other.wants) > tx.wanted();
        if is_wanted {
            tx.want_tcp(other.wants.into());
        }
        // Who was asked to return may only do so once its switch before was seen.
        Ok(is_wanted || (is_followed && tx.wanted() != 0))
    }

    /// Copies bytes that the program has sent, from a position on.
    pub fn copy_sent(&self, position: u64, to: &mut [u8]) {
        let len = to.len().min(SIZE as usize);
        // SAFETY: the slice has as many bytes.
        unsafe { self.get(true, position, to.as_mut_ptr(), len) };
    }

    /// Copies bytes of the other end to where the program reads them, from a position on.
    pub fn copy_received(&self, position: u64, from: &[u8]) {
        let len = from.len().min(SIZE as usize);
        // SAFETY: the slice has as many bytes.
        unsafe { self.other().put(position, from.as_ptr(), len) };
    }
}
