//! A walk of the memory against a naive longest-prefix match, at each step of the writes.
use super::*;
use crate::registers::RouteKind;
use crate::step::Line;
use proptest::prelude::*;
use std::collections::HashMap;

type Memory = HashMap<u32, Line>;
type Routes = BTreeMap<(u16, u32, u8), u32>;

/// Walks a trie like the card. Reads each level in the memory of its own moment. Returns `None` if the walk came to
/// memory that was never written.
fn walk(moments: [&Memory; 3], root: u32, address: u32) -> Option<Option<u32>> {
    let mut entry = u64::from(root) << 16 | u64::from(address >> 16);
    for (memory, next) in moments.into_iter().zip([address >> 8 & 255, address & 255, 0]) {
        let line = memory.get(&((entry / 8) as u32))?;
        let at = entry as usize % 8 * 4;
        let route = Route4::decode(line[at..at + 4].try_into().unwrap());
        match RouteKind::ALL[usize::from(route.kind)] {
            RouteKind::None => return Some(None),
            RouteKind::Nexthop => return Some(Some(route.value)),
            RouteKind::Child => entry = u64::from(route.value) << 8 | u64::from(next),
        }
    }
    None
}

fn naive(routes: &Routes, vrf: u16, address: u32) -> Option<u32> {
    let matching = routes.iter().filter(|((v, p, l), _)| *v == vrf && mask(address, *l) == *p);
    matching.max_by_key(|((_, _, length), _)| *length).map(|(_, &nexthop)| nexthop)
}

/// Returns the first and last address of each prefix, and the addresses beside them.
fn probes(routes: &Routes, prefix: u32, length: u8) -> Vec<u32> {
    let ends = |prefix: u32, length: u8| {
        let last = prefix | !mask(u32::MAX, length);
        [prefix.wrapping_sub(1), prefix, last, last.wrapping_add(1)]
    };
    let mut probes: Vec<_> = routes.keys().flat_map(|&(_, prefix, length)| ends(prefix, length)).collect();
    probes.extend(ends(prefix, length));
    probes.sort_unstable();
    probes.dedup();
    probes
}

#[derive(Clone, Debug)]
struct Change {
    vrf: u16,
    prefix: u32,
    length: u8,
    nexthop: Option<u32>,
}

/// Generates changes of prefixes close together, so that they contain each other.
fn change() -> impl Strategy<Value = Change> {
    let prefix =
        (0..3_u32, prop::sample::select(vec![0, 1, 127, 255]), prop::sample::select(vec![0, 1, 128, 255]));
    let length = prop_oneof![0..=32_u8, 15..=17_u8, 23..=25_u8, 30..=32_u8];
    (0..2_u16, prefix, length, prop::option::weighted(0.6, 1..1000_u32)).prop_map(
        |(vrf, (a, b, c), length, nexthop)| Change {
            vrf,
            prefix: mask(10 << 24 | a << 16 | b << 8 | c, length),
            length,
            nexthop,
        },
    )
}

fn check(changes: &[Change], pages: u32) {
    let mut trie = Trie::new(pages);
    let (mut memory, mut routes) = (Memory::new(), Routes::new());
    let mut roots = Vec::new();
    for vrf in 0..2 {
        let (root, steps) = trie.add(vrf).unwrap();
        roots.push(root);
        steps.iter().for_each(|step| write(&mut memory, step));
    }
    for change in changes {
        let Change { vrf, prefix, length, nexthop } = *change;
        let before = routes.clone();
        let steps = match nexthop {
            Some(nexthop) => trie.insert(vrf, prefix, length, nexthop),
            None => trie.remove(vrf, prefix, length),
        };
        let steps = match steps {
            Ok(steps) => steps,
            Err(error) => {
                assert_eq!(error, TrieError::Full(vrf));
                continue;
            }
        };
        match nexthop {
            Some(nexthop) => routes.insert((vrf, prefix, length), nexthop),
            None => routes.remove(&(vrf, prefix, length)),
        };
        let right: Vec<_> = probes(&routes, prefix, length)
            .into_iter()
            .flat_map(|address| [(0, address), (1, address)])
            .map(|(vrf, address)| (vrf, address, naive(&before, vrf, address), naive(&routes, vrf, address)))
            .collect();
        // A walk reads each level later than the one above, but none from before the last barrier.
        let mut first = memory.clone();
        for (number, step) in steps.iter().enumerate() {
            write(&mut memory, step);
            if *step == Step::Barrier {
                first.clone_from(&memory);
            }
            // A short prefix takes very many steps; only some of them are checked.
            if steps.len() > 100 && number % 101 != 0 {
                continue;
            }
            for &(vrf, address, before, after) in &right {
                let root = roots[usize::from(vrf)];
                for moments in [[&memory; 3], [&first, &memory, &memory], [&first, &first, &memory]] {
                    let found = walk(moments, root, address);
                    assert!(
                        found == Some(before) || found == Some(after),
                        "{address:x}: {found:?}, {before:?} {after:?}"
                    );
                }
            }
        }
        for &(vrf, address, _, after) in &right {
            assert_eq!(walk([&memory; 3], roots[usize::from(vrf)], address), Some(after));
            assert_eq!(trie.find(vrf, address), after);
        }
    }
    // Nothing is left over.
    for (vrf, prefix, length) in routes.into_keys() {
        trie.remove(vrf, prefix, length).unwrap();
    }
    assert_eq!(trie.in_use(), 512);
    (0..2).for_each(|vrf| drop(trie.take(vrf)));
    assert_eq!(trie.in_use(), 0);
}

fn write(memory: &mut Memory, step: &Step) {
    if let Step::Write { table, address, data } = *step {
        assert_eq!(table, Table::Route);
        memory.insert(address, data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn walks_find_the_longest_prefix_at_every_step(changes in prop::collection::vec(change(), 0..40)) {
        check(&changes, 3);
    }
}

#[test]
fn what_has_no_room_changes_nothing() {
    let mut trie = Trie::new(2);
    trie.add(7).unwrap();
    // 255 blocks of the second level: one is left, and the last prefix needs two.
    for index in 0..255_u32 {
        trie.insert(7, index << 16, 24, 1).unwrap();
    }
    assert_eq!(trie.insert(7, 255 << 16, 32, 1), Err(TrieError::Full(7)));
    assert_eq!(trie.find(7, 255 << 16), None);
    assert_eq!(trie.in_use(), 256 + 255);
    trie.insert(7, 255 << 16, 24, 1).unwrap();
    assert_eq!(trie.insert(7, 0, 32, 2), Err(TrieError::Full(7)));
    assert_eq!(trie.add(8), Err(TrieError::Full(8)));
    assert_eq!(trie.insert(8, 0, 8, 1), Err(TrieError::Unknown(8)));
}

#[test]
fn a_change_writes_little() {
    let mut trie = Trie::new(4);
    trie.add(1).unwrap();
    let writes = |steps: &[Step]| steps.iter().filter(|step| **step != Step::Barrier).count();
    assert_eq!(writes(&trie.insert(1, 10 << 24, 8, 1).unwrap()), 32);
    assert_eq!(writes(&trie.insert(1, 10 << 24, 24, 2).unwrap()), 32 + 1);
    assert_eq!(writes(&trie.insert(1, 10 << 24 | 1 << 8, 24, 3).unwrap()), 1);
    // The new default applies to all addresses that are not under longer prefixes.
    assert_eq!(writes(&trie.insert(1, 10 << 24, 16, 4).unwrap()), 32);
    assert_eq!(writes(&trie.insert(1, 10 << 24, 16, 4).unwrap()), 0);
    assert_eq!(writes(&trie.remove(1, 10 << 24, 8).unwrap()), 32);
}
