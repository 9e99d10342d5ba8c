//! Owners of objects.

use config::{Key, Kind, Object};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use std::sync::Arc;

/// Who asked for an object; only they may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// `viaduct apply`.
    File,
    /// An API client.
    Api,
}

impl Owner {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Api => "api",
        }
    }

    /// The owner of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::File, Self::Api].into_iter().find(|owner| owner.name() == name)
    }
}

/// An object and who asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) owner: Owner,
    /// Its place among the objects of its kind, in the order in which they were asked for.
    pub(crate) seq: u64,
    pub(crate) object: Object,
}

/// What differs between two sets of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed<'a> {
    pub(crate) key: &'a Key,
    /// At least one of them is there.
    pub(crate) old: Option<&'a Owned>,
    pub(crate) new: Option<&'a Owned>,
}

/// All objects of the host. A clone is cheap, and what differs between two is found at the cost of the difference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    by_key: OrdMap<Arc<Key>, Arc<Owned>>,
    next_seq: u64,
}

impl Objects {
    pub(crate) fn get(&self, key: &Key) -> Option<&Owned> {
        self.by_key.get(key).map(|owned| &**owned)
    }

    /// Puts an object behind all others; one of the same key is replaced and keeps its place.
    pub(crate) fn put(&mut self, owner: Owner, object: Object) {
        let key = object.key();
        let seq = match self.by_key.get(&key) {
            Some(old) => old.seq,
            None => self.next_seq,
        };
        self.restore(seq, owner, object);
    }

    /// Puts an object at its place, as it was stored.
    pub(crate) fn restore(&mut self, seq: u64, owner: Owner, object: Object) {
        self.next_seq = self.next_seq.max(seq + 1);
        self.by_key.insert(Arc::new(object.key()), Arc::new(Owned { owner, seq, object }));
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Owned>> {
        self.by_key.remove(key)
    }

    /// By kind, and in the order in which they were asked for.
    pub(crate) fn in_order(&self) -> Vec<&Owned> {
        let mut all: Vec<_> = self.by_key.values().map(|owned| &**owned).collect();
        all.sort_by_key(|owned| (owned.object.kind(), owned.seq));
        all
    }

    /// Those of a kind, by name.
    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Owned> {
        let first = Key { kind, network: None, name: String::new() };
        let from = self.by_key.range(Arc::new(first)..).map(|(_, owned)| &**owned);
        from.take_while(move |owned| owned.object.kind() == kind)
    }

    /// By key.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Owned)> {
        self.by_key.iter().map(|(key, owned)| (&**key, &**owned))
    }

    /// What differs in `new`, by key.
    pub(crate) fn changes_to<'a>(&'a self, new: &'a Self) -> Vec<Changed<'a>> {
        let differing = self.by_key.diff(&new.by_key).map(|item| match item {
            DiffItem::Add(key, new) => Changed { key, old: None, new: Some(&**new) },
            DiffItem::Update { old: (key, old), new: (_, new) } => {
                Changed { key, old: Some(&**old), new: Some(&**new) }
            }
            DiffItem::Remove(key, old) => Changed { key, old: Some(&**old), new: None },
        });
        differing.collect()
    }
}
