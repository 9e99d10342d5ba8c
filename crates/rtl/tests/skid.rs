//! The skid buffer against a queue of two, under random stalls on both sides.
#![cfg(feature = "units")]

use std::collections::VecDeque;

use rtl::Skid;

/// Numbers that look random and are the same in every run (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns true in `percent` of a hundred cases.
    fn chance(&mut self, percent: u64) -> bool {
        (self.next() >> 32) % 100 < percent
    }
}

/// Sends words with the given chances of valid and ready. Returns how many came out in `cycles`.
fn run(seed: u64, valid: u64, ready: u64, cycles: u32) -> u32 {
    let mut random = Random(seed);
    let mut skid = Skid::new();
    skid.reset(2);
    assert!(!skid.m_valid(), "empty after reset");
    let (mut inside, mut out) = (VecDeque::new(), 0);
    let mut offered = None;
    for _ in 0..cycles {
        if offered.is_none() && random.chance(valid) {
            let words: [u32; 16] = std::array::from_fn(|_| random.next() as u32);
            skid.s_data_mut().copy_words(&words);
            offered = Some(words);
        }
        skid.set_s_valid(offered.is_some());
        skid.set_m_ready(random.chance(ready));
        skid.eval();
        assert_eq!(skid.m_valid(), !inside.is_empty(), "valid while and only while something is inside");
        if skid.m_valid() {
            let head: &[u32; 16] = inside.front().expect("not empty");
            assert_eq!(skid.m_data().words(), head, "stable until taken, and in order");
        }
        if skid.m_valid() && skid.m_ready() {
            inside.pop_front();
            out += 1;
        }
        if skid.s_ready() {
            inside.extend(offered.take());
        }
        assert!(inside.len() <= 2);
        skid.clock();
    }
    out
}

#[test]
fn nothing_is_lost_reordered_or_changed() {
    for seed in 1..=8 {
        for (valid, ready) in [(50, 50), (90, 20), (20, 90), (100, 50), (50, 100)] {
            assert!(run(seed, valid, ready, 2000) > 300);
        }
    }
}

#[test]
fn a_transfer_every_cycle() {
    let cycles = 1000;
    // The first cycle after reset takes nothing, and one more is the latency.
    assert!(run(1, 100, 100, cycles) >= cycles - 2);
}

#[test]
fn it_takes_two_while_the_output_stalls_and_reset_empties_it() {
    let mut skid = Skid::new();
    skid.set_s_valid(true);
    skid.reset(1);
    let mut taken = 0;
    for _ in 0..10 {
        skid.eval();
        taken += u32::from(skid.s_ready());
        skid.clock();
    }
    assert_eq!(taken, 2);
    assert!(skid.m_valid());
    skid.reset(1);
    assert!(!skid.m_valid());
}
