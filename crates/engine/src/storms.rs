//! Storm control: how many copies of flooded packets are made for an interface in a second.

use crate::counters::MAX_VIFS;
use model::{Seconds, VifId};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many times as many a wire may have made as a guest: behind it are other hosts' guests.
const WIRE_FACTOR: u32 = 10;

/// The copies made for each interface in the present second, by all workers.
#[derive(Debug)]
pub(crate) struct Storms {
    /// Copies for a guest at most.
    per_second: u32,
    /// The second in the upper half, the copies in it in the lower.
    made: Box<[AtomicU64]>,
}

impl Storms {
    /// At most about `per_second` copies for a guest: a flood that begins below goes to all its members.
    pub fn new(per_second: u32) -> Self {
        Self { per_second, made: (0..MAX_VIFS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Whether a packet of this interface may be flooded now.
    pub fn may_flood(&self, vif: VifId, wire: bool, now: Seconds) -> bool {
        let most = if wire { self.per_second.saturating_mul(WIRE_FACTOR) } else { self.per_second };
        let made = self.made.get(usize::from(vif.0)).map(|made| made.load(Ordering::Relaxed));
        made.is_some_and(|made| made_in(made, now) < most)
    }

    /// So many copies are made.
    pub fn add(&self, vif: VifId, copies: usize, now: Seconds) {
        let Some(made) = self.made.get(usize::from(vif.0)) else { return };
        let copies = u32::try_from(copies).unwrap_or(u32::MAX);
        let after =
            |before| Some(u64::from(now) << 32 | u64::from(made_in(before, now).saturating_add(copies)));
        // It never says no.
        let _ = made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

/// The copies made in the second `now`.
const fn made_in(made: u64, now: Seconds) -> u32 {
    if made >> 32 == now as u64 { made as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_of_a_second_are_bounded() {
        let storms = Storms::new(100);
        let (guest, other) = (VifId(1), VifId(2));
        assert!(storms.may_flood(guest, false, 7));
        storms.add(guest, 99, 7);
        assert!(storms.may_flood(guest, false, 7), "one is left");
        storms.add(guest, 40, 7);
        assert!(!storms.may_flood(guest, false, 7));
        assert!(storms.may_flood(other, false, 7));
        assert!(storms.may_flood(guest, false, 8), "another second");
        storms.add(guest, 999, 8);
        assert!(!storms.may_flood(guest, false, 8) && storms.may_flood(guest, true, 8), "a wire has more");
        storms.add(guest, usize::MAX, 8);
        storms.add(guest, usize::MAX, 8);
        assert!(!storms.may_flood(guest, true, 8), "the count does not wrap");
        assert!(!storms.may_flood(VifId(u16::MAX), false, 1));
    }
}
