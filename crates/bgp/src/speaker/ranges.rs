//! Peers that call from a range of addresses, without a configuration of their own. The speaker knows such a peer as
//! long as it has a connection, or routes of it are kept.

use super::Speaker;
use crate::config::RangeConfig;
use crate::notification::cease;
use crate::peer::Peer;
use crate::rib::PeerId;
use crate::status::RangeStatus;
use std::net::IpAddr;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Range {
    pub(super) config: RangeConfig,
    refused: u64,
}

impl Speaker {
    /// Follows other ranges, after the named peers. Each known peer moves to the longest range that has its address; if
    /// none has, it leaves. The session of a peer whose configuration changes begins anew.
    pub(super) fn follow_ranges(&mut self, ranges: Vec<RangeConfig>, now: Duration) {
        let refused = |config: &RangeConfig| {
            let known = self.ranges.iter().find(|known| known.config.range == config.range);
            known.map_or(0, |known| known.refused)
        };
        self.ranges = ranges.into_iter().map(|config| Range { refused: refused(&config), config }).collect();
        let guests = self.peers.iter().filter(|(_, peer)| peer.range.is_some());
        for (id, address) in guests.map(|(id, peer)| (*id, peer.config.address)).collect::<Vec<_>>() {
            let Some(config) = self.range_of(address).map(|range| range.config.clone()) else {
                self.remove_peer(id, cease::REMOVED, now);
                continue;
            };
            self.peers.get_mut(&id).into_iter().for_each(|peer| peer.range = Some(config.range));
            self.change_peer(id, config.peer(address), now);
        }
    }

    /// Returns the range with the longest prefix that has an address.
    fn range_of(&mut self, address: IpAddr) -> Option<&mut Range> {
        let its = self.ranges.iter_mut().filter(|range| range.config.range.contains(&address));
        its.max_by_key(|range| range.config.range.prefix_len())
    }

    /// Returns the ranges of peers.
    #[must_use]
    pub fn ranges(&self) -> Vec<RangeStatus> {
        let status = |Range { config, refused }: &Range| RangeStatus {
            range: config.range,
            max_peers: config.max_peers,
            refused: *refused,
        };
        self.ranges.iter().map(status).collect()
    }

    /// Adds a peer that has called to the longest range that has its address. If the range is full, a peer without a
    /// session and without kept routes leaves; if there is none, the new one is refused.
    pub(super) fn called(&mut self, from: IpAddr, now: Duration) -> Option<PeerId> {
        let config = self.range_of(from)?.config.clone();
        let of_range = || self.peers.iter().filter(|(_, peer)| peer.range == Some(config.range));
        let mut peer = Peer::new(config.peer(from), now);
        peer.range = Some(config.range);
        if of_range().count() >= config.max_peers {
            let is_idle = |peer: &Peer| peer.up().is_none() && peer.stale_until.is_none();
            let order = |peer: &Peer| (!peer.sessions.is_empty(), peer.since);
            let idle = of_range().filter(|(_, peer)| is_idle(peer)).min_by_key(|(_, peer)| order(peer));
            let Some(id) = idle.map(|(id, _)| *id) else {
                self.range_of(from)?.refused += 1;
                return None;
            };
            self.remove_peer(id, cease::REJECTED, now);
        }
        self.add_peer(peer)
    }

    /// Forgets a peer of a range that has no connection, and of which nothing is kept. One that broke the protocol is
    /// known until it may call again.
    pub(super) fn forget(&mut self, id: PeerId, now: Duration) {
        let is_over = |peer: &Peer| {
            let waits = peer.retry.is_some() || peer.stale_until.is_some();
            peer.range.is_some() && peer.sessions.is_empty() && !waits
        };
        if self.peers.get(&id).is_some_and(is_over) {
            self.remove_peer(id, cease::REMOVED, now);
        }
    }
}
