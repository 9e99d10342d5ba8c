//! The whole engine: threads, queues, tables that change under traffic.

use super::world::{WIRE, neighbours, some_change, tables};
use crate::message::Message;
use crate::testing::{Packet, TestPort};
use crate::{Engine, EngineConfig};
use executor::Executor;
use mem::{Accepts, Offload};
use model::generate::Rng;
use model::{Change, Forward, Unasked, VifId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ALL: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };

fn engine(workers: usize) -> Arc<Engine> {
    let config = EngineConfig {
        workers: vec![None; workers],
        cache_entries: 1 << 12,
        announces: false,
        ..EngineConfig::default()
    };
    let engine = Engine::new(&config).unwrap();
    engine.apply(&tables()).unwrap();
    engine
}

/// Builds a frame of flow `flow` with its number in the payload.
fn numbered(flow: u16, number: u32) -> Packet {
    let text = format!(
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / udp {flow} > 53 nosum / payload 30"
    );
    let mut frame = model::text::parse(&text).unwrap();
    let at = frame.len() - 4;
    frame[at..].copy_from_slice(&number.to_be_bytes());
    (frame, Offload::default())
}

fn number_of(frame: &[u8]) -> (u16, u32) {
    let flow = u16::from_be_bytes([frame[34], frame[35]]);
    (flow, u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap()))
}

#[test]
fn what_is_asked_for_is_counted_to_the_last_packet() {
    let engine = engine(2);
    let (one, two) = (TestPort::new(ALL, 1000), TestPort::new(ALL, 1000));
    engine.attach(VifId(1), one.open()).unwrap();
    engine.attach(VifId(2), two.open()).unwrap();
    let counted = || {
        let mut packets = 0;
        engine.flows(&mut |flow| {
            packets += flow.forward.packets;
            true
        });
        packets
    };
    let mut sent = 0;
    for round in 1..=20 {
        one.send((0..round).map(|number| numbered(7, number)));
        assert_eq!(two.wait(round as usize, PATIENCE).len(), round as usize);
        sent += u64::from(round);
        engine.settle();
        assert_eq!(counted(), sent);
    }
}

#[test]
fn a_packet_goes_from_guest_to_guest_and_wakes_a_sleeping_worker() {
    let engine = engine(2);
    let (one, two) = (TestPort::new(ALL, 100), TestPort::new(ALL, 100));
    engine.attach(VifId(1), one.open()).unwrap();
    engine.attach(VifId(2), two.open()).unwrap();
    for number in 0..3 {
        let slept = || engine.workers().iter().map(|w| w.sleeps).sum::<u64>();
        let before = slept();
        while number > 0 && slept() == before {
            std::thread::yield_now();
        }
        one.send([numbered(7, number)]);
        let got = two.wait(1, PATIENCE);
        assert_eq!(got.iter().map(|(frame, _)| number_of(frame)).collect::<Vec<_>>(), [(7, number)]);
        // This wakes all workers, so that they can be seen to sleep again.
        let _ = engine.status(VifId(1));
        engine.flush_flows(&mut |_| false);
    }
    assert_eq!(engine.vif_counters(VifId(2)).sent.packets, 3);
    assert_eq!(engine.flows_created(), 1);
}

#[test]
fn packets_wait_while_the_workers_pause() {
    let engine = engine(2);
    let (one, two) = (TestPort::new(ALL, 100), TestPort::new(ALL, 100));
    engine.attach(VifId(1), one.open()).unwrap();
    for round in 0..3 {
        engine.pause().unwrap();
        // Paused workers obey all other messages.
        engine.attach(VifId(2), two.open()).unwrap();
        engine.flush_flows(&mut |_| true);
        one.send((0..10).map(|number| numbered(7, number)));
        assert!(two.wait(1, Duration::from_millis(50)).is_empty());
        engine.resume();
        let got = two.wait(10, PATIENCE);
        assert_eq!(got.len(), 10, "round {round}");
        assert!(got.iter().zip(0..).all(|((frame, _), number)| number_of(frame) == (7, number)));
        engine.detach(VifId(2));
        engine.resume();
    }
    engine.pause().unwrap();
    drop(engine);
}

#[test]
fn nothing_of_the_host_is_sent_while_the_workers_pause() {
    let engine = engine(1);
    let one = TestPort::new(ALL, 100);
    engine.attach(VifId(1), one.open()).unwrap();
    engine.pause().unwrap();
    let (frame, _) = numbered(7, 1);
    let told = Unasked { frame: frame.clone(), to: vec![Forward::unchanged(VifId(1))], missing: None };
    engine.common.workers[0].mailbox.post(Message::Tell(told, None));
    // When the worker has obeyed this, it has read the message before it.
    engine.flush_flows(&mut |_| true);
    assert!(one.take().is_empty());
    engine.resume();
    let got = one.wait(1, PATIENCE);
    assert_eq!(got.iter().map(|(frame, _)| frame).collect::<Vec<_>>(), [&frame]);
}

#[test]
fn a_detached_port_is_let_go() {
    let engine = engine(2);
    let (one, two) = (TestPort::new(ALL, 100), TestPort::new(ALL, 100));
    engine.attach(VifId(1), one.open()).unwrap();
    engine.attach(VifId(2), two.open()).unwrap();
    assert!(engine.attach(VifId(2), two.open()).is_err());
    assert!(engine.detach(VifId(2)));
    assert!(!engine.detach(VifId(2)));
    assert!(two.is_alone(), "somebody still holds the queues");
    one.send([numbered(7, 1)]);
    while engine.vif_counters(VifId(1)).receive_drops == 0 {
        std::thread::yield_now();
    }
    engine.attach(VifId(2), two.open()).unwrap();
    one.send([numbered(7, 2)]);
    assert_eq!(two.wait(1, PATIENCE).len(), 1);
    assert_eq!(engine.dropped(10).len(), 1);
}

#[test]
fn an_answer_comes_from_the_gateway() {
    let engine = engine(1);
    let one = TestPort::new(ALL, 100);
    engine.attach(VifId(1), one.open()).unwrap();
    let ping =
        "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.1.1.254 / icmp echo 1 1 / payload 56";
    one.send([(model::text::parse(ping).unwrap(), Offload::default())]);
    let answer = one.wait(1, PATIENCE);
    assert_eq!(answer[0].0[34], packet::proto::ICMP_ECHO_REPLY);
}

/// Routes, rules and interfaces change all the time. Flows that they do not concern lose nothing, get nothing twice,
/// and stay in order.
#[test]
fn nothing_is_lost_twice_or_out_of_order_while_tables_change() {
    const FLOWS: u16 = 32;
    const PACKETS: u32 = if cfg!(debug_assertions) { 1_500 } else { 20_000 };
    let engine = engine(3);
    for neighbour in neighbours() {
        engine.tables().neighbour(&engine.tables().snapshot(), &neighbour, WIRE, 0);
    }
    let senders: Vec<_> = (0..4).map(|_| TestPort::new(ALL, 100)).collect();
    let receivers: Vec<_> = (0..4).map(|_| TestPort::new(ALL, 100)).collect();
    let wire = TestPort::new(ALL, 100);
    engine.attach(VifId(1), TestPort::open_all(&senders)).unwrap();
    engine.attach(VifId(2), TestPort::open_all(&receivers)).unwrap();
    engine.attach(WIRE, wire.open()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(9);
            while !done.load(Ordering::Relaxed) {
                let changes = some_change(&mut rng);
                // The watched guests stay as they are.
                if !matches!(changes[..], [Change::PutVif(_)]) {
                    engine.apply(&changes).unwrap();
                }
            }
        });
        let mut next = vec![0_u32; usize::from(FLOWS)];
        for number in 0..PACKETS {
            for flow in 0..FLOWS {
                senders[usize::from(flow % 4)].send([numbered(2000 + flow, number)]);
            }
            if number % 64 == 63 {
                let expected = usize::from(FLOWS) * (number as usize + 1);
                collect(&receivers, &mut next, expected);
            }
        }
        collect(&receivers, &mut next, usize::from(FLOWS) * PACKETS as usize);
        done.store(true, Ordering::Relaxed);
        assert!(next.iter().all(|n| *n == PACKETS), "{next:?}");
    });
    // A worker counts a burst after it has delivered it.
    engine.settle();
    let total = u64::from(FLOWS) * u64::from(PACKETS);
    assert_eq!(engine.vif_counters(VifId(2)).sent.packets, total);
}

/// Takes packets until `expected` have come in all, and checks that each flow's packets come in order.
fn collect(receivers: &[TestPort], next: &mut [u32], expected: usize) {
    let start = std::time::Instant::now();
    while next.iter().map(|n| *n as usize).sum::<usize>() < expected {
        assert!(start.elapsed() < PATIENCE, "lost: {next:?} of {expected}");
        for receiver in receivers {
            for (frame, _) in receiver.wait(1, Duration::from_millis(1)) {
                let (flow, number) = number_of(&frame);
                let wanted = &mut next[usize::from(flow - 2000)];
                assert_eq!(number, *wanted, "flow {flow}");
                *wanted += 1;
            }
        }
    }
}

#[test]
fn a_service_answers_to_the_port_that_asked() {
    let engine = engine(2);
    let (six, mirror) = (TestPort::new(ALL, 1000), TestPort::new(ALL, 1000));
    engine.attach(VifId(6), six.open()).unwrap();
    engine.attach(super::world::MIRROR, mirror.open()).unwrap();
    assert!(engine.questions().is_some() && engine.questions().is_none());
    let frame = numbered(1, 1).0;
    assert!(engine.answer(VifId(6), frame.clone(), None) && !engine.answer(VifId(4000), frame.clone(), None));
    engine.tell_all(|| Message::Answer);
    let got = |port: &TestPort| port.take().into_iter().map(|(frame, _)| frame).collect::<Vec<_>>();
    assert_eq!((got(&six), got(&mirror)), (vec![frame.clone()], vec![frame]));
}
