use super::super::tests::{GUEST, any_segment, create, key, table};
use super::super::{Record, remembered};
use super::*;
use model::{Connection, FlowChange, FlowState, Follow, Segment, Tcp};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const NOW: Seconds = 1000;

fn records(flows: &Flows) -> Vec<Record> {
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
    flows.entries.records().iter().map(|words| std::array::from_fn(|i| word(&words[i]))).collect()
}

/// Returns all connections of a table, by their keys, without their rules, which are not taken over.
fn all(flows: &Flows) -> BTreeMap<String, FlowInfo> {
    let mut all = BTreeMap::new();
    flows.for_each(NOW, &mut |info| {
        let info = FlowInfo { rule: None, ..info };
        assert!(all.insert(format!("{:?}", info.key), info).is_none(), "it is here twice");
        true
    });
    all
}

/// Enters the connections in these records; returns which records were entered, and their connections.
fn enter(to: &Flows, records: &[Record]) -> Vec<(usize, Entered)> {
    let early = records.iter().enumerate().filter_map(|(number, record)| {
        let flow = remembered(record, NOW).ok()??;
        Some((number, to.enter_early(&flow, record, NOW)?))
    });
    early.collect()
}

/// Brings a table up to date with these records.
fn catch_up(to: &Flows, early: &[(usize, Entered)], records: &[Record]) {
    let mut rest = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let known = early.iter().find(|(at, _)| *at == number);
        if !known.is_some_and(|(_, entered)| to.catch_up(*entered, record, NOW).unwrap()) {
            rest.extend(remembered(record, NOW).unwrap());
        }
    }
    assert!(rest.iter().all(|flow| to.enter(flow, NOW)));
}

/// An event of a connection: a packet, its end, its beginning.
#[derive(Clone, Debug)]
enum Step {
    Packet(bool, Segment),
    Datagram(bool, u8),
    Ends,
    Begins,
}

fn any_step() -> impl Strategy<Value = (u32, Step)> {
    let step = prop_oneof![
        5 => any_segment().prop_map(|(reply, segment)| Step::Packet(reply, segment)),
        3 => any::<(bool, u8)>().prop_map(|(reply, n)| Step::Datagram(reply, n)),
        1 => Just(Step::Ends),
        3 => Just(Step::Begins),
    ];
    (0_u32..6, step)
}

fn go(flows: &Flows, now: Seconds, steps: &[(u32, Step)]) {
    for (number, step) in steps {
        let known = flows.get(&key(*number), now);
        match (step, known) {
            (Step::Begins, None) => {
                let FlowChange::Create { mut connection, rule } = create(key(*number), FlowState::New) else {
                    return;
                };
                let syn = Segment { flags: 2, seq: 0, len: 1, ack: 0, window: 9, scale: None };
                connection.tcp = Tcp::first(0, &syn, number % 2 == 0);
                flows.apply(&FlowChange::Create { connection, rule }, GUEST, now).unwrap();
            }
            (Step::Packet(reply, segment), Some((connection, _, flow))) => {
                if !(segment.is_plain() && flows.advance(flow, *reply, segment))
                    && let Follow::Moves(next) = connection.follow_segment(*reply, segment)
                {
                    flows.update(flow, &next, *reply, now);
                }
            }
            (Step::Datagram(reply, n), Some((_, _, flow))) => {
                flows.touch(flow, *reply, (*n).into(), 60, now);
            }
            (Step::Ends, Some((Connection { original, .. }, ..))) => {
                flows.flush(now, &mut |info| info.key == original);
            }
            _ => {}
        }
    }
}

proptest! {
    /// At whatever time a table looks early, it has in the end the same connections as the other table.
    #[test]
    fn a_table_that_looked_early_has_what_the_other_has(
        before in prop::collection::vec(any_step(), 0..60),
        after in prop::collection::vec(any_step(), 0..60),
        torn in prop::option::of((0_usize..8, 0_usize..16)),
    ) {
        let (old, new) = (table(64), table(64));
        go(&old, NOW - 5, &before);
        let mut first = records(&old);
        go(&old, NOW - 2, &after);
        let last = records(&old);
        // The first reading of a record may have seen some words before they changed, and others after it.
        if let Some((number, words)) = torn {
            let same = first[number][0] == last[number][0];
            (1..words).filter(|_| same).for_each(|word| first[number][word] = last[number][word]);
        }
        let early = enter(&new, &first);
        catch_up(&new, &early, &last);
        prop_assert_eq!(all(&new), all(&old));
        prop_assert_eq!(new.len(), old.len());
        prop_assert_eq!(new.held_by(GUEST), old.held_by(GUEST));
    }

    /// Any words in a record lead to one connection or none.
    #[test]
    fn damaged_records_cost_their_connections(changes in prop::collection::vec((0_usize..16, any::<u64>()), 1..4)) {
        let (old, new) = (table(64), table(64));
        go(&old, NOW - 5, &[(1, Step::Begins), (2, Step::Begins)]);
        let mut records = records(&old);
        let early = enter(&new, &records);
        prop_assert_eq!(early.len(), 2);
        let (number, entered) = early[0];
        changes.iter().for_each(|(word, bits)| records[number][*word] ^= bits);
        let is_here = new.catch_up(entered, &records[number], NOW);
        prop_assert_eq!(new.len(), if is_here == Ok(true) { 2 } else { 1 });
        prop_assert_eq!(new.catch_up(early[1].1, &[0; 16], NOW), Ok(false));
        prop_assert_eq!(new.held_by(GUEST), new.len());
    }
}

#[test]
fn a_connection_that_timed_out_here_meanwhile_is_not_known() {
    let (old, new) = (table(64), table(64));
    go(&old, NOW - 29, &[(1, Step::Begins)]);
    let early = enter(&new, &records(&old));
    go(&old, NOW - 1, &[(1, Step::Datagram(false, 1))]);
    assert_eq!(new.expire(NOW + 1, 64), 1);
    catch_up(&new, &early, &records(&old));
    assert_eq!(all(&new), all(&old));
}
