//! Numbers of flows by hashes. A clone is cheap, and a change after it copies little.
//!
//! It is a tree over the bits of the hashes, the highest first. What a change copies is a leaf, which is plain memory,
//! and a few references of each node above it. If leaves had references to flows, a copy would count each of these, in
//! memory that no cache has.

use model::ovs::FlowId;
use std::sync::Arc;

/// Bits of a hash that choose among the children of a node, and how many children that makes.
const BITS: u32 = 3;
const FAN: usize = 1 << BITS;
/// Most entries of a leaf that can be split: more take longer to copy, fewer make more nodes above them.
const MOST: usize = if cfg!(test) { 6 } else { 128 };
/// Entries of a leaf from which a removal looks whether the node above needs children.
const FEW: usize = MOST / FAN / 2 + 1;
/// Depth from which leaves are not split, because no bits are left.
const DEEPEST: u32 = u64::BITS / BITS;

/// A hash, and the number of a flow with it.
type Entry = (u64, FlowId);

/// A set of entries.
#[derive(Clone, Default)]
pub(super) struct Index {
    root: Arc<Node>,
    len: usize,
}

#[derive(Clone)]
enum Node {
    Leaf(Leaf),
    /// By the bits of the node's depth.
    Inner([Arc<Self>; FAN]),
}

/// Entries in order.
#[derive(Default)]
struct Leaf(Vec<Entry>);

impl Clone for Leaf {
    /// With room for what a version adds: otherwise the first of it would copy them again.
    fn clone(&self) -> Self {
        const ROOM: usize = 4;
        let mut entries = Vec::with_capacity(self.0.len() + ROOM);
        entries.extend_from_slice(&self.0);
        Self(entries)
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::Leaf(Leaf::default())
    }
}

/// Which child of a node at this depth has a hash.
const fn child(hash: u64, depth: u32) -> usize {
    (hash << (depth * BITS) >> (u64::BITS - BITS)) as usize
}

impl Index {
    /// Number of entries.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The flows with a hash, in the order of their numbers.
    pub fn of(&self, hash: u64) -> impl Iterator<Item = FlowId> {
        let (mut node, mut depth) = (&*self.root, 0);
        let Leaf(entries) = loop {
            match node {
                Node::Leaf(leaf) => break leaf,
                Node::Inner(children) => node = &children[child(hash, depth)],
            }
            depth += 1;
        };
        let first = entries.partition_point(|(other, _)| *other < hash);
        entries[first..].iter().take_while(move |(other, _)| *other == hash).map(|(_, id)| *id)
    }

    /// Whether something is so for any of the flows.
    pub fn any(&self, mut which: impl FnMut(FlowId) -> bool) -> bool {
        self.root.any(&mut which)
    }

    /// Enters a flow that is not there.
    pub fn insert(&mut self, hash: u64, id: FlowId) {
        Node::insert(&mut self.root, 0, (hash, id));
        self.len += 1;
    }

    /// Removes a flow that is there.
    pub fn remove(&mut self, hash: u64, id: FlowId) {
        Node::remove(&mut self.root, 0, &(hash, id));
        self.len -= 1;
    }
}

impl Node {
    fn any(&self, which: &mut impl FnMut(FlowId) -> bool) -> bool {
        match self {
            Self::Leaf(Leaf(entries)) => entries.iter().any(|(_, id)| which(*id)),
            Self::Inner(children) => children.iter().any(|child| child.any(which)),
        }
    }

    fn insert(this: &mut Arc<Self>, depth: u32, entry: Entry) {
        match Arc::make_mut(this) {
            Self::Inner(children) => Self::insert(&mut children[child(entry.0, depth)], depth + 1, entry),
            Self::Leaf(Leaf(entries)) => {
                let place = entries.partition_point(|other| *other < entry);
                entries.insert(place, entry);
                if entries.len() > MOST && depth < DEEPEST {
                    let entries = std::mem::take(entries);
                    *this = Arc::new(Self::split(&entries, depth));
                }
            }
        }
    }

    /// A node at this depth, with leaves that have these entries.
    fn split(entries: &[Entry], depth: u32) -> Self {
        let part = |at| entries.iter().copied().filter(|(hash, _)| child(*hash, depth) == at).collect();
        Self::Inner(std::array::from_fn(|at| Arc::new(Self::Leaf(Leaf(part(at))))))
    }

    /// Returns whether the node has few entries left.
    fn remove(this: &mut Arc<Self>, depth: u32, entry: &Entry) -> bool {
        match Arc::make_mut(this) {
            Self::Leaf(Leaf(entries)) => {
                if let Ok(place) = entries.binary_search(entry) {
                    entries.remove(place);
                }
                entries.len() < FEW
            }
            Self::Inner(children) => {
                let few = Self::remove(&mut children[child(entry.0, depth)], depth + 1, entry);
                let Some(joined) = few.then(|| Self::joined(children)).flatten() else { return false };
                let is_few = joined.len() < FEW;
                *this = Arc::new(Self::Leaf(Leaf(joined)));
                is_few
            }
        }
    }

    /// The entries of all children, if they are leaves and half of them would do for one.
    fn joined(children: &[Arc<Self>; FAN]) -> Option<Vec<Entry>> {
        let mut joined = Vec::new();
        for child in children {
            let Self::Leaf(Leaf(entries)) = &**child else { return None };
            joined.extend_from_slice(entries);
            if joined.len() > MOST / 2 {
                return None;
            }
        }
        Some(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check(index: &Index, wanted: &BTreeSet<Entry>) -> Result<(), TestCaseError> {
        prop_assert_eq!(index.len(), wanted.len());
        let hashes: BTreeSet<_> = wanted.iter().map(|(hash, _)| *hash).collect();
        for hash in hashes {
            let of: Vec<_> = index.of(hash).collect();
            let ids: Vec<_> = wanted.iter().filter(|(other, _)| *other == hash).map(|(_, id)| *id).collect();
            prop_assert_eq!(of, ids);
        }
        let mut all = BTreeSet::new();
        let found = index.any(|id| {
            all.insert(id);
            false
        });
        prop_assert!(!found);
        prop_assert_eq!(all, wanted.iter().map(|(_, id)| *id).collect());
        Ok(())
    }

    proptest! {
        /// With hashes that agree in many bits, or in all. Earlier versions stay as they were.
        #[test]
        fn it_is_a_set_and_so_are_earlier_versions(
            steps in prop::collection::vec((0..3_u64, 0..64_u64, 0..9_u64, any::<bool>(), any::<bool>()), 1..300),
        ) {
            let (mut index, mut set) = (Index::default(), BTreeSet::new());
            let mut versions = Vec::new();
            for (high, low, id, removes, keeps) in steps {
                let entry = (high << 62 | low, FlowId(id));
                match (removes, set.contains(&entry)) {
                    (true, true) => {
                        set.remove(&entry);
                        index.remove(entry.0, entry.1);
                    }
                    (false, false) => {
                        set.insert(entry);
                        index.insert(entry.0, entry.1);
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

    /// What many flows took is given back with them.
    #[test]
    fn an_index_that_is_empty_again_is_a_leaf() {
        let mut index = Index::default();
        let hash = |id: u64| id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..1000).for_each(|id| index.insert(hash(id), FlowId(id)));
        assert!(matches!(*index.root, Node::Inner(_)));
        (0..1000).for_each(|id| index.remove(hash(id), FlowId(id)));
        assert!(matches!(&*index.root, Node::Leaf(leaf) if leaf.0.is_empty()));
    }
}
