//! Learned routes: what each peer sent, kept as far as a network of the host imports it.
//!
//! One ordered map has all routes of all peers: those that compete (of one prefix, of one MAC address) are neighbours
//! in it. Attributes are kept once for all routes that share them. What has changed is noted by network and subject,
//! and worked out when it is asked for, so that a route that flaps costs what it costs once.

mod attributes;
mod down;
mod imports;
mod select;

pub(crate) use attributes::{Attributes, AttributesId, Way};
pub(crate) use select::{Contender, Rank};

use crate::config::Import;
use crate::names::Family;
use crate::route::VrfId;
use crate::update::nlri::{Kind, Name, PathId, Place};
use attributes::Store;
use imports::Imports;
use ipnet::IpNet;
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;

/// The number of a peer.
pub(crate) type PeerId = u16;

/// The subject of a change, in one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Prefix(IpNet),
    Mac(Mac),
    Address(IpAddr),
    Flood,
}

/// A route's place in the table: by what it competes for, then by what names it, then by peer and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) name: Name,
    /// As bytes, the key needs no alignment.
    peer: [u8; 2],
    path: PathId,
}

impl Key {
    pub(crate) const fn new(name: Name, peer: PeerId, path: PathId) -> Self {
        Self { name, peer: peer.to_be_bytes(), path }
    }

    pub(crate) const fn peer(&self) -> PeerId {
        PeerId::from_be_bytes(self.peer)
    }
}

/// A learned route, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) attributes: AttributesId,
    /// An MPLS label, or a VNI.
    pub(crate) label: u32,
    /// For a MAC address with an IP address: the label or VNI of routed packets. 0: none.
    pub(crate) routed: u32,
    /// The round of the peer in which it was sent last.
    pub(crate) round: u16,
}

/// The kinds of routes of which imports take more than before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct More {
    pub(crate) targets: bool,
    pub(crate) plain: bool,
}

/// The fate of a route that was put into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    New,
    Replaced,
    /// There are too many of its subject. It is not in the table.
    Crowded,
}

/// Most routes of one prefix, one MAC address, or one IP address of MAC addresses, with all distinguishers, peers and
/// paths: each change looks at all of them.
const CROWD: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Rib {
    routes: BTreeMap<Key, Route>,
    store: Store,
    imports: Imports,
    /// MAC addresses by the IP addresses that they are announced with.
    owners: BTreeSet<(IpAddr, Mac)>,
    /// Routes that may be in the floods of each network. Those that are not are removed when the floods are worked out.
    floods: BTreeSet<(VrfId, Name)>,
    changed: BTreeSet<(VrfId, Subject)>,
    /// Remotes of tunnels that are down.
    down: BTreeSet<IpAddr>,
}

impl Rib {
    pub(crate) const fn imports(&self) -> &Imports {
        &self.imports
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.routes.len()
    }

    /// Returns the number of subjects that have changed.
    pub(crate) fn changed(&self) -> usize {
        self.changed.len()
    }

    /// Takes a subject that has changed.
    pub(crate) fn take_changed(&mut self) -> Option<(VrfId, Subject)> {
        self.changed.pop_first()
    }

    /// Notes that a MAC address has changed.
    pub(crate) fn note_mac(&mut self, vrf: VrfId, mac: Mac) {
        self.changed.insert((vrf, Subject::Mac(mac)));
    }

    /// Keeps attributes until [`Self::release`].
    pub(crate) fn hold(&mut self, attributes: Attributes) -> AttributesId {
        self.store.hold(attributes, &self.imports)
    }

    pub(crate) fn release(&mut self, attributes: AttributesId) {
        self.store.release(attributes);
    }

    pub(crate) fn attributes(&self, id: AttributesId) -> &Attributes {
        self.store.get(id)
    }

    /// Puts a route into the table, whose attributes are held.
    pub(crate) fn put(&mut self, key: Key, route: Route) -> Put {
        if !self.routes.contains_key(&key) && self.is_crowded(key.name.place) {
            return Put::Crowded;
        }
        let old = self.routes.insert(key, route);
        match old {
            Some(old) if Route { round: route.round, ..old } == route => return Put::Replaced,
            Some(old) => self.note(&key.name, old.attributes),
            None => {}
        }
        self.store.add(route.attributes);
        self.note(&key.name, route.attributes);
        if let Some(old) = old {
            self.store.release(old.attributes);
            return Put::Replaced;
        }
        if let Place::Mac(mac, Some(address)) = key.name.place {
            self.owners.insert((address, mac));
        }
        Put::New
    }

    /// Returns whether there is no room for another route of a place.
    fn is_crowded(&self, place: Place) -> bool {
        let all = match place {
            Place::Mac(mac, _) => of_mac(mac),
            Place::Prefix(_) | Place::Flood(_) => range(place),
        };
        let owners = match place {
            Place::Mac(_, Some(address)) => self.owners(address).nth(CROWD - 1).is_some(),
            _ => false,
        };
        owners || self.routes.range(all).nth(CROWD - 1).is_some()
    }

    /// Removes a route. Returns whether it was there.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        let Some(old) = self.routes.remove(key) else { return false };
        self.forget(key, old);
        true
    }

    /// Removes the routes of a peer that it says to. Returns how many those are.
    pub(crate) fn sweep(&mut self, peer: PeerId, gone: impl Fn(Family, &Route) -> bool) -> usize {
        let mut removed = Vec::new();
        self.routes.retain(|key, route| {
            let is_gone = key.peer() == peer && gone(key.name.family(), route);
            if is_gone {
                removed.push((*key, *route));
            }
            !is_gone
        });
        for (key, route) in &removed {
            self.forget(key, *route);
        }
        removed.len()
    }

    fn forget(&mut self, key: &Key, old: Route) {
        self.note(&key.name, old.attributes);
        self.store.release(old.attributes);
        if let Place::Mac(mac, Some(address)) = key.name.place
            && self.routes.range(range(key.name.place)).next().is_none()
        {
            self.owners.remove(&(address, mac));
        }
    }

    /// Notes that a route with these attributes has changed.
    fn note(&mut self, name: &Name, attributes: AttributesId) {
        let (routes, macs) = self.store.networks(attributes);
        note(&mut self.changed, name, routes, macs);
        if matches!(name.place, Place::Flood(_)) {
            self.floods.extend(macs.iter().map(|vrf| (*vrf, *name)));
        }
    }

    /// Follows other imports. Returns, by peer, how many routes nobody wants any more: they are removed; and what was
    /// not imported before.
    pub(crate) fn import(&mut self, imports: &[Import]) -> (BTreeMap<PeerId, usize>, More) {
        let new = Imports::new(imports);
        let more = More {
            targets: new.targets().any(|target| !self.imports.has(target)),
            plain: new.has_more_links(&self.imports),
        };
        let before = self.store.follow(&new);
        self.imports = new;
        let mut unwanted = Vec::new();
        for (key, route) in &self.routes {
            let (old_routes, old_macs) = before.networks(route.attributes);
            let (routes, macs) = self.store.networks(route.attributes);
            if (old_routes, old_macs) != (routes, macs) {
                note(&mut self.changed, &key.name, old_routes, old_macs);
                note(&mut self.changed, &key.name, routes, macs);
                if matches!(key.name.place, Place::Flood(_)) {
                    self.floods.extend(macs.iter().map(|vrf| (*vrf, key.name)));
                }
            }
            if routes.is_empty() && macs.is_empty() {
                unwanted.push(*key);
            }
        }
        let mut removed = BTreeMap::new();
        for key in unwanted {
            self.remove(&key);
            *removed.entry(key.peer()).or_default() += 1;
        }
        (removed, more)
    }
}

/// Notes what a route of these networks touches.
fn note(changed: &mut BTreeSet<(VrfId, Subject)>, name: &Name, routes: &[VrfId], macs: &[VrfId]) {
    let mut add = |vrfs: &[VrfId], subject| changed.extend(vrfs.iter().map(|vrf| (*vrf, subject)));
    match name.place {
        Place::Prefix(prefix) => add(routes, Subject::Prefix(prefix)),
        Place::Mac(mac, address) => {
            add(macs, Subject::Mac(mac));
            if let Some(address) = address {
                add(macs, Subject::Address(address));
                add(routes, Subject::Prefix(address.into()));
            }
        }
        Place::Flood(_) => add(macs, Subject::Flood),
    }
}

/// Returns the keys of all routes of a place.
fn range(place: Place) -> RangeInclusive<Key> {
    range_of(place, place)
}

/// Returns the keys of all routes of a MAC address.
fn of_mac(mac: Mac) -> RangeInclusive<Key> {
    let last = Some(IpAddr::V6(Ipv6Addr::from(u128::MAX)));
    range_of(Place::Mac(mac, None), Place::Mac(mac, last))
}

fn range_of(first: Place, last: Place) -> RangeInclusive<Key> {
    let name = |place, byte, kind| Name { place, rd: crate::Rd([byte; 8]), kind, tag: [byte; 4] };
    Key::new(name(first, 0, Kind::Vpn), 0, [0; 4])
        ..=Key::new(name(last, 0xff, Kind::Plain), PeerId::MAX, [0xff; 4])
}
