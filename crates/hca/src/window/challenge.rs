//! Challenges, by which programs prove that they can read a window.

use super::{Mapping, Window, lock};
use crate::base::random;
use std::sync::Arc;
use uverbs::{Nonce, PAGE};

impl Window {
    /// Writes a challenge into the window. `None` if there are too many.
    pub(crate) fn challenge(self: &Arc<Self>) -> Option<Challenge> {
        let mapping = self.mapping().ok()?;
        let slot = {
            let mut taken = lock(&self.challenges);
            let slot = taken.trailing_ones();
            *taken |= 1_u64.checked_shl(slot)?;
            slot
        };
        let mut nonce = [0; 32];
        for (place, part) in nonce.chunks_exact_mut(4).zip(std::iter::repeat_with(random::number)) {
            place.copy_from_slice(&part.to_ne_bytes());
        }
        let challenge = Challenge { window: self.clone(), mapping, slot, nonce };
        challenge.write(&nonce);
        Some(challenge)
    }
}

/// Random bytes in a window: a program that knows them can read it.
#[derive(Debug)]
pub(crate) struct Challenge {
    window: Arc<Window>,
    mapping: Arc<Mapping>,
    slot: u32,
    nonce: Nonce,
}

impl Challenge {
    /// Returns the offset of the bytes in the window.
    pub const fn offset(&self) -> u64 {
        (1 + self.slot as u64) * PAGE
    }

    fn write(&self, bytes: &Nonce) {
        let _ = self.mapping.memory.write(self.offset() as usize, bytes);
    }

    /// Compares the bytes, in a time that does not depend on them.
    pub fn is_met_by(&self, nonce: &Nonce) -> bool {
        let differ = |sum: u8, (a, b): (&u8, &u8)| sum | std::hint::black_box(a ^ b);
        self.nonce.iter().zip(nonce).fold(0, differ) == 0
    }
}

impl Drop for Challenge {
    fn drop(&mut self) {
        self.write(&[0; 32]);
        *lock(&self.window.challenges) &= !(1 << self.slot);
    }
}
