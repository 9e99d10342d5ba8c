//! Bounds, eviction, quotas, and threads.

use super::*;
use model::{Endpoint, FlowState, Follow, FragmentKey, RuleId, Tcp, Transport, Vrf};
use packet::proto::{TCP, UDP};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const GUEST: Account = Account::of_guest(VifId(1));

fn end(addr: u32, port: u16) -> Endpoint {
    Endpoint { vrf: Vrf(1), addr: Ipv4Addr::from_bits(addr).into(), port }
}

pub(super) fn key(n: u32) -> FlowKey {
    FlowKey { src: end(0x0a00_0000 + (n >> 8), n as u16), dst: end(0x0a00_0001, 80), protocol: TCP }
}

pub(super) fn create(key: FlowKey, state: FlowState) -> FlowChange {
    FlowChange::Create {
        connection: Connection { original: key, state, seen: 0, tcp: Default::default(), binding: None },
        rule: Some(RuleId(9)),
    }
}

pub(super) fn table(connections: usize) -> Flows {
    Flows::new(FlowLimits { connections, per_guest: usize::MAX, new_per_second: u32::MAX })
}

fn fill(flows: &Flows, keys: impl Iterator<Item = u32>, state: FlowState, now: Seconds) -> usize {
    keys.filter(|n| flows.apply(&create(key(*n), state), GUEST, now).is_ok()).count()
}

#[test]
fn both_directions_find_one_connection() {
    let flows = table(64);
    let flow = flows.apply(&create(key(1), FlowState::New), GUEST, 5).unwrap().unwrap();
    let made = Connection {
        original: key(1),
        state: FlowState::New,
        seen: 0,
        tcp: Default::default(),
        binding: None,
    };
    assert_eq!(flows.get(&key(1), 5), Some((made, false, flow)));
    assert_eq!(flows.get(&key(1).reverse(), 5), Some((made, true, flow)));
    assert_eq!(flows.get(&key(2), 5), None);
    assert!(flows.touch(flow, false, 2, 120, 6) && flows.touch(flow, true, 1, 1500, 9));
    let mut infos = Vec::new();
    flows.for_each(10, &mut |info| {
        infos.push(info);
        true
    });
    let [info] = &infos[..] else { panic!("one connection") };
    assert_eq!((info.key, info.rule, info.age, info.idle), (key(1), Some(RuleId(9)), 5, 1));
    assert_eq!((info.forward.packets, info.forward.bytes), (2, 120));
    assert_eq!((info.reply.packets, info.reply.bytes), (1, 1500));
}

#[test]
fn connections_go_on_in_another_table() {
    let (flows, other) = (table(64), table(64));
    let now = 1000;
    let segment =
        Segment { flags: packet::proto::TCP_ACK, seq: 7, len: 9, ack: 5, window: 99, scale: Some(3) };
    for (n, charged) in [(1, GUEST), (2, Account::from_wire(VifId(7)))] {
        let tcp = Tcp { reopen: Some(n), ..Tcp::first(1, &segment, n == 2) };
        let connection =
            Connection { original: key(n), state: FlowState::Established, seen: 12, tcp, binding: None };
        let flow =
            flows.apply(&FlowChange::Create { connection, rule: None }, charged, 100).unwrap().unwrap();
        assert!(flows.touch(flow, false, 2, 120, 900) && flows.touch(flow, true, 1, 1500, 901));
    }
    let all = |flows: &Flows, now| {
        let mut all = Vec::new();
        flows.for_each(now, &mut |info| {
            all.push(info);
            true
        });
        all.sort_by_key(|info: &FlowInfo| info.key.src.port);
        all
    };
    let infos = all(&flows, now);
    assert!(infos.iter().all(|info| other.enter(info, 5000)));
    assert_eq!(all(&other, 5000), infos);
    assert_eq!((other.held_by(GUEST), other.held_by(Account::from_wire(VifId(7)))), (1, 1));
    assert!(!infos.iter().any(|info| other.enter(info, 5000)), "known");
    assert!(infos.iter().all(|info| other.enter(info, 5010)), "used later elsewhere");
    assert_eq!(all(&other, 5010), infos);
    let reply = FlowInfo { key: key(1).reverse(), ..infos[0].clone() };
    assert!(!other.enter(&reply, 5000), "known, the other way round");
    let old = FlowInfo { key: key(3), idle: FlowState::Established.timeout(TCP, 0), ..infos[0].clone() };
    assert!(!other.enter(&old, 9000), "timed out");
    let few = Flows::new(FlowLimits { connections: 64, per_guest: 1, new_per_second: 100 });
    let same = |info: &FlowInfo| FlowInfo { charged: (VifId(1), false), ..info.clone() };
    assert_eq!(infos.iter().filter(|info| few.enter(&same(info), 5000)).count(), 1, "its share");
}

#[test]
fn what_a_cache_keeps_is_a_number() {
    let flow = FlowRef { index: 0x8000_0001, seq: 0x4000_0006 };
    assert_eq!(flow.to_bits(), 0x8000_0001_4000_0006);
    assert_eq!(FlowRef::from_bits(flow.to_bits()), flow);
    let flows = table(64);
    let first = flows.apply(&create(key(1), FlowState::New), GUEST, 0).unwrap().unwrap();
    assert_eq!(flows.connection(FlowRef::from_bits(first.to_bits())), flows.connection(first));
    assert!(flows.connection(first).is_some());
}

#[test]
fn roce_is_tracked_by_address_pair() {
    let flows = table(64);
    let forward = FlowKey { src: end(1, 0), dst: end(2, 4791), protocol: UDP };
    let reply = FlowKey { src: end(2, 0), dst: end(1, 4791), protocol: UDP };
    let flow = flows.apply(&create(forward, FlowState::New), GUEST, 0).unwrap().unwrap();
    assert_eq!(flows.get(&reply, 0).map(|(_, reply, flow)| (reply, flow)), Some((true, flow)));
}

#[test]
fn updates_of_both_directions_add_up() {
    let flows = table(64);
    let flow = flows.apply(&create(key(1), FlowState::Established), GUEST, 0).unwrap().unwrap();
    let seen_by = |seen| Connection {
        original: key(1),
        state: FlowState::Closing,
        seen,
        tcp: Default::default(),
        binding: None,
    };
    // Each worker saw only the FIN of its own direction.
    assert!(flows.update(flow, &seen_by(Connection::FIN), false, 1));
    assert!(flows.update(flow, &seen_by(Connection::REPLY_FIN), true, 1));
    assert_eq!(flows.connection(flow).map(|c| c.state), Some(FlowState::Closed));
    let late = Connection {
        original: key(1),
        state: FlowState::Established,
        seen: Connection::REPLIED,
        tcp: Default::default(),
        binding: None,
    };
    assert!(flows.update(flow, &late, true, 2));
    assert_eq!(flows.connection(flow).map(|c| (c.state, c.seen)), Some((FlowState::Closed, 7)));
}

#[test]
fn counters_lack_packets_to_the_connections_end() {
    let flows = table(64);
    let approximate = |n| {
        let mut found = None;
        flows.for_each(0, &mut |info| {
            found = (info.key == key(n)).then_some(info.approximate);
            found.is_none()
        });
        found
    };
    let old = flows.apply(&create(key(1), FlowState::New), GUEST, 0).unwrap().unwrap();
    flows.apply(&create(key(2), FlowState::New), GUEST, 0).unwrap().unwrap();
    flows.miscount(old);
    assert_eq!((approximate(1), approximate(2)), (Some(true), Some(false)));
    let later = Connection {
        original: key(1),
        state: FlowState::Closed,
        seen: Connection::REPLIED,
        tcp: Default::default(),
        binding: None,
    };
    assert!(flows.update(old, &later, true, 0) && flows.touch(old, false, 1, 60, 0));
    assert_eq!((flows.connection(old), approximate(1)), (Some(later), Some(true)));
    // A connection after it has its own counters.
    flows.apply(&create(key(1), FlowState::Established), GUEST, 0).unwrap().unwrap();
    assert_eq!(approximate(1), Some(false));
    flows.miscount(old);
    assert_eq!(approximate(1), Some(false));
}

/// Two workers that have packets of one connection at once both keep their knowledge.
#[test]
fn workers_follow_the_two_directions_of_tcp_without_each_other() {
    let flows = &table(64);
    let segment = |seq, len, ack, window| Segment { flags: 0x10, seq, len, ack, window, scale: None };
    // The faster one stays within the window.
    let least = 30_000;
    let tcp = Tcp::first(0, &segment(0, 0, 0, least), false);
    let new = Connection { original: key(1), state: FlowState::Established, seen: 12, tcp, binding: None };
    let flow = flows.apply(&FlowChange::Create { connection: new, rule: None }, GUEST, 0).unwrap().unwrap();
    let Follow::Moves(answered) = new.follow_segment(true, &segment(0, 0, 0, least)) else {
        panic!("it answers")
    };
    assert!(flows.update(flow, &answered, true, 0));
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    std::thread::scope(|scope| {
        for reply in [false, true] {
            scope.spawn(move || {
                for n in 0..rounds {
                    assert!(
                        flows.advance(flow, reply, &segment(10 * n, 10, 0, least + n as u16)),
                        "{reply} {n}"
                    );
                }
            });
        }
    });
    let tcp = flows.connection(flow).unwrap().tcp;
    assert_eq!(tcp.edges.map(|edge| edge.unwrap().end), [10 * rounds; 2]);
    assert_eq!(tcp.windows, [least + (rounds - 1) as u16; 2]);
}

/// A cached reference to a removed connection does not track the next one in its entry.
#[test]
fn no_other_connection_is_followed() {
    let flows = table(64);
    let segment = Segment { flags: 0x10, seq: 1, len: 0, ack: 1, window: 9, scale: None };
    let tcp = Tcp::first(0, &segment, false);
    let connection =
        Connection { original: key(1), state: FlowState::Established, seen: 12, tcp, binding: None };
    let create = FlowChange::Create { connection, rule: None };
    let old = flows.apply(&create, GUEST, 0).unwrap().unwrap();
    assert!(flows.advance(old, false, &segment));
    flows.flush(0, &mut |_| true);
    let new = flows.apply(&create, GUEST, 0).unwrap().unwrap();
    assert!(!flows.advance(old, false, &segment) && flows.advance(new, false, &segment));
    flows.loosen(old);
    assert!(!flows.connection(new).unwrap().tcp.liberal);
    flows.loosen(new);
    assert!(flows.connection(new).unwrap().tcp.liberal);
}

#[test]
fn a_new_connection_replaces_a_closed_one() {
    let flows = table(64);
    let old = flows.apply(&create(key(1), FlowState::Closed), GUEST, 0).unwrap().unwrap();
    let new = flows.apply(&create(key(1).reverse(), FlowState::New), GUEST, 0).unwrap().unwrap();
    assert!(!flows.alive(old) && flows.alive(new));
    assert!(!flows.touch(old, false, 1, 1, 1) && flows.connection(old).is_none());
    let gone = Connection {
        original: key(1),
        state: FlowState::Closed,
        seen: 0,
        tcp: Default::default(),
        binding: None,
    };
    assert!(!flows.update(old, &gone, false, 1));
    assert_eq!(flows.get(&key(1), 0).map(|(_, reply, _)| reply), Some(true));
    assert_eq!(flows.len(), 1);
    let twin = flows.apply(&create(key(1).reverse(), FlowState::New), GUEST, 0).unwrap();
    assert_eq!(twin, Some(new), "the other worker's first packet finds it made");
}

#[test]
fn the_table_fills_to_its_capacity() {
    let flows = table(4096);
    let filled = fill(&flows, 0..6000, FlowState::Established, 0);
    assert_eq!(filled, flows.len());
    assert_eq!(filled, 4096, "every shard is filled");
    let refused = flows.apply(&create(key(1 << 20), FlowState::New), GUEST, 0);
    assert_eq!(refused, Err(DropReason::FlowTableFull));
}

#[test]
fn a_flood_of_syns_takes_no_established_connection() {
    let flows = table(4096);
    let established = 2000;
    assert_eq!(fill(&flows, 0..established, FlowState::Established, 10), established as usize);
    let flood = 20_000;
    assert_eq!(
        fill(&flows, 1 << 20..(1 << 20) + flood, FlowState::New, 11),
        flood as usize,
        "each finds room"
    );
    assert!((0..established).all(|n| flows.get(&key(n), 12).is_some()));
    assert!(flows.len() <= 4096);
    assert_eq!(flows.created(), u64::from(established + flood));
}

#[test]
fn expired_ones_give_way_first_then_unanswered_ones_then_closing_ones() {
    // One range of buckets: all candidates are examined.
    let flows = table(8);
    let capacity = 8;
    for (n, (state, now)) in (0..).zip([
        (FlowState::Established, 100),
        (FlowState::Closing, 80),
        (FlowState::New, 90),
        (FlowState::New, 95),
        (FlowState::New, 10),
        (FlowState::Established, 100),
        (FlowState::Established, 100),
        (FlowState::Established, 100),
    ]) {
        flows.apply(&create(key(n), state), GUEST, now).unwrap();
    }
    assert_eq!(flows.len(), capacity);
    for victim in [4, 2, 3, 1] {
        flows.apply(&create(key(100 + victim), FlowState::Established), GUEST, 100).unwrap();
        let gone: Vec<_> = (0..8).filter(|n| flows.get(&key(*n), 0).is_none()).collect();
        assert!(gone.contains(&victim), "{victim} before others: {gone:?}");
        assert_eq!(flows.len(), capacity);
    }
    let refused = flows.apply(&create(key(999), FlowState::New), GUEST, 100);
    assert_eq!(refused, Err(DropReason::FlowTableFull));
}

#[test]
fn guests_have_quotas() {
    const ACCOUNT: Account = Account::of_guest(VifId(3));
    let flows = Flows::new(FlowLimits { connections: 1024, per_guest: 10, new_per_second: 6 });
    let open = |n, now| flows.apply(&create(key(n), FlowState::Established), ACCOUNT, now).map(|_| ());
    assert!((0..6).all(|n| open(n, 0).is_ok()));
    assert_eq!(open(6, 0), Err(DropReason::FlowQuota), "too fast");
    assert!((6..10).all(|n| open(n, 1).is_ok()));
    assert_eq!(open(10, 1), Err(DropReason::FlowQuota), "has its share");
    assert_eq!(flows.held_by(ACCOUNT), 10);
    assert!(
        flows.apply(&create(key(50), FlowState::New), Account::of_guest(VifId(4)), 1).is_ok(),
        "another guest's"
    );
    let from_wire = Account::from_wire(VifId(3));
    assert!(
        flows.apply(&create(key(51), FlowState::New), from_wire, 1).is_ok(),
        "what comes to it by a wire"
    );
    assert_eq!(flows.flush(1, &mut |info| info.key == key(0)), 1);
    assert_eq!(open(10, 1), Ok(()));
    assert_eq!(flows.flush(1, &mut |_| true), 12);
    assert_eq!((flows.held_by(ACCOUNT), flows.len()), (0, 0));
    let used = FlowUse { refused: 2, ..FlowUse::default() };
    assert_eq!(flows.used_by(VifId(3)), used, "too fast, and one too many");
}

#[test]
fn sweeps_forget_what_expired() {
    let flows = table(4096);
    fill(&flows, 0..100, FlowState::New, 0);
    fill(&flows, 100..200, FlowState::Established, 0);
    assert_eq!(flows.expire(29, usize::MAX), 0);
    assert!(flows.get(&key(5), 30).is_none(), "expired, swept or not");
    let swept: usize = (0..8).map(|_| flows.expire(30, 512)).sum();
    assert_eq!((swept, flows.len()), (100, 100));
    assert!((100..200).all(|n| flows.get(&key(n), 30).is_some()));
}

#[test]
fn fragments_are_bounded_and_shared_fairly() {
    let flows = table(64);
    let fragments = flows.fragments();
    let fragment_in = |ingress, vrf, id| FragmentKey {
        ingress: VifId(ingress),
        vrf: Vrf(vrf),
        src: IpAddr::V4(Ipv4Addr::LOCALHOST),
        dst: IpAddr::V4(Ipv4Addr::LOCALHOST),
        protocol: Some(UDP),
        id,
    };
    let fragment = |ingress, id| fragment_in(ingress, 1, id);
    let ports = |src, dst| Transport { protocol: UDP, ports: Some((src, dst)) };
    fragments.insert(fragment(1, 1), ports(7, 8), 0);
    (0..5000).for_each(|id| fragments.insert(fragment(2, id), ports(1, 1), 1));
    assert_eq!(fragments.get(&fragment(1, 1), 29), Some(ports(7, 8)), "a flood takes its own share only");
    assert_eq!(fragments.get(&fragment(1, 1), 30), None);
    assert_eq!(fragments.get(&fragment(2, 4999), 1), Some(ports(1, 1)));
    fragments.insert(fragment(1, 1), ports(9, 9), 31);
    assert_eq!(fragments.get(&fragment(1, 1), 31), Some(ports(9, 9)));
    // Several interfaces together can't displace it either, nor can other networks behind the same interface.
    for id in 0..700 {
        (2..8).for_each(|vif| fragments.insert(fragment(vif, id), ports(1, 1), 32));
        (2..8).for_each(|vrf| fragments.insert(fragment_in(1, vrf, id), ports(1, 1), 32));
    }
    assert_eq!(fragments.get(&fragment(1, 1), 32), Some(ports(9, 9)));
    let known = |vif| (0..700).filter(|id| fragments.get(&fragment(vif, *id), 32).is_some()).count();
    let known: Vec<_> = (2..8).map(known).collect();
    assert!(known.iter().all(|n| (256..=512).contains(n)), "4096 datagrams of 13: {known:?}");
}

#[test]
fn threads_create_count_and_flush_at_once() {
    let rounds = if cfg!(miri) { 10 } else { 20_000 };
    let flows = &table(1024);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            scope.spawn(move || {
                for round in 0..rounds {
                    // Few keys, which all threads use in both directions.
                    let n = (round * 7 + thread) % 64;
                    let at = if thread % 2 == 0 { key(n) } else { key(n).reverse() };
                    let now = round / 100;
                    let flow = match flows.get(&at, now) {
                        Some((connection, reply, flow)) => {
                            assert!(
                                connection.original == at && !reply
                                    || connection.original == at.reverse() && reply
                            );
                            flow
                        }
                        None => flows.apply(&create(at, FlowState::New), GUEST, now).unwrap().unwrap(),
                    };
                    flows.touch(flow, false, 1, 60, now);
                    if round % 97 == 0 {
                        flows.flush(now, &mut |info| info.key.src.port as u32 % 4 == thread);
                    }
                    if round % 31 == 0 {
                        flows.expire(now, 100);
                    }
                }
            });
        }
    });
    let mut listed = 0;
    flows.for_each(0, &mut |_| {
        listed += 1;
        true
    });
    assert_eq!(
        (listed, flows.held_by(GUEST)),
        (flows.len(), flows.len()),
        "nothing is lost or counted twice"
    );
    assert!(flows.len() <= 64);
    assert_eq!(flows.flush(0, &mut |_| true), listed);
    assert_eq!((flows.len(), flows.held_by(GUEST)), (0, 0));
}

fn any_end() -> impl Strategy<Value = Endpoint> {
    let v4 = any::<u32>().prop_map(|a| IpAddr::V4(Ipv4Addr::from_bits(a)));
    let v6 = any::<u128>().prop_map(|a| IpAddr::V6(Ipv6Addr::from_bits(a)));
    (any::<u16>(), prop_oneof![v4, v6], any::<u16>()).prop_map(|(vrf, addr, port)| Endpoint {
        vrf: Vrf(vrf),
        addr,
        port,
    })
}

/// Generates segments whose numbers are close to those of others, and often just the next ones.
pub(super) fn any_segment() -> impl Strategy<Value = (bool, Segment)> {
    let flags = prop_oneof![
        6 => Just(0x10_u8), 2 => Just(0x18), 1 => Just(0x11), 1 => Just(0x04), 1 => Just(0x14), 1 => Just(0x02),
        1 => Just(0x12), 1 => Just(0),
    ];
    let number = || prop_oneof![9 => (0_u32..6).prop_map(|n| (n * 10).wrapping_sub(20)), 1 => any::<u32>()];
    let (window, scale) =
        (prop_oneof![Just(0_u16), Just(9), Just(1000), Just(u16::MAX)], prop::option::of(0_u8..15));
    let data = prop_oneof![3 => Just(0_u32), 2 => Just(10), 1 => Just(65_000)];
    (any::<bool>(), flags, number(), data, number(), window, scale).prop_map(
        |(reply, flags, seq, data, ack, window, scale)| {
            let len = data + (flags & 0x03_u8).count_ones();
            (reply, Segment { flags, seq, len, ack, window, scale: scale.filter(|_| flags & 2 != 0) })
        },
    )
}

proptest! {
    /// The table tracks TCP as the model does, whether a packet takes the fast path or not.
    #[test]
    fn tcp_is_followed_as_the_model_says(
        liberal in prop::bool::weighted(0.2),
        first in any_segment(),
        segments in prop::collection::vec(any_segment(), 1..40),
    ) {
        let (reply, segment) = first;
        let (seen, tcp) = (if reply { 4 } else { 8 }, Tcp::first(reply.into(), &segment, liberal));
        let mut wanted = Connection { original: key(1), state: FlowState::New, seen, tcp, binding: None };
        let flows = table(64);
        let change = FlowChange::Create { connection: wanted, rule: None };
        let mut flow = flows.apply(&change, GUEST, 0).unwrap().unwrap();
        for (reply, segment) in segments {
            let plain = segment.is_plain() && flows.advance(flow, reply, &segment);
            match wanted.follow_segment(reply, &segment) {
                Follow::Moves(connection) => {
                    let moves = (connection.state, connection.seen) != (wanted.state, wanted.seen);
                    prop_assert!(!(plain && moves), "{segment:?} moves {wanted:?}");
                    if !plain {
                        let change = FlowChange::Update { connection, reply };
                        prop_assert_eq!(flows.apply(&change, GUEST, 0), Ok(Some(flow)));
                    }
                    wanted = connection;
                }
                Follow::Reopens(connection) => {
                    prop_assert!(!plain);
                    let change = FlowChange::Create { connection, rule: None };
                    flow = flows.apply(&change, Account::of_guest(VifId(2)), 0).unwrap().unwrap();
                    prop_assert_eq!(flows.held_by(GUEST), 1, "it stays charged to who opened it");
                    wanted = connection;
                }
                Follow::Stray | Follow::Outside => prop_assert!(!plain, "{segment:?} is not of {wanted:?}"),
            }
            prop_assert_eq!(flows.connection(flow), Some(wanted), "after {:?}", segment);
        }
    }

    #[test]
    fn every_key_is_told_back_as_it_was(src in any_end(), dst in any_end(), protocol: u8, rule: Option<u32>) {
        let flows = table(64);
        let account = Account::from_wire(VifId(u16::MAX));
        let key = FlowKey { src, dst, protocol };
        let connection = Connection { original: key, state: FlowState::Closing, seen: 5, tcp: Default::default(), binding: None };
        let change = FlowChange::Create { connection, rule: rule.map(RuleId) };
        flows.apply(&change, account, 1).unwrap();
        prop_assert_eq!(flows.get(&key, 1).map(|(c, reply, _)| (c, reply)), Some((connection, false)));
        flows.for_each(1, &mut |info| {
            assert_eq!((info.key, info.state, info.rule), (key, connection.state, rule.map(RuleId)));
            true
        });
        prop_assert_eq!(flows.held_by(account), 1);
    }
}
