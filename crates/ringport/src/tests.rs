#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::{Downlink, RingPort, Uplink, open};
use mem::{Burst, Csum, Gso, NoRoom, Offload, Opened, RxQueue, gather};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;

fn port(slots: u32) -> (Opened, Uplink, Downlink) {
    open(&RingPort { mtu: 1500, slots }).unwrap()
}

/// Sends a frame that begins with its number, from which every other byte derives.
fn send(uplink: &Uplink, number: u32, len: usize) -> bool {
    let sent = uplink.send(len, |frame| {
        frame.fill(number as u8);
        frame[..4].copy_from_slice(&number.to_le_bytes());
    });
    uplink.ring();
    sent
}

fn number(frame: &[u8]) -> u32 {
    let (head, rest) = frame.split_at(4);
    let number = u32::from_le_bytes(head.try_into().unwrap());
    assert!(rest.iter().all(|byte| *byte == number as u8), "frame {number} is torn");
    number
}

fn take(rx: &mut dyn RxQueue, budget: usize) -> Vec<u32> {
    let mut burst = Burst::new();
    rx.poll(&mut burst, budget);
    let frame = |packet| {
        let mut frame = vec![0; 2000];
        let len = gather(burst.segments(packet), 0, &mut frame);
        assert_eq!(len, packet.len as usize);
        number(&frame[..len])
    };
    let numbers = burst.packets().iter().map(frame).collect();
    rx.release(&mut burst);
    assert!(burst.is_empty());
    numbers
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

fn sleep(fd: BorrowedFd<'_>) {
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
}

#[test]
fn frames_reach_the_worker_in_order() {
    let (mut opened, uplink, _downlink) = port(4);
    let rx = &mut *opened.rx[0];
    for round in 0..5 {
        assert!((0..4).all(|n| send(&uplink, round * 4 + n, 60 + n as usize)));
        assert_eq!(take(rx, usize::MAX), [0, 1, 2, 3].map(|n| round * 4 + n));
        assert!(take(rx, usize::MAX).is_empty());
    }
}

#[test]
fn what_is_left_to_do_travels_beside_a_frame() {
    let (mut opened, uplink, _downlink) = port(2);
    let gso = Gso { v6: true, size: 1400, hdr_len: 74, ecn: true };
    let large = Offload { csum: Csum::Partial { start: 54, offset: 16 }, gso: Some(gso) };
    let valid = Offload { csum: Csum::Valid, gso: None };
    let (rx, mut burst) = (&mut *opened.rx[0], Burst::new());
    for offloads in [[large, valid], [Offload::default(), large], [valid, Offload::default()]] {
        offloads.iter().for_each(|offload| assert!(uplink.send_unfinished(100, offload, |_| {})));
        rx.poll(&mut burst, usize::MAX);
        assert!(burst.packets().iter().map(|packet| packet.offload).eq(offloads));
        assert!(burst.packets().iter().all(|packet| packet.len == 100));
        rx.release(&mut burst);
    }
}

#[test]
fn a_full_ring_refuses_and_counts() {
    let (mut opened, uplink, _downlink) = port(4);
    assert_eq!(uplink.room(), 4);
    assert_eq!((0..6).filter(|n| send(&uplink, *n, 64)).count(), 4);
    assert!(!uplink.send(1523, |_| panic!("asked to fill a frame that is too long")));
    assert_eq!((uplink.room(), uplink.refused(), opened.port.status().lost), (0, 3, 3));
    // Slots in a burst are not filled again until they are released.
    let mut burst = Burst::new();
    assert_eq!(opened.rx[0].poll(&mut burst, 1), 1, "one frame, whatever the budget");
    assert!(!send(&uplink, 7, 64));
    opened.rx[0].release(&mut burst);
    assert!(send(&uplink, 8, 1522));
    assert_eq!(take(&mut *opened.rx[0], usize::MAX), [1, 2, 3, 8]);
}

#[test]
fn a_budget_of_bytes_ends_a_burst() {
    let (mut opened, uplink, _downlink) = port(256);
    assert!((0..200).all(|n| send(&uplink, n, 100)));
    let rx = &mut *opened.rx[0];
    assert_eq!(take(rx, 250).len(), 3);
    assert_eq!(take(rx, usize::MAX).len(), mem::BURST);
}

#[test]
fn a_frame_whose_maker_panics_is_not_sent() {
    let (mut opened, uplink, _downlink) = port(4);
    let made =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| uplink.send(64, |_| panic!("on purpose"))));
    assert!(made.is_err());
    assert!(take(&mut *opened.rx[0], usize::MAX).is_empty());
    assert!((0..4).all(|n| send(&uplink, n, 64)));
    assert_eq!(take(&mut *opened.rx[0], usize::MAX), [0, 1, 2, 3]);
}

#[test]
fn frames_reach_the_device_once_the_burst_ends() {
    let (opened, _uplink, mut downlink) = port(4);
    let tx = &opened.tx[0];
    let mut results = Vec::new();
    let ran = tx.burst(&mut |room| {
        assert!(!downlink.receive(|_| ()), "published before the burst ended");
        for n in 0..6u32 {
            results.push(room.put(&n.to_le_bytes(), &[], 0, 0, &Offload::default()));
        }
        results.push(room.reserve(1523, &Offload::default()).map(|_| ()));
    });
    assert!(ran);
    assert_eq!(results[..4], [Ok(()); 4]);
    assert_eq!(results[4..], [Err(NoRoom::Full), Err(NoRoom::Full), Err(NoRoom::TooLong)]);
    for n in 0..4 {
        assert!(downlink.receive(|frame| assert_eq!(number(frame), n)));
    }
    assert!(!downlink.receive(|_| ()));
    assert!(tx.burst(&mut |room| room.put(&[9; 64], &[], 0, 0, &Offload::default()).unwrap()));
    assert!(downlink.receive(|frame| assert_eq!(frame, [9; 64])));
    assert_eq!(tx.accepts(), mem::Accepts::default());
}

#[test]
fn events_come_to_who_armed() {
    let (mut opened, uplink, mut downlink) = port(8);
    let rx = &mut opened.rx[0];
    assert!(send(&uplink, 0, 64));
    assert!(!is_readable(rx.event_fd()), "nobody sleeps");
    assert!(rx.arm(), "there is a frame already");
    rx.disarm();
    assert_eq!(take(&mut **rx, usize::MAX), [0]);
    assert!(!rx.arm());
    assert!(send(&uplink, 1, 64));
    assert!(is_readable(rx.event_fd()));
    rx.disarm();
    assert!(!is_readable(rx.event_fd()));
    assert!(!downlink.arm());
    assert!(opened.tx[0].burst(&mut |_| ()));
    assert!(!is_readable(downlink.event_fd()), "an empty burst wakes nobody");
    assert!(opened.tx[0].burst(&mut |room| room.put(&[0; 64], &[], 0, 0, &Offload::default()).unwrap()));
    assert!(is_readable(downlink.event_fd()));
    downlink.disarm();
    assert!(!is_readable(downlink.event_fd()));
}

/// There are many senders; a worker that sleeps whenever it can, and echoes what it receives; and a device
/// that also sleeps whenever it can. Each frame arrives once, in its sender's order, and nobody sleeps
/// forever.
#[test]
fn nothing_is_lost_among_threads() {
    const SENDERS: u32 = 4;
    const FRAMES: u32 = if cfg!(miri) { 50 } else { 20_000 };
    let (mut opened, uplink, mut downlink) = port(16);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let uplink = uplink.clone();
            scope.spawn(move || {
                for n in 0..FRAMES {
                    while !send(&uplink, sender << 24 | n, 64) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let (rx, tx) = (&mut *opened.rx[0], &opened.tx[0]);
        scope.spawn(move || {
            let mut left = SENDERS * FRAMES;
            while left > 0 {
                let frames = take(rx, usize::MAX);
                left -= frames.len() as u32;
                for frame in &frames {
                    let mut bytes = [*frame as u8; 64];
                    bytes[..4].copy_from_slice(&frame.to_le_bytes());
                    let mut done = false;
                    while !done {
                        tx.burst(&mut |room| done = room.put(&bytes, &[], 0, 0, &Offload::default()).is_ok());
                        if !done {
                            std::thread::yield_now();
                        }
                    }
                }
                if frames.is_empty() && left > 0 {
                    if !rx.arm() {
                        sleep(rx.event_fd());
                    }
                    rx.disarm();
                }
            }
        });
        let mut next = [0; SENDERS as usize];
        let mut left = SENDERS * FRAMES;
        while left > 0 {
            let received = downlink.receive(|frame| {
                let number = number(frame);
                let sender = &mut next[(number >> 24) as usize];
                assert_eq!(number & 0xff_ffff, *sender);
                *sender += 1;
            });
            if received {
                left -= 1;
                continue;
            }
            if !downlink.arm() {
                sleep(downlink.event_fd());
            }
            downlink.disarm();
        }
    });
}
