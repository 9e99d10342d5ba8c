//! Who gets room in a full table, and who is evicted.

use super::*;
use crate::flow::{FlowLimits, lock};
use executor::FlowUse;
use model::{Connection, Endpoint, FlowChange, FlowKey, VifId, Vrf};
use packet::proto::{ICMP, TCP, UDP};
use std::net::Ipv4Addr;

const A: Account = Account::of_guest(VifId(1));
const B: Account = Account::of_guest(VifId(2));
/// The account of connections that come to the first guest through a wire.
const WIRE_TO_A: Account = Account::from_wire(VifId(1));

fn key(who: u8, n: u32, protocol: u8) -> FlowKey {
    let end = |addr: u32, port| Endpoint { vrf: Vrf(1), addr: Ipv4Addr::from_bits(addr).into(), port };
    FlowKey { src: end(u32::from(who) << 24 | n >> 12, n as u16 & 0xfff), dst: end(1, 80), protocol }
}

fn table(connections: usize) -> Flows {
    Flows::new(FlowLimits { connections, per_guest: usize::MAX, new_per_second: u32::MAX })
}

fn open(flows: &Flows, key: FlowKey, state: FlowState, account: Account, now: Seconds) -> Option<FlowRef> {
    let change = FlowChange::Create {
        connection: Connection { original: key, state, seen: 0, tcp: Default::default(), binding: None },
        rule: None,
    };
    match flows.apply(&change, account, now) {
        Ok(flow) => flow,
        Err(reason) => {
            assert_eq!(reason, DropReason::FlowTableFull);
            None
        }
    }
}

/// Sends a ping and its answer.
fn ping(flows: &Flows, who: u8, n: u32, account: Account, now: Seconds) -> Option<FlowRef> {
    let flow = open(flows, key(who, n, ICMP), FlowState::Established, account, now)?;
    flows.touch(flow, false, 1, 60, now);
    flows.touch(flow, true, 1, 60, now);
    Some(flow)
}

fn tcp(flows: &Flows, who: u8, n: u32, account: Account) -> Option<FlowRef> {
    open(flows, key(who, n, TCP), FlowState::Established, account, 0)
}

#[test]
fn a_flood_by_a_wire_takes_nothing_of_other_guests() {
    let flows = table(4096);
    let mut kept = Vec::new();
    for n in 0..20_000 {
        assert!(ping(&flows, 1, n, WIRE_TO_A, n / 35_000).is_some(), "ping {n}");
        if n % 100 == 0 {
            kept.push(open(&flows, key(2, n, TCP), FlowState::New, B, n / 35_000).expect("its first ones"));
            kept.push(open(&flows, key(3, n, UDP), FlowState::New, A, n / 35_000).expect("the target's own"));
        }
    }
    assert_eq!(flows.len(), 4096);
    assert!(kept.iter().all(|flow| flows.alive(*flow)), "nor are they lost later");
    assert_eq!(flows.used_by(VifId(2)), FlowUse { opened: 200, ..FlowUse::default() });
    let target = flows.used_by(VifId(1));
    assert_eq!((target.opened, target.from_wire, target.refused), (200, 4096 - 400, 0));
    assert_eq!(target.displaced, 20_000 - target.from_wire, "each ping takes an older one's place");
}

#[test]
fn guests_together_leave_others_their_reserve() {
    let flows = table(4096);
    let hogs: Vec<_> = (10..20).map(|n| Account::of_guest(VifId(n))).collect();
    let all_open = |n| {
        for (hog, who) in hogs.iter().zip(10..) {
            tcp(&flows, who, n, *hog);
        }
    };
    for n in 0..800 {
        all_open(n);
    }
    assert_eq!(flows.len(), 4096);
    let reserve = 4096 / 12 / 2;
    for (guest, who) in [(A, 1), (B, 2)] {
        let kept: Vec<_> = (0..reserve).map(|n| tcp(&flows, who, n, guest).expect("a reserve")).collect();
        // This holds whatever the others try.
        for n in 5000..5500 {
            all_open(n);
            ping(&flows, 30, n, WIRE_TO_A, 0);
        }
        assert!(kept.iter().all(|flow| flows.alive(*flow)));
        assert_eq!(flows.held_by(guest), reserve as usize);
    }
    // They do not evict each other's connections either: each gets room up to its share.
    let share = 4096 / 13;
    let held: Vec<_> = hogs.iter().map(|hog| flows.held_by(*hog)).collect();
    assert!(held.iter().all(|held| *held >= share / 2), "{held:?}");
}

#[test]
fn a_reserve_holds_in_each_shard() {
    let flows = table(4096);
    for n in 0..6000 {
        tcp(&flows, 1, n, A);
    }
    assert_eq!(flows.len(), 4096);
    for shard in 0..4 {
        let here = |n: &u32| flows.shard_of(flows.hash(&key(2, *n, TCP))) == shard;
        let mine: Vec<_> = (0..).filter(here).take(256).collect();
        assert!(mine.iter().all(|n| tcp(&flows, 2, *n, B).is_some()), "shard {shard}");
    }
    assert_eq!(flows.held_by(B), 1024, "a fourth of the table, half of an equal share");
    let all_full = (0..4).all(|shard| lock(&flows.shards[shard]).free == NONE);
    assert!(all_full && flows.len() == 4096);
    assert_eq!(flows.used_by(VifId(1)).displaced, 1024);
}

fn is_full(flows: &Flows, bucket: usize) -> bool {
    flows.index.records()[bucket].iter().all(|slot| slot.load(Ordering::Relaxed) != 0)
}

#[test]
fn a_reserve_holds_in_full_buckets() {
    let flows = table(256);
    let buckets = |key: &FlowKey| flows.bucket_numbers(flows.hash(key));
    let established = |key, account| open(&flows, key, FlowState::Established, account, 0);
    let moving = (0..).map(|n| key(1, n, TCP)).find(|key| buckets(key)[0] != buckets(key)[1]).unwrap();
    let [full, elsewhere] = buckets(&moving);
    let other = (0..).find(|bucket| ![full, elsewhere].contains(bucket)).unwrap();
    let moved = established(moving, A).unwrap();
    // Both buckets are filled with connections that have no other bucket, except for this first one.
    let mut within =
        (0..).map(|n| key(2, n, TCP)).filter(|key| buckets(key).iter().all(|b| [full, other].contains(b)));
    while !(is_full(&flows, full) && is_full(&flows, other)) {
        let next = within.next().unwrap();
        if buckets(&next).iter().any(|bucket| !is_full(&flows, *bucket)) {
            established(next, B).unwrap();
        }
    }
    assert_eq!(flows.held_by(B), 15);
    let newcomer = Account::of_guest(VifId(3));
    let mut within = within.filter(|key| buckets(key) == [full, other]);
    let query = open(&flows, within.next().unwrap(), FlowState::New, newcomer, 0);
    assert!(query.is_some(), "the first one moves");
    assert_eq!((flows.len(), flows.alive(moved)), (17, true));
    assert_eq!(flows.get(&moving, 0).map(|found| found.2), Some(moved), "and is found");
    assert_eq!(flows.get(&moving.reverse(), 0).map(|found| found.2), Some(moved));

    let mut enter = || established(within.next().unwrap(), newcomer).is_some();
    assert!(!enter(), "nobody moves, nobody has more than a reserve");
    // The following connections are in other buckets.
    let elsewhere = (0..).map(|n| key(4, n, TCP));
    let mut elsewhere = elsewhere.filter(|key| !buckets(key).iter().any(|b| [full, other].contains(b)));
    let mut more = |account, n: usize| {
        let made = elsewhere.by_ref().take(n).map(|key| established(key, account));
        assert!(made.collect::<Vec<_>>().iter().all(Option::is_some));
    };
    let (fair, reserve) = (256 / 3, 256 / 3 / 2);
    more(B, reserve - 15);
    assert!(!enter(), "what is reserved is kept");
    more(B, 1);
    assert!(enter(), "one who has more gives way");
    assert_eq!((flows.held_by(A), flows.held_by(B), flows.held_by(newcomer)), (1, reserve, 2));
    more(B, 2);
    more(newcomer, reserve - 3);
    assert!(enter(), "the last within the reserve");
    assert!(query.is_some_and(|flow| flows.alive(flow)), "its own is reserved too");
    // An account beyond its reserve evicts its own connections first, then those of accounts beyond their share.
    assert!(enter() && query.is_none_or(|flow| !flows.alive(flow)));
    assert!(!enter());
    more(B, fair - flows.held_by(B));
    assert!(!enter());
    more(B, 1);
    assert!(enter());
    assert_eq!((flows.held_by(B), flows.held_by(newcomer)), (fair, reserve + 1));
    let used = |vif| flows.used_by(VifId(vif));
    assert_eq!((used(1).refused, used(2).refused, used(3).refused), (0, 0, 4));
    assert_eq!((used(1).displaced, used(2).displaced, used(3).displaced), (0, 3, 1));
}

#[test]
fn they_give_way_in_order_of_what_they_are_worth() {
    let flows = table(8);
    let at = |who, protocol, state, now| open(&flows, key(who, 0, protocol), state, WIRE_TO_A, now).unwrap();
    let established = at(1, TCP, FlowState::Established, 60);
    let packets = at(2, UDP, FlowState::Established, 60);
    flows.touch(packets, false, 2, 60, 60);
    flows.touch(packets, true, 1, 60, 60);
    let uncounted = at(3, UDP, FlowState::Established, 61);
    flows.miscount(uncounted);
    let closing = at(4, TCP, FlowState::Closing, 50);
    let syn = at(5, TCP, FlowState::New, 62);
    let newer = ping(&flows, 6, 0, WIRE_TO_A, 63).unwrap();
    let older = ping(&flows, 7, 0, WIRE_TO_A, 61).unwrap();
    let expired = ping(&flows, 8, 0, WIRE_TO_A, 3).unwrap();
    let now = 63;
    for (n, victim) in (0..).zip([expired, older, syn, newer]) {
        assert!(tcp_at(&flows, n, B, now).is_some());
        assert!(!flows.alive(victim), "the {n}th");
    }
    // Both have their share. An account that has more evicts nobody else's connections, nor its own established ones.
    assert_eq!((flows.held_by(WIRE_TO_A), flows.held_by(B)), (4, 4));
    assert!(tcp_at(&flows, 9, B, now).is_none());
    assert!(ping(&flows, 9, 0, WIRE_TO_A, now).is_some(), "his own that is closing");
    assert!(!flows.alive(closing));
    // A third account lowers the shares of both. It evicts the ping first, and no established connection.
    let c = Account::of_guest(VifId(3));
    assert!(tcp_at(&flows, 10, c, now).is_some(), "the ping");
    assert!([established, packets, uncounted].into_iter().all(|flow| flows.alive(flow)));
}

#[test]
fn beyond_their_shares_who_has_more_gives_way() {
    let flows = table(8);
    let c = Account::of_guest(VifId(3));
    for n in 0..5 {
        ping(&flows, 1, n, A, 0).unwrap();
    }
    assert!(tcp_at(&flows, 0, B, 0).is_some() && tcp_at(&flows, 1, B, 0).is_some());
    tcp(&flows, 2, 0, c).unwrap();
    // There are two shares. This account has three connections now; the other had five.
    assert!(tcp_at(&flows, 2, B, 0).is_some());
    assert!(tcp_at(&flows, 3, B, 0).is_none(), "both would have four");
    assert_eq!([A, B, c].map(|account| flows.held_by(account)), [4, 3, 1]);
    // It does not evict its established TCP connection.
    let flows = table(8);
    (0..5).for_each(|n| assert!(tcp(&flows, 1, n, A).is_some()));
    (0..2).for_each(|n| assert!(tcp_at(&flows, n, B, 0).is_some()));
    tcp(&flows, 2, 0, c).unwrap();
    assert!(tcp_at(&flows, 2, B, 0).is_none());
    assert_eq!([A, B, c].map(|account| flows.held_by(account)), [5, 2, 1]);
}

fn tcp_at(flows: &Flows, n: u32, account: Account, now: Seconds) -> Option<FlowRef> {
    open(flows, key(9, n, TCP), FlowState::Established, account, now)
}

#[test]
fn tcp_gives_way_last_and_only_to_those_within_their_share() {
    let flows = table(8);
    let hog: Vec<_> = (0..6).map(|n| tcp(&flows, 1, n, A).unwrap()).collect();
    let datagrams: Vec<_> =
        [0, 1].map(|n| open(&flows, key(2, n, UDP), FlowState::Established, A, n).unwrap()).into();
    for flow in &datagrams {
        flows.touch(*flow, true, 5, 500, 1);
    }
    assert!(tcp_at(&flows, 0, B, 1).is_some() && tcp_at(&flows, 1, B, 1).is_some());
    assert!(hog.iter().all(|flow| flows.alive(*flow)), "datagrams first");
    assert!(datagrams.iter().all(|flow| !flows.alive(*flow)));
    assert!(tcp_at(&flows, 2, B, 1).is_some(), "beyond its reserve, within its share: from one beyond his");
    assert!(tcp_at(&flows, 3, B, 1).is_some());
    assert!(tcp_at(&flows, 4, B, 1).is_none(), "now they have the same");
    assert!(tcp(&flows, 3, 0, A).is_none());
    assert_eq!((flows.held_by(A), flows.held_by(B)), (4, 4));
    // A third account has a reserve of one; the others' shares are two by now.
    let third = Account::of_guest(VifId(3));
    assert!(tcp_at(&flows, 5, third, 1).is_some());
    assert_eq!(flows.held_by(A) + flows.held_by(B), 7);
}

#[test]
fn who_has_all_he_may_have_gives_way_to_himself() {
    let flows = Flows::new(FlowLimits { connections: 1024, per_guest: 10, new_per_second: u32::MAX });
    let theirs = ping(&flows, 2, 0, B, 0).unwrap();
    let own: Vec<_> = (0..10).map(|n| ping(&flows, 1, n, A, n).unwrap()).collect();
    for n in 10..15 {
        assert!(ping(&flows, 1, n, A, n).is_some());
    }
    let alive: Vec<_> = own.iter().map(|flow| flows.alive(*flow)).collect();
    assert_eq!(alive, [false, false, false, false, false, true, true, true, true, true], "the oldest");
    assert_eq!((flows.held_by(A), flows.alive(theirs), flows.len()), (10, true, 11));
    // Timed-out connections in other shards are no help.
    let full = Flows::new(FlowLimits { connections: 1024, per_guest: 1, new_per_second: u32::MAX });
    ping(&full, 2, 0, B, 0).unwrap();
    tcp(&full, 1, 0, A).unwrap();
    let change = FlowChange::Create {
        connection: Connection {
            original: key(1, 1, TCP),
            state: FlowState::New,
            seen: 0,
            tcp: Default::default(),
            binding: None,
        },
        rule: None,
    };
    assert_eq!(full.apply(&change, A, 1000), Err(DropReason::FlowQuota));
    assert_eq!((full.len(), full.used_by(VifId(1)).refused), (2, 1));
}

#[test]
fn what_comes_by_a_wire_has_a_rate_of_its_own() {
    let flows = Flows::new(FlowLimits { connections: 1024, per_guest: 1024, new_per_second: 3 });
    let opened = |account, who, now| {
        let change = |n| FlowChange::Create {
            connection: Connection {
                original: key(who, n, UDP),
                state: FlowState::New,
                seen: 0,
                tcp: Default::default(),
                binding: None,
            },
            rule: None,
        };
        (now * 10..now * 10 + 9).filter(|n| flows.apply(&change(*n), account, now).is_ok()).count()
    };
    for now in 0..3 {
        assert_eq!(opened(WIRE_TO_A, 1, now), 3);
        assert_eq!((opened(A, 2, now), opened(Account::from_wire(VifId(2)), 3, now)), (3, 3));
    }
    assert_eq!((flows.used_by(VifId(1)).refused, flows.used_by(VifId(2)).refused), (36, 18));
}

#[test]
fn shares_follow_who_has_connections() {
    let flows = table(1024);
    let share = || {
        let Share { fair, reserve } = flows.accounts.share();
        (fair, reserve)
    };
    assert_eq!(share(), (1024, 512));
    let first = key(1, 0, TCP);
    open(&flows, first, FlowState::New, A, 0).unwrap();
    open(&flows, key(1, 1, TCP), FlowState::New, A, 0).unwrap();
    assert_eq!(share(), (1024, 512));
    open(&flows, key(2, 0, TCP), FlowState::New, B, 0).unwrap();
    open(&flows, key(3, 0, TCP), FlowState::New, WIRE_TO_A, 0).unwrap();
    assert_eq!(share(), (341, 170));
    assert_eq!(flows.flush(0, &mut |info| info.key == first), 1);
    assert_eq!(share(), (341, 170));
    assert_eq!(flows.flush(0, &mut |info| info.key.src.addr < key(3, 0, TCP).src.addr), 2);
    assert_eq!(share(), (1024, 512));
}
