use super::*;
use crate::core::tests::fake::FakeExecutor;

/// A snapshot of a host with two guests.
const BEFORE: &str = r#"{"directory":{"networks":[[1,"blue"]],"vifs":[
    {"id":0,"name":"one","network":1,"identity":"02:00:00:00:00:01","addresses":["10.0.0.1"],"allowed":[]},
    {"id":1,"name":"two","network":1,"identity":"","addresses":[],"allowed":["10.9.0.0/16"]}]},
    "counts":{"reasons":["rule_drop"],"vifs":{"1":{"counters":{"received":{"packets":1,"bytes":2},"sent":
    {"packets":3,"bytes":4},"receive_drops":5,"send_drops":6},"drops":[7],
    "flows":{"opened":0,"from_wire":0,"refused":8,"displaced":9}}},
    "workers":[],"rules":[],"nexthops":[],"flows_created":10},
    "macs":[{"network":1,"mac":[2,0,0,0,0,2],"at":{"Vif":1},"idle":5}],"written":100}"#;

/// A connection from guest one to another host.
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
    (now.counts, now.macs, now.written) = (Counts::default(), Vec::new(), 200);
    now
}

#[test]
fn counts_and_macs_go_to_who_has_another_number_now() {
    let mut after = now();
    let text = serde_json::to_string(&after.directory).unwrap().replace("\"id\":1", "\"id\":5");
    after.directory = serde_json::from_str(&text).unwrap();
    let executor = FakeExecutor::default();
    let one = |each: Each<'_>| {
        each(&RECORD_OF_ONE);
        Ok(())
    };
    Snapshot::read(BEFORE.as_bytes()).unwrap().take_over(one, &mut after, &executor);
    let mut entered = Vec::new();
    executor.flows(&mut |flow| {
        entered.push(flow);
        true
    });
    assert_eq!(entered.iter().map(|flow| flow.charged).collect::<Vec<_>>(), [(VifId(0), false)]);
    let counted = &after.counts.vifs[&5];
    assert_eq!((after.counts.vifs.len(), counted.counters.sent.packets, counted.flows.displaced), (1, 3, 9));
    let dropped = model::DropReason::ALL.iter().position(|reason| reason.name() == "rule_drop").unwrap();
    assert_eq!((counted.drops[dropped], counted.drops.iter().sum::<u64>()), (7, 7));
    let [(learn, idle)] = executor.learned_before()[..] else { panic!("one MAC") };
    assert_eq!((learn.at, learn.mac, idle), (BridgeTarget::Vif(VifId(5)), Mac([2, 0, 0, 0, 0, 2]), 105));
}

/// Whatever stands in the files is taken over or refused; what is entered has numbers of now.
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
                each(&record);
                Ok(())
            },
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
