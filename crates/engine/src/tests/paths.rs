//! Held packets, policers, full receivers, counters, the drop log, captures.

use super::harness::{Host, only};
use super::world::{MIRROR, WIRE, neighbours, rule, tables};
use crate::capture::Tap;
use crate::contexts::{Context, UNKNOWN};
use executor::CaptureFilter;
use mem::{Accepts, Csum, Offload};
use model::{
    Action, Change, DropReason, MeterConfig, MeterId, Modifier, NeighbourFound, NeighbourScope, Nexthop,
    NexthopId, Question, RuleAction, RuleId, VifId,
};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

const GATEWAY: &str = "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00";

fn host() -> Host {
    Host::new(&tables(), &neighbours(), Accepts::default(), 700)
}

fn packet(text: &str) -> (Vec<u8>, Offload) {
    (model::text::parse(text).unwrap(), Offload::default())
}

fn to(dst: &str, n: usize) -> (Vec<u8>, Offload) {
    packet(&format!("{GATEWAY} / ip4 10.1.1.1 > {dst} / udp 1000 > 53 / payload {n}"))
}

#[test]
fn packets_wait_for_a_neighbour_in_their_order() {
    let mut host = host();
    let output = host.run(VifId(1), (1..=20).map(|n| to("10.9.5.7", n)));
    let (port, (request, _)) = only(&output);
    assert_eq!(port, WIRE);
    assert_eq!(request[12..14], [8, 6], "an ARP request");
    assert_eq!(host.core.hold.len(), 16);
    assert_eq!(host.drops(), [(DropReason::HoldFull, 4)].into());
    let scope = NeighbourScope::Wire(WIRE);
    let addr = "192.0.2.99".parse().unwrap();
    assert_eq!(host.core.cells.held((scope, addr)), 16);

    let found = NeighbourFound { scope, addr, mac: "02:bb:00:00:00:63".parse().unwrap() };
    host.shared.neighbour(&host.shared.snapshot(), &found, WIRE, host.core.now.seconds);
    let output = host.retry_held();
    let lengths: Vec<_> = output[&WIRE].iter().map(|(frame, _)| frame.len()).collect();
    let overhead = 14 + 20 + 8 + 4 + 20 + 8;
    assert_eq!(lengths, (5..=20).map(|n| overhead + n).collect::<Vec<_>>(), "the latest");
    assert!(host.core.hold.is_empty());
    assert_eq!(host.core.cells.held((scope, addr)), 0);
}

#[test]
fn who_waited_for_a_neighbour_is_told_that_it_does_not_answer() {
    let mut host = host();
    host.run(VifId(1), [to("10.9.5.7", 1), to("10.9.5.7", 2)]);
    host.advance(1);
    assert!(host.retry_held().is_empty());
    assert_eq!(host.core.hold.len(), 2);
    host.advance(3);
    let output = host.retry_held();
    assert_eq!(host.drops(), [(DropReason::NoNeighbour, 2)].into());
    assert!(host.core.hold.is_empty());
    let told = &output[&VifId(1)];
    assert_eq!(told.len(), 2, "each packet's sender");
    assert_eq!(told[0].0[34..36], [3, 1], "host unreachable");
    // Until the neighbour is asked again, packets to it fail at once.
    for second in 1..=3 {
        let _ = host.shared.pending_solicitations(host.core.now.seconds - 4 + second);
    }
    let output = host.run(VifId(1), [to("10.9.5.7", 3)]);
    let (port, (frame, _)) = only(&output);
    assert_eq!((port, &frame[34..36]), (VifId(1), &[3, 1][..]));
}

#[test]
fn a_neighbour_whose_packets_are_memoised_is_in_use() {
    let mut host = host();
    let way = "10.9.0.7";
    host.run(VifId(1), [to(way, 1)]);
    host.advance(70);
    let now = host.core.now.seconds;
    assert!(host.shared.pending_solicitations(now).is_empty(), "nobody needs it by now");
    // An old decision is made anew; packets after that use the cache.
    host.run(VifId(1), [to(way, 1)]);
    host.advance(1);
    let before = host.hits();
    host.run(VifId(1), [to(way, 1)]);
    assert_eq!(host.hits(), before + 1);
    let asked = host.shared.pending_solicitations(now);
    let mac = "02:bb:00:00:00:02".parse().unwrap();
    let (scope, addr) = (NeighbourScope::Wire(WIRE), "192.0.2.2".parse().unwrap());
    let question = Question { scope, addr, at: Some(mac) };
    assert_eq!(asked, [question]);
    // The neighbour answers, and is asked again while the flow continues.
    let found = NeighbourFound { scope, addr, mac };
    host.shared.neighbour(&host.shared.snapshot(), &found, WIRE, now + 1);
    for _ in 0..61 {
        host.advance(1);
        host.run(VifId(1), [to(way, 1)]);
        host.settle();
    }
    assert_eq!(host.hits(), before + 62, "no decision");
    assert_eq!(host.shared.pending_solicitations(host.core.now.seconds), [question]);
}

#[test]
fn policers_take_what_is_over_their_rate_cached_or_not() {
    let mut host = host();
    let mut meters = crate::meters::Meters::default();
    meters.put(MeterId(1), MeterConfig { bits_per_second: 8_000, burst_bytes: 1_000 });
    host.core.meters = Arc::new(meters);
    let changes = [rule(4, 1, 40, (53, 53), RuleAction::Modify(Modifier::Police(MeterId(1))))];
    host.shared.apply(&changes).unwrap();
    // 142 bytes each: seven fit the bucket, then seven a second.
    let output = host.run(VifId(1), (0..10).map(|_| to("10.1.1.2", 100)));
    assert_eq!(output[&VifId(2)].len(), 7);
    host.advance(1);
    let output = host.run(VifId(1), (0..10).map(|_| to("10.1.1.2", 100)));
    assert_eq!(output[&VifId(2)].len(), 7);
    assert_eq!(host.drops(), [(DropReason::Policed, 6)].into());
    assert!(host.hits() > 10);
}

#[test]
fn a_receiver_without_room_costs_only_what_does_not_fit() {
    let mut host = host();
    host.ports[&VifId(2)].set_room(3);
    let both = (0..5).flat_map(|n| [to("10.1.1.2", n), to("10.9.0.7", n)]);
    let output = host.run(VifId(1), both);
    assert_eq!((output[&VifId(2)].len(), output[&WIRE].len()), (3, 5));
    host.ports[&VifId(2)].set_down(true);
    host.run(VifId(1), [to("10.1.1.2", 1)]);
    assert_eq!(host.drops(), [(DropReason::TxFull, 2), (DropReason::TxDown, 1)].into());
    let counters = host.core.cells.vif_counters(VifId(2));
    assert_eq!((counters.sent.packets, counters.send_drops), (3, 3));
    let log = host.core.log.read();
    assert_eq!(log.last().unwrap().reason, DropReason::TxDown);
}

#[test]
fn every_packet_is_counted_for_its_rule_and_connection() {
    let mut host = host();
    let changes = [rule(9, 1, 1, (53, 53), RuleAction::End(Action::Allow))];
    host.shared.apply(&changes).unwrap();
    for _ in 0..20 {
        host.run(VifId(1), (0..10).map(|_| to("10.1.1.2", 10)));
    }
    host.settle();
    let counted = host.core.cells.rule_counters(RuleId(9)).packets;
    assert_eq!(counted, 200);
    let mut flows = Vec::new();
    host.shared.flows().for_each(host.core.now.seconds, &mut |flow| {
        flows.push(flow);
        true
    });
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].forward.bytes, 52 * flows[0].forward.packets);
    assert_eq!(flows[0].forward.packets, 200);
}

#[test]
fn a_full_burst_of_new_flows_goes_through() {
    let mut host = host();
    let flow =
        |i| packet(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp {} > 53 / payload 9", 1000 + i));
    for _ in 0..2 {
        let output = host.run(VifId(1), (0..mem::BURST).map(flow));
        assert_eq!(output[&VifId(2)].len(), mem::BURST);
    }
    assert_eq!(host.hits(), mem::BURST as u64);
}

#[test]
fn captures_show_both_sides_and_drops() {
    let mut host = host();
    let (to_tap, captured) = sync_channel(16);
    let filter = CaptureFilter { snap_len: 64, ..CaptureFilter::default() };
    host.core.taps = vec![Arc::new(Tap::new(filter, to_tap))];
    host.run(VifId(1), [to("10.9.0.7", 300), to("10.9.6.7", 300)]);
    let seen: Vec<_> =
        captured.try_iter().map(|c| (c.vif, c.outbound, c.dropped, c.len, c.bytes.len())).collect();
    assert_eq!(
        seen,
        [
            (VifId(1), false, None, 342, 64),
            (VifId(1), false, None, 342, 64),
            (VifId(1), false, Some(DropReason::DiscardRoute), 342, 64),
            (WIRE, true, None, 342 + 32, 64),
        ]
    );
}

#[test]
fn mirrors_get_both_directions() {
    let mut host = host();
    let from =
        packet("eth 02:00:00:00:00:06 > 02:00:00:00:00:02 / ip4 10.1.1.6 > 10.1.1.2 / udp 1 > 2 / payload 9");
    let output = host.run(VifId(6), [from.clone()]);
    assert_eq!(output[&MIRROR][0].0, from.0);
    assert_eq!(output[&VifId(2)][0].0, from.0);
    let output = host.run(VifId(1), [to("10.1.1.6", 9)]);
    assert_eq!(output[&MIRROR], output[&VifId(6)]);
}

#[test]
fn a_change_is_felt_by_the_next_packet() {
    let mut host = host();
    host.run(VifId(1), [to("10.1.1.2", 1), to("10.1.1.2", 1)]);
    host.shared.apply(&[rule(1, 1, 10, (53, 53), RuleAction::End(Action::Drop))]).unwrap();
    assert!(host.run(VifId(1), [to("10.1.1.2", 1)]).is_empty());
    host.shared.apply(&[Change::DelRule { vrf: model::Vrf(1), id: RuleId(1) }]).unwrap();
    assert_eq!(host.run(VifId(1), [to("10.1.1.2", 1)])[&VifId(2)].len(), 1);
}

/// Sends packets to a guest through a tunnel from `remote`, and returns how many came out.
fn from_tunnel(host: &mut Host, remote: &str) -> usize {
    from_tunnel_with(host, remote, if remote.contains(':') { "" } else { " nosum" })
}

/// Does the same, with or without an outer UDP checksum.
fn from_tunnel_with(host: &mut Host, remote: &str, sum: &str) -> usize {
    let outer = if remote.contains(':') { ("ip6", "2001:db8::1") } else { ("ip4", "192.0.2.1") };
    let text = format!(
        "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / {} {remote} > {} / udp 50000 > 6635{sum} / mpls 17 \
         / ip4 10.9.0.7 > 10.1.1.2 / udp 1000 > 53 / payload 9",
        outer.0, outer.1
    );
    let output = host.run(WIRE, (0..5).map(|_| packet(&text)));
    output.get(&VifId(2)).map_or(0, Vec::len)
}

#[test]
fn tunnel_packets_are_taken_from_remotes_that_nexthops_name() {
    for (known, unknown) in [("192.0.2.3", "192.0.2.66"), ("2001:db8::2", "2001:db8::66")] {
        let mut host = host();
        assert_eq!(from_tunnel(&mut host, known), 5);
        assert_eq!(from_tunnel(&mut host, known), 5);
        assert!(host.hits() > 0);
        assert_eq!(from_tunnel(&mut host, unknown), 0);
        assert_eq!(host.drops(), [(DropReason::UnknownRemote, 5)].into());
    }
}

#[test]
fn tunnel_packets_without_a_checksum_over_ipv6_are_not_those_of_a_cached_flow_with_one() {
    let mut host = host();
    let remote = "2001:db8::2";
    for _ in 0..2 {
        assert_eq!(from_tunnel_with(&mut host, remote, ""), 5);
        assert_eq!(from_tunnel_with(&mut host, remote, " nosum"), 0);
    }
    assert_eq!(host.drops(), [(DropReason::OuterChecksumMissing, 10)].into());
    let tables = tables();
    let Change::SetHost(own) = &tables[0] else { panic!("the host comes first") };
    host.shared.apply(&[Change::SetHost(model::Host { udp6_zero_checksum: true, ..own.clone() })]).unwrap();
    for _ in 0..2 {
        assert_eq!(from_tunnel_with(&mut host, remote, " nosum"), 5);
    }
}

#[test]
fn tunnel_packets_with_a_wrong_checksum_are_dropped_though_their_flow_is_cached() {
    for remote in ["192.0.2.3", "2001:db8::2"] {
        let mut host = host();
        for _ in 0..2 {
            assert_eq!(from_tunnel_with(&mut host, remote, ""), 5);
            assert_eq!(from_tunnel_with(&mut host, remote, " badsum"), 0);
        }
        assert!(host.hits() >= 5, "packets with checksums are cached");
        assert_eq!(host.drops(), [(DropReason::OuterChecksumWrong, 10)].into());
    }
}

#[test]
fn a_checksum_that_somebody_vouches_for_is_not_summed_again() {
    let mut host = host();
    let text = "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.3 > 192.0.2.1 / udp 50000 > 6635 badsum \
                / mpls 17 / ip4 10.9.0.7 > 10.1.1.2 / udp 1000 > 53 / payload 9";
    let vouched = || (packet(text).0, Offload { csum: Csum::Valid, gso: None });
    for _ in 0..2 {
        assert_eq!(host.run(WIRE, (0..5).map(|_| vouched())).get(&VifId(2)).map(Vec::len), Some(5));
    }
}

#[test]
fn a_remote_that_no_nexthop_names_any_more_is_not_heard_though_its_flow_was_cached() {
    let mut host = host();
    from_tunnel(&mut host, "192.0.2.3");
    assert_eq!(from_tunnel(&mut host, "192.0.2.3"), 5);
    let gone = Change::PutNexthop(NexthopId(22), Nexthop::Discard);
    host.shared.apply(&[gone]).unwrap();
    assert_eq!(from_tunnel(&mut host, "192.0.2.3"), 0);
    assert_eq!(host.drops(), [(DropReason::UnknownRemote, 5)].into());
    // The remote's packets are accepted again once it is a peer.
    let tables = tables();
    let Change::SetHost(own) = &tables[0] else { panic!("the host comes first") };
    let peers = vec!["192.0.2.0/30".parse().unwrap()];
    host.shared.apply(&[Change::SetHost(model::Host { tunnel_peers: peers, ..own.clone() })]).unwrap();
    assert_eq!(from_tunnel(&mut host, "192.0.2.3"), 5);
}

#[test]
fn cached_flows_of_a_guest_say_nothing_about_what_it_may_not_send() {
    let mut host = host();
    let mut run = |text: &str| {
        let text = format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / {text}");
        host.run(VifId(1), (0..3).map(|_| packet(&text))).get(&VifId(2)).map_or(0, Vec::len)
    };
    for _ in 0..2 {
        assert_eq!(run("ip4 10.1.1.1 > 10.1.1.2 / udp 67 > 69 / payload 9"), 3);
        assert_eq!(run("ip4 10.1.1.1 > 10.1.1.2 / udp 67 > 68 / payload 9"), 0);
        assert_eq!(run("ip6 fd00:1::1 > fd00:1::2 / icmp6 echo 7 1 / payload 9"), 3);
        assert_eq!(run("ip6 fd00:1::1 > fd00:1::2 ttl 255 / icmp6 134 0 / payload 8"), 0);
        assert_eq!(run("ip6 fe80::ff:fe00:1 > fd00:1::2 / udp 1 > 2 / payload 9"), 3);
        assert_eq!(run("ip6 fe80::ff:fe00:6 > fd00:1::2 / udp 1 > 2 / payload 9"), 0);
    }
    let drops = [(DropReason::DhcpGuard, 6), (DropReason::RouterGuard, 6), (DropReason::AddressSpoofed, 6)];
    assert_eq!(host.drops(), drops.into());
}

/// The key of such a packet is zero, as empty lines of the cache are.
#[test]
fn a_packet_of_nothing_but_zeros_finds_no_entry() {
    let mut host = host();
    let zeros = packet(&format!("{GATEWAY} / ip4 0.0.0.0 > 0.0.0.0 proto 0 / payload 46"));
    for drops in 1..=3 {
        assert!(host.run(VifId(1), [zeros.clone()]).is_empty());
        assert_eq!(host.drops().values().sum::<u64>(), drops);
    }
    assert_eq!(host.hits(), 0);
    // Now there is an entry of other packets. It is in the first line, where the guess for an unknown hash
    // points.
    host.run(VifId(1), [to("10.1.1.2", 1), to("10.1.1.2", 1)]);
    host.run(VifId(1), [zeros]);
    assert_eq!(host.hits(), 1);
}

/// A guest that sends from ever new addresses uses them up within hours.
#[test]
fn flows_are_cached_when_all_numbers_of_contexts_were_used() {
    let mut host = host();
    host.run(VifId(1), [to("10.1.1.2", 1), to("10.1.1.2", 1)]);
    assert_eq!(host.hits(), 1);
    host.core.cache.contexts.wear();
    let new = packet(&format!("{GATEWAY} vlan 0 / ip4 10.1.1.1 > 10.1.1.2 / udp 1000 > 53 / payload 1"));
    host.run(VifId(1), [new.clone(), new.clone()]);
    assert_eq!(host.hits(), 2, "they begin anew");
    // This packet's context has the number that the first contexts had.
    host.run(VifId(1), [to("10.1.1.2", 1), new]);
    assert_eq!(host.hits(), 3);
}

#[test]
fn contexts_stay_as_long_as_their_entries() {
    let mut host = host();
    let known = |host: &mut Host| {
        let mut contexts = (0..1000).map(|address| {
            let mut context = Context::of(VifId(2));
            context.set_macs([address, 0]);
            context
        });
        contexts.any(|context| host.core.cache.contexts.number::<false>(&context) != UNKNOWN)
    };
    for address in 0..1000 {
        let mut context = Context::of(VifId(2));
        context.set_macs([address, 0]);
        host.core.cache.contexts.intern(&context);
    }
    host.run(VifId(1), [to("10.1.1.2", 1), to("10.1.1.2", 1)]);
    assert!(known(&mut host));
    for round in 2..5 {
        host.settle();
        host.run(VifId(1), [to("10.1.1.2", 1)]);
        assert_eq!((host.hits(), known(&mut host)), (round, false));
    }
}

#[test]
fn a_guest_of_ever_new_addresses_leaves_others_their_entries() {
    let mut host = host();
    host.run(VifId(1), [to("10.1.1.2", 1), to("10.1.1.2", 1)]);
    assert_eq!(host.hits(), 1);
    for address in 0..200_000 {
        let mut context = Context::of(VifId(2));
        context.set_macs([address, 0]);
        host.core.cache.contexts.intern(&context);
    }
    host.run(VifId(1), [to("10.1.1.2", 1)]);
    assert_eq!(host.hits(), 2);
}
