//! The keyed hash of connections.

use super::entry::KeyWords;
use std::hash::{BuildHasher, RandomState};

/// A non-linear hash with a random key: a sender of packets can't compute keys that collide, and a collision reveals
/// nothing about others (unlike with a CRC, or Toeplitz). Each word is folded in by a 64 x 64 -> 128 bit
/// multiplication, as in wyhash and its relatives.
pub(super) struct FlowHash([u64; 4]);

const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

impl FlowHash {
    /// A hash with a new random key.
    pub fn random() -> Self {
        let random = RandomState::new();
        Self([1, 2, 3, 4].map(|n| random.hash_one(n) | 1))
    }

    /// The same for both directions, which are given packed.
    pub fn symmetric(&self, forward: &KeyWords, reverse: &KeyWords) -> u64 {
        let Self([k0, k1, k2, k3]) = *self;
        let [a, b, c, d, e, f] = *forward.min(reverse);
        let low = fold(fold(a ^ k0, b ^ k1) ^ c, d ^ k2);
        fold(fold(low ^ e, k3 ^ k0) ^ f, low ^ k1 ^ k3) ^ low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_a_key_counts() {
        let (hash, other) = (FlowHash::random(), [u64::MAX; 6]);
        let key: KeyWords = [1, 2, 3, 4, 5, 6].map(|word: u64| word.wrapping_mul(0x0123_4567_89ab_cdef) >> 2);
        for bit in 0..6 * 64 {
            let mut changed = key;
            changed[bit / 64] ^= 1 << (bit % 64);
            assert_ne!(hash.symmetric(&changed, &other), hash.symmetric(&key, &other), "bit {bit}");
        }
    }
}
