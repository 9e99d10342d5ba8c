//! Sessions with remotes, without I/O and clock.

use super::paths::{Paths, Way};
use super::{HeldRemotes, Named};
use crate::bgp::HeldSession;
use bfd::{Config, LEN, Packet, Session, State, Status};
use control::Watched;
use model::Change;
use packet::proto;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// Most sessions.
pub(super) const MOST: usize = 512;
/// Most of them with remotes to which no tunnel leads.
const MOST_SPARE: usize = 256;
/// Most paths that are watched.
const MOST_PATHS: usize = 1024;
/// Lost packets after which a remote is down.
const MULTIPLIER: u8 = 3;
/// The longest time for which a remote is told that it is watched no more.
const LEAVING: Duration = Duration::from_secs(5);
/// The first port from which packets may come (RFC 5881, 4).
const FIRST_SOURCE: u16 = 49152;
/// The least time between two questions about a path while another daemon takes over.
const SELDOM: Duration = Duration::from_secs(1);
/// Lines in the log, and the time for so many: remotes can cause them.
const LINES: (Duration, u32) = (Duration::from_secs(10), 20);

/// Since when lines were written to the log, and how many.
#[derive(Clone, Copy, Default)]
pub(super) struct Lines(Duration, u32);

impl Lines {
    pub fn may_write(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.0) >= LINES.0 {
            *self = Self(now, 0);
        }
        self.1 += 1;
        self.1 <= LINES.1
    }
}

/// A packet that is due.
pub(super) struct Said {
    /// The path by which it goes, if there are several.
    pub by: Option<Way>,
    /// From and to.
    pub ports: (u16, u16),
    pub payload: [u8; LEN],
}

impl Said {
    fn new(session: &Session, by: Option<Way>, payload: [u8; LEN]) -> Self {
        let from = FIRST_SOURCE | session.number() as u16 & !FIRST_SOURCE;
        Self { by, ports: (from, proto::PORT_BFD_MULTIHOP), payload }
    }

    /// Returns a question about a path. The answer comes to the port of sessions.
    const fn question(by: Way, payload: [u8; LEN]) -> Self {
        Self { by: Some(by), ports: (proto::PORT_BFD_MULTIHOP, proto::PORT_SBFD), payload }
    }
}

/// A remote that is watched, for its operator.
#[derive(Debug, PartialEq)]
pub(super) struct Listed {
    pub remote: IpAddr,
    pub is_down: bool,
    pub status: Status,
    /// How many paths to it are watched.
    pub paths: usize,
    /// Those that are down.
    pub down: Vec<Way>,
    /// Whether nothing is known of its paths, because it answers no questions.
    pub is_silent: bool,
}

pub(super) struct Sessions {
    watched: Option<Watched>,
    named: Named,
    sessions: BTreeMap<IpAddr, Remote>,
    /// Sessions that ended, and the time until which they tell the remote so.
    leaving: BTreeMap<IpAddr, (Session, Duration)>,
    /// Those of the daemon before, until they are wanted.
    held: HeldRemotes,
    leaves: bool,
    changes: Vec<Change>,
    random: RandomState,
    lines: Lines,
}

struct Remote {
    session: Session,
    paths: Paths,
    /// Whether it was up and is not any more.
    is_down: bool,
    /// Since when that is so.
    since: Duration,
}

impl Sessions {
    pub fn new() -> Self {
        let (watched, sessions, leaving, held, leaves, changes, lines) = Default::default();
        let (named, random) = (Named { remotes: BTreeSet::new(), is_all: true }, RandomState::new());
        Self { watched, named, sessions, leaving, held, leaves, changes, random, lines }
    }

    /// Notes which remotes BGP routes name, for the next [`Self::want`].
    pub fn name(&mut self, named: Named) {
        self.named = named;
    }

    /// Goes on with remotes of the daemon before, once they are wanted.
    pub fn adopt(&mut self, held: HeldRemotes) {
        let down = held.down.iter().map(|remote| Change::SetDown { remote: *remote, is_down: true });
        self.changes.extend(down);
        self.held = held;
    }

    /// Watches these from now on. Remotes that are watched no more are told so.
    pub fn want(&mut self, wanted: Option<Watched>, now: Duration) {
        let is_other = wanted.as_ref().map(|it| it.interval) != self.watched.as_ref().map(|it| it.interval);
        self.watched = wanted;
        let wanted = self.chosen();
        let is_gone = |remote: &IpAddr| is_other || !wanted.contains(remote);
        let gone: Vec<_> = self.sessions.keys().filter(|remote| is_gone(remote)).copied().collect();
        let mut down = self.held.down.clone();
        for (remote, mut its) in gone.into_iter().filter_map(|gone| self.sessions.remove_entry(&gone)) {
            self.changes.extend(std::mem::take(&mut its.paths).forgotten(remote));
            down.extend(its.is_down.then_some(remote));
            if its.session.status().counts.received == 0 && its.session.held().is_none() {
                // It has never answered.
                continue;
            }
            // Packets arrive here as before, so the session ends in order. A remote may want packets seldom.
            let until = its.session.stop(now).min(now + LEAVING);
            self.leaving.insert(remote, (its.session, until));
        }
        let interval = self.interval();
        let config = config(interval);
        let new: Vec<_> = wanted.into_iter().filter(|remote| !self.sessions.contains_key(remote)).collect();
        let held = std::mem::take(&mut self.held);
        for remote in new {
            self.leaving.remove(&remote);
            let seed = self.random.hash_one((remote, now));
            let held = held.up.iter().find(|session| session.peer() == remote);
            let resumed = held.and_then(|session| Session::resume(config, &session.held(), seed, now));
            let session = resumed.unwrap_or_else(|| Session::new(config, seed, now));
            // It is down until it answers, also if it is to answer at other times than before.
            let is_down = down.contains(&remote);
            self.sessions.insert(remote, Remote { session, paths: Paths::default(), is_down, since: now });
        }
        for remote in down {
            let is_watched = self.sessions.contains_key(&remote);
            self.changes.extend((!is_watched).then_some(Change::SetDown { remote, is_down: false }));
        }
    }

    fn interval(&self) -> Duration {
        self.watched.as_ref().map_or(Duration::ZERO, |watched| watched.interval)
    }

    /// Watches the paths to remotes that have several. Returns whether they are others than before.
    pub fn follow_ways(&mut self, ways: impl Fn(IpAddr) -> Vec<Way>, now: Duration) -> bool {
        let (mut room, config, mut has_new) = (MOST_PATHS, config(self.interval()), false);
        for (remote, its) in &mut self.sessions {
            let mut ways = ways(*remote);
            if ways.len() < 2 || ways.len() > room {
                ways.clear();
            }
            room -= ways.len();
            if !its.paths.are(&ways) {
                let seed = |way: Way| self.random.hash_one((remote, way, now));
                let others = its.paths.follow(&ways, config, seed, now);
                self.changes.extend(others.forgotten(*remote));
                has_new = true;
            }
        }
        has_new
    }

    /// Returns the remotes to watch: those of tunnels, and those that routes name. Where there are too many, those of
    /// tunnels that are watched already come first, then those that have no tunnels because they are down, which
    /// would count as up if they were not watched. So nobody is displaced by what a peer makes up.
    fn chosen(&self) -> BTreeSet<IpAddr> {
        let Some(watched) = &self.watched else { return BTreeSet::new() };
        let known: BTreeSet<IpAddr> = self.known().collect();
        let is_down = |remote: &IpAddr| {
            self.sessions.get(remote).is_some_and(|its| its.is_down) || self.held.down.contains(remote)
        };
        let is_spare =
            |remote: &&IpAddr| !watched.remotes.contains(*remote) && !watched.except.contains(*remote);
        let is_named = |remote: &&IpAddr| !self.named.is_all || self.named.remotes.contains(*remote);
        let new = self.named.remotes.iter().filter(|remote| !known.contains(*remote));
        let mut spare: Vec<_> = known.iter().filter(is_named).chain(new).filter(is_spare).collect();
        // Among those that are down, the one that fell first stays: a peer can make remotes fall.
        let since = |remote: &IpAddr| self.sessions.get(remote).map(|its| its.since);
        spare.sort_by_key(|remote| (!is_down(remote), !known.contains(*remote), since(remote)));
        spare.truncate(MOST_SPARE);
        let (down, spare): (Vec<_>, Vec<_>) = spare.into_iter().partition(|remote| is_down(remote));
        let (old, new): (Vec<_>, Vec<_>) = watched.remotes.iter().partition(|remote| known.contains(*remote));
        old.into_iter().chain(down).chain(new).chain(spare).take(MOST).copied().collect()
    }

    /// Returns the remotes that are watched, here or by the daemon before.
    fn known(&self) -> impl Iterator<Item = IpAddr> {
        let held = self.held.up.iter().map(HeldSession::peer).chain(self.held.down.iter().copied());
        self.sessions.keys().copied().chain(held)
    }

    /// Returns the number of remotes of tunnels for which there is no session left.
    pub fn unwatched(&self) -> usize {
        let all = self.watched.iter().flat_map(|watched| &watched.remotes);
        all.filter(|remote| !self.sessions.contains_key(*remote)).count()
    }

    /// Returns the remotes that are watched.
    pub fn watched(&self) -> BTreeSet<IpAddr> {
        self.sessions.keys().copied().collect()
    }

    /// Takes a packet that came from this address.
    pub fn received(&mut self, from: IpAddr, payload: &[u8], now: Duration) {
        let Some(remote) = self.sessions.get_mut(&from) else { return };
        let Ok(packet) = Packet::parse(payload) else { return };
        let change = remote.session.received(&packet, now);
        self.follow(from, change, now);
    }

    /// Takes an answer to a question about a path.
    pub fn answered(&mut self, from: IpAddr, payload: &[u8], now: Duration) {
        if let (Some(remote), Ok(packet)) = (self.sessions.get_mut(&from), Packet::parse(payload)) {
            remote.paths.received(&packet, now);
        }
    }

    /// Returns the answer to a remote's question about a path. Only the remote knows the number that it must name.
    pub fn reflect(&self, from: IpAddr, payload: &[u8]) -> Option<[u8; LEN]> {
        let (remote, packet) = (self.sessions.get(&from)?, Packet::parse(payload).ok()?);
        let takes = if self.leaves { SELDOM } else { self.interval() };
        (packet.other == remote.session.number()).then(|| bfd::reflect(&packet, takes)).flatten()
    }

    /// Gives up remotes and paths that were silent for too long.
    pub fn tick(&mut self, now: Duration) {
        let ticked = self.sessions.iter_mut().map(|(from, its)| (*from, its.session.tick(now)));
        let fell: Vec<_> = ticked.filter(|(_, change)| change.is_some()).collect();
        fell.into_iter().for_each(|(remote, change)| self.follow(remote, change, now));
        for (remote, its) in &mut self.sessions {
            its.paths.tick(now);
            self.changes.extend(its.paths.settle(*remote));
        }
    }

    /// Notes what a change of a session says about the remote: one whose operator ended it is not down.
    fn follow(&mut self, from: IpAddr, change: Option<bfd::Change>, now: Duration) {
        let Some(remote) = self.sessions.get_mut(&from) else { return };
        let was_down = remote.is_down;
        remote.is_down = match change {
            Some(bfd::Change::Down(_)) => true,
            Some(bfd::Change::Up | bfd::Change::AdminDown) => false,
            None => was_down && remote.session.status().remote_state != State::AdminDown,
        };
        if remote.is_down != was_down {
            remote.since = now;
            self.changes.push(Change::SetDown { remote: from, is_down: remote.is_down });
        }
        if change.is_some() && self.lines.may_write(now) {
            log(from, change);
        }
    }

    /// Returns the packets that are due.
    pub fn output(&mut self, now: Duration) -> Vec<(IpAddr, Said)> {
        let mut due = Vec::new();
        for (remote, Remote { session, paths, .. }) in &mut self.sessions {
            while let Some(payload) = session.output(now) {
                let said = |by| (*remote, Said::new(session, by, payload));
                due.extend(paths.usable().map(|way| said(Some(way))));
                due.extend((paths.count() == 0).then(|| said(None)));
            }
            let questions = paths.output(session.neighbour(), now);
            due.extend(questions.map(|(way, payload)| (*remote, Said::question(way, payload))));
        }
        for (remote, (session, _)) in &mut self.leaving {
            due.extend(session.output(now).map(|payload| (*remote, Said::new(session, None, payload))));
        }
        self.leaving.retain(|_, (_, until)| now < *until);
        due
    }

    pub fn deadline(&self) -> Option<Duration> {
        let sessions = self.sessions.values().map(|remote| &remote.session);
        let sessions = sessions.chain(self.leaving.values().map(|(session, _)| session));
        let paths = self.sessions.values().filter_map(|remote| remote.paths.deadline());
        sessions.filter_map(Session::deadline).chain(paths).min()
    }

    /// Returns the numbers by which remotes name the sessions and paths of this host.
    pub fn numbers(&self) -> Vec<u32> {
        let sessions = self.sessions.values().map(|remote| remote.session.number());
        sessions.chain(self.sessions.values().flat_map(|remote| remote.paths.numbers())).collect()
    }

    /// Has remotes wait longer for packets, because another daemon is about to take over, or no more.
    pub fn leave(&mut self, leaves: bool) {
        if std::mem::replace(&mut self.leaves, leaves) != leaves {
            self.sessions.values_mut().for_each(|remote| remote.session.beg_patience(leaves));
        }
    }

    /// Has all sessions wait for packets anew: none could arrive for a while.
    pub fn wait_anew(&mut self, now: Duration) {
        for remote in self.sessions.values_mut() {
            remote.session.wait_anew(now);
            remote.paths.wait_anew(now);
        }
    }

    /// Ends all sessions: packets do not arrive here any more.
    pub fn fail(&mut self, now: Duration) {
        self.sessions.values_mut().for_each(|remote| remote.session.fail(now));
    }

    pub fn held(&self) -> HeldRemotes {
        let up =
            self.sessions.iter().filter_map(|(from, its)| Some(HeldSession::new(*from, its.session.held()?)));
        let down = self.sessions.iter().filter(|(_, its)| its.is_down).map(|(remote, _)| *remote);
        HeldRemotes { up: up.collect(), down: down.collect() }
    }

    pub fn list(&self) -> Vec<Listed> {
        let listed = |(remote, its): (&IpAddr, &Remote)| Listed {
            remote: *remote,
            is_down: its.is_down,
            status: its.session.status(),
            paths: its.paths.count(),
            down: its.paths.down().collect(),
            is_silent: !its.is_down && its.paths.is_silent(),
        };
        self.sessions.iter().map(listed).collect()
    }

    /// Returns the changes of the tables since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

const fn config(interval: Duration) -> Config {
    Config { interval, multiplier: MULTIPLIER, multihop: true }
}

fn log(remote: IpAddr, change: Option<bfd::Change>) {
    match change {
        Some(bfd::Change::Up) => tracing::info!(%remote, "the BFD session with a remote of tunnels is up"),
        Some(bfd::Change::AdminDown) => {
            tracing::info!(%remote, "the remote's operator ended the BFD session")
        }
        Some(bfd::Change::Down(why)) => tracing::warn!(%remote, "the remote is down: {}", why.name()),
        None => {}
    }
}

#[cfg(test)]
mod tests;
