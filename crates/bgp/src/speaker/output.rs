//! Output: bytes for peers.

use super::Speaker;
use super::machine::{BEGIN, END};
use crate::message::Kind;
use crate::names::Family;
use crate::own::Own;
use crate::session::Conn;
use crate::status::State;
use crate::update::write::Writer;
use std::collections::BTreeSet;
use std::time::Duration;

/// Most announcements and withdrawals that are written at a time.
const BATCH: usize = 4096;

impl Speaker {
    /// Returns bytes to send. It has no more than 64 KiB and a message; there may be more after [`Self::sent`].
    pub fn output(&mut self, conn: Conn, now: Duration) -> &[u8] {
        self.fill(conn, now);
        self.find(conn).map_or(&[], |(_, session)| session.waiting())
    }

    /// Notes that the connection took so many of the bytes.
    pub fn sent(&mut self, conn: Conn, bytes: usize, now: Duration) {
        if let Some((_, session)) = self.find(conn) {
            session.sent(bytes, now);
        }
    }

    /// Writes messages as long as there is room, and something to say.
    fn fill(&mut self, conn: Conn, now: Duration) {
        let Self { peers, rib, routes, config, .. } = self;
        let Some(peer) = peers.values_mut().find(|peer| peer.sessions.iter().any(|it| it.conn == conn))
        else {
            return;
        };
        let Some(session) = peer.sessions.iter_mut().find(|session| session.conn == conn) else { return };
        while session.state == State::Established && session.has_room() {
            let agreed = session.agreed.clone();
            let writer = Writer { config, peer: &peer.config, agreed: &agreed };
            if let Some(family) = peer.refresh.pop_first() {
                session.write(Kind::Refresh, &family.codes(), now);
                peer.counts.sent += 1;
            } else if peer.pending.is_empty()
                && let Some(family) = peer.refreshed.pop_first()
            {
                session.write(Kind::Refresh, &mark(family, END), now);
                peer.counts.sent += 1;
            } else if let Some(family) = ended(&peer.pending, &peer.ends) {
                peer.ends.remove(&family);
                writer.end_of_rib(family, session.room(now));
                peer.counts.sent += 1;
                peer.counts.updates_sent += 1;
            } else if !peer.pending.is_empty() {
                let rest = match peer.pending.iter().nth(BATCH).copied() {
                    Some(next) => peer.pending.split_off(&next),
                    None => Default::default(),
                };
                let names = std::mem::replace(&mut peer.pending, rest).into_iter();
                let has_target = |target| rib.imports().has(target);
                let (messages, left) = writer.write(names, routes, has_target, session.room(now));
                peer.pending.extend(left);
                peer.counts.sent += messages;
                peer.counts.updates_sent += messages;
            } else if let Some(family) = peer.asked.pop_first() {
                if agreed.refresh_marks {
                    session.write(Kind::Refresh, &mark(family, BEGIN), now);
                    peer.counts.sent += 1;
                    peer.refreshed.insert(family);
                }
                let targets = rib.imports().targets().map(Own::Target);
                let own = targets.chain(routes.keys().map(|nlri| Own::Route(*nlri)));
                peer.pending.extend(own.filter(|own| own.family() == family));
            } else {
                break;
            }
        }
    }
}

/// Returns the body of a mark of a refresh.
const fn mark(family: Family, kind: u8) -> [u8; 4] {
    let [a, b, _, safi] = family.codes();
    [a, b, kind, safi]
}

/// Returns a family of which all was sent, but not that it was.
fn ended(pending: &BTreeSet<Own>, ends: &BTreeSet<Family>) -> Option<Family> {
    let targets_sent = !matches!(pending.first(), Some(Own::Target(_)));
    if ends.contains(&Family::Rtc) && targets_sent {
        return Some(Family::Rtc);
    }
    ends.first().copied().filter(|_| pending.is_empty())
}
