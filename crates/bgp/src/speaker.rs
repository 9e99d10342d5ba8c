//! The speaker: all peers, all learned routes, all that is announced.

mod input;
mod machine;
mod output;
mod ranges;
mod restart;
mod updates;

use crate::config::{Config, Import, PeerConfig, RangeConfig};
use crate::names::Family;
use crate::notification::{self, Notification, cease};
use crate::own::{Own, Routes};
use crate::peer::Peer;
use crate::rib::{Contender, PeerId, Rib, Subject};
use crate::route::{Announcement, Change, KnownMac, MacPath, Mobility, Nlri, Path, Tunnel, VrfId};
use crate::session::{Conn, Session};
use crate::status::{Candidate, Down, MAX_CANDIDATES, PeerStatus, Verdict};
use ipnet::IpNet;
use packet::Mac;
use ranges::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Subjects that have changed, above which nothing more is read until they are taken.
const CHANGES: usize = 1 << 16;

/// A wish of the speaker, or news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Open a TCP connection; then say [`Speaker::connected`] or [`Speaker::closed`].
    Connect {
        /// The connection's number from now on.
        conn: Conn,
        /// The peer.
        to: SocketAddr,
    },
    /// Close a connection. Its number means nothing any more.
    Close {
        /// The connection.
        conn: Conn,
        /// Bytes to write before, if the socket takes them at once.
        last: Vec<u8>,
    },
    /// A session came up.
    PeerUp {
        /// The peer.
        peer: IpAddr,
    },
    /// A session ended.
    PeerDown {
        /// The peer.
        peer: IpAddr,
        /// Why.
        why: Down,
    },
    /// All peers have sent their routes once, or took too long: what an earlier speaker left is void. Said once.
    Synchronized,
}

/// A speaker without I/O. Time is measured from any beginning, the same in all calls.
#[derive(Debug)]
pub struct Speaker {
    config: Config,
    peers: BTreeMap<PeerId, Peer>,
    ranges: Vec<Range>,
    rib: Rib,
    routes: Routes,
    events: VecDeque<Event>,
    next_conn: u64,
    /// The state of the random numbers.
    random: u64,
    started: Duration,
    synchronized: bool,
}

impl Speaker {
    /// Makes a speaker without peers. `seed`: for the jitter of timers.
    #[must_use]
    pub fn new(config: Config, seed: u64, now: Duration) -> Self {
        Self {
            config,
            peers: BTreeMap::new(),
            ranges: Vec::new(),
            rib: Rib::default(),
            routes: Routes::new(),
            events: VecDeque::new(),
            next_conn: 0,
            random: seed,
            started: now,
            synchronized: false,
        }
    }

    /// Returns what the speaker was told about itself.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Follows other peers, and no ranges of them; see [`Self::set_all_peers`].
    pub fn set_peers(&mut self, peers: Vec<PeerConfig>, now: Duration) {
        self.set_all_peers(peers, Vec::new(), now);
    }

    /// Follows other peers, and ranges of them. Those that stay as they are do not notice, also if they were of a
    /// range and are named now; the session of one that changes begins anew.
    pub fn set_all_peers(&mut self, peers: Vec<PeerConfig>, ranges: Vec<RangeConfig>, now: Duration) {
        let stays =
            |peer: &Peer| peer.range.is_some() || peers.iter().any(|new| new.address == peer.config.address);
        let gone: Vec<_> = self.peers.iter().filter(|(_, peer)| !stays(peer)).map(|(id, _)| *id).collect();
        for id in gone {
            self.remove_peer(id, cease::REMOVED, now);
        }
        for config in peers {
            match self.id_of(config.address) {
                None => drop(self.add_peer(Peer::new(config, now))),
                Some(id) => {
                    self.peers.get_mut(&id).into_iter().for_each(|peer| peer.range = None);
                    self.change_peer(id, config, now);
                }
            }
        }
        self.follow_ranges(ranges, now);
        self.check_synchronized();
    }

    fn add_peer(&mut self, peer: Peer) -> Option<PeerId> {
        let free = (0..PeerId::MAX).find(|id| !self.peers.contains_key(id))?;
        self.peers.insert(free, peer);
        Some(free)
    }

    /// Ends the session of a peer for a reason (RFC 4486), and forgets the peer.
    fn remove_peer(&mut self, id: PeerId, why: u8, now: Duration) {
        self.end_all(id, &Notification::new(notification::CEASE, why), now);
        self.rib.sweep(id, |_, _| true);
        self.peers.remove(&id);
    }

    fn change_peer(&mut self, id: PeerId, config: PeerConfig, now: Duration) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let same = peer.config == PeerConfig { max_routes: peer.config.max_routes, ..config.clone() };
        peer.config = config;
        if !same {
            self.end_all(id, &Notification::new(notification::CEASE, cease::CHANGED), now);
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.retry = Some(now);
            }
        }
    }

    /// Follows other imports. Peers are asked for routes that were not wanted before.
    pub fn set_imports(&mut self, imports: &[Import], now: Duration) {
        let before: BTreeSet<_> = self.rib.imports().targets().collect();
        let (removed, more) = self.rib.import(imports);
        for (id, routes) in removed {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.routes -= routes;
            }
        }
        let after: BTreeSet<_> = self.rib.imports().targets().collect();
        let mut deaf = Vec::new();
        for (id, peer) in &mut self.peers {
            if peer.speaks(Family::Rtc) {
                peer.pending.extend(before.symmetric_difference(&after).map(|target| Own::Target(*target)));
            }
            let Some(session) = peer.up() else { continue };
            let asks =
                |family: &Family| (more.targets && family.has_targets()) || (more.plain && family.is_plain());
            let families: Vec<_> = session.agreed.families.iter().copied().filter(asks).collect();
            if session.agreed.refresh {
                peer.refresh.extend(families);
            } else if !families.is_empty() {
                deaf.push(*id);
            }
        }
        for id in deaf {
            self.end_all(id, &Notification::new(notification::CEASE, cease::CHANGED), now);
        }
    }

    /// Announces a route of the host, or changes what is announced with it.
    pub fn announce(&mut self, nlri: Nlri, announcement: Announcement) {
        if self.routes.get(&nlri) != Some(&announcement) {
            self.routes.insert(nlri, announcement);
            self.tell(Own::Route(nlri));
        }
    }

    /// Withdraws a route of the host.
    pub fn withdraw(&mut self, nlri: &Nlri) {
        if self.routes.remove(nlri).is_some() {
            self.tell(Own::Route(*nlri));
        }
    }

    /// Returns the routes of the host.
    pub fn announced(&self) -> impl Iterator<Item = (&Nlri, &Announcement)> {
        self.routes.iter()
    }

    /// Notes that all peers are to get a route, or its withdrawal.
    fn tell(&mut self, own: Own) {
        for peer in self.peers.values_mut().filter(|peer| peer.speaks(own.family())) {
            peer.pending.insert(own);
        }
    }

    /// Returns how to announce a MAC address that came up on this host, if others have announced it: it has moved here.
    /// One that does not move (RFC 7432, 15.2) stays where it is.
    #[must_use]
    pub fn next_sequence(&self, vrf: VrfId, mac: Mac) -> Option<Mobility> {
        let Mobility { sequence, .. } = self.rib.mobility(vrf, mac).filter(|mobility| !mobility.sticky)?;
        Some(Mobility { sticky: false, sequence: sequence.saturating_add(1) })
    }

    /// Has [`Self::take_changes`] say again where a MAC address of a network is.
    pub fn tell_again(&mut self, vrf: VrfId, mac: Mac) {
        self.rib.note_mac(vrf, mac);
    }

    /// Follows whether remotes of tunnels are down: then routes to them are used only if there are no others.
    pub fn set_down(&mut self, remotes: &[(IpAddr, bool)]) {
        self.rib.set_down(remotes);
    }

    /// Returns the remotes of tunnels that routes name, used or not, in order.
    pub fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.rib.remotes()
    }

    /// Returns whether routes name this remote of tunnels.
    #[must_use]
    pub fn names(&self, remote: &IpAddr) -> bool {
        self.rib.names(remote)
    }

    /// Returns whether [`Event::Synchronized`] was said.
    #[must_use]
    pub const fn is_synchronized(&self) -> bool {
        self.synchronized
    }

    /// Ends all sessions, with a text for the peers' operators (RFC 9003). Peers are not called again.
    pub fn stop(&mut self, text: &str, now: Duration) {
        let ids: Vec<_> = self.peers.keys().copied().collect();
        for id in ids {
            self.end_all(id, &Notification::shutdown(text), now);
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.retry = None;
            }
        }
    }

    /// Ends the session of a peer to which the path is broken (RFC 5882, 4.3), as BFD found out.
    pub fn path_down(&mut self, peer: IpAddr, now: Duration) {
        if let Some(id) = self.id_of(peer) {
            self.end_all(id, &Notification::new(notification::CEASE, cease::BFD_DOWN), now);
        }
    }

    /// Returns the next thing that the speaker wants or tells.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes what has changed, at most so many. Each says all that holds now.
    pub fn take_changes(&mut self, most: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        while changes.len() < most
            && let Some((vrf, subject)) = self.rib.take_changed()
        {
            changes.push(match subject {
                Subject::Prefix(prefix) => Change::Route { vrf, prefix, paths: self.rib.paths(vrf, prefix) },
                Subject::Mac(mac) => Change::Mac { vrf, mac, path: self.rib.mac(vrf, mac) },
                Subject::Address(address) => {
                    Change::Neighbour { vrf, address, mac: self.rib.owner(vrf, address) }
                }
                Subject::Flood => Change::Flood { vrf, tunnels: self.rib.flood(vrf) },
            });
        }
        changes
    }

    /// Returns the peers.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.peers.values().map(Peer::status).collect()
    }

    /// Returns prefixes of a network after one, in order, with the paths that are used for each, at most so many.
    #[must_use]
    pub fn routes(&self, vrf: VrfId, after: Option<IpNet>, most: usize) -> Vec<(IpNet, Vec<Path>)> {
        self.rib.page(vrf, after, most)
    }

    /// Returns MAC addresses that were learned for a network after one, in order: at most so many.
    #[must_use]
    pub fn macs(&self, vrf: VrfId, after: Option<Mac>, most: usize) -> Vec<KnownMac> {
        self.rib.macs(vrf, after, most)
    }

    /// Returns the learned location of a MAC address of a network.
    #[must_use]
    pub fn mac(&self, vrf: VrfId, mac: Mac) -> Option<MacPath> {
        self.rib.mac(vrf, mac)
    }

    /// Returns the tunnels to which floods of a network go.
    #[must_use]
    pub fn floods(&self, vrf: VrfId) -> Vec<Tunnel> {
        self.rib.floods(vrf).0
    }

    /// Returns routes that a network imports for a prefix, those that are used first, and why each is used or not: at
    /// most [`MAX_CANDIDATES`].
    #[must_use]
    pub fn explain(&self, vrf: VrfId, prefix: IpNet) -> Vec<Candidate> {
        let mut all = Vec::new();
        let used = self.rib.used(vrf, prefix, &mut |one, rank| all.push((*one, Verdict::worse(rank))));
        let used = used.into_iter().map(|one| (one, Verdict::Used));
        let paths = self.rib.paths(vrf, prefix);
        let weight = |path| paths.iter().filter(|other| **other == path).count();
        let candidate = |(one, verdict): (Contender<'_>, Verdict)| {
            let peer = self.peers.get(&one.key.peer())?;
            Some(Candidate {
                peer: peer.config.address,
                rd: one.key.name.rd,
                family: one.key.name.family(),
                path: one.path(),
                bandwidth: one.attributes.bandwidth,
                weight: if verdict == Verdict::Used { weight(one.path()) } else { 0 },
                targets: one.attributes.targets.to_vec(),
                preference: one.attributes.preference,
                as_path: one.attributes.path,
                stale: peer.is_stale(one.key.name.family(), one.route.round),
                down: self.rib.is_down(&one),
                verdict,
            })
        };
        used.chain(all).take(MAX_CANDIDATES).filter_map(candidate).collect()
    }

    /// Returns the number of routes in the table.
    #[cfg(test)]
    pub(crate) fn routes_kept(&self) -> usize {
        self.rib.len()
    }

    fn id_of(&self, address: IpAddr) -> Option<PeerId> {
        self.peers.iter().find(|(_, peer)| peer.config.address == address).map(|(id, _)| *id)
    }

    fn find(&mut self, conn: Conn) -> Option<(PeerId, &mut Session)> {
        self.peers.iter_mut().find_map(|(id, peer)| Some((*id, peer.find(conn)?)))
    }

    fn new_conn(&mut self) -> Conn {
        self.next_conn += 1;
        Conn(self.next_conn)
    }

    /// Returns a random part of a time, three quarters of it at least (RFC 4271, 10).
    fn jitter(&mut self, time: Duration) -> Duration {
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        time * (750 + (word % 251) as u32) / 1000
    }
}
