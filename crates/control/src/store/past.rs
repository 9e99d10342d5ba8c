//! The changes that a store holds, as they are read: what is there after all of them, and the last ones for the history.

use super::record::{Entry, Made, RouteEntry, Stored, Undo, one};
use super::{object, place_in};
use crate::history::{History, MOST, Revision};
use crate::owner::{Common, Difference, Kept, Objects, Owned, route_key};
use config::{Key, Object, Route};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An object that is there.
pub(super) type Known = (Arc<Key>, Arc<Owned>);
type Place = (String, IpNet);

#[derive(Default)]
pub(super) struct Past {
    /// The routes that are there.
    routes: Objects,
    /// The other objects, by key.
    entries: BTreeMap<String, Stored>,
    /// The records of routes that can't be read.
    unread: BTreeMap<Place, String>,
    /// Whether a route is stored in the form of other objects.
    pub(super) is_old: bool,
    /// The number of the last change.
    number: u64,
    last: VecDeque<Change>,
    /// The objects before those changes of a snapshot that were read so far, if they were others.
    earlier: HashMap<String, Option<Stored>>,
    earlier_routes: HashMap<Place, Option<Kept>>,
    /// The parts that earlier routes have in common.
    commons: BTreeSet<Arc<Common>>,
    is_rewound: bool,
}

struct Change {
    number: u64,
    made: Made,
    sides: Vec<Sides>,
}

/// An object before and after a change.
enum Sides {
    Route(Difference),
    Other(String, [Option<Stored>; 2]),
    /// This version can't read it.
    Unread,
}

impl Past {
    /// Carries out a record.
    pub(super) fn replay(
        &mut self,
        (changed, routes): (Vec<Entry>, Vec<RouteEntry>),
        revision: Option<u64>,
        made: Option<Made>,
    ) {
        // Changes of a snapshot come last, unless a version wrote it that did not understand them.
        if self.is_rewound && revision.is_none() && !(changed.is_empty() && routes.is_empty()) {
            self.last.clear();
            self.is_rewound = false;
        }
        let mut sides = Vec::new();
        for entry in changed {
            let side = self.put(entry);
            sides.extend(made.is_some().then_some(side));
        }
        for entry in routes {
            let side = self.put_route(entry);
            sides.extend(made.is_some().then_some(side));
        }
        let Some(number) = revision else { return };
        if number != self.number {
            self.number = number;
            match made {
                Some(made) => self.last.push_back(Change { number, made, sides }),
                None => self.last.clear(),
            }
        }
        if self.last.len() > MOST.0 {
            self.last.pop_front();
        }
    }

    fn put(&mut self, Entry { key, object }: Entry) -> Sides {
        if let Some(place) = place_in(&key) {
            self.is_old = true;
            return match route(object.as_ref()) {
                Some(kept) => Sides::Route(self.keep(place, kept)),
                None => {
                    let record = one(Entry { key, object });
                    self.keep(place.clone(), None);
                    self.unread.insert(place, record);
                    Sides::Unread
                }
            };
        }
        let old = match object.clone() {
            Some(object) => self.entries.insert(key.clone(), object),
            None => self.entries.remove(&key),
        };
        Sides::Other(key, [old, object])
    }

    fn put_route(&mut self, entry: RouteEntry) -> Sides {
        let place = entry.place();
        match entry.kept() {
            Ok(kept) => Sides::Route(self.keep(place, kept)),
            Err(record) => {
                self.keep(place.clone(), None);
                self.unread.insert(place, record);
                Sides::Unread
            }
        }
    }

    /// Puts a route, or removes it.
    fn keep(&mut self, (network, prefix): Place, new: Option<Kept>) -> Difference {
        if !self.unread.is_empty() {
            self.unread.remove(&(network.clone(), prefix));
        }
        let (before, old) = self.there(&network, prefix);
        match new {
            Some(kept) => self.routes.restore_route(&network, prefix, kept),
            None => drop(self.routes.remove_route(&network, prefix)),
        }
        // With what routes have in common.
        let (now, new) = self.there(&network, prefix);
        Difference::Route { network: before.or(now).unwrap_or_else(|| network.into()), prefix, old, new }
    }

    /// Returns a route that is there, and the name of its network, for keeping.
    fn there(&self, network: &str, prefix: IpNet) -> (Option<Arc<str>>, Option<Kept>) {
        let there = self.routes.routes().get(network, prefix);
        there.map(|route| (route.network.clone(), route.kept.clone())).unzip()
    }

    /// Adds a change of which the snapshot has the result: the one before those that are known. If one between them is
    /// damaged, the history begins behind that.
    pub(super) fn rewind(&mut self, Undo { revision, made, before, routes }: Undo) {
        let known = self.last.front().map_or(self.number + 1, |first| first.number);
        if revision + 1 != known || self.last.len() >= MOST.0 {
            return;
        }
        let mut sides = Vec::with_capacity(before.len() + routes.len());
        for Entry { key, object: old } in before {
            if let Some(place) = place_in(&key) {
                sides.push(route(old.as_ref()).map_or(Sides::Unread, |old| self.unkeep(place, old)));
                continue;
            }
            let later = self.earlier.insert(key.clone(), old.clone());
            let new = later.unwrap_or_else(|| self.entries.get(&key).cloned());
            sides.push(Sides::Other(key, [old, new]));
        }
        for entry in routes {
            let place = entry.place();
            sides.push(entry.kept().map_or(Sides::Unread, |old| self.unkeep(place, old)));
        }
        self.is_rewound = true;
        self.last.push_front(Change { number: revision, made, sides });
    }

    /// Returns how a change changed a route, whose state before it is known.
    fn unkeep(&mut self, place: Place, old: Option<Kept>) -> Sides {
        let (name, now) = self.there(&place.0, place.1);
        let (network, prefix) = (name.unwrap_or_else(|| (&*place.0).into()), place.1);
        let old = old.map(|old| {
            let common = self.commons.get(&*old.common).unwrap_or(&old.common).clone();
            self.commons.insert(common.clone());
            old.with(common)
        });
        let new = self.earlier_routes.insert(place, old.clone()).unwrap_or(now);
        Sides::Route(Difference::Route { network, prefix, old, new })
    }

    /// Takes out the routes that are there.
    pub(super) fn take_routes(&mut self) -> Objects {
        std::mem::take(&mut self.routes)
    }

    /// Returns what is stored beside them, by key.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&String, &Stored)> {
        self.entries.iter()
    }

    /// Takes out the records of routes that this version can't read, by key.
    pub(super) fn take_unread(&mut self) -> impl Iterator<Item = (String, String)> + use<> {
        let unread = std::mem::take(&mut self.unread).into_iter();
        unread.map(|((network, prefix), record)| (route_key(&network, prefix).to_string(), record))
    }

    /// Returns the keys of what the last changes changed, beside routes.
    pub(super) fn touched(&self) -> HashSet<&str> {
        let sides = self.last.iter().flat_map(|change| &change.sides);
        let others = sides.filter_map(|sides| match sides {
            Sides::Other(key, _) => Some(key.as_str()),
            Sides::Route(_) | Sides::Unread => None,
        });
        others.collect()
    }

    /// Makes the history that leads to the objects that are there now, of which `known` has those that were touched. It
    /// begins after the last change that can't be read.
    pub(super) fn history(&self, known: &HashMap<&str, Known>) -> History {
        let first = self.last.front().map_or(self.number, |first| first.number.saturating_sub(1));
        let mut history = History::from(first);
        for Change { number, made, sides } in &self.last {
            let differences = sides.iter().map(|sides| match sides {
                Sides::Route(difference) => Some(difference.clone()),
                Sides::Other(key, sides) => self.difference(key, sides, known),
                Sides::Unread => None,
            });
            let differences: Option<Vec<Difference>> = differences.collect();
            match differences {
                // Routes lie behind the others.
                Some(mut differences) => {
                    differences.sort_by_key(|of| of.changed().kind());
                    history.push(Arc::new(Revision {
                        number: *number,
                        time: SystemTime::UNIX_EPOCH + Duration::from_secs(made.time),
                        uid: made.uid,
                        request: made.request.clone().into(),
                        differences,
                    }));
                }
                None => history = History::from(*number),
            }
        }
        history
    }

    /// Reads what a change did to an object; `None` if this version can't. What is there now is not read again, and
    /// takes no more memory.
    fn difference(
        &self,
        text: &str,
        sides: &[Option<Stored>; 2],
        known: &HashMap<&str, Known>,
    ) -> Option<Difference> {
        let present = |stored: &Stored| known.get(text).filter(|_| self.entries.get(text) == Some(stored));
        let read = |stored: &Stored| match present(stored) {
            Some((key, owned)) => Some((key.clone(), owned.clone())),
            None => {
                let (owner, object) = object(stored)?;
                Some((Arc::new(object.key()), Arc::new(Owned { owner, seq: stored.seq, object })))
            }
        };
        // An object that was not there has no side; one that can't be read ends the way back.
        let side = |side: &Option<Stored>| match side {
            None => Some(None),
            Some(stored) => read(stored).map(Some),
        };
        let (old, new) = (side(&sides[0])?, side(&sides[1])?);
        let key = old.as_ref().or(new.as_ref())?.0.clone();
        Some(Difference::Other { key, old: old.map(|(_, old)| old), new: new.map(|(_, new)| new) })
    }
}

/// Reads a route that is stored like other objects, or that is gone; `None` if this version can't.
fn route(stored: Option<&Stored>) -> Option<Option<Kept>> {
    let Some(stored) = stored else { return Some(None) };
    let (owner, Object::Route(Route { to, .. })) = object(stored)? else { return None };
    Some(Some(Kept::new(owner, to, stored.seq)))
}
