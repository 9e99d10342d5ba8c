//! The work that one turn of an interface may cause: this limits the output of a burst, not its input.

/// Most copies and segments made in one turn, beyond the packets that came in. It suffices for the largest sends of
/// one burst, in segments of [`crate::lanes::MIN_SEGMENT`] bytes, and for a flood to as many interfaces as there can
/// be.
const PACKETS: u32 = 4096;
/// Most bytes of these copies and segments.
const BYTES: u32 = 2 << 20;
/// The copies and segments of a turn whose interface may have a turn in the next round, too: those of an
/// ordinary burst of large sends.
const PACKETS_PER_ROUND: u32 = 256;
const BYTES_PER_ROUND: u32 = 256 << 10;

/// The budget that a turn has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    packets: u32,
    bytes: u32,
}

impl Turn {
    pub const NEW: Self = Self { packets: PACKETS, bytes: BYTES };

    /// Takes the work for this many packets from the budget; false if the budget is used up. Work that was begun is
    /// finished, so a turn exceeds its budget by at most one packet's copy or segments.
    pub const fn take(&mut self, packets: usize, bytes: usize) -> bool {
        if self.is_done() {
            return false;
        }
        self.packets = self.packets.saturating_sub(saturated(packets));
        self.bytes = self.bytes.saturating_sub(saturated(bytes));
        true
    }

    pub const fn is_done(&self) -> bool {
        self.packets == 0 || self.bytes == 0
    }

    /// Returns the number of rounds that the interface must sit out for this turn, so that others get as much
    /// work.
    pub const fn rounds(&self) -> u32 {
        let packets = (PACKETS - self.packets) / PACKETS_PER_ROUND;
        let bytes = (BYTES - self.bytes) / BYTES_PER_ROUND;
        if packets > bytes { packets } else { bytes }
    }
}

const fn saturated(n: usize) -> u32 {
    if n > u32::MAX as usize { u32::MAX } else { n as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_with_its_packets_or_its_bytes() {
        let mut turn = Turn::NEW;
        assert!(!turn.is_done());
        assert!((0..PACKETS).all(|_| turn.take(1, 60)));
        assert!(!turn.take(1, 60));
        let mut turn = Turn::NEW;
        assert_eq!((0..100).filter(|_| turn.take(1024, 1 << 17)).count(), 4);
        let mut turn = Turn::NEW;
        assert!(turn.take(1, usize::MAX));
        assert!(turn.is_done());
    }

    #[test]
    fn much_work_is_followed_by_rounds_without() {
        let mut turn = Turn::NEW;
        assert_eq!(turn.rounds(), 0);
        turn.take(136, 200 << 10);
        assert_eq!(turn.rounds(), 0, "large sends of the usual segments");
        turn.take(376, 0);
        assert_eq!(turn.rounds(), 2);
        turn.take(0, 1 << 20);
        assert_eq!(turn.rounds(), 4);
    }
}
