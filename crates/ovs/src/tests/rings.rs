//! Compares rings with a queue, and tests them with a driver that writes anything anywhere.

use crate::port::{self, OvsPort};
use crate::ring::{Next, Outgoing, Rings, SLOT, SLOTS, Way};
use mem::{Burst, Csum, NoRoom, Offload, gather, scatter};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

const PLAIN: [u8; 10] = [0; 10];

fn frame(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// The driver sends frames of these lengths.
    Send(Vec<usize>),
    Poll(usize),
    /// The worker sends frames of these lengths.
    Reserve(Vec<usize>),
    /// The driver receives as many frames.
    Receive(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![14..100_usize, 1400..1515_usize, SLOT - 1..SLOT + 2, Just(9000), Just(65_000)];
    let lens = || proptest::collection::vec(len(), 1..40);
    let step = prop_oneof![
        lens().prop_map(Step::Send),
        (1_usize..200_000).prop_map(Step::Poll),
        lens().prop_map(Step::Reserve),
        (1_usize..40).prop_map(Step::Receive),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn frames_come_out_as_they_went_in(steps in steps()) {
        let (shared, mut opened) = port::open(OvsPort { name: "p".into(), mtu: 1500 }).unwrap();
        let rings = Arc::new(Rings::create().unwrap().0);
        let _bell = shared.give_to(rings.clone()).unwrap();
        shared.set_mtu(65_000);
        let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
        let (mut send, mut receive, mut seed) = (0, 0, 0_u8);
        let mut burst = Burst::new();
        for step in steps {
            seed = seed.wrapping_add(1);
            match step {
                Step::Send(lens) => for len in lens {
                    let frame = frame(seed, len);
                    if rings.send(&mut send, &frame, PLAIN) {
                        up.push_back(frame);
                    }
                },
                Step::Poll(budget) => {
                    let count = opened.rx[0].poll(&mut burst, budget);
                    prop_assert_eq!(count == 0, up.is_empty());
                    for packet in burst.packets() {
                        let mut seen = vec![0; packet.len as usize];
                        gather(burst.segments(packet), 0, &mut seen);
                        prop_assert_eq!(Some(seen), up.pop_front());
                    }
                    opened.rx[0].release(&mut burst);
                }
                Step::Reserve(lens) => {
                    opened.tx[0].burst(&mut |room| for len in &lens {
                        let frame = frame(seed, *len);
                        if let Ok(segments) = room.reserve(*len, &Offload::default()) {
                            scatter(&frame, segments, 0);
                            down.push_back(frame);
                        }
                    });
                }
                Step::Receive(count) => for _ in 0..count {
                    prop_assert_eq!(rings.receive(&mut receive), down.pop_front());
                },
            }
        }
        prop_assert_eq!(shared.malformed(), 0);
    }
}

#[test]
fn a_ring_takes_what_fits_and_no_more() {
    let (shared, opened) = port::open(OvsPort { name: "p".into(), mtu: 1500 }).unwrap();
    let reserve = |len: usize| {
        let mut last = Ok(());
        opened.tx[0].burst(&mut |room| last = room.reserve(len, &Offload::default()).map(drop));
        last
    };
    assert_eq!(reserve(100), Err(NoRoom::Down));
    let rings = Arc::new(Rings::create().unwrap().0);
    let _bell = shared.give_to(rings.clone()).unwrap();
    assert_eq!(reserve(1500 + 14 + 9), Err(NoRoom::TooLong));
    for _ in 0..SLOTS {
        assert_eq!(reserve(1500 + 14 + 8), Ok(()));
    }
    assert_eq!(reserve(14), Err(NoRoom::Full));
    let mut next = 0;
    assert!(rings.receive(&mut next).is_some());
    assert_eq!((reserve(14), reserve(14)), (Ok(()), Err(NoRoom::Full)));
    shared.take_away();
    assert_eq!(reserve(14), Err(NoRoom::Down));
}

/// Guests wait for a driver that has the port and has it up, but not for one that is gone.
#[test]
fn a_ring_says_that_it_is_nearly_full() {
    let (shared, opened) = port::open(OvsPort { name: "p".into(), mtu: 1500 }).unwrap();
    let tx = &opened.tx[0];
    assert!(tx.has_room());
    let rings = Arc::new(Rings::create().unwrap().0);
    let _bell = shared.give_to(rings.clone()).unwrap();
    let send = |frames| {
        tx.burst(&mut |room| assert!((0..frames).all(|_| room.reserve(60, &Offload::default()).is_ok())));
    };
    let bursts = 2 * mem::BURST as u32;
    send(SLOTS - bursts);
    assert!(tx.has_room());
    send(1);
    assert!(!tx.has_room());
    assert!(rings.receive(&mut 0).is_some() && tx.has_room());
    send(bursts);
    assert!(!tx.has_room());
    shared.set_down(true);
    assert!(tx.has_room());
    shared.set_down(false);
    assert!(!tx.has_room());
    shared.take_away();
    assert!(tx.has_room());
}

#[test]
fn a_worker_that_sleeps_is_woken() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (shared, mut opened) = port::open(OvsPort { name: "p".into(), mtu: 1500 }).unwrap();
    let rx = &mut opened.rx[0];
    let readable = |rx: &dyn mem::RxQueue| {
        let event = rx.event_fd();
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
    };
    assert!(!rx.arm() && !readable(&**rx));
    // A driver comes.
    let rings = Arc::new(Rings::create().unwrap().0);
    let _bell = shared.give_to(rings.clone()).unwrap();
    assert!(readable(&**rx));
    rx.disarm();
    assert!(!rx.arm() && rings.is_asleep() && !readable(&**rx));
    let mut next = 0;
    assert!(rings.send(&mut next, &frame(1, 60), PLAIN));
    rx.disarm();
    assert!(!rings.is_asleep() && rx.arm());
    rx.disarm();
    let mut burst = Burst::new();
    assert_eq!(rx.poll(&mut burst, 1000), 1);
    rx.release(&mut burst);
    assert!(!rx.arm());
}

#[test]
fn what_is_unfinished_is_told() {
    let rings = Arc::new(Rings::create().unwrap().0);
    let mut ring = crate::ring::Incoming::new(rings.clone());
    let mut next = 0;
    // A large TCP segment: partial checksum, TSO over IPv4, headers of 54 bytes, segments of 1400.
    let header = [1, 1, 54, 0, 120, 5, 34, 0, 16, 0];
    assert!(rings.send(&mut next, &frame(1, 5000), header));
    let Next::Packet(_, 5000, Offload { csum, gso: Some(gso) }) = ring.take() else { panic!("a packet") };
    assert_eq!(csum, mem::Csum::Partial { start: 34, offset: 16 });
    assert_eq!((gso.v6, gso.size, gso.hdr_len), (false, 1400, 54));
    // A checksum outside of the frame; too short for a frame; unknown segmentation.
    for (len, header) in
        [(60, [1, 0, 0, 0, 0, 0, 58, 0, 6, 0]), (13, PLAIN), (60, [1, 9, 0, 0, 1, 0, 14, 0, 0, 0])]
    {
        assert!(rings.send(&mut next, &frame(1, len), header));
        assert!(matches!(ring.take(), Next::Malformed));
    }
    assert!(matches!(ring.take(), Next::Empty));
}

#[test]
fn a_right_checksum_is_told() {
    let (shared, opened) = port::open(OvsPort { name: "p".into(), mtu: 1500 }).unwrap();
    let rings = Arc::new(Rings::create().unwrap().0);
    let _bell = shared.give_to(rings.clone()).unwrap();
    opened.tx[0].burst(&mut |room| {
        assert!(room.tells_valid());
        for csum in [Csum::Valid, Csum::Unknown] {
            assert!(room.reserve(60, &Offload { csum, gso: None }).is_ok());
        }
    });
    // As in protocol.h: the first descriptions, of a length and flags.
    let described = |index: usize| [0, 4].map(|at| rings.word_at(4096 + 256 + index * 16 + at));
    assert_eq!([0, 1].map(described), [[60, 2], [60, 0]]);
}

#[test]
fn the_flow_of_a_packet_is_told() {
    let (shared, opened) = port::open(OvsPort { name: "p".into(), mtu: 1500 }).unwrap();
    let rings = Arc::new(Rings::create().unwrap().0);
    let _bell = shared.give_to(rings.clone()).unwrap();
    opened.tx[0].burst(&mut |room| {
        for flow in [None, Some(0), Some(7), None] {
            room.mark(flow);
            assert!(room.reserve(60, &Offload::default()).is_ok());
        }
    });
    let described = |index: usize| [8, 12].map(|at| rings.word_at(4096 + 256 + index * 16 + at));
    assert_eq!([0, 1, 2, 3].map(described), [[0, 0], [1, 0], [8, 0], [0, 0]]);
}

/// Words are written anywhere in the memory, between polls and sends. Nothing may panic or read outside, and
/// every poll must end.
#[test]
fn scribbles() {
    bolero::check!().with_type::<Vec<(u8, u32, u32)>>().for_each(|steps| {
        let (shared, mut opened) = port::open(OvsPort { name: "p".into(), mtu: 1500 }).unwrap();
        let rings = Arc::new(Rings::create().unwrap().0);
        let _bell = shared.give_to(rings.clone()).unwrap();
        let (mut burst, mut next) = (Burst::new(), 0);
        for (what, at, value) in steps {
            match what % 8 {
                0 => {
                    opened.rx[0].poll(&mut burst, 100_000);
                    for packet in burst.packets() {
                        let mut seen = vec![0; packet.len as usize];
                        assert_eq!(gather(burst.segments(packet), 0, &mut seen), seen.len());
                    }
                    opened.rx[0].release(&mut burst);
                }
                1 => {
                    let len = 14 + (*value % 1500) as usize;
                    opened.tx[0].burst(&mut |room| {
                        if let Ok(segments) = room.reserve(len, &Offload::default()) {
                            assert_eq!(scatter(&vec![7; len], segments, 0), len);
                        }
                    });
                }
                2 => drop(rings.send(&mut next, &frame(1, 14 + (*value % 9000) as usize), PLAIN)),
                // The words that matter: indexes and descriptions.
                3 => rings.poke(4096 + (*at as usize % 2) * (256 + 512 * 16), *value),
                4 => rings.poke(4096 + 128 + (*at as usize % 2) * (256 + 512 * 16), *value),
                5 => rings.poke(4096 + 256 + 8448 + (*at as usize % 8192), *value),
                6 => rings.poke(*at as usize, *value),
                _ => {
                    let _ = opened.rx[0].arm();
                    opened.rx[0].disarm();
                }
            }
        }
    });
}

#[test]
fn the_heads_of_both_rings_are_where_the_driver_looks() {
    let rings = Arc::new(Rings::create().unwrap().0);
    let mut ring = Outgoing::new(rings.clone());
    // As in protocol.h: a page, then two rings of 256 + 512 * 16 bytes.
    assert_eq!(ring.reserve(100, false).map(<[_]>::len), Some(1));
    ring.publish();
    rings.poke(4096 + 128, 1);
    assert_eq!(rings.word_at(4096), 1);
    assert_eq!(Way::FromDriver as usize, 1);
}
