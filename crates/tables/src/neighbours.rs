//! Neighbours' MACs, as learned from packets. Each interface that announces neighbours has a share: beyond it, new
//! entries evict older ones of the same interface.

use crate::cells::Cell;
use crate::config::{Config, Object};
use crate::learned::Known;
use imbl::OrdMap;
use model::{NeighbourFound, NeighbourScope, Seconds, VifId, VifKind};
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;

/// Most neighbours learned from one wire, for the underlay or for one network.
pub const NEIGHBOURS_PER_WIRE: u32 = 4096;
/// Most neighbours learned from one guest, in one network.
pub const NEIGHBOURS_PER_GUEST: u32 = 512;
/// Seconds that entries of a full share last at least, unless packets wait for the neighbours that evict them. Each
/// neighbour in use is asked again within that time ([`crate::STALE`]), and spared if it answered.
const LASTS: u32 = 128;
/// Most neighbours that are spared, because they were seen again, before one is evicted all the same.
const SPARED: usize = 8;

pub(crate) type Key = (NeighbourScope, IpAddr);
/// A share: its scope and its interface.
type Port = (NeighbourScope, VifId);

#[derive(Clone)]
pub(crate) struct Neighbour {
    pub known: Arc<Known<Mac>>,
    /// The interface that announced it.
    by: VifId,
    /// Position in the eviction order of its share, and since when it has had this position.
    place: u64,
    placed: Seconds,
}

/// The neighbours that an interface announced in a scope.
#[derive(Clone, Copy, Default)]
struct Share {
    count: u32,
    /// How many neighbours the share evicted within a second, and which second that is.
    displaced: u32,
    second: Seconds,
}

impl Share {
    const fn displaced_at(self, now: Seconds) -> u32 {
        if self.second == now { self.displaced } else { 0 }
    }
}

/// All neighbours. A clone is cheap.
#[derive(Clone, Default)]
pub(crate) struct Neighbours {
    all: OrdMap<Key, Neighbour>,
    shares: OrdMap<Port, Share>,
    /// The neighbours of each share, in the order of eviction.
    places: OrdMap<(Port, u64), IpAddr>,
    next_place: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub found: NeighbourFound,
    pub by: VifId,
    /// Whether packets wait for it.
    pub is_awaited: bool,
    pub now: Seconds,
}

impl Told {
    pub const fn key(&self) -> Key {
        (self.found.scope, self.found.addr)
    }

    const fn port(&self) -> Port {
        (self.found.scope, self.by)
    }
}

impl Neighbours {
    pub fn get(&self, key: &Key) -> Option<&Known<Mac>> {
        self.all.get(key).map(|neighbour| &*neighbour.known)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Known<Mac>)> {
        self.all.iter().map(|(key, neighbour)| (key, &*neighbour.known))
    }

    /// Returns all neighbours, each with the interface that announced it.
    pub fn found(&self) -> impl Iterator<Item = (NeighbourFound, VifId)> {
        self.all.iter().map(|(&(scope, addr), neighbour)| {
            (NeighbourFound { scope, addr, mac: neighbour.known.value }, neighbour.by)
        })
    }

    /// Returns how long the neighbour had not been seen, if this is known already, so that there is nothing
    /// to write.
    pub fn confirms(&self, found: &NeighbourFound, now: Seconds) -> Option<Seconds> {
        let known = self.get(&(found.scope, found.addr))?;
        let idle = known.idle(now);
        known.confirm(found.mac, now).then_some(idle)
    }

    pub fn would_enter(&self, config: &Config, told: &Told) -> bool {
        let old = self.all.get(&told.key());
        let is_due = old.is_none_or(|old| old.known.value != told.found.mac && !old.known.is_of(told.now));
        let has_room = || old.is_some_and(|old| old.by == told.by) || self.has_room(config, told);
        is_due && config.has(object_of(told.found.scope)) && has_room()
    }

    /// Returns whether a share has room, or can make some.
    fn has_room(&self, config: &Config, told: &Told) -> bool {
        let share = self.shares.get(&told.port()).copied().unwrap_or_default();
        let most = most(config, told.by);
        share.count < most || told.is_awaited || share.displaced_at(told.now) < most / LASTS
    }

    /// Enters a neighbour or its new MAC. Returns the cells of the changes. Nothing changes if the neighbour
    /// got a different MAC within this second, or if the share is full and evicted enough entries in this
    /// second.
    pub fn enter(&mut self, config: &Config, told: &Told) -> Vec<Cell> {
        if !self.would_enter(config, told) {
            return Vec::new();
        }
        let (key, port) = (told.key(), told.port());
        // A different interface may have announced it before; it counts for this one now.
        self.forget(&key);
        let displaced = self.make_room(config, told);
        self.shares.entry(port).or_default().count += 1;
        let (by, known) = (told.by, Known::new(told.found.mac, told.now));
        let place = self.take_place(port, key.1);
        self.all.insert(key, Neighbour { known, by, place, placed: told.now });
        [Some(Cell::neighbour(key.0, key.1)), displaced].into_iter().flatten().collect()
    }

    fn take_place(&mut self, port: Port, addr: IpAddr) -> u64 {
        self.next_place += 1;
        self.places.insert((port, self.next_place), addr);
        self.next_place
    }

    /// Evicts a neighbour if a share is full: approximately the one that was not seen for longest. Neighbours
    /// that were seen since they got their position get a new one instead.
    fn make_room(&mut self, config: &Config, told: &Told) -> Option<Cell> {
        let port = told.port();
        let share = self.shares.get_mut(&port).filter(|share| share.count >= most(config, told.by))?;
        let displaced = share.displaced_at(told.now) + u32::from(!told.is_awaited);
        (share.displaced, share.second) = (displaced, told.now);
        for _ in 0..SPARED {
            let (place, addr) = self.front(port)?;
            let Some(old) = self.all.get(&(port.0, addr)).filter(|old| old.was_heard()).cloned() else {
                break;
            };
            self.places.remove(&(port, place));
            let place = self.take_place(port, addr);
            self.all.insert((port.0, addr), Neighbour { place, placed: told.now, ..old });
        }
        let (_, addr) = self.front(port)?;
        self.forget(&(port.0, addr))
    }

    /// Returns the first position of a share, and its neighbour.
    fn front(&self, port: Port) -> Option<(u64, IpAddr)> {
        self.places.range((port, 0)..=(port, u64::MAX)).next().map(|((_, place), addr)| (*place, *addr))
    }

    pub fn forget(&mut self, key: &Key) -> Option<Cell> {
        let old = self.all.remove(key)?;
        let port = (key.0, old.by);
        self.places.remove(&(port, old.place));
        if let Some(share) = self.shares.get_mut(&port) {
            share.count -= 1;
            if share.count == 0 {
                self.shares.remove(&port);
            }
        }
        Some(Cell::neighbour(key.0, key.1))
    }

    /// Removes entries of wires and networks that no longer exist; calls `touched` for their cells.
    pub fn retain(&mut self, config: &Config, touched: impl FnMut(Cell)) {
        let gone: Vec<_> =
            self.all.keys().filter(|(scope, _)| !config.has(object_of(*scope))).copied().collect();
        gone.iter().filter_map(|key| self.forget(key)).for_each(touched);
    }
}

impl Neighbour {
    /// Returns whether it was seen since it got its position.
    fn was_heard(&self) -> bool {
        self.known.seen() > self.placed
    }
}

const fn object_of(scope: NeighbourScope) -> Object {
    match scope {
        NeighbourScope::Wire(vif) => Object::Vif(vif),
        NeighbourScope::Network(vrf) => Object::Network(vrf),
    }
}

/// Returns how many neighbours an interface may announce at most.
fn most(config: &Config, by: VifId) -> u32 {
    let is_wire = config.vif(by).is_some_and(|vif| vif.kind == VifKind::Wire);
    if is_wire { NEIGHBOURS_PER_WIRE } else { NEIGHBOURS_PER_GUEST }
}
