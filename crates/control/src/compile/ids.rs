//! Numbers for what the tables number: stable while a thing stays, dense, and not given to another in the batch in
//! which they come free.

use std::collections::{BTreeMap, BTreeSet};

/// Numbers of things `K`.
#[derive(Clone, Debug)]
pub(crate) struct Pool<K> {
    ids: BTreeMap<K, u32>,
    taken: BTreeSet<u32>,
    touched: BTreeSet<u32>,
    /// No free number lies below.
    lowest: u32,
}

impl<K> Default for Pool<K> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), taken: BTreeSet::new(), touched: BTreeSet::new(), lowest: 0 }
    }
}

impl<K: Ord> Pool<K> {
    /// The number of a thing.
    pub(crate) fn id(&mut self, key: K) -> u32 {
        let (taken, lowest) = (&mut self.taken, &mut self.lowest);
        let id = *self.ids.entry(key).or_insert_with(|| {
            while taken.contains(lowest) {
                *lowest += 1;
            }
            taken.insert(*lowest);
            *lowest
        });
        self.touched.insert(id);
        id
    }

    /// The number of a thing that has one.
    pub(crate) fn get(&self, key: &K) -> Option<u32> {
        self.ids.get(key).copied()
    }

    /// Frees the numbers not asked for since the last call.
    pub(crate) fn sweep(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        self.ids.retain(|_, id| touched.contains(id));
        self.taken = touched;
        self.lowest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn numbers_are_stable_dense_and_rest_for_a_batch() {
        let mut pool = Pool::default();
        assert_eq!([pool.id("a"), pool.id("b"), pool.id("a")], [0, 1, 0]);
        pool.sweep();
        assert_eq!([pool.id("b"), pool.id("c")], [1, 2], "a's number rests");
        pool.sweep();
        assert_eq!([pool.id("d"), pool.id("b"), pool.id("c")], [0, 1, 2]);
    }
}
