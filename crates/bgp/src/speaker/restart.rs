//! Routes of a peer whose session has ended: kept for a while, until it has sent them again (RFC 4724, 8538).

use super::{Event, Speaker};
use crate::names::Family;
use crate::notification::{self, Notification, cease};
use crate::peer::Peer;
use crate::rib::PeerId;
use crate::session::Agreed;
use crate::status::Down;
use std::time::Duration;

/// Time in which a peer that is back has to send its routes.
const RESENDING: Duration = Duration::from_secs(360);
/// Time without an UPDATE after which a peer that marks no end of its routes has sent them.
const QUIET: Duration = Duration::from_secs(3);

impl Speaker {
    /// Keeps or removes the routes of a peer whose session has ended.
    pub(super) fn lost(&mut self, id: PeerId, agreed: &Agreed, why: &Down, now: Duration) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.pending.clear();
        peer.ends.clear();
        peer.asked.clear();
        peer.refreshed.clear();
        peer.refresh.clear();
        peer.awaited.clear();
        self.events.push_back(Event::PeerDown { peer: peer.config.address, why: why.clone() });
        // Those that it has not sent again since the last time are kept no longer.
        if peer.stale_until.is_some() {
            self.sweep(id, |peer, family, round| {
                peer.is_old(family, round) && !peer.refreshing.contains(&family)
            });
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.refreshing.clear();
        let asks_for = agreed.restart.map_or(0, |restart| restart.time);
        // One of a range does not choose itself for how long it keeps its place.
        let most = if peer.range.is_some() { peer.config.restart_time } else { u16::MAX };
        let time = if asks_for > 0 { asks_for.min(most) } else { peer.config.restart_time };
        if peer.config.restart_time > 0 && is_graceful(why, agreed) {
            // Plain routes lead to the peer itself: it has to forward on, by a path that is whole.
            let stays = |family| agreed.forwards.contains(&family) && !is_cut_off(why);
            self.sweep(id, |_, family, _| family.is_plain() && !stays(family));
            let Some(peer) = self.peers.get_mut(&id) else { return };
            peer.stale_until = (peer.routes > 0).then_some(now + Duration::from_secs(time.into()));
        } else {
            self.sweep(id, |_, _, _| true);
        }
    }

    /// Begins a session of a peer: what is there of it is of an earlier one.
    pub(super) fn restarted(&mut self, id: PeerId, now: Duration) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        Family::ALL.into_iter().for_each(|family| peer.begin_round(family));
        peer.heard = now;
        let Some(agreed) = peer.up().map(|session| session.agreed.clone()) else { return };
        peer.awaited = agreed.families.iter().copied().collect();
        // Even if the peer's F bits are clear, routes of other hosts are kept. Plain ones lead to the peer itself
        // (RFC 4724, 4.2).
        if peer.stale_until.is_some() {
            let ours = Duration::from_secs(peer.config.restart_time.into());
            peer.stale_until = Some(now + if agreed.restart.is_some() { RESENDING } else { ours });
            let lost = |family: Family| family.is_plain() && !agreed.forwarded.contains(&family);
            self.sweep(id, |_, family, _| !agreed.families.contains(&family) || lost(family));
        }
    }

    /// Notes that a peer has sent all routes of a family.
    pub(super) fn end_of_rib(&mut self, id: PeerId, family: Family) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.awaited.remove(&family);
        if peer.awaited.is_empty() {
            peer.synchronized = true;
            peer.stale_until = None;
        }
        self.sweep(id, |peer, its, round| its == family && peer.is_old(its, round));
        self.check_synchronized();
    }

    /// Notes that a peer begins to send all routes of a family again, or has done so (RFC 7313, 4.2).
    pub(super) fn refreshed(&mut self, id: PeerId, family: Family, ends: bool) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !ends && !peer.awaited.contains(&family) {
            peer.begin_round(family);
            peer.refreshing.insert(family);
        }
        if ends && peer.refreshing.remove(&family) {
            self.sweep(id, |peer, its, round| its == family && peer.is_old(its, round));
        }
    }

    /// Handles a KEEPALIVE: of a peer that knows no graceful restart, and so may mark no end of its routes, it is one if
    /// nothing else has come for a while.
    pub(super) fn implied_end_of_rib(&mut self, id: PeerId, now: Duration) {
        let Some(peer) = self.peers.get(&id) else { return };
        let marks = peer.up().is_none_or(|session| session.agreed.restart.is_some());
        if !marks && now >= peer.heard + QUIET {
            for family in peer.awaited.clone() {
                self.end_of_rib(id, family);
            }
        }
    }

    /// Removes stale routes whose time is over.
    pub(super) fn expired(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.stale_until = None;
        self.sweep(id, Peer::is_stale);
    }

    /// Removes routes of a peer, by family and round.
    fn sweep(&mut self, id: PeerId, gone: impl Fn(&Peer, Family, u16) -> bool) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.routes > 0) else { return };
        let removed = self.rib.sweep(id, |family, route| gone(peer, family, route.round));
        peer.routes -= removed;
    }

    /// Tells, once, that all peers have sent all of their routes.
    pub(super) fn check_synchronized(&mut self) {
        // Who of a range will call is not known.
        if !self.synchronized && self.ranges.is_empty() && self.peers.values().all(|peer| peer.synchronized) {
            self.synchronize();
        }
    }

    /// Waits no longer for peers that have not sent all of their routes.
    pub(super) fn synchronize(&mut self) {
        self.synchronized = true;
        self.events.push_back(Event::Synchronized);
    }

    /// Returns when peers that have not sent their routes are waited for no longer.
    pub(super) fn patience(&self) -> Option<Duration> {
        let of_ranges = self.ranges.iter().map(|range| range.config.peer.restart_time);
        let of_peers = self.peers.values().map(|peer| peer.config.restart_time);
        let longest = of_peers.chain(of_ranges).max().unwrap_or(0);
        (!self.synchronized).then(|| self.started + Duration::from_secs(longest.into()))
    }
}

/// Returns whether a session ended because the path to the peer is broken.
fn is_cut_off(why: &Down) -> bool {
    matches!(why, Down::Sent(it) if (it.code, it.subcode) == (notification::CEASE, cease::BFD_DOWN))
}

/// Returns whether a session ended in a way in which routes are kept: the peer may be back soon.
fn is_graceful(why: &Down, agreed: &Agreed) -> bool {
    let is_kept = |it: &Notification| match it.code {
        notification::HOLD_TIMER => true,
        notification::CEASE => {
            matches!(it.subcode, cease::COLLISION | cease::CHANGED | cease::BFD_DOWN)
        }
        _ => false,
    };
    match why {
        Down::Closed | Down::Reconnected | Down::Stuck => true,
        Down::Sent(notification) => is_kept(notification),
        Down::Received(notification) => {
            let hard = (notification.code, notification.subcode) == (notification::CEASE, cease::HARD_RESET);
            let both = agreed.restart.is_some_and(|restart| restart.notification);
            is_kept(notification) || (both && !hard)
        }
    }
}
