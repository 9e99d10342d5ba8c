//! Learning from packets: MACs and neighbours, with their limits and timers.

use model::{
    BridgeTarget, Change, Learn, Lookup, NeighbourFound, NeighbourScope, Network, PathMtu, Question, Seconds,
    Vif, VifId, VifKind, Vrf, WireAttributes,
};
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr};
use tables::{
    Deps, FlowLimits, MACS_BEHIND_TUNNELS, MACS_PER_PORT, NEIGHBOURS_PER_GUEST, PATHS, PROBES_PER_ASKER,
    PROBES_PER_SCOPE, SPARE_QUESTIONS, Shared, Waiting,
};

const BLUE: Vrf = Vrf(1);
const SCOPE: NeighbourScope = NeighbourScope::Network(BLUE);
const ASKER: VifId = VifId(1);

fn network(learning: bool) -> Change {
    Change::PutNetwork(Network { learning, mtu: 1450, ..Network::new(BLUE, "blue") })
}

fn guest(id: u16, mac: Option<Mac>) -> Change {
    Change::PutVif(Vif {
        vrf: Some(BLUE),
        mac,
        mtu: 1450,
        policy: true,
        ..Vif::new(VifId(id), "guest", VifKind::Tap)
    })
}

fn shared() -> Shared {
    let shared = Shared::new(FlowLimits { connections: 64, ..FlowLimits::default() });
    shared.apply(&[network(true), guest(1, None), guest(2, None)]).expect("valid");
    shared
}

fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

fn addr(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 | n).into()
}

fn learn(shared: &Shared, n: u32, vif: u16, now: Seconds) {
    let learn = Learn { vrf: BLUE, mac: mac(n), at: BridgeTarget::Vif(VifId(vif)) };
    shared.learn(&shared.snapshot(), &learn, now);
}

fn found(shared: &Shared, n: u32, at: u32, now: Seconds) {
    found_by(shared, n, at, 1, now);
}

fn found_by(shared: &Shared, n: u32, at: u32, by: u16, now: Seconds) {
    let found = NeighbourFound { scope: SCOPE, addr: addr(n), mac: mac(at) };
    shared.neighbour(&shared.snapshot(), &found, VifId(by), now);
}

fn place(shared: &Shared, n: u32) -> Option<BridgeTarget> {
    shared.snapshot().view(shared.flows(), 0).bridge(BLUE, mac(n)).map(|entry| entry.target)
}

fn neighbour(shared: &Shared, n: u32) -> Option<Mac> {
    shared.snapshot().view(shared.flows(), 0).neighbour(SCOPE, addr(n))
}

#[test]
fn macs_are_learned_moved_and_forgotten() {
    let shared = shared();
    learn(&shared, 1, 1, 10);
    assert_eq!(place(&shared, 1), Some(BridgeTarget::Vif(VifId(1))));
    let epoch = shared.snapshot().epoch();
    learn(&shared, 1, 1, 200);
    assert_eq!(shared.snapshot().epoch(), epoch, "seeing it again publishes nothing");
    learn(&shared, 1, 2, 201);
    assert_eq!(place(&shared, 1), Some(BridgeTarget::Vif(VifId(2))));
    learn(&shared, 1, 1, 201);
    assert_eq!(place(&shared, 1), Some(BridgeTarget::Vif(VifId(2))), "one move a second");
    shared.age(500);
    assert_eq!(place(&shared, 1), Some(BridgeTarget::Vif(VifId(2))));
    assert_eq!(shared.learned(500)[0].idle, 299);
    shared.age(501);
    assert_eq!(place(&shared, 1), None);
}

#[test]
fn a_mac_that_moved_stays_though_older_packets_are_counted_later() {
    let shared = shared();
    let late = |vif, now| {
        let learn = Learn { vrf: BLUE, mac: mac(1), at: BridgeTarget::Vif(VifId(vif)) };
        shared.learn_late(&shared.snapshot(), &learn, 4, now);
        place(&shared, 1)
    };
    let at = |vif| Some(BridgeTarget::Vif(VifId(vif)));
    assert_eq!(late(1, 10), at(1), "it is nowhere else");
    learn(&shared, 1, 2, 20);
    assert_eq!((late(1, 20), late(1, 21), late(1, 24)), (at(2), at(2), at(2)));
    assert_eq!(late(2, 24), at(2));
    assert_eq!(shared.learned(24)[0].idle, 0, "it was seen there");
    assert_eq!(late(1, 25), at(1), "these came after the move");
}

#[test]
fn a_flood_of_macs_takes_only_its_port_s_share() {
    let shared = shared();
    learn(&shared, u32::MAX, 2, 1);
    (0..MACS_PER_PORT + 100).for_each(|n| learn(&shared, n, 1, 1));
    assert_eq!(shared.learned(1).len() as u32, MACS_PER_PORT + 1);
    learn(&shared, u32::MAX - 1, 2, 1);
    assert!(place(&shared, u32::MAX - 1).is_some());
    learn(&shared, u32::MAX, 1, 2);
    assert_eq!(place(&shared, u32::MAX), Some(BridgeTarget::Vif(VifId(2))), "nor does it take others' over");
    // Expired entries make room.
    shared.age(400);
    learn(&shared, 7, 1, 401);
    assert_eq!(shared.learned(401).len(), 1);
}

#[test]
fn a_remote_takes_only_its_own_share_of_those_behind_tunnels() {
    let shared = shared();
    let remote = |n: u8| BridgeTarget::Vtep { remote: IpAddr::from([192, 0, 2, n]), vni: 1 };
    let learn = |n: u32, at, now| {
        let learn = Learn { vrf: BLUE, mac: mac(n), at };
        shared.learn(&shared.snapshot(), &learn, now);
        place(&shared, n) == Some(at)
    };
    let learned = (0..MACS_PER_PORT + 10).filter(|n| learn(*n, remote(1), 1)).count();
    assert_eq!(learned as u32, MACS_PER_PORT);
    assert!(learn(u32::MAX, remote(2), 1), "another remote's");
    // All of them together have a limit, too.
    for n in 2..=16 {
        for i in 0..MACS_PER_PORT {
            learn(u32::from(n) << 16 | i, remote(n), 1);
        }
    }
    assert_eq!(shared.learned(1).len() as u32, MACS_BEHIND_TUNNELS);
    assert!(!learn(u32::MAX - 1, remote(17), 1));
    assert!(learn(u32::MAX, BridgeTarget::Vif(VifId(1)), 2), "one moves away");
    assert!(learn(u32::MAX - 1, remote(17), 2), "and leaves room");
    assert!(!learn(u32::MAX - 2, remote(17), 2));
    shared.age(400);
    assert!(learn(u32::MAX - 2, remote(1), 401) && learn(1, remote(17), 401), "nothing is counted any more");
}

#[test]
fn configured_macs_are_never_moved() {
    let shared = shared();
    shared.apply(&[guest(3, Some(mac(9)))]).expect("valid");
    learn(&shared, 9, 1, 1);
    assert_eq!(place(&shared, 9), Some(BridgeTarget::Vif(VifId(3))));
    assert!(shared.learned(1).is_empty());
}

#[test]
fn what_was_learned_goes_with_its_port_and_network() {
    let shared = shared();
    learn(&shared, 1, 1, 1);
    learn(&shared, 2, 2, 1);
    found(&shared, 1, 1, 1);
    shared.apply(&[Change::DelVif(VifId(1))]).expect("valid");
    assert_eq!((place(&shared, 1), place(&shared, 2)), (None, Some(BridgeTarget::Vif(VifId(2)))));
    learn(&shared, 1, 1, 2);
    assert_eq!(place(&shared, 1), None, "a late packet of the removed port teaches nothing");
    shared.apply(&[Change::DelVif(VifId(2)), Change::DelNetwork(BLUE)]).expect("valid");
    assert!(shared.learned(2).is_empty() && shared.neighbours().is_empty());
    found(&shared, 1, 1, 3);
    assert!(shared.neighbours().is_empty());
}

#[test]
fn memoised_decisions_notice_what_is_learned() {
    let shared = shared();
    let snapshot = shared.snapshot();
    let view = snapshot.view(shared.flows(), 0);
    assert_eq!(view.bridge(BLUE, mac(1)), None);
    let (deps, stamp) = (view.deps(), snapshot.epoch());
    learn(&shared, 2, 1, 1);
    assert!(shared.still_valid(&deps, stamp), "another MAC");
    learn(&shared, 1, 1, 1);
    assert!(!shared.still_valid(&deps, stamp), "a miss that is a hit now");
    assert!(shared.still_valid(&deps, shared.snapshot().epoch()));
}

#[test]
fn what_the_underlay_carries_is_known_for_ten_minutes() {
    let shared = shared();
    let (remote, flows) = (addr(1), shared.flows());
    let carries = |now| shared.snapshot().view(flows, now).path_mtu(remote);
    let (before, snapshot) = (shared.snapshot().epoch(), shared.snapshot());
    let view = snapshot.view(flows, 0);
    assert_eq!(view.path_mtu(remote), None);
    shared.path(&PathMtu { remote, mtu: 1400 }, 5);
    assert_eq!(carries(5), Some(1400));
    assert!(!shared.still_valid(&view.deps(), before), "a decision by the larger one");
    shared.age(5 + PathMtu::AGE - 1);
    assert_eq!(carries(0), Some(1400));
    shared.age(5 + PathMtu::AGE);
    assert_eq!(carries(0), None);
}

#[test]
fn paths_are_bounded() {
    let shared = shared();
    let most = PATHS as u32;
    (0..=most).for_each(|n| shared.path(&PathMtu { remote: addr(n), mtu: 1400 }, 1));
    shared.path(&PathMtu { remote: addr(0), mtu: 1300 }, 2);
    let snapshot = shared.snapshot();
    assert_eq!(snapshot.paths().count(), PATHS);
    let view = snapshot.view(shared.flows(), 2);
    assert_eq!((view.path_mtu(addr(0)), view.path_mtu(addr(most))), (Some(1300), None));
}

#[test]
fn an_unknown_neighbour_is_asked_for_thrice_then_left_alone() {
    let shared = shared();
    let wait = |now| shared.wait_for(SCOPE, addr(1), ASKER, now);
    assert_eq!((wait(10), wait(10)), (Waiting::Solicit, Waiting::Hold));
    assert!(shared.pending_solicitations(10).is_empty(), "it has been asked this second");
    assert_eq!(shared.pending_solicitations(11), [question(1, None)]);
    assert_eq!(shared.neighbours().len(), 1);
    assert_eq!(shared.pending_solicitations(12), [question(1, None)]);
    assert_eq!(wait(12), Waiting::Hold);
    assert!(shared.pending_solicitations(13).is_empty());
    assert_eq!((wait(13), wait(15)), (Waiting::Failed, Waiting::Failed));
    assert_eq!(wait(16), Waiting::Solicit, "after a pause it is tried again");
    found(&shared, 1, 5, 16);
    assert_eq!(neighbour(&shared, 1), Some(mac(5)));
    assert!(shared.pending_solicitations(17).is_empty());
}

fn question(n: u32, at: Option<Mac>) -> Question {
    Question { scope: SCOPE, addr: addr(n), at }
}

/// Makes a decision at `now` that needs a neighbour. Returns its dependencies.
fn use_it(shared: &Shared, n: u32, now: Seconds) -> Deps {
    let snapshot = shared.snapshot();
    let view = snapshot.view(shared.flows(), now);
    view.neighbour(SCOPE, addr(n));
    view.deps()
}

#[test]
fn neighbours_in_use_are_asked_alone_and_forgotten_if_silent() {
    let shared = shared();
    (1..4).for_each(|n| found(&shared, n, n, 10));
    let memoised = use_it(&shared, 2, 11);
    use_it(&shared, 3, 69);
    assert!(shared.pending_solicitations(70).is_empty(), "none is used since it is stale");
    use_it(&shared, 1, 70);
    shared.used(&memoised, 71);
    let alone = |n| question(n, Some(mac(n)));
    assert_eq!(shared.pending_solicitations(71), [alone(1), alone(2)]);
    found(&shared, 2, 2, 71);
    assert_eq!(shared.pending_solicitations(72), [alone(1)]);
    assert_eq!(shared.pending_solicitations(73), [alone(1)]);
    assert_eq!(neighbour(&shared, 1), Some(mac(1)), "used until it counts as gone");
    assert!(shared.pending_solicitations(74).is_empty());
    assert_eq!(known(&shared, 1..4), [2, 3]);
    assert_eq!(shared.wait_for(SCOPE, addr(1), ASKER, 74), Waiting::Solicit, "then all are asked");
    // A neighbour that nobody uses is not asked, and is forgotten in the end.
    assert!(shared.pending_solicitations(609).iter().all(|question| question.addr != addr(3)));
    assert_eq!(neighbour(&shared, 3), Some(mac(3)));
    let _ = shared.pending_solicitations(610);
    assert_eq!(known(&shared, 1..4), [2]);
}

#[test]
fn a_packet_that_waits_has_all_asked_also_where_one_was_asked_alone() {
    let shared = shared();
    found(&shared, 1, 1, 10);
    use_it(&shared, 1, 70);
    assert_eq!(shared.pending_solicitations(70), [question(1, Some(mac(1)))]);
    // The neighbour's interface announces so many others that it is evicted.
    (1000..1000 + NEIGHBOURS_PER_GUEST).for_each(|n| {
        assert_ne!(shared.wait_for(SCOPE, addr(n), VifId(n as u16), 70), Waiting::Hold);
        found(&shared, n, n, 70);
    });
    assert_eq!(neighbour(&shared, 1), None);
    assert_eq!(shared.wait_for(SCOPE, addr(1), ASKER, 70), Waiting::Solicit);
    assert_eq!(shared.pending_solicitations(71), [question(1, None)]);
}

/// Returns which of the neighbours with these numbers are known.
fn known(shared: &Shared, numbers: std::ops::Range<u32>) -> Vec<u32> {
    numbers.filter(|n| neighbour(shared, *n).is_some()).collect()
}

#[test]
fn who_brings_many_neighbours_displaces_its_own() {
    let shared = shared();
    found_by(&shared, 1 << 20, 1, 2, 1);
    (0..NEIGHBOURS_PER_GUEST).for_each(|n| found(&shared, n, n, 1));
    assert_eq!(known(&shared, 0..NEIGHBOURS_PER_GUEST).len() as u32, NEIGHBOURS_PER_GUEST);
    // Only a few that nobody asked for are accepted in a second.
    (1000..1010).for_each(|n| found(&shared, n, n, 2));
    assert_eq!(known(&shared, 1000..1010), [1000, 1001, 1002, 1003]);
    assert_eq!(known(&shared, 0..8), [4, 5, 6, 7], "the oldest go");
    (1010..1020).for_each(|n| found(&shared, n, n, 3));
    assert_eq!(shared.neighbours().len() as u32, NEIGHBOURS_PER_GUEST + 1);
    // Other interfaces have room, and their entries stay.
    found_by(&shared, 1 << 21, 1, 2, 3);
    assert_eq!(
        known(&shared, 1 << 20..(1 << 20) + 1).len() + known(&shared, 1 << 21..(1 << 21) + 1).len(),
        2
    );
    // Neighbours for which packets wait always have room.
    for n in 2000..2010 {
        assert_eq!(shared.wait_for(SCOPE, addr(n), ASKER, 3), Waiting::Solicit);
        found(&shared, n, n, 3);
    }
    assert_eq!(known(&shared, 2000..2010).len(), 10);
    assert_eq!(shared.neighbours().len() as u32, NEIGHBOURS_PER_GUEST + 2);
    shared
        .apply(&[Change::DelVif(VifId(1)), Change::DelVif(VifId(2)), Change::DelNetwork(BLUE)])
        .expect("valid");
    assert!(shared.neighbours().is_empty());
}

#[test]
fn a_neighbour_that_is_heard_of_again_is_spared() {
    let shared = shared();
    (0..NEIGHBOURS_PER_GUEST).for_each(|n| found(&shared, n, n, 1));
    (0..3).for_each(|n| found(&shared, n, n, 60));
    found(&shared, 1000, 1000, 61);
    assert_eq!(known(&shared, 0..6), [0, 1, 2, 4, 5]);
    // If several announce themselves in sequence, some are accepted too, but not all.
    (4..40).for_each(|n| found(&shared, n, n, 62));
    found(&shared, 1001, 1001, 63);
    assert_eq!(known(&shared, 4..40).len(), 35);
    assert_eq!(shared.neighbours().len() as u32, NEIGHBOURS_PER_GUEST);
}

#[test]
fn a_neighbour_counts_for_whoever_told_of_its_mac_last() {
    let shared = shared();
    (0..NEIGHBOURS_PER_GUEST).for_each(|n| found_by(&shared, n, n, 2, 1));
    found_by(&shared, 5, 6, 1, 2);
    assert_eq!(neighbour(&shared, 5), Some(mac(6)));
    found_by(&shared, 1000, 1000, 2, 2);
    assert_eq!(shared.neighbours().len() as u32, NEIGHBOURS_PER_GUEST + 1, "there was room for one");
    // An interface with a full share takes over as few as it may add.
    (0..NEIGHBOURS_PER_GUEST).for_each(|n| found_by(&shared, 2000 + n, n, 1, 3));
    (10..30).for_each(|n| found_by(&shared, n, 7, 1, 4));
    assert_eq!((10..30).filter(|n| neighbour(&shared, *n) == Some(mac(7))).count(), 4);
}

/// An interface that scans leaves room for others, and nobody can grow the table without limit.
#[test]
fn neighbours_asked_for_are_bounded_for_each_asker_and_in_all() {
    let shared = shared();
    let answers = |asker: u16, now| -> Vec<_> {
        let addresses = (0..1000).map(|n| addr(1 << 20 | u32::from(asker) << 10 | n));
        addresses.map(|addr| shared.wait_for(SCOPE, addr, VifId(asker), now)).collect()
    };
    let asked = |answers: &[Waiting]| answers.iter().filter(|w| **w == Waiting::Solicit).count();
    for asker in 0..10 {
        let kept = PROBES_PER_ASKER.min(PROBES_PER_SCOPE.saturating_sub(asker * PROBES_PER_ASKER));
        // Beyond that, each neighbour is asked for once, even if all is full.
        let expected = kept + SPARE_QUESTIONS as usize;
        let answers = answers(asker as u16, 1);
        assert_eq!(asked(&answers), expected, "asker {asker}");
        assert!(answers[expected..].iter().all(|waiting| *waiting == Waiting::Full));
        assert_eq!(shared.neighbours().len(), PROBES_PER_SCOPE.min((asker + 1) * PROBES_PER_ASKER));
    }
    let other = NeighbourScope::Wire(VifId(9));
    assert_eq!(shared.wait_for(other, addr(1), VifId(0), 1), Waiting::Solicit, "another scope");
    // Neighbours that answer and those that are given up make room.
    found(&shared, 1 << 20, 1, 1);
    assert_eq!(shared.wait_for(SCOPE, addr(7), VifId(0), 1), Waiting::Solicit);
    assert_eq!(shared.wait_for(SCOPE, addr(8), VifId(0), 1), Waiting::Full);
    for now in 2..9 {
        let _ = shared.pending_solicitations(now);
    }
    assert_eq!(asked(&answers(3, 9)), PROBES_PER_ASKER + SPARE_QUESTIONS as usize);
}

#[test]
fn a_neighbour_of_a_wire_that_does_not_answer_is_silent_until_it_does() {
    const WIRE: VifId = VifId(3);
    const UNDERLAY: NeighbourScope = NeighbourScope::Wire(WIRE);
    let shared = shared();
    shared.apply(&[Change::PutVif(Vif::new(WIRE, "up0", VifKind::Wire))]).expect("valid");
    let look = || {
        let snapshot = shared.snapshot();
        let view = snapshot.view(shared.flows(), 0);
        let silent = [1, 2].map(|n| view.is_silent(UNDERLAY, addr(n)));
        assert_eq!(view.any_is_silent(), silent.contains(&true));
        (silent, view.deps())
    };
    let (silent, before) = look();
    let stamp = shared.snapshot().epoch();
    assert_eq!(silent, [false, false]);
    assert_eq!(shared.wait_for(UNDERLAY, addr(1), ASKER, 10), Waiting::Solicit);
    assert_eq!(shared.wait_for(SCOPE, addr(2), ASKER, 10), Waiting::Solicit);
    (11..13).for_each(|now| drop(shared.pending_solicitations(now)));
    assert!(!look().0[0] && shared.still_valid(&before, stamp), "asked three times at most");
    (13..15).for_each(|now| drop(shared.pending_solicitations(now)));
    assert_eq!(look().0, [true, false]);
    assert!(!shared.still_valid(&before, stamp), "decisions are made anew");
    // It is asked again although no packet needs it.
    let asked: usize = (15..30).map(|now| shared.pending_solicitations(now).len()).sum();
    assert!((2..=6).contains(&asked), "{asked}");
    // A gateway is not forgotten: flows would go there again.
    let gateways = |gateways| {
        let wire = Some(WireAttributes { gateways, ..WireAttributes::default() });
        let vif = Vif { wire, ..Vif::new(WIRE, "up0", VifKind::Wire) };
        shared.apply(&[Change::PutVif(vif)]).expect("valid");
    };
    gateways(vec![addr(1)]);
    (600..1300).for_each(|now| drop(shared.pending_solicitations(now)));
    assert_eq!(look().0, [true, false]);
    gateways(Vec::new());
    let _ = shared.pending_solicitations(1300);
    assert_eq!(look().0, [false, false]);
    assert_eq!(shared.wait_for(UNDERLAY, addr(1), ASKER, 1310), Waiting::Solicit);
    (1310..1316).for_each(|now| drop(shared.pending_solicitations(now)));
    assert_eq!(look().0, [true, false]);
    let answer = NeighbourFound { scope: UNDERLAY, addr: addr(1), mac: mac(1) };
    shared.neighbour(&shared.snapshot(), &answer, WIRE, 1330);
    let _ = shared.pending_solicitations(1331);
    assert_eq!(look().0, [false, false]);
}
