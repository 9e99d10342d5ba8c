//! Hosts that watch each other, by a clock of the test.

use super::*;
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

/// Hosts by the last byte of their addresses, and what is on the way between them.
struct Fabric {
    hosts: BTreeMap<u8, Sessions>,
    /// Hosts that send and get nothing.
    dead: BTreeSet<u8>,
    way: Vec<(Duration, u8, u8, Vec<u8>)>,
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
        let (dead, way, lost, changes) = Default::default();
        Self { hosts, dead, way, lost, now, changes }
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
        for (_, from, to, payload) in arrived.into_iter().filter(|(_, _, to, _)| !self.dead.contains(to)) {
            if let Some(sessions) = self.hosts.get_mut(&to) {
                sessions.received(addr(from), &payload, self.now);
            }
        }
        for (host, sessions) in self.hosts.iter_mut().filter(|(host, _)| !self.dead.contains(host)) {
            sessions.tick(self.now);
            for (to, said) in sessions.output(self.now) {
                assert!(said.from >= FIRST_SOURCE);
                let IpAddr::V4(to) = to else { continue };
                if self.lost.contains(host) {
                    continue;
                }
                self.way.push((self.now + DELAY, *host, to.octets()[3], said.payload.to_vec()));
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
    assert!(!fabric.hosts[&1].list()[0].1);
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
    assert!(fabric.hosts[&1].list().iter().all(|(remote, is_down, _)| *is_down == (*remote == addr(2))));
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
        sessions.list().into_iter().map(|(remote, ..)| remote).collect::<BTreeSet<_>>()
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
    sessions.list().into_iter().map(|(remote, is_down, _)| (remote, is_down)).collect()
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
