//! Short messages: their effects equal those of their packets.

use crate::common::{ADDRESS, ATOMICS, Memory, Pair, READ_ONLY, SIZE, Side, WRITABLE, attributes};
use proptest::prelude::*;
use rdma::{AtomicOperation, Attributes, SendOperation, SendRequest, Status, With};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Ask {
    operation: SendOperation,
    len: u32,
    /// The receive that is posted for the message before, if one is: how much longer than the message it is.
    receive: Option<i32>,
    signaled: bool,
    solicited: bool,
    fence: bool,
    has_memory: bool,
}

#[derive(Clone, Debug)]
enum Move {
    /// One side posts requests, before packets are carried.
    Post(bool, Vec<Ask>),
    /// One side posts a receive.
    Receive(bool, u32),
    Wait(Duration),
}

fn mostly<T: Clone + std::fmt::Debug + 'static>(usual: T, other: T) -> impl Strategy<Value = T> {
    prop_oneof![9 => Just(usual), 1 => Just(other)]
}

fn any_operation(reliable: bool) -> impl Strategy<Value = SendOperation> {
    let address = (prop_oneof![8 => 0..4000_u64, 1 => SIZE as u64 - 100..SIZE as u64, 1 => any::<u64>()])
        .prop_map(|offset| ADDRESS.wrapping_add(offset));
    let with = prop_oneof![
        3 => Just(With::Nothing),
        3 => any::<[u8; 4]>().prop_map(With::Immediate),
        1 => Just(With::Invalidate(7))
    ];
    let send = with.prop_map(SendOperation::Send);
    let immediate = mostly(None, Some([1, 2, 3, 4]));
    let write = (address.clone(), mostly(WRITABLE, READ_ONLY), immediate)
        .prop_map(|(address, rkey, immediate)| SendOperation::Write { address, rkey, immediate });
    let read = (address, mostly(READ_ONLY, WRITABLE))
        .prop_map(|(address, rkey)| SendOperation::Read { address, rkey });
    let operation = AtomicOperation::FetchAdd(3);
    let add = Just(SendOperation::Atomic { address: ADDRESS, rkey: ATOMICS, operation });
    let others = if reliable { 1 } else { 0 };
    prop_oneof![6 => send, 6 => write, 6 * others => read, others => add]
}

fn any_ask(reliable: bool) -> impl Strategy<Value = Ask> {
    let len = prop_oneof![6 => 0_u32..=128, 1 => 129_u32..=300, 1 => 300_u32..2000];
    let receive = prop_oneof![12 => (0..9).prop_map(Some), 1 => Just(None), 1 => (-9..0).prop_map(Some)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (any_operation(reliable), len, receive, flags, mostly(true, false)).prop_map(
        |(operation, len, receive, (signaled, solicited, fence), has_memory)| Ask {
            operation,
            len,
            receive,
            signaled,
            solicited,
            fence,
            has_memory,
        },
    )
}

fn any_move(reliable: bool) -> impl Strategy<Value = Move> {
    let asks = prop_oneof![
        3 => proptest::collection::vec(any_ask(reliable), 1..2),
        1 => proptest::collection::vec(any_ask(reliable), 1..6)
    ];
    prop_oneof![
        12 => (any::<bool>(), asks).prop_map(|(side, asks)| Move::Post(side, asks)),
        1 => (any::<bool>(), 0_u32..300).prop_map(|(side, len)| Move::Receive(side, len)),
        1 => (0_u64..5000).prop_map(|micros| Move::Wait(Duration::from_micros(micros))),
    ]
}

fn any_program() -> impl Strategy<Value = (Attributes, Attributes, bool, Vec<Move>)> {
    (mostly(true, false), any::<bool>()).prop_flat_map(|(reliable, shares)| {
        let psn = prop_oneof![Just(0_u32), Just(0xff_fffc), any::<u32>()];
        let attributes = (psn, mostly(0xffff_u16, 0x7ffe), mostly(4_u8, 0), mostly(7_u8, 0)).prop_map(
            move |(psn, partition, peer_reads, rnr_retries)| {
                let common = attributes(psn);
                let theirs = Attributes { reliable, partition, peer_reads, ..common };
                (Attributes { reliable, rnr_retries, ..common }, theirs)
            },
        );
        let moves = proptest::collection::vec(any_move(reliable), 1..16);
        (attributes, moves).prop_map(move |((ours, theirs), moves)| (ours, theirs, shares, moves))
    })
}

/// Returns all visible state of a pair, including the inside of its queue pairs, but not its memory.
fn seen(pair: &Pair) -> String {
    let of = |side: &Side| format!("{:?} {:?} {:?}", side.qp, side.verbs.completions, side.verbs.receives);
    format!("{}\n{}", of(&pair.a), of(&pair.b))
}

fn memory(pair: &Pair) -> [(&Memory, &BTreeMap<u64, Vec<u8>>); 2] {
    [&pair.a, &pair.b].map(|side| (&side.verbs.memory, &side.verbs.local))
}

/// Makes a request, with the receive and the memory that belong to it.
fn prepare(pair: &mut Pair, id: u64, ask: &Ask) -> SendRequest {
    if let Some(more) = ask.receive {
        pair.b.verbs.post_receive(id, ask.len.saturating_add_signed(more));
    }
    let Ask { operation, len, signaled, solicited, fence, has_memory, .. } = *ask;
    let is_atomic = matches!(operation, SendOperation::Atomic { .. });
    let len = if is_atomic { 8 } else { len };
    if has_memory {
        pair.a.verbs.local.insert(id, (0..len).map(|at| (u64::from(at) + id) as u8).collect());
    }
    SendRequest { id, operation, len, signaled, solicited, fence }
}

/// Plays a move in two pairs: in one with short messages, and in the other with their packets. Each packet is carried
/// with the answer to it before the next request. Returns the lengths that these packets are said to have, their real
/// lengths, and those of all other packets.
fn play([with, without]: &mut [Pair; 2], number: usize, each: &Move) -> [Vec<usize>; 3] {
    let (mut said, mut carried) = (Vec::new(), Vec::new());
    match each {
        Move::Post(by_a, asks) => {
            let turn = |pair: &mut Pair| {
                if !by_a {
                    std::mem::swap(&mut pair.a, &mut pair.b);
                }
            };
            for (at, ask) in asks.iter().enumerate() {
                let id = (number * 100 + at) as u64;
                [&mut *with, &mut *without].into_iter().for_each(turn);
                let [one, other] = [&mut *with, &mut *without].map(|pair| prepare(pair, id, ask));
                let passed = with.post_short(one);
                without.a.post(other);
                [&mut *with, &mut *without].into_iter().for_each(turn);
                if let Some((request, answer)) = passed {
                    said.extend([Some(request), answer].into_iter().flatten());
                    carried.extend(without.settle());
                }
            }
        }
        Move::Receive(of_a, len) => {
            for pair in [&mut *with, &mut *without] {
                let side = if *of_a { &mut pair.a } else { &mut pair.b };
                side.verbs.post_receive(10_000 + number as u64, *len);
            }
        }
        Move::Wait(time) => [&mut *with, &mut *without].into_iter().for_each(|pair| pair.now += *time),
    }
    let [others, same] = [with, without].map(Pair::settle);
    assert_eq!(others, same);
    [said, carried, others]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn short_messages_leave_what_their_packets_would_leave((ours, theirs, shares, moves) in any_program()) {
        let mut pairs = [(); 2].map(|()| Pair::of(ours, theirs));
        for pair in &mut pairs {
            pair.a.verbs.shares_receives = shares;
            pair.b.verbs.shares_receives = shares;
        }
        for (number, each) in moves.iter().enumerate() {
            let [said, carried, _] = play(&mut pairs, number, each);
            prop_assert_eq!(said, carried);
            let [with, without] = &pairs;
            prop_assert_eq!(seen(with), seen(without), "after {:?}", each);
            prop_assert!(memory(with) == memory(without), "after {:?}", each);
        }
    }
}

fn ask(operation: SendOperation, len: u32) -> Ask {
    let (signaled, solicited, fence) = (true, true, true);
    Ask { operation, len, receive: Some(0), signaled, solicited, fence, has_memory: true }
}

#[test]
fn only_what_is_short_needs_no_packets() {
    let write =
        |immediate, len| ask(SendOperation::Write { address: ADDRESS, rkey: WRITABLE, immediate }, len);
    let read = |len| ask(SendOperation::Read { address: ADDRESS, rkey: READ_ONLY }, len);
    let send = |with, len| ask(SendOperation::Send(with), len);
    let operation = AtomicOperation::FetchAdd(3);
    let add = ask(SendOperation::Atomic { address: ADDRESS, rkey: ATOMICS, operation }, 8);
    let short = [
        write(None, 0),
        write(None, 128),
        read(1),
        read(128),
        send(With::Nothing, 8),
        send(With::Immediate([1; 4]), 128),
    ];
    let played = |each: &Ask| {
        let mut pairs = [(); 2].map(|()| Pair::new(attributes(5), 1));
        let lengths = play(&mut pairs, 0, &Move::Post(true, vec![each.clone()]));
        assert_eq!(pairs[0].a.verbs.completions.last().unwrap().status, Status::Success);
        lengths.map(|lengths| lengths.len())
    };
    for each in &short {
        assert_eq!(played(each), [2, 2, 0], "{each:?}");
    }
    let others = [write(None, 129), write(Some([1; 4]), 8), read(129), send(With::Nothing, 129), add];
    for each in &others {
        assert_eq!(played(each), [0, 0, 2], "{each:?}");
    }
}

#[test]
fn a_short_message_does_not_overtake_others() {
    let long = ask(SendOperation::Write { address: ADDRESS, rkey: WRITABLE, immediate: None }, 200);
    let short = Ask { len: 8, ..long.clone() };
    let mut pairs = [(); 2].map(|()| Pair::new(attributes(5), 1));
    let [said, _, others] = play(&mut pairs, 0, &Move::Post(true, vec![short.clone(), long, short]));
    // The first message is short. Acknowledgements of packets that come together are combined.
    assert_eq!((said.len(), others.len()), (2, 3));
    assert_eq!(pairs[0].a.verbs.completions.len(), 3);
    assert_eq!(pairs[0].b.verbs.memory.writable[..8], (2..10).collect::<Vec<u8>>());
}
