//! Two queue pairs over a wire that loses, duplicates and reorders.

use crate::common;
use crate::common::{ADDRESS, ATOMICS, Memory, Pair, READ_ONLY, WRITABLE, attributes};
use packet::roce::{Nak, Opcode, Operation, Service, Syndrome};
use proptest::prelude::*;
use rdma::{Arrival, AtomicOperation, SendOperation, SendRequest, State, Status, With};
use std::time::Duration;

fn request(id: u64, operation: SendOperation, len: u32) -> SendRequest {
    SendRequest { id, operation, len, signaled: true, solicited: false, fence: false }
}

const SEND: SendOperation = SendOperation::Send(With::Nothing);

fn write_at(offset: u64) -> SendOperation {
    SendOperation::Write { address: ADDRESS + offset, rkey: WRITABLE, immediate: None }
}

#[derive(Clone, Debug)]
enum Ask {
    Send { len: u32, immediate: Option<[u8; 4]> },
    Write { offset: u64, len: u32, immediate: Option<[u8; 4]> },
    Read { offset: u64, len: u32 },
    Add(u64),
    Swap { hit: bool },
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let len = prop_oneof![Just(0_u32), 1_u32..300, 250_u32..260, 0_u32..9000];
    let offset = 0_u64..4096;
    let immediate = proptest::option::of(any::<[u8; 4]>());
    prop_oneof![
        (len.clone(), immediate.clone()).prop_map(|(len, immediate)| Ask::Send { len, immediate }),
        (offset.clone(), len.clone(), immediate).prop_map(|(offset, len, immediate)| Ask::Write {
            offset,
            len,
            immediate
        }),
        (offset, len).prop_map(|(offset, len)| Ask::Read { offset, len }),
        any::<u64>().prop_map(Ask::Add),
        any::<bool>().prop_map(|hit| Ask::Swap { hit }),
    ]
}

/// Posts a request, and records the expected result.
fn post(pair: &mut Pair, id: u64, ask: &Ask, expected: &mut Memory) {
    let bytes = |len: u32| -> Vec<u8> { (0..len).map(|i| (u64::from(i) * 7 + id * 13) as u8).collect() };
    let (operation, buffer) = match *ask {
        Ask::Send { len, immediate } => {
            pair.b.verbs.post_receive(id, len);
            expected.received.insert(id, bytes(len));
            (SendOperation::Send(immediate.map_or(With::Nothing, With::Immediate)), bytes(len))
        }
        Ask::Write { offset, len, immediate } => {
            if immediate.is_some() {
                pair.b.verbs.post_receive(id, 0);
            }
            expected.writable[offset as usize..][..len as usize].copy_from_slice(&bytes(len));
            (SendOperation::Write { address: ADDRESS + offset, rkey: WRITABLE, immediate }, bytes(len))
        }
        Ask::Read { offset, len } => {
            let read = expected.read_only[offset as usize..][..len as usize].to_vec();
            expected.local.insert(id, read);
            (SendOperation::Read { address: ADDRESS + offset, rkey: READ_ONLY }, vec![0; len as usize])
        }
        Ask::Add(add) => {
            expected.local.insert(id, expected.counter.to_ne_bytes().to_vec());
            expected.counter = expected.counter.wrapping_add(add);
            let operation = AtomicOperation::FetchAdd(add);
            (SendOperation::Atomic { address: ADDRESS, rkey: ATOMICS, operation }, vec![0; 8])
        }
        Ask::Swap { hit } => {
            expected.local.insert(id, expected.counter.to_ne_bytes().to_vec());
            let compare = if hit { expected.counter } else { expected.counter.wrapping_add(1) };
            expected.counter = if hit { id } else { expected.counter };
            let operation = AtomicOperation::CompareSwap { compare, swap: id };
            (SendOperation::Atomic { address: ADDRESS, rkey: ATOMICS, operation }, vec![0; 8])
        }
    };
    let len = buffer.len() as u32;
    pair.a.verbs.local.insert(id, buffer);
    pair.a.post(request(id, operation, len));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn everything_is_done_once_and_in_order(
        asks in proptest::collection::vec(any_ask(), 1..24),
        seed: u64,
        loss in 0_u32..=6,
        first_psn in prop_oneof![Just(0_u32), Just(0xff_fff8), any::<u32>()],
    ) {
        let mut pair = Pair::new(attributes(first_psn), seed);
        (pair.wire.loss, pair.wire.doubled, pair.wire.reordered) = (loss, loss / 2, loss / 2);
        let mut expected = Memory::default();
        for (id, ask) in asks.iter().enumerate() {
            post(&mut pair, id as u64, ask, &mut expected);
        }
        pair.run();
        let (a, b) = (&pair.a.verbs, &pair.b.verbs);
        let ended: Vec<_> = a.completions.iter().map(|done| (done.id, done.status)).collect();
        let all: Vec<_> = (0..asks.len() as u64).map(|id| (id, Status::Success)).collect();
        prop_assert_eq!(ended, all);
        prop_assert_eq!(&b.memory.writable, &expected.writable);
        prop_assert_eq!(b.memory.counter, expected.counter);
        prop_assert_eq!(&b.memory.received, &expected.received);
        for (id, bytes) in &expected.local {
            prop_assert_eq!(&a.local[id], bytes, "request {}", id);
        }
        let arrivals: Vec<_> = b.completions.iter().map(|done| {
            let received = done.received.unwrap();
            (done.id, done.len, received.by, received.immediate)
        }).collect();
        let wanted: Vec<_> = asks.iter().enumerate().filter_map(|(id, ask)| match *ask {
            Ask::Send { len, immediate } => Some((id as u64, len, Arrival::Send, immediate)),
            Ask::Write { len, immediate: Some(immediate), .. } => {
                Some((id as u64, len, Arrival::WriteWithImmediate, Some(immediate)))
            }
            _ => None,
        }).collect();
        prop_assert_eq!(arrivals, wanted);
    }

    /// Whatever arrives, nothing panics, and nobody else's memory is written.
    #[test]
    fn forged_packets_do_no_harm(packets in proptest::collection::vec(
        (any::<u8>().prop_filter_map("known", Opcode::from_byte), any::<[u32; 4]>(), 0_usize..300), 0..60,
    )) {
        let mut pair = Pair::new(attributes(0), 1);
        pair.a.verbs.local.insert(1, vec![7; 2000]);
        pair.a.post(request(1, SEND, 2000));
        pair.b.verbs.post_receive(1, 2000);
        let before = pair.b.verbs.memory.read_only.clone();
        for (opcode, numbers, len) in packets {
            let forged = common::forged(opcode, numbers, len);
            pair.a.receive(&forged, Duration::ZERO);
            pair.b.receive(&forged, Duration::ZERO);
            pair.a.qp.poll(Duration::ZERO, 64, &mut pair.a.verbs);
            pair.b.qp.poll(Duration::ZERO, 64, &mut pair.b.verbs);
        }
        prop_assert_eq!(&pair.b.verbs.memory.read_only, &before);
    }
}

fn ended(pair: &Pair) -> Vec<(u64, Status)> {
    pair.a.verbs.completions.iter().map(|done| (done.id, done.status)).collect()
}

fn pair() -> Pair {
    let mut pair = Pair::new(attributes(100), 1);
    for id in 0..4 {
        pair.a.verbs.local.insert(id, vec![id as u8; 600]);
    }
    pair
}

#[test]
fn a_wrong_key_ends_the_connection() {
    let mut pair = pair();
    let wrong = SendOperation::Write { address: ADDRESS, rkey: WRITABLE + 99, immediate: None };
    pair.a.post(request(0, write_at(0), 600));
    pair.a.post(request(1, wrong, 600));
    pair.a.post(request(2, write_at(0), 600));
    pair.b.verbs.post_receive(9, 10);
    pair.run();
    assert_eq!(ended(&pair), [(0, Status::Success), (1, Status::RemoteAccess), (2, Status::Flushed)]);
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (State::Error, State::Error));
    assert_eq!(
        pair.b.verbs.completions.iter().map(|done| (done.id, done.status)).collect::<Vec<_>>(),
        [(9, Status::Flushed)]
    );
    pair.a.post(request(3, write_at(0), 600));
    assert_eq!(ended(&pair).last(), Some(&(3, Status::Flushed)));
}

#[test]
fn memory_past_the_end_of_a_region_is_refused() {
    for operation in [write_at(common::SIZE as u64 - 599), write_at(u64::MAX - ADDRESS - 3)] {
        let mut pair = pair();
        pair.a.post(request(0, operation, 600));
        pair.run();
        assert_eq!(ended(&pair), [(0, Status::RemoteAccess)]);
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again() {
    let mut pair = pair();
    pair.a.post(request(0, SEND, 600));
    pair.a.post(request(1, SEND, 600));
    pair.run_until(Duration::from_millis(5));
    assert_eq!(ended(&pair), []);
    pair.b.verbs.post_receive(7, 600);
    pair.b.verbs.post_receive(8, 600);
    pair.run();
    assert_eq!(ended(&pair), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(pair.b.verbs.memory.received[&8], vec![1; 600]);
}

#[test]
fn a_receiver_that_never_is_ready_is_given_up() {
    let few = rdma::Attributes { rnr_retries: 2, ..attributes(0) };
    let mut pair = Pair::new(few, 1);
    pair.a.verbs.local.insert(0, vec![0; 10]);
    pair.a.post(request(0, SEND, 10));
    pair.run();
    assert_eq!(ended(&pair), [(0, Status::RnrRetryExceeded)]);
}

#[test]
fn a_peer_that_says_nothing_is_given_up() {
    let mut pair = pair();
    pair.wire.loss = 100;
    pair.a.post(request(0, write_at(0), 600));
    pair.run();
    assert_eq!(ended(&pair), [(0, Status::RetryExceeded)]);
    let attempts = 1 + u32::from(attributes(0).retries);
    // Three packets each time; 4.096 us times 2^10 between them.
    assert_eq!(pair.wire.lost, 3 * attempts);
    // The second wait is twice as long as the first, and the others are four times as long.
    let (least, most) = (4194 * (1 + 2 + 4 * 6), 4194 * 4 * u64::from(attempts));
    assert!((least..most).contains(&(pair.now.as_micros() as u64)), "{:?}", pair.now);
}

#[test]
fn a_message_longer_than_its_receive_ends_both() {
    let mut pair = pair();
    pair.b.verbs.post_receive(9, 599);
    pair.a.post(request(0, SEND, 600));
    pair.run();
    assert_eq!(ended(&pair), [(0, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.b.verbs.completions[0].status, Status::LocalLength);
}

#[test]
fn memory_of_the_sender_that_is_gone_fails_in_its_turn() {
    let mut pair = pair();
    pair.a.post(request(0, write_at(0), 600));
    pair.a.post(request(77, write_at(0), 600));
    pair.a.post(request(1, write_at(0), 600));
    pair.run();
    assert_eq!(ended(&pair), [(0, Status::Success), (77, Status::LocalProtection), (1, Status::Flushed)]);
}

#[test]
fn success_is_told_of_where_it_was_asked_for() {
    let mut pair = pair();
    for id in 0..3 {
        pair.a.post(SendRequest { signaled: id == 1, ..request(id, write_at(0), 600) });
    }
    pair.run();
    assert_eq!(ended(&pair), [(1, Status::Success)]);
    pair.a.qp.fail(&mut pair.a.verbs);
    assert_eq!(ended(&pair).len(), 1, "those that are done are not flushed");
}

#[test]
fn no_more_reads_are_under_way_than_agreed() {
    let mut pair = Pair::new(rdma::Attributes { reads: 2, peer_reads: 2, ..attributes(0) }, 3);
    pair.wire.loss = 5;
    for id in 0..40 {
        pair.a.verbs.local.insert(id, vec![0; 700]);
        let read = SendOperation::Read { address: ADDRESS, rkey: READ_ONLY };
        pair.a.post(request(id, read, 700));
    }
    pair.run();
    assert_eq!(ended(&pair), (0..40).map(|id| (id, Status::Success)).collect::<Vec<_>>());
}

/// Sends `count` messages over an unreliable wire, each filled with its number. Returns the numbers of those that
/// arrive whole, in order of arrival.
fn sent_unreliably(count: u64, loss: u32, seed: u64) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(rdma::Attributes { reliable: false, ..attributes(0xff_ff00) }, seed);
    pair.wire.loss = loss;
    for id in 0..count {
        pair.b.verbs.post_receive(id, 600);
        pair.a.verbs.local.insert(id, vec![id as u8; 600]);
        pair.a.post(request(id, SEND, 600));
    }
    pair.run();
    let came = |done: &rdma::Completion| {
        assert_eq!((done.status, done.len), (Status::Success, 600));
        let bytes = &pair.b.verbs.memory.received[&done.id];
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "of several messages");
        bytes[0]
    };
    let came = pair.b.verbs.completions.iter().map(came).collect();
    (pair, came)
}

#[test]
fn what_is_lost_on_an_unreliable_connection_is_lost() {
    let (pair, came) = sent_unreliably(100, 0, 1);
    assert_eq!(came, (0..100).collect::<Vec<u8>>());
    assert_eq!(ended(&pair), (0..100).map(|id| (id, Status::Success)).collect::<Vec<_>>());
    for seed in 1..20 {
        let (pair, came) = sent_unreliably(100, 5, seed);
        assert!(came.len() < 100 && came.len() > 50, "{}", came.len());
        assert!(came.is_sorted(), "{came:?}");
        assert_eq!(ended(&pair).len(), 100);
        // The messages that arrive use receives in order.
        let used: Vec<_> = pair.b.verbs.completions.iter().map(|done| done.id).collect();
        assert_eq!(used, (0..came.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn a_send_that_fails_on_an_unreliable_connection_stops_the_send_queue_alone() {
    let unreliable = rdma::Attributes { reliable: false, ..attributes(0xff_ffff) };
    let mut pair = Pair::new(unreliable, 1);
    (0..4).for_each(|id| drop(pair.a.verbs.local.insert(id, vec![id as u8; 600])));
    (0..4).for_each(|id| pair.b.verbs.post_receive(id, 600));
    pair.a.verbs.post_receive(9, 600);
    pair.b.verbs.local.insert(9, vec![9; 600]);
    for id in [0, 77, 1] {
        pair.a.post(request(id, SEND, 600));
    }
    pair.run();
    pair.a.post(request(2, SEND, 600));
    pair.b.post(request(9, SEND, 600));
    pair.run();
    assert_eq!(pair.a.qp.state(), State::SendQueueError);
    pair.a.qp.resume();
    pair.a.post(request(3, SEND, 600));
    pair.run();
    let (flushed, success) = (Status::Flushed, Status::Success);
    let wanted = [(0, success), (77, Status::LocalProtection), (1, flushed), (2, flushed), (9, success)];
    assert_eq!(ended(&pair)[..5], wanted);
    assert_eq!(ended(&pair)[5..], [(3, success)]);
    let came: Vec<_> = pair.b.verbs.memory.received.values().map(|bytes| (bytes[0], bytes.len())).collect();
    assert_eq!(came, [(0, 600), (3, 600)]);
}

#[test]
fn a_message_longer_than_its_receive_is_left_out_on_an_unreliable_connection() {
    // The first packet, or the last one, does not fit.
    for too_short in [200, 599] {
        let mut pair = Pair::new(rdma::Attributes { reliable: false, ..attributes(0) }, 1);
        pair.b.verbs.post_receive(8, too_short);
        pair.b.verbs.post_receive(9, 600);
        for (id, len) in [(0, 600), (1, 200), (2, 600)] {
            pair.a.verbs.local.insert(id, vec![id as u8; len]);
            pair.a.post(request(id, SEND, len as u32));
        }
        pair.run();
        let came: Vec<_> = pair.b.verbs.completions.iter().map(|done| (done.id, done.status)).collect();
        assert_eq!(came, [(8, Status::Success), (9, Status::Success)]);
        let received = &pair.b.verbs.memory.received;
        assert_eq!((&received[&8][..200], &received[&9]), (&[1; 200][..], &vec![2; 600]));
        // A receive of a shared queue does not wait here for the next message.
        pair.b.verbs.shares_receives = true;
        pair.b.verbs.post_receive(7, too_short);
        pair.a.verbs.local.insert(3, vec![0; 600]);
        pair.a.post(request(3, SEND, 600));
        pair.run();
        let last = pair.b.verbs.completions.last().unwrap();
        assert_eq!((last.id, last.status, pair.b.qp.state()), (7, Status::LocalLength, State::ReadyToSend));
    }
}

#[test]
fn answers_of_another_kind_or_length_end_the_connection() {
    let atomic =
        SendOperation::Atomic { address: ADDRESS, rkey: ATOMICS, operation: AtomicOperation::FetchAdd(1) };
    let read = SendOperation::Read { address: ADDRESS, rkey: READ_ONLY };
    for (asked, len, answer, payload) in [
        (atomic, 8, Operation::ReadOnly, 8),
        (atomic, 8, Operation::ReadOnly, 200),
        (read, 8, Operation::AtomicAcknowledge, 0),
        (read, 8, Operation::ReadOnly, 9),
        (read, 8, Operation::ReadFirst, 8),
        (read, 300, Operation::ReadOnly, 256),
    ] {
        let mut pair = Pair::new(attributes(0), 1);
        pair.a.verbs.local.insert(1, vec![7; len as usize]);
        pair.a.post(request(1, asked, len));
        pair.a.qp.poll(Duration::ZERO, 64, &mut pair.a.verbs);
        let opcode = Opcode::of(Service::Rc, answer).unwrap();
        // This is PSN 0, with any acknowledgement.
        pair.a.receive(&common::forged(opcode, [0, 0, 0, 0x1f], payload), Duration::ZERO);
        assert_eq!(ended(&pair), [(1, Status::LocalLength)], "{} for {asked:?}", answer.name());
        assert!(pair.a.verbs.local[&1].iter().all(|byte| *byte == 7), "nothing was written");
    }
}

#[test]
fn a_message_longer_than_psns_reach_is_refused() {
    for operation in [Operation::ReadRequest, Operation::WriteFirst] {
        let mut pair = Pair::new(attributes(0), 1);
        let opcode = Opcode::of(Service::Rc, operation).unwrap();
        pair.b.receive(&common::forged(opcode, [0, 0, 0, u32::MAX], 256), Duration::ZERO);
        pair.b.qp.poll(Duration::ZERO, 64, &mut pair.b.verbs);
        let answer = pair.b.verbs.sent().unwrap();
        let syndrome = packet::roce::parse(&answer).unwrap().aeth.unwrap().syndrome;
        assert_eq!(syndrome, Syndrome::Nak(Nak::InvalidRequest));
    }
}
