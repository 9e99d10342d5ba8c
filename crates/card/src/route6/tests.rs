//! The shadow against a naive longest-prefix match, and look-ups that read while changes are made.
use super::*;
use crate::hash::choices;
use crate::registers::Table;
use crate::step::{LINE, Line};
use proptest::prelude::*;
use std::collections::HashMap;

const SECRET: Words = [11, 12, 13, 14, 15];
const BITS: u32 = 6;

type Memory = HashMap<u32, Line>;
type Routes = BTreeMap<(u16, u128, u8), u32>;

fn naive(routes: &Routes, vrf: u16, address: u128) -> Option<u32> {
    let matching = routes.iter().filter(|((v, p, l), _)| *v == vrf && mask(address, *l) == *p);
    matching.max_by_key(|((_, _, length), _)| *length).map(|(_, &nexthop)| nexthop)
}

/// Looks an address up like the card: searches `lengths`, those of at most `turn` bits in the memory of the later
/// moment.
fn search(moments: [&Memory; 2], turn: u8, lengths: u128, vrf: u16, address: u128) -> Option<u32> {
    let lengths = lengths.to_le_bytes();
    lengths.into_iter().take_while(|&length| length != 255).find_map(|length| {
        let wanted = Route6 { prefix: mask(address, length), vrf, length, ..Route6::default() };
        let memory = moments[usize::from(length <= turn)];
        let mut places = choices(&wanted.key(), &SECRET).into_iter().zip(Route6::ways(BITS));
        places.find_map(|(choice, way)| {
            let line = memory.get(&(way + (choice & ((1 << BITS) - 1)))).copied().unwrap_or([0; LINE]);
            let found = Route6::decode(&line);
            (found.valid && found.key() == wanted.key()).then_some(found.nexthop)
        })
    })
}

fn address(bits: u8) -> u128 {
    // Bits 0, 16, 32... from the front.
    (0..8)
        .filter(|bit| bits >> bit & 1 != 0)
        .fold(0x2001 << 112, |address, bit| address | 1 << (111 - 14 * bit))
}

type Change = (u16, u8, u8, Option<u32>);

fn change() -> impl Strategy<Value = Change> {
    let length = prop::sample::select(vec![0, 16, 17, 31, 32, 45, 48, 59, 64, 128]);
    (0..2_u16, 0..8_u8, length, prop::option::weighted(0.65, 1..1000_u32))
}

fn check(changes: &[Change]) {
    let mut shadow = Routes6::new(BITS, SECRET);
    let (mut memory, mut routes) = (Memory::new(), Routes::new());
    // The memory and the right routes at each moment since the last barrier: a look-up that began then may end now.
    let mut history = vec![(memory.clone(), routes.clone(), [u128::MAX; 2])];
    for &(vrf, bits, length, nexthop) in changes {
        let prefix = mask(address(bits), length);
        let steps = match nexthop {
            Some(nexthop) => {
                let Ok(steps) = shadow.insert(vrf, prefix, length, nexthop) else { continue };
                routes.insert((vrf, prefix, length), nexthop);
                steps
            }
            None => {
                let steps = shadow.remove(vrf, prefix, length);
                assert_eq!(steps.is_empty(), routes.remove(&(vrf, prefix, length)).is_none());
                steps
            }
        };
        for step in &steps {
            match *step {
                Step::Barrier => drop(history.drain(..history.len() - 1)),
                Step::Write { table, address, data } => {
                    assert_eq!(table, Table::Route);
                    memory.insert(address, data);
                }
                Step::Stash { .. } => panic!("routes have no stash"),
            }
            // The memory is between the old and the new state.
            let (_, right, lengths) = history.last().cloned().unwrap();
            history.push((memory.clone(), right, lengths));
        }
        history.push((memory.clone(), routes.clone(), [0, 1].map(|vrf| shadow.lengths(vrf))));
        for (vrf, bits) in (0..8).flat_map(|bits| [(0, bits), (1, bits)]) {
            let address = address(bits);
            assert_eq!(shadow.find(vrf, address), naive(&routes, vrf, address));
            for (begun, (before, _, lengths)) in history.iter().enumerate() {
                let right: Vec<_> =
                    history[begun..].iter().map(|(_, routes, _)| naive(routes, vrf, address)).collect();
                for turn in [0, 16, 31, 32, 48, 64, 127] {
                    let found = search([before, &memory], turn, lengths[usize::from(vrf)], vrf, address);
                    assert!(right.contains(&found), "{address:x} {turn}: {found:?}, not of {right:?}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn look_ups_are_right_at_some_moment_of_theirs(changes in prop::collection::vec(change(), 0..40)) {
        check(&changes);
    }
}

#[test]
fn a_network_has_so_many_lengths_and_no_more() {
    let mut routes = Routes6::new(8, SECRET);
    for length in 40..56 {
        routes.insert(3, address(1), length, 1).unwrap();
    }
    assert_eq!(routes.lengths(3).to_le_bytes(), std::array::from_fn(|at| 55 - at as u8));
    assert_eq!(routes.insert(3, address(1), 64, 1), Err(Route6Error::Lengths(3)));
    routes.insert(3, address(2), 40, 1).unwrap();
    routes.insert(4, address(1), 64, 1).unwrap();
    assert_eq!(routes.lengths(4), u128::MAX << 8 | 64);
    // Two prefixes have this length, one has the other.
    routes.remove(3, address(1), 40);
    assert_eq!(routes.insert(3, address(1), 64, 1), Err(Route6Error::Lengths(3)));
    routes.remove(3, address(1), 41);
    routes.insert(3, address(1), 64, 1).unwrap();
    assert_eq!(routes.lengths(3) as u8, 64);
}
