//! Knowledge that the tables gain from packets, except connections: locations of MACs, and neighbours' MACs
//! ([`Neighbours`]).

use crate::cells::Cell;
use crate::config::{Config, Object};
use crate::neighbours::Neighbours;
use crate::resolver::{PROBES_PER_SCOPE, UNUSED};
use imbl::OrdMap;
use model::{BridgeTarget, Learn, NeighbourScope, PathMtu, Seconds, VifId, Vrf};
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most MACs learned behind one interface of a network, or behind one remote of its tunnels.
pub const MACS_PER_PORT: u32 = 4096;
/// Most MACs learned behind all tunnels of a network.
pub const MACS_BEHIND_TUNNELS: u32 = 16 * MACS_PER_PORT;
/// Seconds after which a learned MAC expires if it was not seen again (IEEE 802.1Q, 8.8.3).
pub const MAC_AGE: Seconds = 300;

/// Most remotes of tunnels whose path MTU is known to be less than their wire's.
pub const PATHS: usize = 4096;

/// A learned value and its times. Shared between snapshots, so that `seen` is written in place.
pub(crate) struct Known<T> {
    pub value: T,
    /// When it was created or changed; it changes at most once a second.
    since: Seconds,
    seen: AtomicU32,
    /// When a decision last needed it. Not recorded for MACs.
    used: AtomicU32,
}

impl<T: Copy + PartialEq> Known<T> {
    pub fn new(value: T, now: Seconds) -> Arc<Self> {
        Arc::new(Self { value, since: now, seen: AtomicU32::new(now), used: AtomicU32::new(0) })
    }

    /// Records that a decision needs it.
    pub fn note_use(&self, now: Seconds) {
        if self.used.load(Ordering::Relaxed) < now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    pub fn used(&self) -> Seconds {
        self.used.load(Ordering::Relaxed)
    }

    pub fn seen(&self) -> Seconds {
        self.seen.load(Ordering::Relaxed)
    }

    pub fn idle(&self, now: Seconds) -> Seconds {
        now.saturating_sub(self.seen())
    }

    pub const fn is_of(&self, now: Seconds) -> bool {
        self.since == now
    }

    /// Returns whether the value is the same, so that only the time is new; then records the time, at most
    /// once a second.
    pub fn confirm(&self, value: T, now: Seconds) -> bool {
        let same = self.value == value;
        if same && self.seen.load(Ordering::Relaxed) != now {
            self.seen.store(now, Ordering::Relaxed);
        }
        same
    }
}

/// The subjects of limits on learning in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Port {
    Vif(VifId),
    /// The host at the other end of a tunnel.
    Remote(IpAddr),
    Tunnels,
}

impl Port {
    /// Returns the one or two limits against which a MAC counts.
    fn of(target: BridgeTarget) -> (Self, Option<Self>) {
        match target {
            BridgeTarget::Vif(vif) => (Self::Vif(vif), None),
            BridgeTarget::Nexthop(_) => (Self::Tunnels, None),
            BridgeTarget::Vtep { remote, .. } => (Self::Remote(remote), Some(Self::Tunnels)),
        }
    }

    const fn most(self) -> u32 {
        match self {
            Self::Vif(_) | Self::Remote(_) => MACS_PER_PORT,
            Self::Tunnels => MACS_BEHIND_TUNNELS,
        }
    }
}

/// All learned knowledge. A clone is cheap.
#[derive(Clone, Default)]
pub(crate) struct Learned {
    pub macs: OrdMap<(Vrf, Mac), Arc<Known<BridgeTarget>>>,
    macs_of: OrdMap<(Vrf, Port), u32>,
    pub neighbours: Neighbours,
    /// Neighbours of wires that were asked in vain and have not answered since, and when each was found to be silent.
    pub silent: OrdMap<(NeighbourScope, IpAddr), Seconds>,
    /// Path MTUs to remotes, bytes, and when each was learned.
    pub paths: OrdMap<IpAddr, (u16, Seconds)>,
}

/// Counts one more for a key, unless the key has `most`.
fn count<K: Ord + Clone>(counts: &mut OrdMap<K, u32>, key: K, most: u32) -> bool {
    let count = counts.entry(key).or_default();
    let room = *count < most;
    *count += u32::from(room);
    room
}

fn discount<K: Ord + Clone>(counts: &mut OrdMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Learned {
    /// Returns whether this is known already, so that there is nothing to write.
    pub fn confirms_mac(&self, learn: &Learn, now: Seconds) -> bool {
        self.macs.get(&(learn.vrf, learn.mac)).is_some_and(|known| known.confirm(learn.at, now))
    }

    /// Returns whether the MAC moved, within the last `age` seconds, to a location other than that of
    /// `learn`.
    pub fn moved_within(&self, learn: &Learn, age: Seconds, now: Seconds) -> bool {
        let known = self.macs.get(&(learn.vrf, learn.mac));
        known.is_some_and(|known| known.value != learn.at && now.saturating_sub(known.since) <= age)
    }

    /// Learns a MAC or moves it. Returns whether anything changed. Nothing changes if the port has used up
    /// its share, or if the entry moved within this second or is configured.
    pub fn learn(&mut self, config: &Config, learn: &Learn, now: Seconds) -> bool {
        let key = (learn.vrf, learn.mac);
        let place = match learn.at {
            BridgeTarget::Vif(vif) => config.has(Object::Vif(vif)),
            BridgeTarget::Nexthop(nexthop) => config.has(Object::Nexthop(nexthop)),
            BridgeTarget::Vtep { .. } => true,
        };
        if !place || !config.has(Object::Network(learn.vrf)) || config.bridge(learn.vrf, learn.mac).is_some()
        {
            return false;
        }
        let old = self.macs.get(&key).map(|known| (known.value, known.since));
        if old.is_some_and(|(target, since)| target == learn.at || since == now) {
            return false;
        }
        if !self.count_mac(learn.vrf, learn.at) {
            return false;
        }
        if let Some((target, _)) = old {
            self.discount_mac(learn.vrf, target);
        }
        self.macs.insert(key, Known::new(learn.at, now));
        true
    }

    /// Does the same as [`Self::learn`], for a MAC that was last seen `idle` seconds ago.
    pub fn learn_late(&mut self, config: &Config, learn: &Learn, idle: Seconds, now: Seconds) -> bool {
        let is_new = self.learn(config, learn, now);
        if let Some(known) = self.macs.get(&(learn.vrf, learn.mac)).filter(|_| is_new) {
            known.seen.store(now.saturating_sub(idle), Ordering::Relaxed);
        }
        is_new
    }

    pub fn is_at(&self, learn: &Learn) -> bool {
        self.macs.get(&(learn.vrf, learn.mac)).is_some_and(|known| known.value == learn.at)
    }

    /// Counts one more MAC behind a port, unless the limit is reached.
    fn count_mac(&mut self, vrf: Vrf, at: BridgeTarget) -> bool {
        let (port, all) = Port::of(at);
        if !count(&mut self.macs_of, (vrf, port), port.most()) {
            return false;
        }
        let room = all.is_none_or(|all| count(&mut self.macs_of, (vrf, all), all.most()));
        if !room {
            discount(&mut self.macs_of, &(vrf, port));
        }
        room
    }

    fn discount_mac(&mut self, vrf: Vrf, at: BridgeTarget) {
        let (port, all) = Port::of(at);
        [Some(port), all].into_iter().flatten().for_each(|port| discount(&mut self.macs_of, &(vrf, port)));
    }

    pub fn forget_mac(&mut self, key: &(Vrf, Mac)) -> Option<Cell> {
        let known = self.macs.remove(key)?;
        self.discount_mac(key.0, known.value);
        Some(Cell::bridge(key.0, key.1))
    }

    /// Records which neighbours of wires were asked in vain at `now`, and forgets those that answered, and those that
    /// nobody may need any more, unless they are a wire's gateway. Returns the cell of a change.
    pub fn follow_silence(
        &mut self,
        config: &Config,
        failed: &[(NeighbourScope, IpAddr)],
        now: Seconds,
    ) -> Option<Cell> {
        let before = self.silent.clone();
        let is_gateway = |(scope, addr): &(NeighbourScope, IpAddr)| {
            let NeighbourScope::Wire(wire) = scope else { return false };
            let wire = config.vif(*wire).and_then(|vif| vif.wire.as_ref());
            wire.is_some_and(|wire| wire.gateways.contains(addr))
        };
        let is_over = |key, since: Seconds| {
            let is_old = now.saturating_sub(since) >= UNUSED;
            self.neighbours.get(key).is_some() || is_old && !is_gateway(key)
        };
        let over: Vec<_> =
            before.iter().filter(|(key, since)| is_over(*key, **since)).map(|(key, _)| *key).collect();
        for key in &over {
            self.silent.remove(key);
        }
        for key in failed {
            if self.silent.len() < PROBES_PER_SCOPE && !self.silent.contains_key(key) {
                self.silent.insert(*key, now);
            }
        }
        (!self.silent.keys().eq(before.keys())).then_some(Cell::wires())
    }

    /// Records the path MTU to a remote. Returns the cell of a change.
    pub fn enter_path(&mut self, found: &PathMtu, now: Seconds) -> Option<Cell> {
        let room = self.paths.len() < PATHS || self.paths.contains_key(&found.remote);
        room.then(|| {
            self.paths.insert(found.remote, (found.mtu, now));
            Cell::remote(found.remote)
        })
    }

    pub fn forget_old_paths(&mut self, now: Seconds) -> Vec<Cell> {
        let old = self.paths.iter().filter(|(_, (_, since))| now.saturating_sub(*since) >= PathMtu::AGE);
        let old: Vec<_> = old.map(|(remote, _)| *remote).collect();
        for remote in &old {
            self.paths.remove(remote);
        }
        old.into_iter().map(Cell::remote).collect()
    }

    /// Removes entries of interfaces and networks that no longer exist; calls `touched` for their cells.
    pub fn retain(&mut self, config: &Config, mut touched: impl FnMut(Cell)) {
        let is_gone = |scope: &NeighbourScope| matches!(scope, NeighbourScope::Wire(wire) if !config.has(Object::Vif(*wire)));
        let gone: Vec<_> = self.silent.keys().filter(|(scope, _)| is_gone(scope)).copied().collect();
        for key in &gone {
            self.silent.remove(key);
        }
        let gone = |vrf: Vrf, target: BridgeTarget| {
            !config.has(Object::Network(vrf))
                || matches!(target, BridgeTarget::Vif(vif) if !config.has(Object::Vif(vif)))
        };
        let macs: Vec<_> =
            self.macs.iter().filter(|(key, known)| gone(key.0, known.value)).map(|(key, _)| *key).collect();
        macs.iter().filter_map(|key| self.forget_mac(key)).for_each(&mut touched);
        self.neighbours.retain(config, touched);
    }
}
