//! Hosts that watch each other, by a clock of the test.

use super::*;
use model::VifId;
use std::collections::BTreeSet;

const DELAY: Duration = ms(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn addr(host: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, host])
}

fn watched(hosts: &[u8]) -> Option<Watched> {
    Some(Watched {
        remotes: hosts.iter().map(|host| addr(*host)).collect(),
        interval: ms(10),
        ..Watched::default()
    })
}

/// A packet on its way: when it arrives, from whom to whom, by which path, the ports, and its payload.
type Sent = (Duration, (u8, u8), Option<Way>, (u16, u16), Vec<u8>);

/// Hosts by the last byte of their addresses, and what is on the way between them.
struct Fabric {
    hosts: BTreeMap<u8, Sessions>,
    /// Hosts that send and get nothing.
    dead: BTreeSet<u8>,
    way: Vec<Sent>,
    /// The ways of all hosts to all others, and the wires that lead nowhere.
    ways: Vec<Way>,
    broken: BTreeSet<VifId>,
    /// Hosts whose packets are lost.
    lost: BTreeSet<u8>,
    now: Duration,
    /// Changes of the tables of a host.
    changes: Vec<(Duration, u8, Change)>,
}

impl Fabric {
    /// Returns a fabric in which host 1 watches the others, and they watch it.
    fn new(others: &[u8]) -> Self {
        let now = ms(1);
        let mut hosts: BTreeMap<u8, Sessions> =
            [1].iter().chain(others).map(|host| (*host, Sessions::new())).collect();
        for (host, sessions) in &mut hosts {
            sessions.want(watched(if *host == 1 { others } else { &[1] }), now);
        }
        let (dead, way, lost, changes, ways, broken) = Default::default();
        Self { hosts, dead, way, ways, broken, lost, now, changes }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
            self.now += ms(1);
        }
    }

    fn step(&mut self) {
        let arrived: Vec<_> = self.way.extract_if(.., |(at, ..)| *at <= self.now).collect();
        let lives = |(_, (_, to), ..): &Sent| !self.dead.contains(to);
        for (_, (from, to), by, (src, dst), payload) in arrived.into_iter().filter(lives) {
            let Some(sessions) = self.hosts.get_mut(&to) else { continue };
            match (src, dst) {
                (_, proto::PORT_SBFD) => {
                    let answer = sessions.reflect(addr(from), &payload).map(Vec::from);
                    let at = self.now + DELAY;
                    self.way.extend(answer.map(|answer| (at, (to, from), by, (dst, src), answer)));
                }
                (proto::PORT_SBFD, _) => sessions.answered(addr(from), &payload, self.now),
                _ => sessions.received(addr(from), &payload, self.now),
            }
        }
        for (host, sessions) in self.hosts.iter_mut().filter(|(host, _)| !self.dead.contains(host)) {
            sessions.follow_ways(|_| self.ways.clone(), self.now);
            sessions.tick(self.now);
            for (to, said) in sessions.output(self.now) {
                assert!(said.ports.0 >= FIRST_SOURCE || said.ports.1 == proto::PORT_SBFD);
                let IpAddr::V4(to) = to else { continue };
                if self.lost.contains(host) || said.by.is_some_and(|(wire, _)| self.broken.contains(&wire)) {
                    continue;
                }
                let ends = (*host, to.octets()[3]);
                self.way.push((self.now + DELAY, ends, said.by, said.ports, said.payload.to_vec()));
            }
            self.changes.extend(sessions.take_changes().into_iter().map(|change| (self.now, *host, change)));
        }
    }

    /// Returns the changes of the tables of host 1 since the last call.
    fn told(&mut self) -> Vec<(Duration, Change)> {
        let told = std::mem::take(&mut self.changes).into_iter().filter(|(_, host, _)| *host == 1);
        told.map(|(at, _, change)| (at, change)).collect()
    }
}

fn set_down(host: u8, is_down: bool) -> Change {
    Change::SetDown { remote: addr(host), is_down }
}

#[test]
fn a_remote_that_dies_is_down_at_once_and_up_when_it_is_back() {
    let mut fabric = Fabric::new(&[2, 3]);
    fabric.run(ms(5000));
    assert_eq!(fabric.told(), [], "a remote that comes up was not down");
    fabric.dead.insert(2);
    let died = fabric.now;
    fabric.run(ms(1000));
    let told = fabric.told();
    assert_eq!(told.iter().map(|(_, change)| change.clone()).collect::<Vec<_>>(), [set_down(2, true)]);
    assert!(told[0].0 <= died + ms(35), "{:?}", told[0].0 - died);
    fabric.dead.clear();
    fabric.run(ms(5000));
    assert_eq!(
        fabric.told().iter().map(|(_, change)| change.clone()).collect::<Vec<_>>(),
        [set_down(2, false)]
    );
}

#[test]
fn a_remote_that_never_answered_counts_as_up() {
    let mut fabric = Fabric::new(&[2]);
    fabric.dead.insert(2);
    fabric.run(ms(10_000));
    assert_eq!(fabric.told(), []);
    assert!(!fabric.hosts[&1].list()[0].is_down);
}

#[test]
fn who_stops_is_down_and_who_watches_no_more_is_not() {
    let mut fabric = Fabric::new(&[2, 3]);
    fabric.run(ms(5000));
    let now = fabric.now;
    let (two, three) = (2, 3);
    fabric.hosts.get_mut(&two).unwrap().fail(now);
    fabric.hosts.get_mut(&three).unwrap().want(None, now);
    // Some of its last words are lost.
    fabric.lost.insert(3);
    fabric.run(ms(15));
    fabric.lost.clear();
    fabric.run(ms(25));
    assert_eq!(
        fabric.told().iter().map(|(_, change)| change.clone()).collect::<Vec<_>>(),
        [set_down(2, true)]
    );
    fabric.dead.insert(2);
    fabric.run(ms(5000));
    assert!(fabric.hosts[&1].list().iter().all(|its| its.is_down == (its.remote == addr(2))));
    // Tunnels to it are gone: nothing is left of it.
    fabric.hosts.get_mut(&1).unwrap().want(watched(&[3]), fabric.now);
    fabric.run(ms(1));
    assert!(fabric.told().iter().any(|(_, change)| *change == set_down(2, false)));
}

#[test]
fn another_daemon_goes_on() {
    let mut fabric = Fabric::new(&[2, 3]);
    fabric.run(ms(5000));
    fabric.dead.insert(3);
    fabric.run(ms(1000));
    fabric.told();
    fabric.hosts.get_mut(&1).unwrap().leave(true);
    fabric.run(ms(50));
    let held = fabric.hosts[&1].held();
    assert_eq!((held.up.len(), &held.down[..]), (1, &[addr(3)][..]));
    let mut parts = HeldRemotes::default();
    held.parts(1).for_each(|part| parts.extend(part));
    assert_eq!(parts, held);
    fabric.dead.insert(1);
    fabric.run(ms(500));
    fabric.dead.remove(&1);
    let mut next = Sessions::new();
    next.adopt(held);
    assert_eq!(next.take_changes(), [set_down(3, true)], "before packets flow");
    next.want(watched(&[2, 3]), fabric.now);
    fabric.hosts.insert(1, next);
    fabric.run(ms(1000));
    assert_eq!(fabric.changes, [], "neither end has noticed");
    fabric.dead.insert(2);
    fabric.run(ms(40));
    assert_eq!(
        fabric.told().iter().map(|(_, change)| change.clone()).collect::<Vec<_>>(),
        [set_down(2, true)]
    );
}

#[test]
fn a_daemon_that_goes_on_after_all_has_lost_nobody() {
    let mut fabric = Fabric::new(&[2]);
    fabric.run(ms(5000));
    fabric.told();
    fabric.hosts.get_mut(&1).unwrap().leave(true);
    fabric.run(ms(50));
    fabric.dead.insert(1);
    fabric.run(ms(500));
    fabric.dead.clear();
    let now = fabric.now;
    let sessions = fabric.hosts.get_mut(&1).unwrap();
    sessions.wait_anew(now);
    sessions.leave(false);
    fabric.run(ms(1000));
    assert_eq!(fabric.changes, []);
}

#[test]
fn strangers_and_nonsense_are_nothing() {
    let mut fabric = Fabric::new(&[2]);
    fabric.run(ms(5000));
    let sessions = fabric.hosts.get_mut(&1).unwrap();
    let before = sessions.list();
    sessions.received(addr(9), &[0x20, 0x40, 3, 24], ms(5000));
    sessions.received(addr(2), &[0xff; 24], ms(5000));
    sessions.received(addr(2), &[], ms(5000));
    assert_eq!(sessions.list(), before);
    let many: BTreeSet<_> = (0..1000).map(|n| IpAddr::from([10, 0, (n >> 8) as u8, n as u8])).collect();
    sessions.want(Some(Watched { remotes: many, interval: ms(10), ..Watched::default() }), fabric.now);
    assert_eq!((sessions.list().len(), sessions.unwatched()), (MOST, 1000 - MOST));
}

#[test]
fn one_that_is_watched_stays_where_more_come() {
    let many: BTreeSet<_> = (0..1000).map(|n| IpAddr::from([10, 0, (n >> 8) as u8, n as u8])).collect();
    let all = |more| many.iter().copied().chain(more).collect();
    let watch = |sessions: &mut Sessions, remotes| {
        sessions.want(Some(Watched { remotes, interval: ms(10), ..Watched::default() }), ms(1));
        sessions.list().into_iter().map(|its| its.remote).collect::<BTreeSet<_>>()
    };
    let mut sessions = Sessions::new();
    assert_eq!(watch(&mut sessions, [addr(2)].into()), [addr(2)].into());
    let watched = watch(&mut sessions, all(Some(addr(2))));
    assert!(watched.contains(&addr(2)) && watched.len() == MOST);
    // The addresses before all others displace nobody.
    let lower = (0..9).map(|n| IpAddr::from([1, 1, 1, n]));
    assert_eq!(watch(&mut sessions, many.iter().copied().chain([addr(2)]).chain(lower).collect()), watched);
}

fn all(remotes: impl Iterator<Item = IpAddr>) -> Named {
    Named { remotes: remotes.collect(), is_all: true }
}

fn names(sessions: &mut Sessions, hosts: &[u8], now: Duration) {
    sessions.name(all(hosts.iter().map(|host| addr(*host))));
    sessions.want(sessions.watched.clone(), now);
}

fn list(sessions: &Sessions) -> Vec<(IpAddr, bool)> {
    sessions.list().into_iter().map(|its| (its.remote, its.is_down)).collect()
}

#[test]
fn a_remote_that_lost_its_tunnels_is_down_as_long_as_routes_name_it() {
    let mut fabric = Fabric::new(&[2, 3]);
    names(fabric.hosts.get_mut(&1).unwrap(), &[2, 3], ms(1));
    fabric.run(ms(5000));
    fabric.dead.insert(2);
    fabric.run(ms(100));
    fabric.told();
    // Routes give way: no tunnel leads there any more.
    let now = fabric.now;
    fabric.hosts.get_mut(&1).unwrap().want(watched(&[3]), now);
    fabric.run(ms(5000));
    assert_eq!(list(&fabric.hosts[&1]), [(addr(2), true), (addr(3), false)]);
    assert_eq!(fabric.told(), []);
    // Another daemon takes over, and its peers have not sent their routes yet.
    let held = fabric.hosts[&1].held();
    let mut next = Sessions::new();
    next.adopt(held);
    next.take_changes();
    next.name(Named::default());
    next.want(watched(&[3]), fabric.now);
    assert_eq!((list(&next), next.take_changes()), (list(&fabric.hosts[&1]), Vec::new()));
    next.name(Named { remotes: [addr(4)].into(), is_all: false });
    next.want(watched(&[3]), fabric.now);
    assert_eq!(next.watched(), [addr(2), addr(3), addr(4)].into(), "what is named is watched at once");
    names(&mut next, &[2, 3], fabric.now);
    assert_eq!(next.watched(), [addr(2), addr(3)].into());
    fabric.hosts.insert(1, next);
    fabric.run(ms(1000));
    assert_eq!(fabric.told(), []);
    // The times change.
    let slower = watched(&[3]).map(|of| Watched { interval: ms(20), ..of });
    let now = fabric.now;
    fabric.hosts.get_mut(&1).unwrap().want(slower, now);
    assert_eq!((list(&fabric.hosts[&1])[0], fabric.told()), ((addr(2), true), Vec::new()));
    fabric.dead.clear();
    fabric.run(ms(5000));
    assert_eq!(fabric.told().into_iter().map(|(_, change)| change).collect::<Vec<_>>(), [set_down(2, false)]);
    // It is a spare one now, until no route names it.
    assert_eq!(list(&fabric.hosts[&1]), [(addr(2), false), (addr(3), false)]);
    let now = fabric.now;
    names(fabric.hosts.get_mut(&1).unwrap(), &[3], now);
    assert_eq!(list(&fabric.hosts[&1]), [(addr(3), false)]);
}

#[test]
fn one_that_is_down_and_named_no_more_is_up() {
    let mut fabric = Fabric::new(&[2]);
    names(fabric.hosts.get_mut(&1).unwrap(), &[2], ms(1));
    fabric.run(ms(5000));
    fabric.dead.insert(2);
    fabric.run(ms(100));
    let now = fabric.now;
    let sessions = fabric.hosts.get_mut(&1).unwrap();
    sessions.take_changes();
    sessions.want(watched(&[]), now);
    assert_eq!(sessions.take_changes(), []);
    names(sessions, &[], now);
    assert_eq!((list(sessions), sessions.take_changes()), (Vec::new(), vec![set_down(2, false)]));
}

#[test]
fn what_a_peer_makes_up_displaces_nobody_and_is_bounded() {
    let made_up = |net: u8| (0..2000).map(move |n| IpAddr::from([net, 0, (n >> 8) as u8, n as u8]));
    let mut sessions = Sessions::new();
    let want = |sessions: &mut Sessions, remotes: BTreeSet<IpAddr>| {
        sessions.want(Some(Watched { remotes, interval: ms(10), except: [addr(9)].into() }), ms(1));
        sessions.watched()
    };
    let used: BTreeSet<_> = made_up(20).take(400).collect();
    sessions.name(all(made_up(1).chain([addr(9)])));
    let first = want(&mut sessions, used.clone());
    assert!(used.is_subset(&first) && first.len() == MOST && !first.contains(&addr(9)));
    assert_eq!(want(&mut sessions, BTreeSet::new()).len(), MOST_SPARE);
    sessions.name(all(made_up(0).chain(made_up(1))));
    let second = want(&mut sessions, used.clone());
    assert_eq!(second, first, "those that are watched stay");
    // Those in use take the place of those that are not.
    let more: BTreeSet<_> = made_up(20).take(MOST).collect();
    assert_eq!(want(&mut sessions, more.clone()), more);
    assert_eq!(sessions.unwatched(), 0);
}

fn two_ways() -> Vec<Way> {
    [1, 2].map(|wire| (VifId(wire), addr(200 + wire as u8))).to_vec()
}

fn set_path_down(host: u8, wire: u16, is_down: bool) -> Change {
    Change::SetPathDown { remote: addr(host), wire: VifId(wire), hop: addr(200 + wire as u8), is_down }
}

#[test]
fn a_broken_path_is_left_at_once_and_the_remote_is_not() {
    let mut fabric = Fabric::new(&[2, 3]);
    fabric.ways = two_ways();
    fabric.run(ms(5000));
    assert_eq!(fabric.told(), []);
    fabric.broken.insert(VifId(2));
    let broke = fabric.now;
    fabric.run(ms(10_000));
    let told = fabric.told();
    let changes: Vec<_> = told.iter().map(|(_, change)| change.clone()).collect();
    assert_eq!(changes.len(), 2, "{changes:?}");
    for host in [2, 3] {
        assert!(changes.contains(&set_path_down(host, 2, true)), "{changes:?}");
    }
    assert!(told.iter().all(|(at, _)| *at <= broke + ms(35)), "{told:?}");
    assert!(fabric.hosts[&1].list().iter().all(|its| its.paths == 2 && its.down == [two_ways()[1]]));
    // The other one breaks as well: the remotes are down, and their paths are all the same.
    fabric.broken.insert(VifId(1));
    fabric.run(ms(10_000));
    let changes: BTreeSet<_> = fabric.told().iter().map(|(_, change)| format!("{change:?}")).collect();
    let expected = [2, 3].into_iter().flat_map(|host| [set_down(host, true), set_path_down(host, 2, false)]);
    assert_eq!(changes, expected.map(|change| format!("{change:?}")).collect());
    fabric.broken.clear();
    fabric.run(ms(5000));
    let told = fabric.told();
    assert!([2, 3].iter().all(|host| told.iter().any(|(_, change)| *change == set_down(*host, false))));
    assert!(fabric.hosts[&1].list().iter().all(|its| !its.is_down && its.down.is_empty()));
}

#[test]
fn a_path_that_is_broken_from_the_start_is_found() {
    let mut fabric = Fabric::new(&[2]);
    (fabric.ways, fabric.broken) = (two_ways(), [VifId(1)].into());
    fabric.run(ms(9000));
    let told: Vec<_> = fabric.told().into_iter().map(|(_, change)| change).collect();
    assert_eq!(told, [set_path_down(2, 1, true)]);
    // The only path that is left is not watched.
    fabric.ways.remove(0);
    fabric.run(ms(1));
    assert_eq!(fabric.told()[0].1, set_path_down(2, 1, false));
    assert_eq!(fabric.hosts[&1].list()[0].paths, 0);
    fabric.ways = two_ways();
    fabric.run(ms(9000));
    assert_eq!(fabric.told().len(), 1);
    fabric.hosts.get_mut(&1).unwrap().want(None, fabric.now);
    fabric.run(ms(1));
    assert_eq!(fabric.told()[0].1, set_path_down(2, 1, false));
}

#[test]
fn remotes_that_answer_no_questions_have_no_broken_paths() {
    let mut fabric = Fabric::new(&[2]);
    fabric.ways = two_ways();
    for _ in 0..5000 {
        fabric.way.retain(|(_, _, _, (_, dst), _)| *dst != proto::PORT_SBFD);
        fabric.run(ms(1));
    }
    assert_eq!(fabric.told(), []);
    fabric.broken.insert(VifId(2));
    for _ in 0..5000 {
        fabric.way.retain(|(_, _, _, (_, dst), _)| *dst != proto::PORT_SBFD);
        fabric.run(ms(1));
    }
    assert_eq!(fabric.told(), [], "packets of the session come by the other path");
    let its = &fabric.hosts[&1].list()[0];
    assert!(its.is_silent && !its.is_down && its.down.is_empty(), "{its:?}");
}

#[test]
fn only_the_remote_gets_answers_and_is_asked_for_patience() {
    let mut fabric = Fabric::new(&[2]);
    fabric.ways = two_ways();
    fabric.run(ms(5000));
    let number = fabric.hosts[&1].sessions[&addr(2)].session.number();
    let question = |other: u32| {
        let mut question = bfd::Initiator::new(config(ms(10)), 7, ms(0));
        question.output(other, ms(0)).unwrap()
    };
    let host = fabric.hosts.get_mut(&1).unwrap();
    assert!(host.reflect(addr(2), &question(number)).is_some());
    assert!(host.reflect(addr(2), &question(number ^ 1)).is_none());
    assert!(host.reflect(addr(3), &question(number)).is_none());
    assert!(host.reflect(addr(2), &question(number)[..20]).is_none());
    host.leave(true);
    let answer = host.reflect(addr(2), &question(number)).unwrap();
    assert_eq!(Packet::parse(&answer).unwrap().takes, 1_000_000);
    // A daemon takes over: for a second, nothing is heard.
    fabric.run(ms(50));
    fabric.dead.insert(1);
    fabric.run(ms(900));
    fabric.dead.clear();
    fabric.run(ms(50));
    fabric.hosts.get_mut(&1).unwrap().leave(false);
    fabric.run(ms(3000));
    let of_paths = |(_, host, change): &(Duration, u8, Change)| {
        *host == 2 && matches!(change, Change::SetPathDown { .. })
    };
    assert!(!fabric.changes.iter().any(of_paths), "{:?}", fabric.changes);
}

#[test]
fn paths_are_known_also_while_the_session_is_down() {
    let mut fabric = Fabric::new(&[2]);
    fabric.ways = two_ways();
    fabric.run(ms(5000));
    fabric.broken.insert(VifId(2));
    fabric.run(ms(500));
    assert_eq!(fabric.told().len(), 1);
    // Packets of the session are lost, those of paths are not.
    for _ in 0..3000 {
        fabric.way.retain(|(_, _, _, (src, dst), _)| [*src, *dst].contains(&proto::PORT_SBFD));
        fabric.run(ms(1));
    }
    let told: Vec<_> = fabric.told().into_iter().map(|(_, change)| change).collect();
    assert_eq!(told, [set_down(2, true)]);
    assert_eq!(fabric.hosts[&1].list()[0].down, [two_ways()[1]]);
}

#[test]
fn a_remote_that_dies_has_no_broken_paths() {
    for seed in 0..20 {
        let mut fabric = Fabric::new(&[2]);
        fabric.ways = two_ways();
        fabric.run(ms(5000 + seed));
        fabric.dead.insert(2);
        fabric.run(ms(5000));
        let told: Vec<_> = fabric.told().into_iter().map(|(_, change)| change).collect();
        assert_eq!(told, [set_down(2, true)]);
    }
}
