//! The state machine of sessions (RFC 4271, 8) and collisions of connections (6.8).

use super::{Event, Speaker};
use crate::message::Kind;
use crate::names::Family;
use crate::notification::{self, Notification, cease};
use crate::open::Open;
use crate::own::Own;
use crate::peer::Peer;
use crate::rib::PeerId;
use crate::session::{Agreed, Conn, Session};
use crate::status::{Down, State};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Failures in a row above which the wait between two tries to connect grows no more: 8 seconds.
const FAILURES: u32 = 4;
/// Counts as many failures: a quarrel with a peer, which costs a wait of a minute.
const QUARREL: u32 = 7;
/// Most seconds between two tries to connect.
const LONGEST_WAIT: u64 = 60;
/// The kinds of ROUTE-REFRESH that mark where a refresh begins and ends (RFC 7313, 3.2).
pub(super) const BEGIN: u8 = 1;
pub(super) const END: u8 = 2;
/// A session that lasted as long did not come to nothing.
const LASTING: Duration = Duration::from_secs(60);

impl Speaker {
    /// Takes a connection that a peer has opened. Nothing: close it.
    pub fn accepted(&mut self, from: IpAddr, now: Duration) -> Option<Conn> {
        let from = from.to_canonical();
        let id = self.id_of(from).or_else(|| self.called(from, now))?;
        // Who broke the protocol waits, whoever calls.
        let waits = |peer: &Peer| peer.failures == QUARREL && peer.retry.is_some_and(|retry| retry > now);
        if self.peers.get(&id).is_some_and(waits) {
            return None;
        }
        // A peer with two unfinished ones has left the older.
        let unfinished = |session: &&Session| session.incoming && session.state != State::Established;
        if let Some(older) = self.peers.get(&id)?.sessions.iter().find(unfinished) {
            self.end(older.conn, Down::Closed, now);
        }
        let conn = self.new_conn();
        let peer = self.peers.get_mut(&id)?;
        peer.retry = None;
        peer.sessions.push(Session::new(conn, true, now));
        self.connected(conn, now);
        Some(conn)
    }

    /// Opens a connection to a peer.
    pub(super) fn connect(&mut self, id: PeerId, now: Duration) {
        let conn = self.new_conn();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.retry = None;
        if !peer.config.passive {
            peer.sessions.push(Session::new(conn, false, now));
            let to = SocketAddr::new(peer.config.address, peer.config.port);
            self.events.push_back(Event::Connect { conn, to });
        }
    }

    /// Notes that a connection that the speaker wished for is there.
    pub fn connected(&mut self, conn: Conn, now: Duration) {
        let Self { peers, config, .. } = self;
        for peer in peers.values_mut() {
            let open = Open::message(config, &peer.config);
            if let Some(session) = peer.find(conn).filter(|session| session.state == State::Connect) {
                session.state = State::OpenSent;
                session.room(now).extend(open);
                peer.counts.sent += 1;
            }
        }
    }

    /// Notes that a connection could not be opened, or is closed.
    pub fn closed(&mut self, conn: Conn, now: Duration) {
        self.end(conn, Down::Closed, now);
        let is_it = |event: &Event| matches!(event, Event::Close { conn: closed, .. } if *closed == conn);
        self.events.retain(|event| !is_it(event));
    }

    /// Handles a message. An error ends the session.
    pub(super) fn message(
        &mut self,
        conn: Conn,
        (kind, body): (Kind, &[u8]),
        now: Duration,
    ) -> Result<(), Down> {
        let Some((id, session)) = self.find(conn) else { return Ok(()) };
        let (state, hold) = (session.state, Duration::from_secs(session.agreed.hold_time.into()));
        // While OPEN is awaited, only that counts.
        if state > State::OpenSent {
            session.hold = (!hold.is_zero()).then_some(now + hold);
            session.is_spared = false;
        }
        match (state, kind) {
            (_, Kind::Notification) => {
                let unreadable = || Notification::new(0, 0);
                Err(Down::Received(Notification::read(body).unwrap_or_else(unreadable)))
            }
            (State::OpenSent, Kind::Open) => self.opened(id, conn, body, now),
            (State::OpenConfirm, Kind::Keepalive) => {
                self.established(id, conn, now);
                Ok(())
            }
            (State::Established, Kind::Keepalive) => {
                self.implied_end_of_rib(id, now);
                Ok(())
            }
            (State::Established, Kind::Update) => self.update(id, body, now).map_err(Down::Sent),
            (State::Established, Kind::Refresh) => {
                self.asked(id, body);
                Ok(())
            }
            // The subcode says in which state (RFC 6608).
            _ => Err(Down::Sent(Notification::new(
                notification::STATE_MACHINE,
                state as u8 - State::Connect as u8,
            ))),
        }
    }

    fn opened(&mut self, id: PeerId, conn: Conn, body: &[u8], now: Duration) -> Result<(), Down> {
        let open = Open::read(body).map_err(Down::Sent)?;
        let Self { peers, config, .. } = self;
        let Some(peer) = peers.get_mut(&id) else { return Ok(()) };
        if open.asn != peer.config.asn {
            return Err(Down::Sent(Notification::new(notification::OPEN, 2)));
        }
        if open.id == config.router_id && open.asn == config.asn {
            return Err(Down::Sent(Notification::new(notification::OPEN, 3)));
        }
        // Without a hold time, a dead peer would live for ever.
        if open.hold_time == 0 && config.hold_time > 0 {
            return Err(Down::Sent(Notification::with(notification::OPEN, 6, &[0, 0])));
        }
        let agreed = Agreed::new(&open, config, &peer.config);
        if agreed.families.is_empty() {
            let families = peer.config.families.iter();
            let missing: Vec<u8> =
                families.flat_map(|family| [&[1, 4][..], &family.codes()].concat()).collect();
            return Err(Down::Sent(Notification::with(notification::OPEN, 7, &missing)));
        }
        self.collide(id, conn, &open, now)?;
        let hold = Duration::from_secs(agreed.hold_time.into());
        let keepalive = self.jitter(hold / 3);
        let Some((_, session)) = self.find(conn) else { return Ok(()) };
        session.state = State::OpenConfirm;
        session.agreed = agreed;
        session.hold = (!hold.is_zero()).then_some(now + hold);
        session.keepalive = (!hold.is_zero()).then_some(now + keepalive);
        session.write(Kind::Keepalive, &[], now);
        Ok(())
    }

    /// Ends one of two connections with a peer whose OPEN came by `conn`. An error: it is this one.
    fn collide(&mut self, id: PeerId, conn: Conn, open: &Open, now: Duration) -> Result<(), Down> {
        let own = (u32::from(self.config.router_id), self.config.asn);
        let Some(peer) = self.peers.get(&id) else { return Ok(()) };
        let Some(incoming) = peer.sessions.iter().find(|session| session.conn == conn).map(|it| it.incoming)
        else {
            return Ok(());
        };
        let Some(other) = peer.sessions.iter().find(|session| session.conn != conn) else { return Ok(()) };
        let collision = Down::Sent(Notification::new(notification::CEASE, cease::COLLISION));
        let (why, this) = match other.state {
            // Who restarts gracefully, connects anew while the old connection seems to be there (RFC 4724, 4.2).
            State::Established if incoming && other.agreed.restart.is_some() => (Down::Reconnected, false),
            State::Established => (collision, true),
            // The one that the higher identifier opened stays; of equal ones, the higher AS (RFC 6286, 2.3). It is the
            // same peer's also before its OPEN has come there.
            State::OpenSent | State::OpenConfirm => {
                (collision, incoming == (own > (u32::from(open.id), open.asn)))
            }
            _ => return Ok(()),
        };
        if this {
            return Err(why);
        }
        let other = other.conn;
        self.end(other, why, now);
        Ok(())
    }

    fn established(&mut self, id: PeerId, conn: Conn, now: Duration) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let others: Vec<_> =
            peer.sessions.iter().map(|session| session.conn).filter(|other| *other != conn).collect();
        let collision = Notification::new(notification::CEASE, cease::COLLISION);
        for other in others {
            self.end(other, Down::Sent(collision.clone()), now);
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(session) = peer.find(conn) else { return };
        session.state = State::Established;
        let families = session.agreed.families.clone();
        peer.retry = None;
        peer.since = now;
        peer.counts.sessions += 1;
        peer.ends = families.iter().copied().collect();
        let targets = self.rib.imports().targets().map(Own::Target);
        let own = targets.chain(self.routes.keys().map(|nlri| Own::Route(*nlri)));
        peer.pending = own.filter(|own| families.contains(&own.family())).collect();
        let address = peer.config.address;
        self.events.push_back(Event::PeerUp { peer: address });
        self.restarted(id, now);
    }

    /// Handles ROUTE-REFRESH: a wish (RFC 2918), or a mark (RFC 7313).
    fn asked(&mut self, id: PeerId, body: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let [afi @ .., kind, safi] = body else { return };
        let Some(family) = Family::of(afi, *safi).filter(|family| peer.speaks(*family)) else { return };
        let marks = peer.up().is_some_and(|session| session.agreed.refresh_marks);
        match *kind {
            0 => drop(peer.asked.insert(family)),
            BEGIN | END if marks => self.refreshed(id, family, *kind == END),
            _ => {}
        }
    }

    /// Ends all connections with a peer.
    pub(super) fn end_all(&mut self, id: PeerId, why: &Notification, now: Duration) {
        let conns =
            |speaker: &Self| speaker.peers.get(&id).and_then(|peer| Some(peer.sessions.first()?.conn));
        while let Some(conn) = conns(self) {
            self.end(conn, Down::Sent(why.clone()), now);
        }
    }

    /// Ends a connection.
    pub(super) fn end(&mut self, conn: Conn, why: Down, now: Duration) {
        let Some((id, _)) = self.find(conn) else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(at) = peer.sessions.iter().position(|session| session.conn == conn) else { return };
        let mut session = peer.sessions.remove(at);
        if let Down::Sent(notification) = &why
            && session.state > State::Connect
        {
            session.write(Kind::Notification, &notification.body(), now);
            peer.counts.sent += 1;
        }
        self.events.push_back(Event::Close { conn, last: session.waiting().to_vec() });
        let lasted = now.saturating_sub(peer.since);
        let was_up = session.state == State::Established;
        if was_up {
            peer.since = now;
            self.lost(id, &session.agreed, &why, now);
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.failures = match peer.failures {
            _ if is_quarrel(&why) => QUARREL,
            _ if was_up && lasted >= LASTING => 0,
            failures => (failures + 1).min(FAILURES),
        };
        let wait = Duration::from_secs((1 << peer.failures.saturating_sub(1)).min(LONGEST_WAIT));
        if peer.sessions.is_empty() {
            peer.last = Some(why);
            let wait = self.jitter(wait);
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.retry = Some(now + wait);
            }
        }
    }
}

/// Returns whether what the peer did was wrong, so that it would do the same again.
fn is_quarrel(why: &Down) -> bool {
    let Down::Sent(Notification { code, subcode, .. }) = why else { return false };
    match *code {
        notification::HOLD_TIMER => false,
        notification::CEASE => *subcode == cease::MAX_ROUTES,
        _ => true,
    }
}
