//! Differences between two sets of objects.

use super::routes::{Kept, RouteDifference, Written, route_key};
use super::{Owned, Owner};
use config::{Key, Kind, Object};
use imbl::ordmap::DiffItem;
use ipnet::IpNet;
use std::borrow::Cow;
use std::sync::Arc;

/// A difference between two sets of objects. At least one of both sides is there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changed<'a> {
    Route { network: &'a Arc<str>, prefix: IpNet, old: Option<&'a Kept>, new: Option<&'a Kept> },
    Other { key: &'a Arc<Key>, old: Option<&'a Arc<Owned>>, new: Option<&'a Arc<Owned>> },
}

impl<'a> From<RouteDifference<'a>> for Changed<'a> {
    fn from(RouteDifference { network, prefix, old, new }: RouteDifference<'a>) -> Self {
        Self::Route { network, prefix, old, new }
    }
}

impl<'a> From<DiffItem<'a, 'a, Arc<Key>, Arc<Owned>>> for Changed<'a> {
    fn from(item: DiffItem<'a, 'a, Arc<Key>, Arc<Owned>>) -> Self {
        match item {
            DiffItem::Add(key, new) => Self::Other { key, old: None, new: Some(new) },
            DiffItem::Update { old: (_, old), new: (key, new) } => {
                Self::Other { key, old: Some(old), new: Some(new) }
            }
            DiffItem::Remove(key, old) => Self::Other { key, old: Some(old), new: None },
        }
    }
}

impl<'a> Changed<'a> {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Route { .. } => Kind::Route,
            Self::Other { key, .. } => key.kind,
        }
    }

    pub(crate) fn key(self) -> Cow<'a, Key> {
        match self {
            Self::Route { network, prefix, .. } => Cow::Owned(route_key(network, prefix)),
            Self::Other { key, .. } => Cow::Borrowed(key),
        }
    }

    pub(crate) fn is_new(self) -> bool {
        matches!(self, Self::Route { old: None, .. } | Self::Other { old: None, .. })
    }

    /// Is true if it is there before and after, with the same owner and content.
    pub(crate) fn only_moved(self) -> bool {
        match self {
            Self::Route { old: Some(old), new: Some(new), .. } => old.is_like(new),
            Self::Other { old: Some(old), new: Some(new), .. } => {
                old.object == new.object && old.owner == new.owner
            }
            _ => false,
        }
    }

    /// Returns a route before and after.
    fn routes(self) -> [Option<Written<'a>>; 2] {
        match self {
            Self::Route { network, prefix, old, new } => {
                [old, new].map(|kept| kept.map(|kept| Written { network, prefix, kept }))
            }
            Self::Other { .. } => [None, None],
        }
    }

    pub(crate) fn old_route(self) -> Option<Written<'a>> {
        self.routes()[0]
    }

    pub(crate) fn new_route(self) -> Option<Written<'a>> {
        self.routes()[1]
    }

    /// Returns what was there before, if it is no route.
    pub(crate) fn old(self) -> Option<&'a Owned> {
        match self {
            Self::Route { .. } => None,
            Self::Other { old, .. } => old.map(|old| &**old),
        }
    }

    /// Returns what is there now, if it is no route.
    pub(crate) fn now(self) -> Option<&'a Owned> {
        match self {
            Self::Route { .. } => None,
            Self::Other { new, .. } => new.map(|new| &**new),
        }
    }

    /// Returns the objects before and after, routes as well.
    pub(crate) fn objects(self) -> [Option<Cow<'a, Object>>; 2] {
        let object = |route: Option<Written<'a>>, other: Option<&'a Owned>| {
            route.map(|route| Cow::Owned(route.object())).or(other.map(|owned| Cow::Borrowed(&owned.object)))
        };
        [object(self.old_route(), self.old()), object(self.new_route(), self.now())]
    }

    /// Returns the object that is there now, a route as well.
    pub(crate) fn new_object(self) -> Option<Object> {
        self.new_route().map(Written::object).or_else(|| self.now().map(|owned| owned.object.clone()))
    }

    /// Returns owner and place of what is there now.
    pub(crate) fn new_owner(self) -> Option<(&'a Owner, u64)> {
        let route = self.new_route().map(|route| (route.owner(), route.kept.seq()));
        route.or(self.now().map(|owned| (&owned.owner, owned.seq)))
    }

    /// Returns the place of what was there last.
    pub(crate) fn last_seq(self) -> Option<u64> {
        let before = || self.old_route().map(|route| route.kept.seq()).or(self.old().map(|owned| owned.seq));
        self.new_owner().map(|(_, seq)| seq).or_else(before)
    }

    /// Returns the same, for keeping.
    pub(crate) fn kept(self) -> Difference {
        match self {
            Self::Route { network, prefix, old, new } => {
                Difference::Route { network: network.clone(), prefix, old: old.cloned(), new: new.cloned() }
            }
            Self::Other { key, old, new } => {
                Difference::Other { key: key.clone(), old: old.cloned(), new: new.cloned() }
            }
        }
    }
}

/// The same, for keeping.
#[derive(Clone, Debug)]
pub(crate) enum Difference {
    Route { network: Arc<str>, prefix: IpNet, old: Option<Kept>, new: Option<Kept> },
    Other { key: Arc<Key>, old: Option<Arc<Owned>>, new: Option<Arc<Owned>> },
}

impl Difference {
    pub(crate) fn changed(&self) -> Changed<'_> {
        match self {
            Self::Route { network, prefix, old, new } => {
                Changed::Route { network, prefix: *prefix, old: old.as_ref(), new: new.as_ref() }
            }
            Self::Other { key, old, new } => Changed::Other { key, old: old.as_ref(), new: new.as_ref() },
        }
    }
}
