//! Storm control: how many copies of flooded packets are made in a second for a guest, or for packets that come into a
//! network through wires.

use crate::counters::MAX_VIFS;
use model::{Seconds, VifId, Vrf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of copies that wires may cause in a network, as a multiple of a guest's: behind them are the
/// network's guests on other hosts.
const WIRE_FACTOR: u32 = 10;

/// Who causes copies. For wires, copies are counted by network, so that guests of one network leave others theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flooder {
    Guest(VifId),
    /// Other hosts' guests in a network.
    Wires(Vrf),
}

impl Flooder {
    pub const COUNT: usize = MAX_VIFS + u16::MAX as usize + 1;

    /// Returns its index among all counters: guests, then networks.
    pub fn index(self) -> Option<usize> {
        match self {
            Self::Guest(vif) => Some(usize::from(vif.0)).filter(|index| *index < MAX_VIFS),
            Self::Wires(vrf) => Some(MAX_VIFS + usize::from(vrf.0)),
        }
    }
}

/// The copies that all workers made in the current second.
#[derive(Debug)]
pub(crate) struct Storms {
    /// Most copies for a guest.
    per_second: u32,
    /// The second in the upper half, its number of copies in the lower.
    made: Box<[AtomicU64]>,
}

impl Storms {
    /// Creates a limit of about `per_second` copies for a guest: a flood that begins below the limit goes to
    /// all its members.
    pub fn new(per_second: u32) -> Self {
        Self { per_second, made: (0..Flooder::COUNT).map(|_| AtomicU64::new(0)).collect() }
    }

    fn made(&self, who: Flooder) -> Option<&AtomicU64> {
        self.made.get(who.index()?)
    }

    pub fn may_flood(&self, who: Flooder, now: Seconds) -> bool {
        let most = match who {
            Flooder::Guest(_) => self.per_second,
            Flooder::Wires(_) => self.per_second.saturating_mul(WIRE_FACTOR),
        };
        self.made(who).is_some_and(|made| made_in(made.load(Ordering::Relaxed), now) < most)
    }

    pub fn add(&self, who: Flooder, copies: usize, now: Seconds) {
        let Some(made) = self.made(who) else { return };
        let copies = u32::try_from(copies).unwrap_or(u32::MAX);
        let after =
            |before| Some(u64::from(now) << 32 | u64::from(made_in(before, now).saturating_add(copies)));
        // The update never fails, because its closure always returns a value.
        let _ = made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

const fn made_in(made: u64, now: Seconds) -> u32 {
    if made >> 32 == now as u64 { made as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_of_a_second_are_bounded() {
        let storms = Storms::new(100);
        let (guest, other) = (Flooder::Guest(VifId(1)), Flooder::Guest(VifId(2)));
        assert!(storms.may_flood(guest, 7));
        storms.add(guest, 99, 7);
        assert!(storms.may_flood(guest, 7), "one is left");
        storms.add(guest, 40, 7);
        assert!(!storms.may_flood(guest, 7));
        assert!(storms.may_flood(other, 7));
        assert!(storms.may_flood(guest, 8), "another second");
        assert!(!storms.may_flood(Flooder::Guest(VifId(u16::MAX)), 1));
    }

    #[test]
    fn wires_have_more_and_each_network_its_own() {
        let storms = Storms::new(100);
        for last in [1, u16::MAX] {
            let network = Flooder::Wires(Vrf(last));
            storms.add(network, 999, 8);
            assert!(storms.may_flood(network, 8), "a wire has more than a guest");
            storms.add(network, usize::MAX, 8);
            storms.add(network, usize::MAX, 8);
            assert!(!storms.may_flood(network, 8), "the count does not wrap");
            assert!(storms.may_flood(Flooder::Wires(Vrf(2)), 8));
        }
    }
}
