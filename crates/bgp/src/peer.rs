//! One peer: its connections, its routes' stand, what it has still to get.

use crate::config::PeerConfig;
use crate::names::Family;
use crate::own::Own;
use crate::session::{Conn, Session};
use crate::status::{Counts, Down, PeerStatus, State};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) config: PeerConfig,
    /// The range from which it called; `None`: the configuration names it.
    pub(crate) range: Option<IpNet>,
    /// At most one that the peer opened and one that this speaker opened.
    pub(crate) sessions: Vec<Session>,
    /// When to open a connection.
    pub(crate) retry: Option<Duration>,
    /// Tries in a row that came to nothing.
    pub(crate) failures: u32,
    /// Counts, by family, how often it began to send all of its routes. Those of earlier rounds are stale.
    pub(crate) rounds: [u16; Family::ALL.len()],
    /// Families that it is sending anew while the session is up, until it marks the end.
    pub(crate) refreshing: BTreeSet<Family>,
    /// When the session came up or ended.
    pub(crate) since: Duration,
    /// Until when stale routes are kept.
    pub(crate) stale_until: Option<Duration>,
    /// Families whose routes have not all been sent.
    pub(crate) awaited: BTreeSet<Family>,
    /// When it sent an UPDATE last, or the session came up.
    pub(crate) heard: Duration,
    /// Whether it has sent all of its routes once.
    pub(crate) synchronized: bool,
    /// Announcements and withdrawals that it has still to get.
    pub(crate) pending: BTreeSet<Own>,
    /// Families of which it has to get an end-of-RIB when all is sent.
    pub(crate) ends: BTreeSet<Family>,
    /// Families that it wants to get anew.
    pub(crate) asked: BTreeSet<Family>,
    /// Families of which it has to get the mark that a refresh has ended.
    pub(crate) refreshed: BTreeSet<Family>,
    /// Families that it is to send anew.
    pub(crate) refresh: BTreeSet<Family>,
    /// Routes that are kept of it.
    pub(crate) routes: usize,
    pub(crate) counts: Counts,
    pub(crate) last: Option<Down>,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig, now: Duration) -> Self {
        Self {
            config,
            range: None,
            sessions: Vec::new(),
            retry: Some(now),
            failures: 0,
            rounds: [0; Family::ALL.len()],
            refreshing: BTreeSet::new(),
            since: now,
            stale_until: None,
            awaited: BTreeSet::new(),
            heard: now,
            synchronized: false,
            pending: BTreeSet::new(),
            ends: BTreeSet::new(),
            asked: BTreeSet::new(),
            refreshed: BTreeSet::new(),
            refresh: BTreeSet::new(),
            routes: 0,
            counts: Counts::default(),
            last: None,
        }
    }

    pub(crate) fn find(&mut self, conn: Conn) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.conn == conn)
    }

    /// Returns the session that is up.
    pub(crate) fn up(&self) -> Option<&Session> {
        self.sessions.iter().find(|session| session.state == State::Established)
    }

    /// Returns whether a route of this family and round is of an earlier session, and not confirmed yet.
    pub(crate) fn is_stale(&self, family: Family, round: u16) -> bool {
        self.up().is_none() || (self.is_old(family, round) && !self.refreshing.contains(&family))
    }

    /// Returns whether a route of this family and round was not sent again in the last one.
    pub(crate) const fn is_old(&self, family: Family, round: u16) -> bool {
        self.rounds[family as usize] != round
    }

    /// Begins a round of a family.
    pub(crate) const fn begin_round(&mut self, family: Family) {
        let round = &mut self.rounds[family as usize];
        *round = round.wrapping_add(1);
    }

    /// Returns whether the session is up and speaks a family.
    pub(crate) fn speaks(&self, family: Family) -> bool {
        self.up().is_some_and(|session| session.agreed.families.contains(&family))
    }

    /// Returns the next time at which something is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let of_sessions = self
            .sessions
            .iter()
            .flat_map(|session| [session.hold, session.keepalive, session.patience()].into_iter().flatten());
        of_sessions.chain(self.retry).chain(self.stale_until).min()
    }

    pub(crate) fn status(&self) -> PeerStatus {
        let session = self.sessions.iter().max_by_key(|session| session.state);
        let agreed = session.map(|session| &session.agreed);
        PeerStatus {
            address: self.config.address,
            range: self.range,
            asn: self.config.asn,
            state: session.map_or(State::Idle, |session| session.state),
            since: self.since,
            router_id: agreed.and_then(|agreed| agreed.router_id),
            families: agreed.map(|agreed| agreed.families.clone()).unwrap_or_default(),
            hold_time: agreed.map_or(0, |agreed| agreed.hold_time),
            routes: self.routes,
            stale_until: self.stale_until,
            pending: self.pending.len(),
            counts: self.counts,
            last: self.last.clone(),
        }
    }
}
