//! The keyed hash of the card's tables with two choices: the last four rounds of the Ascon permutation (NIST SP
//! 800-232) over key and secret. It is not linear, so without the secret nobody can make keys that collide;
//! `rtl/lookup/hash.sv` is the same in hardware.

/// A key as it is hashed, or the secret: 320 bits, with bits 63:0 in the first word.
pub type Words = [u64; 5];

/// Round constants of the last four rounds.
const ROUNDS: [u64; 4] = [0x78, 0x69, 0x5a, 0x4b];
/// The distances by which the linear layer rotates each word.
const ROTATIONS: [(u32, u32); 5] = [(19, 28), (61, 39), (1, 6), (10, 17), (7, 41)];

/// Returns the two places of a key. As many of the lowest bits of each count as the table has.
#[must_use]
pub fn choices(key: &Words, secret: &Words) -> [u32; 2] {
    let mut state: Words = std::array::from_fn(|word| key[word] ^ secret[word]);
    for constant in ROUNDS {
        state[2] ^= constant;
        state = linear(substitute(state));
    }
    [state[0] as u32, (state[0] >> 32) as u32]
}

/// Applies the S-box to 64 columns at once.
fn substitute([x0, x1, x2, x3, x4]: Words) -> Words {
    let (x0, x2, x4) = (x0 ^ x4, x2 ^ x1, x4 ^ x3);
    let [y0, y1, y2, y3, y4] =
        [x0 ^ (!x1 & x2), x1 ^ (!x2 & x3), x2 ^ (!x3 & x4), x3 ^ (!x4 & x0), x4 ^ (!x0 & x1)];
    [y0 ^ y4, y1 ^ y0, !y2, y3 ^ y2, y4]
}

/// Applies the linear layer, which spreads each word's bits over the word.
fn linear(state: Words) -> Words {
    std::array::from_fn(|word| {
        let (x, (one, other)) = (state[word], ROTATIONS[word]);
        x ^ x.rotate_right(one) ^ x.rotate_right(other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash agrees with an implementation that looks up the S-box column by column, and yields the published state
    /// of Ascon-Hash.
    #[test]
    fn agrees_with_an_independent_implementation() {
        let key = std::array::from_fn(|word| 0x0706_0504_0302_0100 + 0x0808_0808_0808_0808 * word as u64);
        let secret = std::array::from_fn(|word| 0x0123_4567_89ab_cdef_u64.wrapping_mul(2 * word as u64 + 1));
        assert_eq!(choices(&key, &secret), [0xe559_13ee, 0xd2be_f885]);
        assert_eq!(choices(&[0; 5], &[0; 5]), [0x7645_6145, 0x6e5a_5857]);
    }

    /// Sequential keys fill buckets as random ones would: chi squared of 1024 buckets is 1023 +- 45.
    #[test]
    fn spreads_keys_that_differ_little() {
        for word in 0..5 {
            let mut filled = [[0_u32; 1024]; 2];
            for number in 0..65_536 {
                let mut key = [0; 5];
                key[word] = number << (8 * word);
                for (filled, choice) in filled.iter_mut().zip(choices(&key, &[7; 5])) {
                    filled[choice as usize & 1023] += 1;
                }
            }
            for filled in filled {
                let squares: f64 = filled.iter().map(|&n| (f64::from(n) - 64.0).powi(2) / 64.0).sum();
                assert!((800.0..1250.0).contains(&squares), "word {word}: {squares}");
            }
        }
    }

    /// Each bit of the key and of the secret changes about half of the result.
    #[test]
    fn every_bit_counts() {
        for bit in 0..320 {
            let changed: u32 = (0..64_u64)
                .map(|sample| {
                    let key: Words = std::array::from_fn(|word| {
                        (sample << 3 | word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    });
                    let mut other = key;
                    other[bit / 64] ^= 1 << (bit % 64);
                    let [a, b] = choices(&key, &[3; 5]);
                    let [c, d] = choices(&other, &[3; 5]);
                    (a ^ c).count_ones() + (b ^ d).count_ones()
                })
                .sum();
            assert!((1850..2250).contains(&changed), "bit {bit}: {changed} of 4096");
        }
    }
}
