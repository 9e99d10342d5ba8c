//! Flows that move onto the card under load: their packets arrive in order, and those that don't arrive are counted.

use crate::common::{ONE, PATIENCE, SoftCard, TWO, WIRE, World, frame, numbered};
use engine::testing::Packet;
use executor::{CaptureFilter, Executor};
use model::{Action, Change, DropReason, Rule, RuleAction, RuleId, Vrf};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

by_cards!(flows_move_under_load, and_while_all_else_changes);

const FLOWS: u32 = 60;
const PACKETS: u32 = 50;
/// Most packets that are under way, besides those of one step.
const UNDER_WAY: u32 = 400;

/// Makes a UDP packet to another host, with its number at its end.
fn numbered_out(flow: u16, number: u32) -> Packet {
    let mut packet = frame(&format!(
        "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.2.0.5 / udp {flow} > 6 nosum / payload 300"
    ));
    let at = packet.0.len() - 4;
    packet.0[at..].copy_from_slice(&number.to_be_bytes());
    packet
}

/// Flows that begin one after the other: to a guest, from it, and to another host.
#[derive(Default)]
struct Load {
    step: u32,
    sent: u32,
    got: u32,
    /// For each receiver and flow, the number of the packet that comes next.
    next: HashMap<(u32, u16), u32>,
    /// Number of packets that are missing.
    gaps: u32,
}

impl Load {
    const ALL: u32 = FLOWS * PACKETS;

    /// Sends the next packet of each flow that has begun and not ended, unless too many are under way.
    fn send(&mut self, world: &World) -> bool {
        if self.sent >= self.got + self.gaps + UNDER_WAY || self.step >= PACKETS + FLOWS {
            return false;
        }
        for flow in 0..FLOWS {
            let Some(number) = self.step.checked_sub(flow).filter(|number| *number < PACKETS) else {
                continue;
            };
            let port = 100 + flow as u16;
            match flow % 3 {
                0 => world.one.send([numbered(ONE, TWO, port, number)]),
                1 => world.two.send([numbered(TWO, ONE, port, number)]),
                _ => world.one.send([numbered_out(port, number)]),
            }
            self.sent += 1;
        }
        self.step += 1;
        true
    }

    fn receive(&mut self, world: &World) {
        for (way, port) in [&world.two, &world.one, &world.wire].into_iter().enumerate() {
            // For the other host's flows, the packet in the tunnel counts.
            let at = if way == 2 { 66 } else { 34 };
            for (frame, _) in port.take() {
                let flow = u16::from_be_bytes([frame[at], frame[at + 1]]);
                let number = u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap());
                let expected = self.next.entry((way as u32, flow)).or_insert(0);
                assert!(
                    number >= *expected,
                    "way {way}, flow {flow}: {number} comes after {}",
                    *expected - 1
                );
                self.gaps += number - *expected;
                *expected = number + 1;
                self.got += 1;
            }
        }
    }

    /// Sends and receives all packets, and calls `also` at each step.
    fn run(&mut self, world: &World, mut also: impl FnMut(u32)) {
        let since = Instant::now();
        while self.got < Self::ALL {
            if self.send(world) {
                also(self.step);
            }
            self.receive(world);
            let (got, sent) = (self.got, self.sent);
            assert!(since.elapsed() < PATIENCE, "{got} of {sent} arrived: {:?}", world.card.status());
            std::thread::yield_now();
        }
        assert_eq!(self.gaps, 0);
    }
}

fn flows_move_under_load(world: World) {
    Load::default().run(&world, |_| {});
    let (forwarded, punted) = world.carried();
    assert!(forwarded > 0 && punted >= FLOWS.into(), "{forwarded} by the card, {punted} by the host");
    let card = world.card.status().card.unwrap();
    assert_eq!((card.dropped, card.lost, card.received), (0, 0, Load::ALL.into()));
    // The engine counts a burst after it has delivered it.
    world.card.settle();
    let sent = |vif| world.card.vif_counters(vif).sent.packets;
    assert_eq!(sent(ONE) + sent(TWO) + sent(WIRE), Load::ALL.into());
}

/// Sends a load while flows are withdrawn, tables change, and captures begin and end.
fn and_while_all_else_changes(world: World) {
    let rule = Rule {
        id: RuleId(3),
        vrf: Vrf(1),
        priority: 1,
        from: Vec::new(),
        to: Vec::new(),
        protocol: None,
        ports: None,
        action: RuleAction::End(Action::Allow),
    };
    let mut captures = Vec::new();
    Load::default().run(&world, |step| match step % 20 {
        3 => drop(world.card.flush_flows(&mut |flow| flow.key.dst.port % 2 == 0)),
        7 => world.card.apply(&[Change::PutRule(rule.clone())]).unwrap(),
        11 => world.card.apply(&[Change::DelRule { vrf: Vrf(1), id: rule.id }]).unwrap(),
        13 if step > 40 => {
            let (to, from) = std::sync::mpsc::sync_channel(10);
            world.card.capture(CaptureFilter { snap_len: 100, ..CaptureFilter::default() }, to);
            captures.push(from);
        }
        15 => captures.clear(),
        _ => {}
    });
    let card = world.card.status().card.unwrap();
    assert_eq!((card.dropped, card.lost), (0, 0));
}

/// The card stops in every state that moving flows can have.
#[test]
fn a_card_that_stops_loses_what_is_inside_and_says_so() {
    for stop in (5..65).step_by(4) {
        let world = World::new(SoftCard::new);
        let mut load = Load::default();
        let since = Instant::now();
        let lost = || world.card.status().card.unwrap().lost as u32;
        while load.got + lost() < Load::ALL {
            if load.step == stop {
                world.stopped.store(true, Ordering::Relaxed);
            }
            // Lost packets are no longer under way.
            load.gaps = load.gaps.max(lost());
            load.send(&world);
            load.receive(&world);
            assert!(since.elapsed() < PATIENCE, "{} and {} lost of {}", load.got, lost(), load.sent);
            std::thread::yield_now();
        }
        assert_eq!((load.got + lost(), load.sent), (Load::ALL, Load::ALL));
        assert!(world.card.status().name.contains("failed"));
    }
}

/// The ring has less room than one packet. Whether a packet comes while its flow moves depends on the threads, so the
/// test repeats loads until one does.
#[test]
fn what_finds_no_room_is_dropped_and_counted() {
    let since = Instant::now();
    while dropped_without_room(since) == 0 {}
}

/// Returns how many packets of a load found no room.
fn dropped_without_room(since: Instant) -> u32 {
    let world = World::new(|| SoftCard::with_ring(4));
    let mut load = Load::default();
    let dropped = || world.card.status().card.unwrap().dropped as u32;
    while load.got + dropped() < Load::ALL {
        load.gaps = load.gaps.max(dropped());
        load.send(&world);
        load.receive(&world);
        assert!(since.elapsed() < PATIENCE, "{} and {} dropped of {}", load.got, dropped(), load.sent);
        std::thread::yield_now();
    }
    let workers = world.card.workers();
    let full: u64 = workers.iter().map(|worker| worker.drops[DropReason::HoldFull as usize]).sum();
    assert_eq!(full, u64::from(dropped()));
    dropped()
}
