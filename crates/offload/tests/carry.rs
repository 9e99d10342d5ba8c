//! Packets through card and engine: bridged, routed, from and to other hosts; their order; failing cards.

use crate::common::{
    ONE, PATIENCE, SoftCard, TWO, World, counted, frame, number_of, numbered, tables, until,
};
use executor::{CaptureFilter, Executor};
use mem::{Csum, Offload};
use model::{Action, Change, DropReason, Network, NexthopId, Rule, RuleAction, RuleId, Vrf};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

by_cards!(
    a_flow_moves_onto_the_card_and_is_counted,
    a_burst_is_counted_once,
    routed_packets_go_by_the_card_too,
    other_hosts_are_reached_by_the_card,
    nothing_is_lost_or_out_of_order_while_flows_move,
    unfinished_frames_go_past_the_card,
    a_rule_binds_when_apply_returns,
    flushed_connections_leave_the_card,
    a_capture_sees_every_packet,
    a_card_that_hangs_is_replaced_by_the_engine,
    ports_come_and_go
);

fn a_flow_moves_onto_the_card_and_is_counted(world: World) {
    for number in 0..10 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        let got = world.two.wait(1, PATIENCE);
        assert_eq!(got.iter().map(|(frame, _)| number_of(frame)).collect::<Vec<_>>(), [(7, number)]);
    }
    let (forwarded, punted) = world.carried();
    assert_eq!(forwarded + punted, 10);
    assert!(forwarded >= 8, "the host had {punted} of 10 packets of a flow");
    let (one, two) = (world.card.vif_counters(ONE), world.card.vif_counters(TWO));
    assert_eq!((one.received.packets, two.sent.packets), (10, 10));
    let status = world.card.status();
    assert_eq!(status.name, "card-test");
    let card = status.card.unwrap();
    assert_eq!((card.received, card.flows, card.lost), (10, 1, 0));
    assert!(card.busy > 0 && card.clocks >= card.busy);
    // The card's packets are counted to the connection within one check.
    until(|| counted(&world, 7) == Some((10, 0, false)));
    assert_eq!(world.card.flow_count(), 1);
}

fn a_burst_is_counted_once(world: World) {
    const PACKETS: u32 = 600;
    world.one.send((0..PACKETS).map(|number| numbered(ONE, TWO, 7, number)));
    let mut got = 0;
    until(|| {
        got += world.two.take().len() as u32;
        got == PACKETS
    });
    assert!(world.carried().0 > 0, "none of them by the card");
    // All flows are checked before this returns.
    assert_eq!(world.card.flush_flows(&mut |_| false), 0);
    assert_eq!(counted(&world, 7), Some((PACKETS.into(), 0, false)));
}

#[test]
fn connections_whose_packets_the_card_does_not_count_say_so() {
    let world = World::new(|| SoftCard::with_counters(1));
    // Sends packets of a flow until the card forwards it; returns how many.
    let exchange = |from, to, flow| {
        let port = |vif| if vif == ONE { &world.one } else { &world.two };
        let (before, mut sent) = (world.carried().0, 0);
        while world.carried().0 == before {
            port(from).send([numbered(from, to, flow, 0)]);
            assert_eq!(port(to).wait(1, PATIENCE).len(), 1);
            sent += 1;
        }
        sent
    };
    let marked = |flow| counted(&world, flow).map(|(.., approximate)| approximate);
    let sent = exchange(ONE, TWO, 7);
    assert_eq!(marked(7), Some(false));
    exchange(ONE, TWO, 8);
    assert_eq!((marked(7), marked(8)), (Some(false), Some(true)));
    // One direction without a counter is enough.
    exchange(TWO, ONE, 7);
    until(|| counted(&world, 7).is_some_and(|(packets, ..)| packets == sent));
    assert_eq!(marked(7), Some(true));
    // The next connection gets the counter of the first one.
    assert_eq!(world.card.flush_flows(&mut |_| true), 2);
    exchange(ONE, TWO, 8);
    assert_eq!(marked(8), Some(false));
}

#[test]
fn a_flood_for_the_host_is_dropped_beyond_its_budget_and_counted() {
    const BUDGET: u32 = 5;
    let world = World::new(|| SoftCard::with_budget(BUDGET));
    let unknown =
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:77 / ip4 10.1.1.1 > 10.1.1.77 / udp 5 > 6 / payload 30";
    world.one.send((0..20).map(|_| frame(unknown)));
    let dropped = || world.card.workers().last().unwrap().drops[DropReason::PuntBudget as usize];
    until(|| dropped() == 20 - u64::from(BUDGET));
    assert_eq!(world.carried(), (0, BUDGET.into()));
    assert_eq!(world.card.status().card.unwrap().dropped, 20 - u64::from(BUDGET));
}

#[test]
fn what_the_cards_memory_does_not_give_is_the_hosts_and_counted() {
    let world = World::new(SoftCard::without_second_way);
    for number in 0..10 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        let got = world.two.wait(1, PATIENCE);
        assert_eq!(got.iter().map(|(frame, _)| number_of(frame)).collect::<Vec<_>>(), [(7, number)]);
    }
    // The card can't know that a flow is absent, so it punts the packet. It forwards flows in the first way as ever.
    assert!(world.carried().0 >= 8);
    let punted = world.card.status().card.unwrap().punted;
    assert!(matches!(punted[..], [("memory_error", 1..)]), "{punted:?}");
    until(|| world.card.status().card.unwrap().memory_errors > 0);
    assert_eq!(world.card.status().name, "card-test");
}

const PING: &str =
    "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.1.1.2 ttl 9 / icmp echo 3 1 / payload 56";

fn routed_packets_go_by_the_card_too(world: World) {
    for _ in 0..5 {
        world.one.send([frame(PING)]);
        let got = world.two.wait(1, PATIENCE);
        assert_eq!((got[0].0[5], got[0].0[22]), (2, 8), "to its MAC, TTL one less");
        let headers = packet::Headers::ethernet(&got[0].0, 0, got[0].0.len());
        assert!(headers.is_ok(), "{headers:?}");
    }
    assert!(world.carried().0 >= 3, "{:?}", world.card.status());
}

fn other_hosts_are_reached_by_the_card(world: World) {
    let out = "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.2.0.5 / udp 5 > 6 / payload 30";
    let inner = "ip4 10.2.0.5 > 10.1.1.1 / udp 6 > 5 / payload 30";
    let back = format!(
        "eth 02:bb:00:00:00:09 > 02:00:00:00:00:0a / ip4 192.0.2.9 > 192.0.2.1 / udp 50000 > 6635 nosum / mpls 41 / {inner}"
    );
    for _ in 0..5 {
        world.one.send([frame(out)]);
        let sent = world.wire.wait(1, PATIENCE);
        let frame_out = &sent[0].0;
        assert_eq!(frame_out[..6], [2, 0xbb, 0, 0, 0, 9]);
        assert_eq!(u16::from_be_bytes([frame_out[36], frame_out[37]]), 6635);
        world.wire.send([frame(&back)]);
        let got = world.one.wait(1, PATIENCE);
        assert_eq!(got[0].0[..6], [2, 0, 0, 0, 0, 1]);
        assert_eq!(got[0].0.len(), 14 + 20 + 8 + 30);
    }
    let (forwarded, punted) = world.carried();
    assert!(forwarded >= 6, "{forwarded} by the card, {punted} by the host: {:?}", world.card.status());
}

fn nothing_is_lost_or_out_of_order_while_flows_move(world: World) {
    const FLOWS: u16 = 8;
    const PACKETS: u32 = 40;
    let mut next = HashMap::new();
    let mut got = 0;
    for number in 0..PACKETS {
        world.one.send((0..FLOWS).map(|flow| numbered(ONE, TWO, 100 + flow, number)));
        // Flows move onto the card meanwhile.
        until(|| number % 5 != 4 || world.card.status().card.unwrap().flows >= 4);
        if number % 10 == 9 {
            // Flows leave the card, in the middle of everything.
            world.card.flush_flows(&mut |flow| flow.key.dst.port % 2 == 0);
        }
        let mut check = |packets: Vec<engine::testing::Packet>| {
            for (frame, _) in packets {
                let (flow, number) = number_of(&frame);
                let expected = next.entry(flow).or_insert(0);
                assert_eq!(number, *expected, "flow {flow}");
                *expected += 1;
                got += 1;
            }
        };
        check(world.two.take());
        if number + 1 == PACKETS {
            while next.values().sum::<u32>() < u32::from(FLOWS) * PACKETS {
                let more = world.two.wait(1, PATIENCE);
                assert!(!more.is_empty(), "packets are missing");
                for (frame, _) in more {
                    let (flow, number) = number_of(&frame);
                    let expected = next.entry(flow).or_insert(0);
                    assert_eq!(number, *expected, "flow {flow}");
                    *expected += 1;
                }
            }
        }
    }
    assert_eq!(next.len(), usize::from(FLOWS));
    let (forwarded, punted) = world.carried();
    assert!(forwarded > 0 && punted > 0, "{forwarded} by the card, {punted} by the host");
}

fn unfinished_frames_go_past_the_card(world: World) {
    let (mut large, _) = frame(
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / udp 9 > 9 / payload 100",
    );
    // The checksum field holds the pseudo-header's sum.
    large[40..42].copy_from_slice(&0x1234_u16.to_be_bytes());
    let offload = Offload { csum: Csum::Partial { start: 34, offset: 6 }, gso: None };
    world.one.send([(large.clone(), offload), numbered(ONE, TWO, 9, 1)]);
    let got = world.two.wait(2, PATIENCE);
    let got = if got.len() < 2 { [got, world.two.wait(1, PATIENCE)].concat() } else { got };
    assert_eq!((got[0].0.len(), got[1].0.len()), (142, 82));
    assert_ne!(got[0].0[40..42], large[40..42], "somebody completed the checksum");
    let card = world.card.status().card.unwrap();
    assert_eq!(card.received, 0, "the second may not overtake the first: it goes the same way");
}

fn deny(id: u64) -> Rule {
    Rule {
        id: RuleId(id.try_into().unwrap()),
        vrf: Vrf(1),
        priority: 1,
        from: Vec::new(),
        to: Vec::new(),
        protocol: Some(packet::proto::UDP),
        ports: None,
        action: RuleAction::End(Action::Drop),
    }
}

fn a_rule_binds_when_apply_returns(world: World) {
    for number in 0..5 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        assert_eq!(world.two.wait(1, PATIENCE).len(), 1);
    }
    assert!(world.carried().0 > 0);
    world.card.apply(&[Change::PutRule(deny(3))]).unwrap();
    world.one.send((5..15).map(|number| numbered(ONE, TWO, 7, number)));
    let drops = || world.card.workers().iter().flat_map(|worker| worker.drops.iter()).sum::<u64>();
    until(|| drops() >= 10);
    assert!(world.two.take().is_empty());
    // The card drops what was never allowed, once it knows.
    let by_card = || world.card.status().card.unwrap().dropped;
    let mut number = 0;
    while by_card() == 0 {
        world.one.send([numbered(ONE, TWO, 8, number)]);
        number += 1;
        until(|| drops() >= 10 + u64::from(number));
    }
    let before = by_card();
    world.one.send((0..10).map(|more| numbered(ONE, TWO, 8, number + more)));
    until(|| drops() >= 20 + u64::from(number));
    assert_eq!(by_card(), before + 10);
    world.card.apply(&[Change::DelRule { vrf: Vrf(1), id: deny(3).id }]).unwrap();
    world.one.send([numbered(ONE, TWO, 7, 99)]);
    assert_eq!(number_of(&world.two.wait(1, PATIENCE)[0].0), (7, 99));
}

fn flushed_connections_leave_the_card(world: World) {
    for number in 0..5 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        assert_eq!(world.two.wait(1, PATIENCE).len(), 1);
    }
    assert_eq!(world.card.status().card.unwrap().flows, 1);
    assert_eq!(world.card.flush_flows(&mut |_| true), 1);
    assert_eq!(world.card.status().card.unwrap().flows, 0);
    let before = world.carried();
    world.one.send([numbered(ONE, TWO, 7, 5)]);
    assert_eq!(world.two.wait(1, PATIENCE).len(), 1);
    assert_eq!(world.carried(), (before.0, before.1 + 1));
    assert_eq!(world.card.flows_created(), 2);
}

fn a_capture_sees_every_packet(world: World) {
    for number in 0..5 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        assert_eq!(world.two.wait(1, PATIENCE).len(), 1);
    }
    let before = world.carried();
    let (to, captured) = std::sync::mpsc::sync_channel(100);
    world.card.capture(CaptureFilter { snap_len: 100, ..CaptureFilter::default() }, to);
    for number in 5..10 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        assert_eq!(world.two.wait(1, PATIENCE).len(), 1);
    }
    assert_eq!(world.carried(), (before.0, before.1 + 5));
    // Packets as they came in, and as they left.
    assert_eq!((0..10).map_while(|_| captured.recv().ok()).count(), 10);
    drop(captured);
    let mut number = 10;
    while world.carried().0 == before.0 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        assert_eq!(world.two.wait(1, PATIENCE).len(), 1);
        number += 1;
    }
}

fn a_card_that_hangs_is_replaced_by_the_engine(world: World) {
    for number in 0..5 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        assert_eq!(world.two.wait(1, PATIENCE).len(), 1);
    }
    world.stopped.store(true, Ordering::Relaxed);
    world.one.send((5..105).map(|number| numbered(ONE, TWO, 7, number)));
    let mut got = Vec::new();
    while got.last().is_none_or(|number| *number != 104) {
        let more = world.two.wait(1, PATIENCE);
        assert!(!more.is_empty(), "{:?}", world.card.status());
        got.extend(more.iter().map(|(frame, _)| number_of(frame).1));
    }
    assert!(got.is_sorted(), "{got:?}");
    let status = world.card.status();
    assert!(status.name.starts_with("card-test (failed: the card hangs"), "{}", status.name);
    assert_eq!(status.card.unwrap().lost as usize, 100 - got.len(), "lost is what was inside");
    // The card stays out of use: changes, ports and packets work without it.
    world.card.apply(&[Change::PutRule(deny(3))]).unwrap();
    assert!(world.card.detach(TWO));
    world.card.attach(TWO, world.two.open()).unwrap();
    world.card.apply(&[Change::DelRule { vrf: Vrf(1), id: deny(3).id }]).unwrap();
    world.two.send([numbered(TWO, ONE, 8, 1)]);
    assert_eq!(number_of(&world.one.wait(1, PATIENCE)[0].0), (8, 1));
}

fn ports_come_and_go(world: World) {
    assert!(world.card.attach(ONE, world.one.open()).is_err());
    assert!(world.card.detach(TWO));
    assert!(!world.card.detach(TWO));
    assert!(world.two.is_alone(), "somebody still holds the queues");
    world.one.send([numbered(ONE, TWO, 7, 0)]);
    let lost = || world.card.workers().iter().flat_map(|worker| worker.drops.iter()).sum::<u64>();
    until(|| lost() > 0);
    world.card.attach(TWO, world.two.open()).unwrap();
    for number in 1..5 {
        world.one.send([numbered(ONE, TWO, 7, number)]);
        assert_eq!(number_of(&world.two.wait(1, PATIENCE)[0].0), (7, number));
    }
    // Tables without any of this.
    let gone = tables().into_iter().rev().filter_map(|change| match change {
        Change::PutRoute { vrf, prefix, .. } => Some(Change::DelRoute { vrf, prefix }),
        Change::PutMpls { label, .. } => Some(Change::DelMpls { label }),
        Change::PutNexthop(id, _) => Some(Change::DelNexthop(id)),
        Change::PutVif(vif) => Some(Change::DelVif(vif.id)),
        Change::PutNetwork(Network { vrf, .. }) => Some(Change::DelNetwork(vrf)),
        _ => None,
    });
    world.card.apply(&gone.collect::<Vec<_>>()).unwrap();
    world.card.apply(&tables()).unwrap();
    assert_eq!(world.card.nexthop_counters(NexthopId(9)).packets, 0);
    world.one.send([numbered(ONE, TWO, 7, 9)]);
    assert_eq!(number_of(&world.two.wait(1, PATIENCE)[0].0), (7, 9));
    assert_eq!(world.card.status().name, "card-test");
    let _ = &world.engine;
}
