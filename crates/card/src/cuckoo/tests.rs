//! The shadow against a map, and every step of its writes against what a look-up must find.
use super::*;
use crate::entries::FlowEntry;
use crate::registers::{Bridge, Flow4, Flow6, FlowKind, Route6};
use crate::step::LINE;
use proptest::prelude::*;
use std::collections::HashMap;
use std::fmt::Debug;

const SECRET: Words = [1, 2, 3, 4, 5];

/// Reads the entries of a bucket as the card does.
trait Read: Entry + Debug {
    fn read(lines: [Line; 2]) -> Vec<Self>;
}

impl Read for Bridge {
    fn read([line, _]: [Line; 2]) -> Vec<Self> {
        let halves = [0, 16].map(|at| Self::decode(line[at..at + 16].try_into().unwrap()));
        halves.into_iter().filter(|entry| entry.valid).collect()
    }
}

impl Read for Route6 {
    fn read([line, _]: [Line; 2]) -> Vec<Self> {
        Some(Self::decode(&line)).filter(|entry| entry.valid).into_iter().collect()
    }
}

impl Read for FlowEntry {
    fn read(lines: [Line; 2]) -> Vec<Self> {
        let whole = Flow6::decode(&[lines[0], lines[1]].concat().try_into().unwrap());
        let kinds = (whole.kind, whole.kind_high, whole.version);
        if kinds == (FlowKind::V6Low as u8, FlowKind::V6High as u8, whole.version_high) {
            return vec![Self::V6(Flow6 { kind: 0, kind_high: 0, version: 0, version_high: 0, ..whole })];
        }
        let flows = lines.map(|line| Flow4::decode(&line)).into_iter();
        flows
            .filter(|flow| flow.kind == FlowKind::V4 as u8)
            .map(|flow| Self::V4(Flow4 { kind: 0, ..flow }))
            .collect()
    }
}

/// The memory of the card, and its stash.
#[derive(Clone, Default)]
struct Memory(HashMap<u32, Line>, HashMap<u32, [Line; 2]>);

impl Memory {
    fn write(&mut self, step: &Step) {
        match *step {
            Step::Write { address, data, .. } => {
                self.0.insert(address, data);
            }
            Step::Stash { number, lines } => {
                self.1.insert(number, lines);
            }
            Step::Barrier => {}
        }
    }

    /// Returns all entries that a look-up of the key finds.
    fn find<E: Read>(&self, key: &Words, table: &Cuckoo<E>) -> Vec<E> {
        find([self; 3], key, table)
    }

    fn line(&self, address: u32) -> Line {
        self.0.get(&address).copied().unwrap_or([0; LINE])
    }
}

/// Returns all entries that a look-up of the key finds. It reads each of the two ways and the stash at its own moment.
fn find<E: Read>([ways @ .., stash]: [&Memory; 3], key: &Words, table: &Cuckoo<E>) -> Vec<E> {
    let read = |(place, memory): (Place, &Memory)| {
        let first = table.ways[place.0] + place.1 * E::LINES as u32;
        E::read([memory.line(first), memory.line(first + E::LINES as u32 - 1)])
    };
    let found = table.places(key).into_iter().zip(ways).flat_map(read);
    let found = found.chain(stash.1.values().flat_map(|lines| E::read(*lines)));
    found.filter(|entry| entry.key() == *key).collect()
}

fn bridge(number: u32, value: u32) -> Bridge {
    Bridge { mac: u64::from(number) << 8, vrf: 5, valid: true, nexthop: value, ..Bridge::default() }
}

fn route(number: u32, value: u32) -> Route6 {
    Route6 { prefix: u128::from(number) << 96, vrf: 9, length: 32, valid: true, nexthop: value }
}

/// Makes a flow. Every third one is IPv6.
fn flow(number: u32, value: u32) -> FlowEntry {
    if number.is_multiple_of(3) {
        FlowEntry::V6(Flow6 {
            src: number.into(),
            dst: 7,
            vrf: 3,
            v6: true,
            index: value,
            ..Flow6::default()
        })
    } else {
        FlowEntry::V4(Flow4 { src: number, dst: 7, vrf: 3, index: value, ..Flow4::default() })
    }
}

/// Returns whether the card may miss an entry while it is changed, because it has two lines.
fn torn<E: Entry>(entry: &E) -> bool {
    E::LINES > 1 && entry.whole()
}

/// Makes changes (entry number, new value or none) in a small table with a stash of this size. Checks after each step
/// that all other entries are found, and that the changed entry is found as before or as after the change.
fn check<E: Read>(make: fn(u32, u32) -> E, bits: u32, stash: u32, changes: &[(u32, Option<u32>)]) {
    let mut table = Cuckoo::new(bits, SECRET).with_stash(stash);
    let (mut memory, mut map) = (Memory::default(), HashMap::<u32, E>::new());
    for &(number, value) in changes {
        let key = make(number, 0).key();
        let before = map.get(&number).copied();
        let after = value.map(|value| make(number, value));
        let steps = match &after {
            Some(entry) => match table.insert(*entry) {
                Ok(steps) => steps,
                Err(Full { .. }) => {
                    assert!(before.is_none() && table.find(&key).is_none());
                    assert_eq!(table.stashed(), stash as usize);
                    continue;
                }
            },
            None => table.remove(&key),
        };
        // The memory at each moment since the last barrier: a look-up that is still under way may have read at any of
        // them.
        let mut seen = vec![memory.clone()];
        for step in &steps {
            memory.write(step);
            if *step == Step::Barrier {
                seen.clear();
            }
            seen.push(memory.clone());
            for (_, entry) in map.iter().filter(|(other, _)| **other != number) {
                let any =
                    |n: u32, then| [0, 1, 2].map(|which| if n >> which & 1 == 0 { &memory } else { then });
                for moments in seen.iter().flat_map(|then| (0..8).map(move |n| any(n, then))) {
                    let found = find(moments, &entry.key(), &table);
                    assert!(
                        !found.is_empty() && found.iter().all(|found| found == entry),
                        "{entry:?}: {found:?}"
                    );
                }
            }
            let found = memory.find(&key, &table);
            let missing = found.is_empty() && (before.is_none() || after.is_none() || torn(&make(number, 0)));
            let right = |found: &E| Some(found) == before.as_ref() || Some(found) == after.as_ref();
            assert!(missing || !found.is_empty() && found.iter().all(right), "{number}: {found:?}");
        }
        match after {
            Some(entry) => map.insert(number, entry),
            None => map.remove(&number),
        };
        assert_eq!(table.len(), map.len());
        for entry in map.values() {
            assert_eq!(table.find(&entry.key()), Some(entry));
            assert_eq!(memory.find(&entry.key(), &table), vec![*entry]);
        }
        assert!(map.contains_key(&number) || memory.find(&key, &table).is_empty());
    }
}

/// Generates changes of more entries than there is room for.
fn changes(numbers: u32) -> impl Strategy<Value = Vec<(u32, Option<u32>)>> {
    prop::collection::vec((0..numbers, prop::option::weighted(0.75, 0..1000_u32)), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn macs_are_found_at_every_step(changes in changes(20)) {
        check(bridge, 2, 0, &changes);
    }

    #[test]
    fn routes_are_found_at_every_step(changes in changes(12)) {
        check(route, 2, 0, &changes);
    }

    #[test]
    fn flows_are_found_at_every_step(changes in changes(24)) {
        check(flow, 2, 0, &changes);
    }

    #[test]
    fn flows_of_a_small_table_and_its_stash_are_found_at_every_step(changes in changes(24)) {
        check(flow, 2, 3, &changes);
    }
}

/// Fills a table. Returns the load at which the first entry found no room.
fn load<E: Entry>(bits: u32, make: impl Fn(u32) -> E) -> f64 {
    let mut table = Cuckoo::new(bits, SECRET);
    let full = (0..).find(|&number| table.insert(make(number)).is_err()).unwrap();
    f64::from(full) / f64::from((E::SLOTS as u32 * 2) << bits)
}

#[test]
fn fills_as_far_as_theory_says() {
    let two = load(12, |number| bridge(number, 0));
    let flows = load(12, |number| flow(3 * number + 1, 0));
    let one = load(12, |number| route(number, 0));
    println!("load: macs {two:.3}, IPv4 flows {flows:.3}, IPv6 routes {one:.3}");
    assert!(two > 0.85 && flows > 0.85 && one > 0.4);
}

#[test]
fn what_has_no_room_changes_nothing() {
    let mut table = Cuckoo::new(3, SECRET);
    let mut memory = Memory::default();
    let (mut held, mut full) = (HashMap::new(), 0);
    let mut random = 1_u64;
    for _ in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = (random >> 40) as u32 % 60;
        let before = (table.slots.clone(), table.versions.clone(), table.len());
        let steps = if held.remove(&number).is_some() {
            table.remove(&flow(number, 0).key())
        } else if let Ok(steps) = table.insert(flow(number, 0)) {
            held.insert(number, flow(number, 0));
            steps
        } else {
            assert_eq!((table.slots.clone(), table.versions.clone(), table.len()), before);
            full += 1;
            continue;
        };
        steps.iter().for_each(|step| memory.write(step));
    }
    assert!(full > 1000, "{full}");
    for entry in held.into_values() {
        assert_eq!(memory.find(&entry.key(), &table), vec![entry]);
    }
}

#[test]
fn what_finds_no_place_is_in_the_stash_until_there_is_one() {
    let mut table = Cuckoo::new(1, SECRET).with_stash(4);
    let held: Vec<_> = (0..200).filter(|number| table.insert(flow(*number, 0)).is_ok()).collect();
    assert_eq!((table.stashed(), table.iter().count()), (4, table.len()));
    // A new value in the same place is one write, at once.
    let stashed = table.stash.iter().flatten().map(Entry::key).collect::<Vec<_>>();
    let number = held.iter().copied().find(|number| flow(*number, 0).key() == stashed[2]).unwrap();
    assert!(matches!(table.insert(flow(number, 9)).unwrap()[..], [Step::Stash { number: 2, .. }]));
    assert!(matches!(table.insert(flow(number, 9)).unwrap()[..], []));
    assert_eq!(table.find(&stashed[2]), Some(&flow(number, 9)));
    // An entry of the stash is removed, so nothing in the buckets moves.
    assert!(matches!(table.remove(&stashed[1])[..], [Step::Stash { number: 1, lines: [[0, ..], _] }]));
    // All entries of the buckets are removed: one after the other, entries of the stash take their places.
    let mut homes = 0;
    for number in held {
        let (key, before) = (flow(number, 0).key(), table.stashed());
        if !stashed.contains(&key) {
            let steps = table.remove(&key);
            let left = before - table.stashed();
            assert_eq!(steps.iter().filter(|step| matches!(step, Step::Stash { .. })).count(), left);
            // Several changes share a barrier if none of them moves other entries.
            assert!(left == 0 || steps.contains(&Step::Barrier));
            homes += left;
        }
    }
    assert_eq!((homes, table.stashed(), table.len()), (3, 0, 3));
}

#[test]
fn a_move_waits_before_it_gives_the_old_place_up() {
    let mut table = Cuckoo::new(6, SECRET);
    let mut moves = 0;
    for number in 0..200 {
        let Ok(steps) = table.insert(bridge(number, 0)) else { break };
        // Between two writes there is always a barrier: each write except the last is a move.
        let barriers = steps.iter().filter(|step| **step == Step::Barrier).count();
        assert_eq!(steps.len(), 2 * barriers + 1);
        assert!(steps.iter().step_by(2).all(|step| matches!(step, Step::Write { .. })));
        moves += barriers;
    }
    assert!(moves > 10, "{moves}");
}
