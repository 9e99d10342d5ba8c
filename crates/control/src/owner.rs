use config::{Key, Kind, Object};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
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

/// A difference between two sets of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed<'a> {
    pub(crate) key: &'a Key,
    /// At least one of the two is there.
    pub(crate) old: Option<&'a Owned>,
    pub(crate) new: Option<&'a Owned>,
}

/// The same, for keeping.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    pub(crate) key: Arc<Key>,
    pub(crate) old: Option<Arc<Owned>>,
    pub(crate) new: Option<Arc<Owned>>,
}

impl Difference {
    pub(crate) fn changed(&self) -> Changed<'_> {
        Changed { key: &self.key, old: self.old.as_deref(), new: self.new.as_deref() }
    }
}

/// All objects of the host. A clone is cheap, and a comparison of two costs only as much as their difference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    by_key: OrdMap<Arc<Key>, Arc<Owned>>,
    next_seq: u64,
}

impl Objects {
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Owned> {
        self.by_key.get(key).map(|owned| &**owned)
    }

    /// Returns an object and its key, for keeping.
    pub(crate) fn shared(&self, key: &Key) -> Option<(Arc<Key>, Arc<Owned>)> {
        self.by_key.get_key_value(key).map(|(key, owned)| (key.clone(), owned.clone()))
    }

    /// Puts an object behind all others. It replaces one with the same key and then keeps the place of that.
    pub(crate) fn put(&mut self, owner: Owner, object: Object) {
        let key = object.key();
        let seq = match self.by_key.get(&key) {
            Some(old) => old.seq,
            None => self.next_seq,
        };
        self.restore(seq, owner, object);
    }

    /// Puts an object as [`Self::put`] does, or the equal one of `others`, which then both have in common.
    pub(crate) fn put_like(&mut self, others: &Self, owner: Owner, object: Object) {
        match others.by_key.get_key_value(&object.key()) {
            Some((key, owned)) if owned.object == object => {
                self.by_key.insert(key.clone(), owned.clone());
            }
            _ => self.put(owner, object),
        }
    }

    /// Puts a stored object at its stored place.
    pub(crate) fn restore(&mut self, seq: u64, owner: Owner, object: Object) {
        self.next_seq = self.next_seq.max(seq + 1);
        self.by_key.insert(Arc::new(object.key()), Arc::new(Owned { owner, seq, object }));
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Owned>> {
        self.by_key.remove(key)
    }

    /// Returns all objects by kind, and within a kind in the order in which they were asked for.
    pub(crate) fn in_order(&self) -> Vec<&Owned> {
        self.in_order_of(Kind::ALL)
    }

    /// Returns the objects of a kind, by name.
    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Owned> {
        self.from(kind, None).take_while(move |(key, _)| key.kind == kind).map(|(_, owned)| owned)
    }

    /// Returns the objects of a kind that have a network's name in their keys, by name.
    pub(crate) fn of_network(&self, kind: Kind, network: &str) -> impl Iterator<Item = &Owned> {
        let is_of = move |key: &Key| key.kind == kind && key.network.as_deref() == Some(network);
        self.from(kind, Some(network.to_owned()))
            .take_while(move |(key, _)| is_of(key))
            .map(|(_, owned)| owned)
    }

    /// Returns the objects of a kind whose keys have no network, by name.
    pub(crate) fn of_no_network(&self, kind: Kind) -> impl Iterator<Item = &Owned> {
        let is_of = move |key: &Key| key.kind == kind && key.network.is_none();
        self.from(kind, None).take_while(move |(key, _)| is_of(key)).map(|(_, owned)| owned)
    }

    fn from(&self, kind: Kind, network: Option<String>) -> impl Iterator<Item = (&Key, &Owned)> {
        let first = Key { kind, network, name: String::new() };
        self.by_key.range(Arc::new(first)..).map(|(key, owned)| (&**key, &**owned))
    }

    /// Returns the objects of these kinds, those of a kind in the order in which they were asked for.
    pub(crate) fn in_order_of(&self, kinds: impl IntoIterator<Item = Kind>) -> Vec<&Owned> {
        let mut all = Vec::new();
        for kind in kinds {
            let before = all.len();
            all.extend(self.of_kind(kind));
            all[before..].sort_by_key(|owned: &&Owned| owned.seq);
        }
        all
    }

    /// Returns all objects, by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Owned)> {
        self.by_key.iter().map(|(key, owned)| (&**key, &**owned))
    }

    /// Returns what differs in `new`, by key.
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

    /// Does the same as [`Self::changes_to`], for keeping.
    pub(crate) fn differences_to(&self, new: &Self) -> Vec<Difference> {
        let differing = self.by_key.diff(&new.by_key).map(|item| match item {
            DiffItem::Add(key, new) => Difference { key: key.clone(), old: None, new: Some(new.clone()) },
            DiffItem::Update { old: (key, old), new: (_, new) } => {
                Difference { key: key.clone(), old: Some(old.clone()), new: Some(new.clone()) }
            }
            DiffItem::Remove(key, old) => Difference { key: key.clone(), old: Some(old.clone()), new: None },
        });
        differing.collect()
    }
}
