//! Tables that change while they are read.

use ipnet::IpNet;
use model::{
    Change, FlowChange, FlowKey, Host, Learn, Lookup, Network, Nexthop, NexthopId, RuleQuery, VifId, Vrf,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use tables::{Account, FlowLimits, Shared};

const BLUE: Vrf = Vrf(1);
const TO: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));

fn network() -> Change {
    Change::PutNetwork(Network { learning: true, mtu: 1450, ..Network::new(BLUE, "blue") })
}

fn route(nexthop: u32) -> Change {
    let prefix = "10.1.2.0/24".parse().expect("a prefix");
    Change::PutRoute { vrf: BLUE, prefix, nexthop: NexthopId(nexthop) }
}

fn shared() -> Shared {
    let shared = Shared::new(FlowLimits { connections: 64, ..FlowLimits::default() });
    shared.apply(&[network(), Change::PutNexthop(NexthopId(0), Nexthop::Discard), route(0)]).expect("valid");
    shared
}

/// Returns a batch that moves the route to a new nexthop, deletes the old one, and writes the number into a
/// different table.
fn batch(n: u32) -> [Change; 4] {
    let tunnel_source = vec![IpAddr::V4(Ipv4Addr::from_bits(n))];
    [
        Change::PutNexthop(NexthopId(n), Nexthop::Discard),
        route(n),
        Change::DelNexthop(NexthopId(n - 1)),
        Change::SetHost(Host { name: "h".into(), tunnel_source, ..Host::default() }),
    ]
}

#[test]
fn batches_are_seen_whole_and_bind_when_apply_returns() {
    let rounds = if cfg!(miri) { 10 } else { 2000 };
    let (shared, bound, done) = (&shared(), &AtomicU32::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        for worker in 0..3u8 {
            scope.spawn(move || {
                let mut reader = shared.reader();
                let mut memoised = None;
                let mut now = 0;
                while !done.load(Ordering::Relaxed) {
                    let binding = bound.load(Ordering::Acquire);
                    let snapshot = reader.pin();
                    let view = snapshot.view(shared.flows(), now);
                    let entry = view.route(BLUE, TO).expect("there is always a route");
                    assert!(view.nexthop(entry.nexthop).is_some(), "half a batch");
                    let host = view.host().tunnel_source.first().copied();
                    assert_eq!(
                        host,
                        (entry.nexthop.0 > 0).then(|| Ipv4Addr::from_bits(entry.nexthop.0).into())
                    );
                    assert!(entry.nexthop.0 >= binding, "apply had returned");
                    // A memoised answer that is found to hold must be at least as new as the applied change.
                    if let Some((deps, stamp, old)) = &memoised
                        && shared.still_valid(deps, *stamp)
                    {
                        assert!(*old >= binding, "{old} still held after {binding} bound");
                    } else {
                        memoised = Some((view.deps(), snapshot.epoch(), entry.nexthop.0));
                    }
                    let mac = packet::Mac([2, 0, 0, 0, worker, now as u8 % 16]);
                    let learn =
                        Learn { vrf: BLUE, mac, at: model::BridgeTarget::Vtep { remote: TO, vni: 1 } };
                    shared.learn(&snapshot, &learn, now);
                    now += 1;
                    if now % 64 == 0 {
                        reader.offline();
                        thread::yield_now();
                    }
                }
            });
        }
        for n in 1..=rounds {
            let applied = shared.apply(&batch(n)).expect("valid");
            // On a busy machine, a thread may be descheduled for as long as `apply` waits.
            if applied.settled {
                bound.store(n, Ordering::Release);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(bound.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_refused_batch_changes_nothing() {
    let shared = shared();
    let snapshot = shared.snapshot();
    let view = snapshot.view(shared.flows(), 0);
    let before = view.route(BLUE, TO);
    let refused = shared.apply(&[Change::PutNexthop(NexthopId(1), Nexthop::Discard), route(2)]);
    assert_eq!(refused.expect_err("no such nexthop").to_string(), "nexthop 2 does not exist");
    assert!(shared.apply(&[Change::DelNexthop(NexthopId(0))]).is_err(), "a route needs it");
    assert!(shared.apply(&[Change::DelNetwork(BLUE)]).is_err(), "it has routes");
    let after = shared.snapshot();
    assert_eq!(after.epoch(), snapshot.epoch());
    let view = after.view(shared.flows(), 0);
    assert_eq!((view.route(BLUE, TO), view.nexthop(NexthopId(1))), (before, None));
}

#[test]
fn a_stuck_reader_delays_apply_but_does_not_stop_it() {
    let shared = shared();
    let mut reader = shared.reader();
    let pinned = reader.pin();
    let old = pinned.epoch();
    let applied = thread::scope(|scope| scope.spawn(|| shared.apply(&batch(1))).join());
    let applied = applied.expect("no panic").expect("valid");
    assert!(!applied.settled && applied.epoch > old);
    assert_eq!(pinned.view(shared.flows(), 0).route(BLUE, TO).map(|entry| entry.nexthop), Some(NexthopId(0)));
    assert_eq!(reader.pin().epoch(), applied.epoch);
}

#[test]
fn connections_go_with_their_network() {
    let shared = shared();
    let end = |vrf, port| model::Endpoint { vrf, addr: TO, port };
    let key = |a, b| FlowKey { src: end(a, 1), dst: end(b, 2), protocol: 17 };
    shared
        .apply(&[Change::PutNetwork(match network() {
            Change::PutNetwork(blue) => Network { vrf: Vrf(2), ..blue },
            _ => unreachable!("a network"),
        })])
        .expect("valid");
    for key in [key(BLUE, BLUE), key(Vrf(2), BLUE), key(Vrf(2), Vrf(2))] {
        let connection = model::Connection {
            original: key,
            state: model::FlowState::New,
            seen: 0,
            tcp: Default::default(),
            binding: None,
        };
        let change = FlowChange::Create { connection, rule: None };
        shared.flows().apply(&change, Account::of_guest(VifId(1)), 0).expect("there is room");
    }
    let prefix = "10.1.2.0/24".parse().expect("a prefix");
    shared.apply(&[Change::DelRoute { vrf: BLUE, prefix }, Change::DelNetwork(BLUE)]).expect("valid");
    assert_eq!(shared.flows().len(), 1);
    assert!(shared.flows().get(&key(Vrf(2), Vrf(2)), 0).is_some());
}

#[test]
fn a_decision_that_depends_on_too_much_is_not_to_be_memoised() {
    let shared = shared();
    let snapshot = shared.snapshot();
    let view = snapshot.view(shared.flows(), 0);
    (0..31).for_each(|id| assert!(view.nexthop(NexthopId(id + 1)).is_none()));
    assert!(view.deps().cacheable() && shared.still_valid(&view.deps(), snapshot.epoch()));
    view.nexthop(NexthopId(5));
    assert!(view.deps().cacheable(), "one twice is one");
    let query = RuleQuery { src: TO, dst: TO, protocol: 6, dst_port: None };
    view.rules(BLUE, &query);
    assert!(!view.deps().cacheable() && !shared.still_valid(&view.deps(), u64::MAX));
}

#[test]
fn a_change_of_one_host_route_ends_only_what_went_there() {
    let shared = shared();
    let put = |prefix: String| {
        let prefix = prefix.parse().expect("a prefix");
        Change::PutRoute { vrf: BLUE, prefix, nexthop: NexthopId(0) }
    };
    let snapshot = shared.snapshot();
    let deps = |addr: IpAddr| {
        let view = snapshot.view(shared.flows(), 0);
        view.route(BLUE, addr);
        view.deps()
    };
    let v4 = |n: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a01_0000 + n));
    let v6 = |n: u32| IpAddr::from(Ipv6Addr::from_bits((0xfd00_u128 << 112) + u128::from(n)));
    for (addr, bits) in [(v4 as fn(u32) -> IpAddr, 32), (v6, 128)] {
        let others: Vec<_> = (1..=1000).map(|n| deps(addr(n))).collect();
        let own = deps(addr(0));
        shared.apply(&[put(format!("{}/{bits}", addr(0)))]).expect("valid");
        assert!(!shared.still_valid(&own, snapshot.epoch()));
        let valid = others.iter().filter(|deps| shared.still_valid(deps, snapshot.epoch())).count();
        // Some have the same cell.
        assert!(valid >= 995, "{valid} of 1000 hold");
    }
    // Each length ends what it covers.
    for len in [0, 8, 15, 16, 17, 23, 24, 25, 31] {
        let snapshot = shared.snapshot();
        let view = snapshot.view(shared.flows(), 0);
        view.route(BLUE, TO);
        shared
            .apply(&[put(format!("{}", IpNet::new(TO, len).expect("short enough").trunc()))])
            .expect("valid");
        let is_put = len == 24; // It was there.
        assert_eq!(shared.still_valid(&view.deps(), snapshot.epoch()), is_put, "/{len}");
    }
}
