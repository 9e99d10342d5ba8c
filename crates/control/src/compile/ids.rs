//! Numbers of interfaces, nexthops, rules and meters. A thing keeps its number while it exists. Numbers are
//! dense, and a number that comes free is given away only in a later batch.

use imbl::{OrdMap, OrdSet};

/// Numbers of things `K`, with how often each is in use. A clone is cheap.
#[derive(Clone)]
pub(crate) struct Pool<K> {
    entries: OrdMap<K, Entry>,
    /// Free numbers below `next`.
    free: OrdSet<u32>,
    next: u32,
    /// Things whose last use went since the last sweep.
    unused: Vec<K>,
}

#[derive(Clone, Copy)]
struct Entry {
    id: u32,
    uses: u32,
}

impl<K> Default for Pool<K> {
    fn default() -> Self {
        Self { entries: OrdMap::new(), free: OrdSet::new(), next: 0, unused: Vec::new() }
    }
}

impl<K: Ord + Clone> Pool<K> {
    /// Adds a use to a thing and returns its number.
    pub(crate) fn take(&mut self, key: K) -> u32 {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.uses += 1;
            return entry.id;
        }
        let id = self.free.remove_min().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.entries.insert(key, Entry { id, uses: 1 });
        id
    }

    /// Takes a use from a thing and returns its number.
    pub(crate) fn put_back(&mut self, key: &K) -> Option<u32> {
        let entry = self.entries.get_mut(key)?;
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses == 0 {
            self.unused.push(key.clone());
        }
        Some(entry.id)
    }

    pub(crate) fn get(&self, key: &K) -> Option<u32> {
        self.entries.get(key).map(|entry| entry.id)
    }

    /// Forgets all uses, because everything will be taken anew.
    pub(crate) fn reset(&mut self) {
        self.unused = self.entries.keys().cloned().collect();
        for key in &self.unused {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.uses = 0;
            }
        }
    }

    pub(crate) fn sweep(&mut self) -> Vec<u32> {
        let mut freed = Vec::new();
        for key in std::mem::take(&mut self.unused) {
            if let Some(&Entry { id, uses: 0 }) = self.entries.get(&key) {
                self.entries.remove(&key);
                self.free.insert(id);
                freed.push(id);
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn numbers_are_stable_dense_and_rest_for_a_batch() {
        let mut pool = Pool::default();
        assert_eq!([pool.take("a"), pool.take("b"), pool.take("a")], [0, 1, 0]);
        assert!(pool.sweep().is_empty());
        pool.reset();
        assert_eq!([pool.take("b"), pool.take("c")], [1, 2], "a's number rests");
        assert_eq!(pool.sweep(), [0]);
        assert_eq!([pool.take("d"), pool.take("b"), pool.take("c")], [0, 1, 2]);
    }

    #[test]
    fn what_is_put_back_as_often_as_taken_is_freed() {
        let mut pool = Pool::default();
        assert_eq!([pool.take("a"), pool.take("a"), pool.take("b")], [0, 0, 1]);
        pool.put_back(&"a");
        assert!(pool.sweep().is_empty());
        pool.put_back(&"a");
        assert_eq!(pool.take("a"), 0, "used again in time");
        assert!(pool.sweep().is_empty());
        pool.put_back(&"a");
        assert_eq!((pool.sweep(), pool.get(&"a"), pool.take("c")), (vec![0], None, 0));
    }
}
