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
    Some(Watched { remotes: hosts.iter().map(|host| addr(*host)).collect(), interval: ms(10) })
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
    sessions.want(Some(Watched { remotes: many, interval: ms(10) }), fabric.now);
    assert_eq!((sessions.list().len(), sessions.unwatched()), (MOST, 1000 - MOST));
}

#[test]
fn one_that_is_watched_stays_where_more_come() {
    let many: BTreeSet<_> = (0..1000).map(|n| IpAddr::from([10, 0, (n >> 8) as u8, n as u8])).collect();
    let all = |more| many.iter().copied().chain(more).collect();
    let watch = |sessions: &mut Sessions, remotes| {
        sessions.want(Some(Watched { remotes, interval: ms(10) }), ms(1));
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
