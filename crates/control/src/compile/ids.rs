//! Numbers of interfaces, nexthops, rules and meters. A thing keeps its number while it exists. Numbers are
//! dense, and a number that comes free is given away only in a later batch.

use imbl::{OrdMap, OrdSet};
use std::collections::BTreeSet;

/// Numbers that may be free between those in use when a pool begins.
const SPARSE: u32 = 1 << 16;

/// Numbers of things `K`, with their uses. A clone is cheap.
#[derive(Clone)]
pub(crate) struct Pool<K> {
    entries: OrdMap<K, Entry>,
    /// Free numbers below `next`.
    free: OrdSet<u32>,
    next: u32,
    /// Counts the compilations of everything but routes.
    round: u32,
    /// Things whose last use went since the last sweep, and whether all may be such.
    unused: Vec<K>,
    is_any_unused: bool,
}

/// The parties that use a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// So many routes that somebody wrote. Their uses are counted, since routes come and go one by one.
    Routes(u32),
    /// Everything else, which is compiled as a whole.
    Other,
}

#[derive(Clone, Copy)]
struct Entry {
    id: u32,
    routes: u32,
    /// The last round in which something else used it.
    round: u32,
}

impl<K> Default for Pool<K> {
    fn default() -> Self {
        let (entries, free) = (OrdMap::new(), OrdSet::new());
        Self { entries, free, next: 0, round: 1, unused: Vec::new(), is_any_unused: false }
    }
}

impl<K: Ord + Clone> Pool<K> {
    /// Begins with things that have numbers, none of which is used yet. The first to have a number keeps it, and none
    /// has one that is much larger than their count, since numbers are dense.
    pub(crate) fn numbered(things: impl IntoIterator<Item = (K, u32)>) -> Self {
        let things: Vec<_> = things.into_iter().collect();
        let most = 2 * things.len() as u32 + SPARSE;
        let (mut pool, mut given) = (Self::default(), BTreeSet::new());
        for (key, id) in things {
            if id < most && !pool.entries.contains_key(&key) && given.insert(id) {
                pool.entries.insert(key, Entry { id, routes: 0, round: 0 });
            }
        }
        pool.next = given.last().map_or(0, |last| last + 1);
        pool.free = (0..pool.next).filter(|id| !given.contains(id)).collect();
        pool.is_any_unused = true;
        pool
    }

    /// Adds a use to a thing and returns its number.
    pub(crate) fn take(&mut self, key: K, by: User) -> u32 {
        let used = |entry: Entry| match by {
            User::Routes(more) => Entry { routes: entry.routes + more, ..entry },
            User::Other => Entry { round: self.round, ..entry },
        };
        if let Some(&entry) = self.entries.get(&key) {
            if by != User::Other || entry.round != self.round {
                self.entries.insert(key, used(entry));
            }
            return entry.id;
        }
        let id = self.free.remove_min().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.entries.insert(key, used(Entry { id, routes: 0, round: 0 }));
        id
    }

    /// Takes a route's use from a thing and returns its number.
    pub(crate) fn put_back(&mut self, key: &K) -> Option<u32> {
        let entry = self.entries.get_mut(key)?;
        entry.routes = entry.routes.saturating_sub(1);
        if entry.routes == 0 {
            self.unused.push(key.clone());
        }
        Some(entry.id)
    }

    /// Takes the use by others than routes from a thing and returns its number.
    pub(crate) fn abandon(&mut self, key: &K) -> Option<u32> {
        let entry = self.entries.get_mut(key)?;
        entry.round = 0;
        self.unused.push(key.clone());
        Some(entry.id)
    }

    pub(crate) fn get(&self, key: &K) -> Option<u32> {
        self.entries.get(key).map(|entry| entry.id)
    }

    /// Returns all things with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, u32)> {
        self.entries.iter().map(|(key, entry)| (key, entry.id))
    }

    /// Forgets all uses, because everything will be taken anew.
    pub(crate) fn reset(&mut self) {
        self.reset_others();
        let keys: Vec<K> = self.entries.keys().cloned().collect();
        for key in &keys {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.routes = 0;
            }
        }
    }

    /// Forgets the uses by others than routes.
    pub(crate) fn reset_others(&mut self) {
        (self.round, self.is_any_unused) = (self.round + 1, true);
    }

    /// Frees the numbers of things that nothing uses any more, and returns these.
    pub(crate) fn sweep(&mut self) -> Vec<(K, u32)> {
        let mut freed = Vec::new();
        let mut unused = std::mem::take(&mut self.unused);
        let is_unused = |entry: &Entry| entry.routes == 0 && entry.round != self.round;
        if std::mem::take(&mut self.is_any_unused) {
            unused = self
                .entries
                .iter()
                .filter(|(_, entry)| is_unused(entry))
                .map(|(key, _)| key.clone())
                .collect();
        }
        for key in unused {
            if let Some(id) = self.entries.get(&key).filter(|entry| is_unused(entry)).map(|entry| entry.id) {
                self.entries.remove(&key);
                self.free.insert(id);
                freed.push((key, id));
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;
    use super::User::{Other, Routes};

    #[test]
    fn numbers_are_stable_dense_and_rest_for_a_batch() {
        let mut pool = Pool::default();
        let take = |pool: &mut Pool<_>, key| pool.take(key, Other);
        assert_eq!(["a", "b", "a"].map(|key| take(&mut pool, key)), [0, 1, 0]);
        assert!(pool.sweep().is_empty());
        pool.reset();
        assert_eq!(["b", "c"].map(|key| take(&mut pool, key)), [1, 2], "a's number rests");
        assert_eq!(pool.sweep(), [("a", 0)]);
        assert_eq!(["d", "b", "c"].map(|key| take(&mut pool, key)), [0, 1, 2]);
    }

    #[test]
    fn numbers_of_before_are_kept_and_the_others_given_away() {
        let mut pool = Pool::numbered([("a", 3), ("b", 1), ("twin", 1), ("wild", u32::MAX)]);
        let take = |pool: &mut Pool<_>, key| pool.take(key, Other);
        assert_eq!(["a", "b", "twin", "wild", "new"].map(|key| take(&mut pool, key)), [3, 1, 0, 2, 4]);
        let mut pool = Pool::numbered([("a", 3), ("b", 1)]);
        take(&mut pool, "b");
        assert_eq!(pool.sweep(), [("a", 3)], "it is not there any more");
        assert_eq!(["b", "c", "d", "e"].map(|key| take(&mut pool, key)), [1, 0, 2, 3]);
    }

    #[test]
    fn what_is_put_back_as_often_as_taken_is_freed() {
        let mut pool = Pool::default();
        assert_eq!(["a", "a", "b"].map(|key| pool.take(key, Routes(1))), [0, 0, 1]);
        pool.put_back(&"a");
        assert!(pool.sweep().is_empty());
        pool.put_back(&"a");
        assert_eq!(pool.take("a", Routes(1)), 0, "used again in time");
        assert!(pool.sweep().is_empty());
        pool.put_back(&"a");
        assert_eq!((pool.sweep(), pool.get(&"a"), pool.take("c", Routes(1))), (vec![("a", 0)], None, 0));
    }

    #[test]
    fn what_routes_and_others_use_is_freed_when_neither_does() {
        let mut pool = Pool::default();
        assert_eq!([pool.take("a", Routes(1)), pool.take("a", Other), pool.take("b", Other)], [0, 0, 1]);
        pool.put_back(&"a");
        assert!(pool.sweep().is_empty(), "others use it");
        pool.take("a", Routes(1));
        pool.reset_others();
        assert_eq!(pool.sweep(), [("b", 1)]);
        pool.put_back(&"a");
        assert_eq!(pool.sweep(), [("a", 0)]);
    }
}
