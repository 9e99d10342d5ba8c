//! Bits of flows that packets set and the host takes.

use model::generate::Rng;
use rtl::SeenBits;
use std::collections::VecDeque;

/// Number of words of 64 flows, as in `crates/rtl/build/tops.rs`.
const WORDS: usize = 4;
/// Clocks from a take to its result.
const LATENCY: usize = 3;

#[test]
fn a_take_has_what_was_set_since_the_last_one_and_loses_nothing() {
    let mut rng = Rng::new(2);
    let mut top = SeenBits::new();
    top.reset(3);
    let mut set = [0_u64; WORDS];
    let mut found: VecDeque<Option<u64>> = [None; LATENCY - 1].into();
    let (mut takes, mut bits) = (0, 0);
    for _ in 0..300_000 {
        // At times few flows, so that sets and takes of one word follow each other closely.
        let flow = if rng.percent(50) { rng.below(3) } else { rng.below(64 * WORDS) };
        let word = if rng.percent(50) { flow / 64 } else { rng.below(WORDS) };
        let take = rng.percent(15);
        let valid = !take && rng.percent(80);
        top.set_valid(valid);
        top.set_flow(flow as u8);
        top.set_take(take);
        top.set_word(word as u8);
        found.push_back(take.then(|| std::mem::take(&mut set[word])));
        if valid {
            set[flow / 64] |= 1 << (flow % 64);
        }
        top.clock();
        if let Some(expected) = found.pop_front().flatten() {
            assert_eq!(top.taken(), expected, "clock {}", top.cycle());
            takes += 1;
            bits += expected.count_ones();
        }
    }
    assert!(takes > 10_000 && bits > 10_000, "{takes} takes, {bits} bits");
}
