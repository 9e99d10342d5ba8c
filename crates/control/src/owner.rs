//! The objects of the host, each with its owner.

mod changed;
mod routes;

pub(crate) use changed::{Changed, Difference};
pub(crate) use routes::{Common, Kept, Routes, Written, place_of, route_key};

use config::{Key, Kind, Object, Route};
use imbl::OrdMap;
use ipnet::IpNet;
use std::borrow::Cow;
use std::sync::Arc;

/// The party that asked for an object; only it may change the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// `viaduct apply`, or the daemon's file.
    File,
    /// Whoever uses the API without a name.
    #[default]
    Api,
    /// A program that `[host] owners` names.
    Named(Arc<str>),
}

impl Owner {
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::File => "file",
            Self::Api => "api",
            Self::Named(name) => name,
        }
    }

    /// Returns the owner of this name; `None` if no owner can have it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "file" => Some(Self::File),
            "api" => Some(Self::Api),
            _ => config::is_owner(name).then(|| Self::Named(name.into())),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) owner: Owner,
    /// Place among the objects of its kind, in the order in which they were asked for.
    pub(crate) seq: u64,
    pub(crate) object: Object,
}

/// An object where it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listed<'a> {
    Route(Written<'a>),
    Other(&'a Owned),
}

impl<'a> Listed<'a> {
    pub(crate) fn owner(self) -> &'a Owner {
        match self {
            Self::Route(route) => route.owner(),
            Self::Other(owned) => &owned.owner,
        }
    }

    pub(crate) fn seq(self) -> u64 {
        match self {
            Self::Route(route) => route.kept.seq(),
            Self::Other(owned) => owned.seq,
        }
    }

    pub(crate) fn key(self) -> Key {
        match self {
            Self::Route(route) => route.key(),
            Self::Other(owned) => owned.object.key(),
        }
    }

    /// Is true if it is equal to an object that has its key.
    pub(crate) fn is(self, namesake: &Object) -> bool {
        match (self, namesake) {
            (Self::Route(route), Object::Route(other)) => *route.to() == *other.to,
            (Self::Route(_), _) => false,
            (Self::Other(owned), other) => owned.object == *other,
        }
    }

    pub(crate) fn owned(self) -> Cow<'a, Owned> {
        match self {
            Self::Route(route) => Cow::Owned(route.owned()),
            Self::Other(owned) => Cow::Borrowed(owned),
        }
    }
}

/// All objects of the host. A clone is cheap, and a comparison of two costs only as much as their difference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    /// All but routes.
    others: OrdMap<Arc<Key>, Arc<Owned>>,
    routes: Routes,
    next_seq: u64,
}

impl Objects {
    pub(crate) fn len(&self) -> usize {
        self.others.len() + self.routes.len()
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns an object that is no route.
    pub(crate) fn other(&self, key: &Key) -> Option<&Owned> {
        self.others.get(key).map(|owned| &**owned)
    }

    /// Returns an object that is no route, and its key, for keeping.
    pub(crate) fn shared(&self, key: &Key) -> Option<(Arc<Key>, Arc<Owned>)> {
        self.others.get_key_value(key).map(|(key, owned)| (key.clone(), owned.clone()))
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Listed<'_>> {
        match place_of(key) {
            Some((network, prefix)) => self.routes.get(network, prefix).map(Listed::Route),
            None => self.other(key).map(Listed::Other),
        }
    }

    /// Returns the object that has the key of this one.
    pub(crate) fn namesake(&self, object: &Object) -> Option<Listed<'_>> {
        match object {
            Object::Route(route) => self.routes.get(&route.network, route.prefix).map(Listed::Route),
            other => self.other(&other.key()).map(Listed::Other),
        }
    }

    /// Puts an object behind all others. It replaces one with the same key and then keeps the place of that.
    pub(crate) fn put(&mut self, owner: Owner, object: Object) {
        let seq = self.namesake(&object).map_or(self.next_seq, Listed::seq);
        self.restore(seq, owner, object);
    }

    /// Puts an object as [`Self::put`] does, or the equal one of `others`, which then both have in common.
    pub(crate) fn put_like(&mut self, others: &Self, owner: Owner, object: Object) {
        match others.others.get_key_value(&object.key()) {
            Some((key, owned)) if owned.object == object => {
                self.others.insert(key.clone(), owned.clone());
            }
            _ => self.put(owner, object),
        }
    }

    /// Puts a stored object at its stored place.
    pub(crate) fn restore(&mut self, seq: u64, owner: Owner, object: Object) {
        self.leave_free(seq);
        match object {
            Object::Route(Route { network, prefix, to }) => {
                self.routes.put(&network, prefix, Kept::new(owner, to, seq));
            }
            other => {
                drop(self.others.insert(Arc::new(other.key()), Arc::new(Owned { owner, seq, object: other })))
            }
        }
    }

    /// Puts a route that is kept elsewhere.
    pub(crate) fn restore_route(&mut self, network: &str, prefix: IpNet, kept: Kept) {
        self.leave_free(kept.seq());
        self.routes.put(network, prefix, kept);
    }

    /// Gives no later object this place.
    pub(crate) fn leave_free(&mut self, seq: u64) {
        self.next_seq = self.next_seq.max(seq + 1);
    }

    /// Removes an object, and returns whether it was there.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        match place_of(key) {
            Some((network, prefix)) => self.routes.remove(network, prefix),
            None => self.others.remove(key).is_some(),
        }
    }

    /// Removes the object that has the key of this one.
    pub(crate) fn remove_namesake(&mut self, object: &Object) -> bool {
        match object {
            Object::Route(route) => self.remove_route(&route.network, route.prefix),
            other => self.remove(&other.key()),
        }
    }

    pub(crate) fn remove_route(&mut self, network: &str, prefix: IpNet) -> bool {
        self.routes.remove(network, prefix)
    }

    /// Takes less memory, if the routes came in order.
    pub(crate) fn pack(&mut self) {
        self.routes.pack();
    }

    /// Returns all objects by kind, and within a kind in the order in which they were asked for.
    pub(crate) fn in_order(&self) -> Vec<Listed<'_>> {
        self.listed_in_order(Kind::ALL)
    }

    /// Returns the objects of these kinds, those of a kind in the order in which they were asked for.
    pub(crate) fn listed_in_order(&self, kinds: impl IntoIterator<Item = Kind>) -> Vec<Listed<'_>> {
        let in_order = kinds.into_iter().flat_map(|kind| {
            let routes = (kind == Kind::Route).then(|| self.routes.iter().map(Listed::Route));
            sorted(self.of_kind(kind).map(Listed::Other).chain(routes.into_iter().flatten()))
        });
        in_order.collect()
    }

    /// Returns the objects of a kind that are of a network or of none, in the order in which they were asked for.
    pub(crate) fn listed_of(&self, kind: Kind, network: &str) -> Vec<Listed<'_>> {
        let others = self.of_no_network(kind).chain(self.of_network(kind, network)).map(Listed::Other);
        let routes = (kind == Kind::Route).then(|| self.routes.of_network(network).map(Listed::Route));
        sorted(others.chain(routes.into_iter().flatten()))
    }

    /// Returns the objects of a kind, by name. Of routes there are none: see [`Self::routes`].
    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Owned> {
        self.from(kind, None).take_while(move |(key, _)| key.kind == kind).map(|(_, owned)| owned)
    }

    fn of_network(&self, kind: Kind, network: &str) -> impl Iterator<Item = &Owned> {
        let is_of = move |key: &Key| key.kind == kind && key.network.as_deref() == Some(network);
        self.from(kind, Some(network.to_owned()))
            .take_while(move |(key, _)| is_of(key))
            .map(|(_, owned)| owned)
    }

    fn of_no_network(&self, kind: Kind) -> impl Iterator<Item = &Owned> {
        let is_of = move |key: &Key| key.kind == kind && key.network.is_none();
        self.from(kind, None).take_while(move |(key, _)| is_of(key)).map(|(_, owned)| owned)
    }

    fn from(&self, kind: Kind, network: Option<String>) -> impl Iterator<Item = (&Key, &Owned)> {
        let first = Key { kind, network, name: String::new() };
        self.others.range(Arc::new(first)..).map(|(key, owned)| (&**key, &**owned))
    }

    /// Returns the objects of these kinds but routes, those of a kind in the order in which they were asked for.
    pub(crate) fn in_order_of(&self, kinds: impl IntoIterator<Item = Kind>) -> Vec<&Owned> {
        let mut all = Vec::new();
        for kind in kinds {
            let before = all.len();
            all.extend(self.of_kind(kind));
            all[before..].sort_by_key(|owned: &&Owned| owned.seq);
        }
        all
    }

    /// Returns all objects, by kind and name, or prefix.
    pub(crate) fn listed(&self) -> impl Iterator<Item = Listed<'_>> {
        let before = self.others.values().take_while(|owned| owned.object.kind() < Kind::Route);
        let routes = self.routes.iter().map(Listed::Route);
        let behind = self.from(Kind::Route, None).map(|(_, owned)| Listed::Other(owned));
        before.map(|owned| Listed::Other(owned)).chain(routes).chain(behind)
    }

    /// Returns what differs in `new`, by kind and name, or prefix.
    pub(crate) fn changes_to<'a>(&'a self, new: &'a Self) -> impl Iterator<Item = Changed<'a>> {
        let others = self.others.diff(&new.others).map(Changed::from);
        let (before, behind): (Vec<_>, Vec<_>) = others.partition(|changed| changed.kind() < Kind::Route);
        let routes = self.routes.changes_to(&new.routes).map(Changed::from);
        before.into_iter().chain(routes).chain(behind)
    }

    /// Does the same as [`Self::changes_to`], for keeping.
    pub(crate) fn differences_to(&self, new: &Self) -> Vec<Difference> {
        let mut all: Vec<_> = self.changes_to(new).map(Changed::kept).collect();
        all.shrink_to_fit();
        all
    }
}

fn sorted<'a>(listed: impl Iterator<Item = Listed<'a>>) -> Vec<Listed<'a>> {
    let mut all: Vec<_> = listed.collect();
    all.sort_by_key(|listed| listed.seq());
    all
}

#[cfg(test)]
mod tests;
