//! The keyed hash of connections.

use super::entry::KeyWords;
use std::hash::{BuildHasher, RandomState};

/// A non-linear hash with a random key: a sender of packets can't compute keys that collide, and a collision reveals
/// nothing about others (unlike with a CRC, or Toeplitz). Each word is folded in by a 64 x 64 -> 128 bit
/// multiplication, as in wyhash and its relatives.
///
/// All words but the last, which has no more than the protocol, go through two multiplications or more. After one,
/// words at equal distances have hashes at equal distances, and for some secrets these have few different bits where
/// they choose a bucket.
pub(super) struct FlowHash([u64; 4]);

const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

impl FlowHash {
    pub fn random() -> Self {
        let random = RandomState::new();
        Self([1, 2, 3, 4].map(|n| random.hash_one(n) | 1))
    }

    /// Returns the hash of a connection from its packed directions; it is the same in whichever order they
    /// are given.
    pub fn symmetric(&self, forward: &KeyWords, reverse: &KeyWords) -> u64 {
        let Self([k0, k1, k2, k3]) = *self;
        let [a, b, c, d, e, f] = *forward.min(reverse);
        let low = fold(fold(a ^ k0, b ^ k1) ^ c, d ^ k2);
        fold(fold(low ^ e, k3 ^ k0) ^ f, low ^ k1 ^ k3) ^ low
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::pack;
    use super::*;
    use model::{Endpoint, FlowKey, Vrf};
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Creates a key with these last bytes of the addresses, and these ports.
    fn key(is_v6: bool, [src, dst]: [u16; 2], ports: [u16; 2]) -> FlowKey {
        let end = |host: u16, port| {
            let v4 = Ipv4Addr::from_bits(0x0a00_0000 | u32::from(host));
            let v6 = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(host));
            Endpoint { vrf: Vrf(1), addr: if is_v6 { v6.into() } else { v4.into() }, port }
        };
        FlowKey { src: end(src, ports[0]), dst: end(dst, ports[1]), protocol: 17 }
    }

    /// Whatever the secret is, connections that differ by one in a port, an address, or two of these spread over
    /// shards, buckets and tags as if by chance.
    #[test]
    fn neighbours_spread() {
        const PARTS: usize = 1 << 7;
        let progressions: [fn(u16) -> FlowKey; 8] = [
            |i| key(false, [1, 2], [i, 53]),
            |i| key(false, [1, 2], [53, i]),
            |i| key(false, [1, 2], [i, i]),
            |i| key(false, [1, 8192 + i], [6, 53]),
            |i| key(false, [1, 8192 + i], [i, 53]),
            |i| key(true, [1, 2], [i, 53]),
            |i| key(true, [1, 8192 + i], [6, 53]),
            |i| key(true, [i, 8192 + i], [6, 53]),
        ];
        for round in 0..if cfg!(miri) { 1 } else { 200 } {
            let hash = FlowHash::random();
            for (number, progression) in progressions.into_iter().enumerate() {
                let mut filled = [[0_u32; PARTS]; 4];
                for i in 1..=1 << 11 {
                    let key = progression(i);
                    let hash = hash.symmetric(&pack(&key), &pack(&key.reverse()));
                    for (filled, shift) in filled.iter_mut().zip([0, 12, 32, 57]) {
                        filled[(hash >> shift) as usize % PARTS] += 1;
                    }
                }
                // By chance, 1 of 10^11 parts has more than three times the mean of 16.
                let most = filled.into_iter().flatten().max().unwrap_or(0);
                assert!(most < 48, "{most} in a part, progression {number}, round {round}");
            }
        }
    }

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
