//! Numbers of flows by hashes: a table that versions share, so that a change copies nothing.
//!
//! A version finds flows in the table that only other versions have. Its store of flows says which are its
//! own, so entries are only added; those of removed flows stay until the table is made anew.

use model::ovs::FlowId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const FEWEST: usize = 8;

type Entry = (u64, FlowId);

/// A place for an entry. Only one thread at a time writes slots, the one that changes the tables. Readers see
/// everything that it wrote for the version that they acquired. They may see a part of the entries for the
/// next version: the store of their own version does not have these flows.
#[derive(Default)]
struct Slot {
    hash: AtomicU64,
    /// The flow's number with [`TAKEN`]; 0 in a free slot.
    flow: AtomicU64,
}

const TAKEN: u64 = 1 << 63;

#[derive(Clone)]
pub(super) struct Index {
    /// A power of two slots, with linear probing. The highest bits of a hash choose the first slot: so
    /// entries keep their order when there are more slots, and are moved there in the order of memory.
    slots: Arc<[Slot]>,
    /// Number of slots that are taken, whichever version has the flow.
    used: Arc<AtomicUsize>,
    /// Number of flows of this version.
    len: usize,
}

impl Slot {
    fn get(&self) -> Option<Entry> {
        let flow = self.flow.load(Relaxed);
        (flow != 0).then(|| (self.hash.load(Relaxed), FlowId(flow & !TAKEN)))
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::new(FEWEST, 0)
    }
}

impl Index {
    fn new(slots: usize, len: usize) -> Self {
        Self { slots: (0..slots).map(|_| Slot::default()).collect(), used: Arc::default(), len }
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns all slots, from the first one for this hash on.
    fn slots_for(&self, hash: u64) -> impl Iterator<Item = &Slot> {
        let first = hash >> (u64::BITS - self.slots.len().trailing_zeros());
        let (before, after) = self.slots.split_at(first as usize);
        after.iter().chain(before)
    }

    /// Returns the flows with a hash, and perhaps others with the same hash that only other versions have.
    pub fn of(&self, hash: u64) -> impl Iterator<Item = FlowId> {
        let entries = self.slots_for(hash).map_while(Slot::get);
        entries.filter(move |(other, _)| *other == hash).map(|(_, id)| id)
    }

    /// Returns all flows, and perhaps others that only other versions have.
    pub fn all(&self) -> impl Iterator<Item = FlowId> {
        self.slots.iter().filter_map(Slot::get).map(|(_, id)| id)
    }

    /// Enters a flow that is not there. `is_there` tells which flows are.
    pub fn insert(&mut self, hash: u64, id: FlowId, is_there: impl Fn(FlowId) -> bool) {
        self.fit(is_there);
        self.enter((hash, id));
        self.len += 1;
    }

    /// Removes a flow that was there. `is_there` tells which flows still are.
    pub fn remove(&mut self, is_there: impl Fn(FlowId) -> bool) {
        self.len -= 1;
        self.fit(is_there);
    }

    /// Writes an entry, unless a different version wrote it. There must be a free slot.
    fn enter(&self, entry: Entry) {
        for slot in self.slots_for(entry.0) {
            match slot.get() {
                None => {
                    slot.hash.store(entry.0, Relaxed);
                    slot.flow.store(entry.1.0 | TAKEN, Relaxed);
                    self.used.fetch_add(1, Relaxed);
                    return;
                }
                Some(other) if other == entry => return,
                Some(_) => {}
            }
        }
    }

    /// Makes the table anew if few slots are free, or if there are many for few flows.
    fn fit(&mut self, is_there: impl Fn(FlowId) -> bool) {
        let (slots, used) = (self.slots.len(), self.used.load(Relaxed));
        if used < slots / 4 * 3 && slots <= FEWEST.max(8 * self.len) {
            return;
        }
        // Looking flows up takes most of the time, and is useless if no flow was removed.
        let is_kept = |entry: &Entry| used == self.len || is_there(entry.1);
        let kept: Vec<_> = self.slots.iter().filter_map(Slot::get).filter(is_kept).collect();
        *self = Self::new((2 * kept.len()).next_power_of_two().max(FEWEST), self.len);
        kept.into_iter().for_each(|entry| self.enter(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Checks that a version finds its own flows.
    fn check(index: &Index, wanted: &BTreeSet<Entry>) -> Result<(), TestCaseError> {
        prop_assert_eq!(index.len(), wanted.len());
        let hashes: BTreeSet<_> = wanted.iter().map(|(hash, _)| *hash).collect();
        for hash in hashes {
            let of: BTreeSet<_> = index.of(hash).filter(|id| wanted.contains(&(hash, *id))).collect();
            let ids: BTreeSet<_> =
                wanted.iter().filter(|(other, _)| *other == hash).map(|(_, id)| *id).collect();
            prop_assert_eq!(of, ids);
        }
        let all: BTreeSet<_> = index.all().collect();
        prop_assert!(wanted.iter().all(|(_, id)| all.contains(id)));
        Ok(())
    }

    proptest! {
        /// A version finds its flows, also if their hashes agree in many bits or in all. Earlier versions do,
        /// too.
        #[test]
        fn a_version_finds_its_flows(
            steps in prop::collection::vec((0..3_u64, 0..64_u64, 0..9_u64, any::<bool>(), any::<bool>()), 1..300),
        ) {
            let (mut index, mut set) = (Index::default(), BTreeSet::new());
            let mut versions = Vec::new();
            for (high, low, id, removes, keeps) in steps {
                let entry = (high << 62 | low, FlowId(low << 4 | id));
                match (removes, set.contains(&entry)) {
                    (true, true) => {
                        set.remove(&entry);
                        index.remove(|id| set.iter().any(|(_, own)| *own == id));
                    }
                    (false, false) => {
                        index.insert(entry.0, entry.1, |id| set.iter().any(|(_, own)| *own == id));
                        set.insert(entry);
                    }
                    _ => {}
                }
                if keeps && versions.len() < 20 {
                    versions.push((index.clone(), set.clone()));
                }
            }
            prop_assert_eq!(index.of(5 << 61).count(), 0);
            versions.push((index, set));
            versions.iter().try_for_each(|(index, set)| check(index, set))?;
        }
    }

    fn hash(id: u64) -> u64 {
        id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// When many flows are removed, the index gives back their memory.
    #[test]
    fn an_index_that_is_empty_again_is_small() {
        let mut index = Index::default();
        (0..1000).for_each(|id| index.insert(hash(id), FlowId(id), |_| true));
        assert_eq!(index.slots.len(), 2048);
        (0..1000).for_each(|gone| index.remove(|FlowId(id)| id > gone));
        assert_eq!((index.slots.len(), index.len()), (FEWEST, 0));
    }

    /// Flows that come and go take no more memory than those that are there.
    #[test]
    fn entries_of_removed_flows_are_given_back() {
        let mut index = Index::default();
        for new in 0..1000 {
            index.insert(hash(new), FlowId(new), |FlowId(id)| id + 10 >= new);
            if new >= 10 {
                index.remove(|FlowId(id)| id + 10 > new);
            }
        }
        assert_eq!(index.len(), 10);
        assert!(index.slots.len() <= 64);
    }

    /// A version that nobody had takes memory until the table is made anew, and loses nothing.
    #[test]
    fn versions_that_are_given_up_do_no_harm() {
        let mut index = Index::default();
        (0..100).for_each(|id| index.insert(hash(id), FlowId(id), |_| true));
        for new in 100..1000 {
            let mut given_up = index.clone();
            given_up.insert(hash(new), FlowId(new), |FlowId(id)| id < 100);
            given_up.remove(|FlowId(id)| id < 99 || id == new);
            index.remove(|FlowId(id)| id < 99);
            index.insert(hash(99), FlowId(99), |FlowId(id)| id < 99);
        }
        assert!((0..100).all(|id| index.of(hash(id)).any(|own| own == FlowId(id))));
        assert!(index.slots.len() <= 1024);
    }
}
