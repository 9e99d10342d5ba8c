//! Ends at each write, entries that nobody wrote, and the layout.

use super::super::tests::{GUEST, any_segment, create, key, table};
use super::super::{FlowRef, Flows, kill};
use super::*;
use crate::Account;
use executor::Counters;
use model::tcp::Edge;
use model::{Binding, Connection, FlowChange, FlowState, Follow, Segment, Tcp, VifId};
use packet::proto::{TCP_ACK, TCP_FIN, TCP_SYN};
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const NOW: Seconds = 1000;

/// Returns the connections that the next daemon finds in a table, and how many records are bad.
fn found(flows: &Flows) -> (Vec<FlowInfo>, usize) {
    let records = flows.entries.records().iter();
    let read = records.map(|words| {
        let words: Record = std::array::from_fn(|i| words[i].load(Ordering::Relaxed));
        remembered(&words, NOW)
    });
    let (read, bad): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
    (read.into_iter().flatten().flatten().collect(), bad.len())
}

fn segment(flags: u8, seq: u32, len: u32, ack: u32) -> Segment {
    Segment { flags, seq, len, ack, window: 1000, scale: Some(2).filter(|_| flags & TCP_SYN != 0) }
}

/// Opens a connection whose sides have sent a SYN each.
fn opened(flows: &Flows, n: u32) -> (FlowRef, Connection) {
    let tcp = Tcp::first(0, &segment(TCP_SYN, 99, 1, 0), false);
    // Each second one is known outside by a port.
    let binding = n.is_multiple_of(2).then_some(Binding {
        tag: 9,
        port: 1024 + n as u16,
        of_destination: false,
        for_all: true,
    });
    let first = Connection { original: key(n), state: FlowState::New, seen: Connection::ASKED, tcp, binding };
    let change = FlowChange::Create { connection: first, rule: None };
    let flow = flows.apply(&change, GUEST, NOW - 9).unwrap().unwrap();
    (flow, followed(flows, flow, &first, true, &segment(TCP_SYN | TCP_ACK, 499, 1, 100)))
}

/// Tracks a packet as the engine does.
fn followed(flows: &Flows, flow: FlowRef, from: &Connection, reply: bool, segment: &Segment) -> Connection {
    let Follow::Moves(connection) = from.follow_segment(reply, segment) else {
        panic!("{segment:?} of {from:?}")
    };
    if !(segment.is_plain() && flows.advance(flow, reply, segment)) {
        flows.update(flow, &connection, reply, NOW - 5);
    }
    flows.touch(flow, reply, 1, 60, NOW - 5);
    connection
}

fn between<T: PartialEq>(a: T, found: &T, b: T) -> bool {
    *found == a || *found == b
}

fn counted(a: Counters, found: Counters, b: Counters) -> bool {
    (a.packets..=b.packets).contains(&found.packets) && (a.bytes..=b.bytes).contains(&found.bytes)
}

/// Returns whether a connection was found in its state before or after, or on the way between them.
fn is_on_the_way(from: &FlowInfo, found: &FlowInfo, to: &FlowInfo) -> bool {
    let tcp = (0..2).all(|side| {
        between(from.tcp.edges[side], &found.tcp.edges[side], to.tcp.edges[side])
            && between(from.tcp.scales[side], &found.tcp.scales[side], to.tcp.scales[side])
            && between(from.tcp.windows[side], &found.tcp.windows[side], to.tcp.windows[side])
    });
    tcp && between(from.state, &found.state, to.state)
        && between(from.seen, &found.seen, to.seen)
        && between(from.idle, &found.idle, to.idle)
        && between(from.approximate, &found.approximate, to.approximate)
        && between(from.tcp.liberal, &found.tcp.liberal, to.tcp.liberal)
        && counted(from.forward, found.forward, to.forward)
        && counted(from.reply, found.reply, to.reply)
}

type Step = (&'static str, fn(&Flows, FlowRef, &Connection));

/// Every kind of write to an entry, here to that of connection 1.
const STEPS: [Step; 11] = [
    ("a new connection", |flows, _, _| {
        opened(flows, 7);
    }),
    ("a datagram's", |flows, _, _| {
        let mut change = create(key(8), FlowState::New);
        let FlowChange::Create { connection, .. } = &mut change else { return };
        connection.original.protocol = packet::proto::UDP;
        flows.apply(&change, Account::from_wire(VifId(2)), NOW).unwrap();
    }),
    ("data", |flows, flow, of| {
        followed(flows, flow, of, false, &segment(TCP_ACK, 100, 50, 500));
    }),
    ("an answer", |flows, flow, of| {
        followed(flows, flow, of, true, &segment(TCP_ACK, 500, 70, 100));
    }),
    ("a FIN", |flows, flow, of| {
        followed(flows, flow, of, false, &segment(TCP_ACK | TCP_FIN, 100, 1, 500));
    }),
    ("no tracking", |flows, flow, _| flows.loosen(flow)),
    ("no counting", |flows, flow, _| flows.miscount(flow)),
    ("its end", |flows, _, of| {
        flows.flush(NOW, &mut |info| info.key == of.original);
    }),
    ("a sweep", |flows, _, _| {
        flows.expire(NOW + 8000, 64);
    }),
    ("its reopening", |flows, _, of| {
        let tcp = Tcp::first(1, &segment(TCP_SYN, 9000, 1, 0), false);
        let connection = Connection {
            original: of.original.reverse(),
            state: FlowState::New,
            seen: 4,
            tcp,
            binding: None,
        };
        flows.apply(&FlowChange::Create { connection, rule: None }, GUEST, NOW).unwrap();
    }),
    ("one that another host brings", |flows, _, _| {
        let mut from = found(flows).0[0].clone();
        from.key = key(9);
        assert!(flows.enter(&from, NOW));
    }),
];

#[test]
fn an_end_at_any_write_leaves_each_connection_as_it_was_or_will_be() {
    let prepared = || {
        let flows = table(64);
        let (_, _) = opened(&flows, 1);
        let (flow, connection) = opened(&flows, 2);
        let connection = followed(&flows, flow, &connection, false, &segment(TCP_ACK, 100, 0, 500));
        (flows, flow, connection)
    };
    for (what, step) in STEPS {
        let (flows, flow, connection) = prepared();
        let before = found(&flows).0;
        step(&flows, flow, &connection);
        let after = found(&flows).0;
        let mut writes = 0;
        loop {
            let (flows, flow, connection) = prepared();
            let ended = kill::after(writes, || step(&flows, flow, &connection));
            let (now, bad) = found(&flows);
            let at = |all: &[FlowInfo], of: &FlowInfo| all.iter().find(|info| info.key == of.key).cloned();
            assert!(bad <= usize::from(!ended), "{what}, {writes} writes: {bad} bad records");
            for info in &now {
                let (from, to) = (at(&before, info), at(&after, info));
                let new =
                    FlowInfo { forward: Counters::default(), reply: Counters::default(), ..info.clone() };
                let known = from.is_some() || to.is_some();
                let (from, to) = (from.unwrap_or(new.clone()), to.unwrap_or(info.clone()));
                assert!(known && is_on_the_way(&from, info, &to), "{what}, {writes} writes: {info:?}");
            }
            let gone = before.iter().filter(|info| at(&after, info).is_some() && at(&now, info).is_none());
            assert_eq!(gone.count(), 0, "{what}, {writes} writes: a connection that stays is gone");
            goes_on_elsewhere(&now);
            if ended {
                break;
            }
            writes += 1;
        }
        assert!(writes > 0, "{what} writes");
    }
}

/// Enters connections in a different table, and tracks segments of those of TCP there.
fn goes_on_elsewhere(all: &[FlowInfo]) {
    let next = table(64);
    for info in all {
        assert!(next.enter(info, NOW));
        let Some((connection, ..)) = next.get(&info.key, NOW) else { panic!("{info:?} is not known") };
        if let [Some(Edge { end, .. }), Some(Edge { end: ack, .. })] = connection.tcp.edges {
            let follow = connection.follow_segment(false, &segment(TCP_ACK, end, 10, ack));
            assert!(matches!(follow, Follow::Moves(_)), "{follow:?} of {connection:?}");
        }
    }
}

#[test]
fn the_layout_is_that_of_the_format() {
    let flows = table(8);
    let (flow, connection) = opened(&flows, 1);
    followed(&flows, flow, &connection, false, &segment(TCP_ACK, 100, 50, 500));
    let mine = found(&flows).0.remove(0);
    let record: Record = [
        6,
        0,
        0x0a00_0000,
        0,
        0x0a00_0001,
        0x0001_0001_0001_0050,
        0x1306,
        0x0000_0096_0000_01f4,
        0x0000_0006_bc44_0c05,
        0x0000_03df_0000_03e3,
        1,
        60,
        1,
        60,
        0x0000_01f4_0000_0064,
        0x0000_0000_00fa_03e8,
    ];
    let words = &flows.entries.records()[flow.index as usize];
    let words: Record = std::array::from_fn(|i| words[i].load(Ordering::Relaxed));
    assert_eq!(
        words.map(|word| format!("{word:#x}")),
        record.map(|word| format!("{word:#x}")),
        "raise FORMAT"
    );
    assert_eq!(remembered(&record, NOW), Ok(Some(mine)));
}

proptest! {
    /// A connection is always found as the table has it, however TCP went.
    #[test]
    fn each_connection_is_found_as_it_is(first in any_segment(), segments in prop::collection::vec(any_segment(), 0..30), liberal: bool) {
        let flows = table(64);
        let (reply, segment) = first;
        let tcp = Tcp::first(reply.into(), &segment, liberal);
        let mut connection = Connection { original: key(1), state: FlowState::New, seen: if reply { 4 } else { 8 }, tcp, binding: None };
        let flow = flows.apply(&FlowChange::Create { connection, rule: Some(model::RuleId(u32::MAX)) }, GUEST, 1);
        let flow = flow.unwrap().unwrap();
        for (reply, segment) in segments {
            if let Follow::Moves(next) = connection.follow_segment(reply, &segment) {
                connection = next;
                flows.update(flow, &connection, reply, 2);
            }
            let mut known = Vec::new();
            flows.for_each(NOW, &mut |info| { known.push(info); true });
            prop_assert_eq!(found(&flows), (known, 0));
        }
    }

    /// Any words are refused or entered. Words close to those of a connection get further.
    #[test]
    fn any_record_is_refused_or_entered(
        changes in prop::collection::vec((0..WORDS, any::<u64>(), 0_u32..64), 1..8),
        wild: bool,
    ) {
        let flows = table(8);
        let (flow, _) = opened(&flows, 1);
        let words = &flows.entries.records()[flow.index as usize];
        let mut record: Record = std::array::from_fn(|i| words[i].load(Ordering::Relaxed));
        for (at, word, bit) in changes {
            record[at] = if wild { word } else { record[at] ^ 1 << bit };
        }
        if let Ok(Some(info)) = remembered(&record, NOW) {
            let next = table(8);
            if next.enter(&info, NOW) {
                prop_assert!(next.get(&info.key, NOW).is_some());
                let again = found(&next).0;
                prop_assert_eq!(again.len(), 1);
                prop_assert_eq!((again[0].key, again[0].tcp), (info.key, info.tcp));
            }
        }
    }
}
