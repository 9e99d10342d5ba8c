use super::*;
use crate::core::tests::fake::{EARLY, FakeExecutor, GONE};
use carryover::open;
use std::sync::atomic::Ordering;

const BEFORE: &str = r#"{"directory":{"networks":[[1,"blue"]],"vifs":[
    {"id":0,"name":"one","network":1,"identity":"02:00:00:00:00:01","addresses":["10.0.0.1"],"allowed":[]},
    {"id":1,"name":"two","network":1,"identity":"","addresses":[],"allowed":["10.9.0.0/16"]}]},
    "counts":{"reasons":["rule_drop"],"vifs":{"1":{"counters":{"received":{"packets":1,"bytes":2},"sent":
    {"packets":3,"bytes":4},"receive_drops":5,"send_drops":6},"drops":[7],
    "flows":{"opened":0,"from_wire":0,"refused":8,"displaced":9}}},
    "workers":[],"rules":[],"nexthops":[],"flows_created":10},
    "macs":[{"network":1,"mac":[2,0,0,0,0,2],"at":{"Vif":1},"idle":5}],"written":100}"#;

const RECORD_OF_ONE: [u64; RECORD] = [
    6,
    0,
    0x0a00_0001,
    0,
    0x0a00_0002,
    0x0001_0001_0001_0050,
    0x306,
    0,
    0x0000_0006_8000_0805,
    0x0000_0001_0000_0001,
    2,
    120,
    1,
    60,
    0,
    0,
];

fn now() -> Snapshot {
    let mut now = Snapshot::read(BEFORE.as_bytes()).unwrap();
    (now.counts, now.macs, now.written, now.since) = (Counts::default(), Vec::new(), 200, Some(1000));
    now
}

#[test]
fn counts_and_macs_go_to_who_has_another_number_now() {
    let mut after = now();
    let text = serde_json::to_string(&after.directory).unwrap().replace("\"id\":1", "\"id\":5");
    after.directory = serde_json::from_str(&text).unwrap();
    let executor = FakeExecutor::default();
    let one = |each: Each<'_>| {
        each(0, &RECORD_OF_ONE);
        Ok(())
    };
    Snapshot::read(BEFORE.as_bytes()).unwrap().take_over(one, Early::default(), &mut after, &executor);
    let mut entered = Vec::new();
    executor.flows(&mut |flow| {
        entered.push(flow);
        true
    });
    assert_eq!(entered.iter().map(|flow| flow.charged).collect::<Vec<_>>(), [(VifId(0), false)]);
    // An earlier version did not say since when it counts.
    assert_eq!(after.since, None);
    let counted = &after.counts.vifs[&5];
    assert_eq!((after.counts.vifs.len(), counted.counters.sent.packets, counted.flows.displaced), (1, 3, 9));
    let dropped = model::DropReason::ALL.iter().position(|reason| reason.name() == "rule_drop").unwrap();
    assert_eq!((counted.drops[dropped], counted.drops.iter().sum::<u64>()), (7, 7));
    let [(learn, idle)] = executor.learned_before()[..] else { panic!("one MAC") };
    assert_eq!((learn.at, learn.mac, idle), (BridgeTarget::Vif(VifId(5)), Mac([2, 0, 0, 0, 0, 2]), 105));
}

#[test]
fn counts_that_go_on_began_when_they_did() {
    let (mut after, executor) = (now(), FakeExecutor::default());
    let before = BEFORE.replace("\"written\":100", "\"written\":100,\"since\":900");
    let nothing = |_: Each<'_>| Ok(());
    Snapshot::read(before.as_bytes()).unwrap().take_over(nothing, Early::default(), &mut after, &executor);
    assert_eq!(after.since, Some(900));
}

/// Any content of the files is taken over or refused, and entered connections have this daemon's numbers.
#[test]
fn anything_left_is_taken_over_or_refused() {
    bolero::check!().with_type::<(Vec<(u16, u8)>, Vec<(u8, u64)>)>().for_each(|(texts, words)| {
        let mut bytes = BEFORE.as_bytes().to_vec();
        for (at, byte) in texts {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *byte;
        }
        let Ok(before) = Snapshot::read(&bytes) else { return };
        let mut record = RECORD_OF_ONE;
        for (at, bits) in words {
            record[usize::from(at % 16)] ^= bits;
        }
        let (executor, mut after) = (FakeExecutor::default(), now());
        before.take_over(
            |each| {
                each(3, &record);
                Ok(())
            },
            Early::default(),
            &mut after,
            &executor,
        );
        executor.flows(&mut |flow| {
            assert!(flow.key.src.vrf == Vrf(1) && flow.key.dst.vrf == Vrf(1) && flow.charged.0.0 < 2);
            true
        });
        assert!(executor.learned_before().iter().all(|(learn, _)| learn.vrf == Vrf(1)));
        assert!(after.counts.vifs.keys().all(|id| *id < 2));
    });
}

/// Makes the record of a connection with this port, sequence and number of packets.
fn record(port: u64, seq: u64, packets: u64) -> [u64; RECORD] {
    let mut record = RECORD_OF_ONE;
    record[0] = 4 * seq + 2;
    record[5] += port;
    record[8] = (record[0] << 32) | (record[8] & 0xffff_ffff);
    record[10] = packets;
    record
}

/// Returns the connections that a daemon knows after it has taken over, by port: whether entered early, and
/// packets. It looks at the records `before` while the old daemon still works, which then leaves those in
/// `after`.
fn known(
    before: &[(usize, [u64; RECORD])],
    after: &[(usize, [u64; RECORD])],
    names: &str,
) -> Vec<(u16, bool, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path(), 1 << 20, 1).unwrap();
    let table = opened.own.table().unwrap().unwrap();
    let write = |records: &[(usize, [u64; RECORD])]| {
        for (number, record) in records {
            let words = &table.words()[number * RECORD..];
            words.iter().zip(record).for_each(|(at, word)| at.store(*word, Ordering::Relaxed));
        }
    };
    write(before);
    opened.own.write(BEFORE.as_bytes()).unwrap();
    opened.own.succeed().unwrap();
    let former = open(dir.path(), 1 << 20, 1).unwrap().former.unwrap();
    let (executor, mut now) = (FakeExecutor::default(), now());
    let early = Early::by(&former, &now.directory, &executor);
    write(after);
    let was = Snapshot::read(names.as_bytes()).unwrap();
    was.take_over(|each| former.records(each), early, &mut now, &executor);
    let mut known = Vec::new();
    executor.flows(&mut |flow| {
        if flow.rule != Some(GONE) {
            known.push((flow.key.dst.port, flow.rule == Some(EARLY), flow.forward.packets));
        }
        true
    });
    known.sort_unstable();
    known
}

#[test]
fn what_is_known_early_is_brought_up_to_date() {
    let before =
        [(1, record(1, 5, 10)), (700, record(2, 6, 20)), (701, record(3, 7, 30)), (4000, record(4, 8, 40))];
    let port = |n: u16| 0x50 + n;
    assert_eq!(
        known(&before, &[], BEFORE),
        [(port(1), true, 10), (port(2), true, 20), (port(3), true, 30), (port(4), true, 40)]
    );
    // In turn: more packets; a different connection in its place; no change; a new one; one that moved to a
    // lower number.
    let free = record(3, 7, 30).map(|word| word & !2);
    let after = [
        (1, record(1, 5, 11)),
        (700, record(9, 10, 1)),
        (701, free),
        (4001, record(5, 11, 2)),
        (2, record(4, 12, 3)),
        (4000, record(4, 8, 40).map(|word| word & !2)),
    ];
    assert_eq!(
        known(&before, &after, BEFORE),
        [(port(1), true, 11), (port(4), false, 3), (port(5), false, 2), (port(9), false, 1)]
    );
    // The old daemon's names have changed, so all records are read anew.
    let others = BEFORE.replacen("[1,\"blue\"]", "[1,\"blue\"],[2,\"red\"]", 1);
    let anew = known(&before, &[], &others);
    assert_eq!(
        anew,
        [(port(1), false, 10), (port(2), false, 20), (port(3), false, 30), (port(4), false, 40)]
    );
}
