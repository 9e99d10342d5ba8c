//! The cost of a line that loses packets: in packets, and in time by the line's own clock.

use crate::common::{ADDRESS, Pair, SIZE, WRITABLE, attributes};
use rdma::{Attributes, Mtu, SendOperation, SendRequest, Status};
use std::collections::VecDeque;
use std::time::Duration;

/// Time per packet, which is 1 us at 8 Gbit/s, and the delay of the line.
const TICK: Duration = Duration::from_micros(1);
const DELAY: Duration = Duration::from_micros(20);
/// Number of packets that wait for the line before their sender stops.
const QUEUE: usize = 64;
const MESSAGES: u64 = 4000;
/// Number of messages under way, as in `ib_write_bw`.
const DEPTH: u64 = 32;

struct Line {
    waiting: VecDeque<Vec<u8>>,
    flying: VecDeque<(Duration, Vec<u8>)>,
    sent: u64,
    /// Number of lost packets among a million.
    loss: u64,
    random: u64,
}

impl Line {
    fn new(loss: u64, seed: u64) -> Self {
        Self { waiting: VecDeque::new(), flying: VecDeque::new(), sent: 0, loss, random: seed }
    }

    fn is_lost(&mut self) -> bool {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % 1_000_000 < self.loss
    }

    /// Sends a packet, if one waits; returns the packet that arrives now.
    fn tick(&mut self, now: Duration) -> Option<Vec<u8>> {
        if let Some(packet) = self.waiting.pop_front() {
            self.sent += 1;
            if !self.is_lost() {
                self.flying.push_back((now + DELAY, packet));
            }
        }
        let arrives = self.flying.front().is_some_and(|(at, _)| *at <= now);
        if arrives { self.flying.pop_front().map(|(_, packet)| packet) } else { None }
    }
}

/// Writes all messages; returns the number of packets and the time.
fn written(loss: u64, seed: u64) -> (u64, Duration) {
    let attributes = Attributes { mtu: Mtu::Bytes1024, timeout: 14, ..attributes(0xff_fff0) };
    let mut pair = Pair::new(attributes, 1);
    let (mut there, mut back) = (Line::new(loss, seed), Line::new(loss, !seed));
    let (mut posted, mut now) = (0, Duration::ZERO);
    while (pair.a.verbs.completions.len() as u64) < MESSAGES {
        while posted < MESSAGES && posted - (pair.a.verbs.completions.len() as u64) < DEPTH {
            pair.a.verbs.local.insert(posted, vec![posted as u8; SIZE]);
            let operation = SendOperation::Write { address: ADDRESS, rkey: WRITABLE, immediate: None };
            let len = SIZE as u32;
            pair.a.post(SendRequest {
                id: posted,
                operation,
                len,
                signaled: true,
                solicited: false,
                fence: false,
            });
            posted += 1;
        }
        for (side, line) in [(&mut pair.a, &mut there), (&mut pair.b, &mut back)] {
            side.qp.poll(now, QUEUE.saturating_sub(line.waiting.len()), &mut side.verbs);
            line.waiting.extend(side.verbs.all_sent());
        }
        if let Some(packet) = there.tick(now) {
            pair.b.receive(&packet, now);
        }
        if let Some(packet) = back.tick(now) {
            pair.a.receive(&packet, now);
        }
        now += TICK;
    }
    let ends = pair.a.verbs.completions.iter().map(|completion| (completion.id, completion.status));
    assert!(ends.eq((0..MESSAGES).map(|id| (id, Status::Success))));
    assert_eq!(pair.b.verbs.memory.writable, vec![(MESSAGES - 1) as u8; SIZE]);
    (there.sent, now)
}

#[test]
fn one_packet_in_a_thousand_costs_less_than_a_third() {
    let (mut sent, mut took) = (0, Duration::ZERO);
    // There are so many packets that some of those that report or repair a loss are lost, too, which takes a timeout.
    for seed in 1..=8 {
        let (packets, time) = written(1000, seed);
        (sent, took) = (sent + packets, took + time);
    }
    let (needed, shortest) = written(0, 1);
    let (packets, speed) =
        ((8 * needed) as f64 / sent as f64, 8.0 * shortest.as_secs_f64() / took.as_secs_f64());
    assert!(packets >= 0.7 && speed >= 0.7, "{packets:.3} of the packets, {speed:.3} of the speed");
}

/// Queue pairs whose packets share a line, and wait there without limit, for longer than the timeout if all windows are
/// full.
#[test]
fn many_queue_pairs_on_a_line_do_not_wait_there_until_they_time_out() {
    const PAIRS: usize = 16;
    const EACH: u64 = 50;
    // Half a millisecond; a window of each takes four.
    let attributes = Attributes { mtu: Mtu::Bytes1024, timeout: 7, ..attributes(0) };
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| Pair::new(attributes, 1)).collect();
    for pair in &mut pairs {
        for id in 0..EACH {
            pair.a.verbs.local.insert(id, vec![id as u8; SIZE]);
            let operation = SendOperation::Write { address: ADDRESS, rkey: WRITABLE, immediate: None };
            let (len, signaled, solicited, fence) = (SIZE as u32, true, false, false);
            pair.a.post(SendRequest { id, operation, len, signaled, solicited, fence });
        }
    }
    let (mut there, mut back, mut now) = (VecDeque::new(), VecDeque::new(), Duration::ZERO);
    while pairs.iter().any(|pair| (pair.a.verbs.completions.len() as u64) < EACH) {
        for (number, pair) in pairs.iter_mut().enumerate() {
            for (side, line) in [(&mut pair.a, &mut there), (&mut pair.b, &mut back)] {
                side.qp.poll(now, 64, &mut side.verbs);
                line.extend(side.verbs.all_sent().into_iter().map(|packet| (now + DELAY, number, packet)));
            }
        }
        if there.front().is_some_and(|(at, ..)| *at <= now)
            && let Some((_, number, packet)) = there.pop_front()
        {
            pairs[number].b.receive(&packet, now);
        }
        while back.front().is_some_and(|(at, ..)| *at <= now)
            && let Some((_, number, packet)) = back.pop_front()
        {
            pairs[number].a.receive(&packet, now);
        }
        now += TICK;
    }
    let ends = pairs.iter().flat_map(|pair| &pair.a.verbs.completions);
    assert!(ends.into_iter().all(|completion| completion.status == Status::Success));
    let again: u64 = pairs.iter().map(|pair| pair.b.qp.counts().duplicate_request).sum();
    let needed = PAIRS as u64 * EACH * (SIZE as u64 / 1024);
    assert!(again * 20 < needed, "{again} packets came twice of {needed}");
}
