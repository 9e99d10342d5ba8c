//! Keyed hashes of flows.

use crate::key::Key;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

#[inline(always)]
const fn multiply(a: u64, b: u64) -> (u64, u64) {
    let product = a as u128 * b as u128;
    (product as u64, (product >> 64) as u64)
}

/// Multiplies to 128 bits and folds the result.
#[inline(always)]
pub(crate) const fn fold(a: u64, b: u64) -> u64 {
    let (low, high) = multiply(a, b);
    low ^ high
}

/// The hash of keys, as wyhash and its relatives do it: keyed and not linear, so a guest can't choose keys of one set.
///
/// The halves of the last product are multiplied once more. Without that, ports one after the other have hashes at equal
/// distances, and for some secrets these have few different lower bits.
#[derive(Debug)]
pub(crate) struct KeyHash([u64; 9]);

impl KeyHash {
    pub fn random() -> Self {
        let random = RandomState::new();
        Self(std::array::from_fn(|i| random.hash_one(i)))
    }

    pub const fn secrets(&self) -> [u64; 2] {
        [self.0[0], self.0[1]]
    }

    #[inline(always)]
    pub const fn of(&self, key: &Key) -> u64 {
        let (Key(key), Self(s)) = (key, self);
        let mut rest = fold(key[0] ^ s[0], key[1] ^ s[1]);
        if key[2] | key[3] | key[4] != 0 {
            let more = fold(key[2] ^ s[2], key[3] ^ s[3]);
            rest = fold(rest ^ more.rotate_left(21), key[4] ^ s[4]);
        }
        let (low, high) = multiply(key[5] ^ s[5], rest ^ s[6]);
        fold(low ^ s[7], high ^ s[8])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns sequences of keys that differ in one field, by one from each to the next: a port, an address,
    /// or two of these.
    fn progressions() -> [fn(u64) -> Key; 8] {
        const fn v4(addresses: u64, ports: u64) -> Key {
            Key([17 << 32 | 1, addresses, 0, 0, 0, ports])
        }
        const fn v6(src: u64, dst: u64, ports: u64) -> Key {
            Key([17 << 32 | 3, 0xfd00 << 48, src, 0xfd00 << 48, dst, ports])
        }
        [
            |i| v4(0x0a00_0002_0a00_0001, 5001 << 16 | i),
            |i| v4(0x0a00_0002_0a00_0001, i << 16 | 5001),
            |i| v4(0x0a00_0002_0a00_0001, i << 16 | i),
            |i| v4(0x0a00_0002_0a00_0001 + i, 6 << 16 | 5001),
            |i| v4(0x0a00_0002_0a00_0001 + (i << 32), 6 << 16 | 5001),
            |i| v6(1, 2, i << 16 | 5001),
            |i| v6(1, i, 6 << 16 | 5001),
            |i| v6(i, i, 6 << 16 | 5001),
        ]
    }

    /// Whatever the secrets are, flows spread over sets as if by chance.
    #[test]
    fn neighbours_spread_over_sets() {
        const SETS: usize = 1 << 8;
        const FLOWS: u64 = 1 << 12;
        for round in 0..if cfg!(miri) { 1 } else { 200 } {
            let hash = KeyHash::random();
            for (number, progression) in progressions().into_iter().enumerate() {
                let mut sets = [0_u32; SETS];
                (1..=FLOWS).for_each(|i| sets[hash.of(&progression(i)) as usize % SETS] += 1);
                // By chance, 1 of 10^11 sets has more than three times the mean of 16.
                let most = sets.into_iter().max().unwrap_or(0);
                assert!(most < 48, "{most} in a set, progression {number}, round {round}");
            }
        }
    }
}
