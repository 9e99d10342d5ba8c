//! Input: bytes and time.

use super::{CHANGES, Speaker};
use crate::message::{self, Kind};
use crate::notification::{self, Notification};
use crate::peer::Peer;
use crate::rib::PeerId;
use crate::session::{Conn, Session};
use crate::status::{Down, State};
use std::time::Duration;

/// Time for which a peer that seems to be dead is spared.
const SPARED: Duration = Duration::from_secs(1);

impl Speaker {
    /// Takes bytes from a connection, in any pieces.
    pub fn received(&mut self, conn: Conn, bytes: &[u8], now: Duration) {
        let Some((_, session)) = self.find(conn) else { return };
        let mut input = std::mem::take(&mut session.input);
        input.extend(bytes);
        let mut rest = &input[..];
        while let Some((id, session)) = self.find(conn) {
            let extended = session.state == State::Established && session.agreed.extended;
            let result = match message::first(rest, extended) {
                Ok(None) => break,
                Ok(Some((kind, body, behind))) => {
                    rest = behind;
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.counts.received += 1;
                    }
                    self.message(conn, (kind, body), now)
                }
                Err(why) => Err(Down::Sent(why)),
            };
            if let Err(why) = result {
                self.end(conn, why, now);
            }
        }
        let rest = rest.to_vec();
        if let Some((_, session)) = self.find(conn) {
            session.input = rest;
        }
    }

    /// Returns whether to read from connections. If not, changes are to be taken first.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.rib.changed() < CHANGES
    }

    /// Returns the next time at which [`Self::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.peers.values().filter_map(Peer::deadline).chain(self.patience()).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) {
        let due = |time| is_due(time, now);
        let ids: Vec<_> = self.peers.keys().copied().collect();
        for id in ids {
            self.spare(id, now);
            let Some(peer) = self.peers.get(&id) else { continue };
            let ended = |session: &Session| {
                if due(session.hold) {
                    return Some((
                        session.conn,
                        match session.state {
                            State::Connect => Down::Closed,
                            _ => Down::Sent(Notification::new(notification::HOLD_TIMER, 0)),
                        },
                    ));
                }
                due(session.patience()).then_some((session.conn, Down::Stuck))
            };
            let ended: Vec<_> = peer.sessions.iter().filter_map(ended).collect();
            for (conn, why) in ended {
                self.end(conn, why, now);
            }
            self.keepalives(id, now);
            if self.peers.get(&id).is_some_and(|peer| due(peer.stale_until)) {
                self.expired(id);
            }
            if self.peers.get(&id).is_some_and(|peer| due(peer.retry)) {
                self.connect(id, now);
            }
            self.forget(id, now);
        }
        if due(self.patience()) {
            self.synchronize();
        }
    }

    /// Gives sessions whose peer seems to be dead another second: as long as nothing is read because changes wait, and
    /// once more, since the caller reads after this.
    fn spare(&mut self, id: PeerId, now: Duration) {
        let reads = self.wants_input();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for session in peer.sessions.iter_mut().filter(|session| is_due(session.hold, now)) {
            if session.state == State::Established && (!reads || !session.is_spared) {
                session.is_spared = true;
                session.hold = Some(now + SPARED);
            }
        }
    }

    fn keepalives(&mut self, id: PeerId, now: Duration) {
        let Some(peer) = self.peers.get(&id) else { return };
        let due = |session: &&Session| is_due(session.keepalive, now);
        let conns: Vec<_> = peer.sessions.iter().filter(due).map(|session| session.conn).collect();
        for conn in conns {
            let Some((_, session)) = self.find(conn) else { continue };
            let third = Duration::from_secs(session.agreed.hold_time.into()) / 3;
            // A peer that takes nothing gets nothing more.
            let writes = session.has_room();
            if writes {
                session.write(Kind::Keepalive, &[], now);
            }
            let next = now + self.jitter(third);
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            peer.counts.sent += u64::from(writes);
            if let Some(session) = peer.find(conn) {
                session.keepalive = Some(next);
            }
        }
    }
}

fn is_due(time: Option<Duration>, now: Duration) -> bool {
    time.is_some_and(|time| time <= now)
}
