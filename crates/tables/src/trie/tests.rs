//! The trie, compared with a map that is scanned.

use super::{Bits, Trie};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Debug;

#[derive(Clone, Debug)]
enum Op<K> {
    Insert(K, u8, u32),
    Remove(K, u8),
    /// Keeps a clone, with the content it must keep.
    Clone,
}

/// Generates keys that share prefixes of all lengths: a few bases with some low bits changed.
fn key_u32() -> impl Strategy<Value = u32> {
    let bases = prop_oneof![Just(0), Just(0x0a01_0100), Just(0x0a01_ff00), Just(0xc0a8_0000), any::<u32>()];
    (bases, any::<u32>(), 0..=32u32)
        .prop_map(|(base, noise, shift)| base ^ noise.checked_shr(shift).unwrap_or(0))
}

fn key_u128() -> impl Strategy<Value = u128> {
    let bases = prop_oneof![Just(0), Just(0xfd00_0001 << 96), Just(0x2001_0db8 << 96 | 1), any::<u128>()];
    (bases, any::<u128>(), 0..=128u32)
        .prop_map(|(base, noise, shift)| base ^ noise.checked_shr(shift).unwrap_or(0))
}

fn ops<K: Bits + Debug + 'static>(key: impl Strategy<Value = K>) -> impl Strategy<Value = Vec<Op<K>>> {
    let op = (key, 0..=K::LEN, any::<u32>(), 0..12u8).prop_map(|(key, len, value, kind)| match kind {
        0..7 => Op::Insert(key, len, value),
        7..11 => Op::Remove(key, len),
        _ => Op::Clone,
    });
    prop::collection::vec(op, 0..200)
}

type Naive<K> = BTreeMap<(K, u8), u32>;

fn check<K: Bits + Ord + Debug>(trie: &Trie<K, u32>, naive: &Naive<K>, probe: K) {
    let matching = || naive.iter().filter(|((key, len), _)| probe.head(*len) == *key);
    let longest = matching().max_by_key(|((_, len), _)| *len).map(|((_, len), value)| (*len, value));
    assert_eq!(trie.longest(probe), longest, "{probe:?}");
    let mut values: Vec<_> = matching().map(|(_, value)| *value).collect();
    let mut found = Vec::new();
    trie.matches(probe, |value| found.push(*value));
    values.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, values, "{probe:?}");
}

fn run<K: Bits + Ord + Debug>(ops: Vec<Op<K>>, probes: &[K]) {
    let (mut trie, mut naive) = (Trie::default(), Naive::new());
    let mut kept = Vec::new();
    let mut touched: Vec<K> = probes.to_vec();
    for op in ops {
        match op {
            Op::Insert(key, len, value) => {
                touched.push(key);
                assert_eq!(trie.get(key, len).copied(), naive.get(&(key.head(len), len)).copied());
                assert_eq!(trie.insert(key, len, value), naive.insert((key.head(len), len), value));
                *trie.get_mut(key, len).unwrap() ^= 1;
                *naive.get_mut(&(key.head(len), len)).unwrap() ^= 1;
            }
            Op::Remove(key, len) => {
                // The prefix is mostly one that exists.
                let there = naive.range((key.head(len), len)..).next().map(|(at, _)| *at);
                let (key, len) = there.unwrap_or((key, len));
                touched.push(key);
                assert_eq!(trie.remove(key, len), naive.remove(&(key.head(len), len)));
                assert_eq!(trie.get_mut(key, len), None);
            }
            Op::Clone => kept.push((trie.clone(), naive.clone())),
        }
        assert_eq!(trie.len(), naive.len());
    }
    kept.push((trie.clone(), naive.clone()));
    for (trie, naive) in &kept {
        touched.iter().for_each(|&probe| check(trie, naive, probe));
    }
    for (key, len) in naive.into_keys() {
        assert!(trie.remove(key, len).is_some());
    }
    assert!(trie.is_empty() && trie.root.is_none(), "nothing is left behind");
}

proptest! {
    #[test]
    fn v4_agrees_with_a_scan(ops in ops(key_u32()), probes in prop::collection::vec(key_u32(), 20)) {
        run(ops, &probes);
    }

    #[test]
    fn v6_agrees_with_a_scan(ops in ops(key_u128()), probes in prop::collection::vec(key_u128(), 20)) {
        run(ops, &probes);
    }

    #[test]
    fn ports_agree_with_a_scan(ops in ops(any::<u16>()), probes in prop::collection::vec(any::<u16>(), 20)) {
        run(ops, &probes);
    }
}
