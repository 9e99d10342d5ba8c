//! The flows of a port by their numbers. A clone is cheap, and a change after it copies little.
//!
//! Flows with successive numbers are a chunk, which is changed as a whole. A removal leaves the flow and its
//! memory in the chunk, so that it need not copy the chunk's references. The chunk is made anew once more
//! than half of its flows are removed, or one with many actions is.

use imbl::OrdMap;
use model::ovs::{Flow, FlowId};
use std::sync::Arc;

/// Flows with successive numbers. One word tells where each flow is, so that finding one reads few lines of
/// memory, which are seldom in a cache.
#[derive(Clone)]
struct Chunk {
    /// Which flows are held here: a bit for each.
    held: u64,
    /// The flows in the order of their numbers.
    flows: Vec<Arc<Flow>>,
}

/// Most actions of a flow whose memory may stay for a while after its removal.
const SHORT: usize = 4;

#[derive(Clone, Default)]
pub(super) struct Store {
    chunks: OrdMap<u64, Arc<Chunk>>,
    /// Which flows of a chunk exist: a bit for each.
    present: OrdMap<u64, u64>,
    len: usize,
}

/// Returns the number of a flow's chunk, and the flow's bit there.
const fn place(FlowId(id): FlowId) -> (u64, u64) {
    (id / u64::BITS as u64, 1 << (id % u64::BITS as u64))
}

impl Chunk {
    /// Returns the index at which the flow of a bit is, or belongs.
    const fn at(&self, bit: u64) -> usize {
        (self.held & (bit - 1)).count_ones() as usize
    }

    fn get(&self, bit: u64) -> Option<&Arc<Flow>> {
        if self.held & bit == 0 { None } else { self.flows.get(self.at(bit)) }
    }

    fn put(&mut self, bit: u64, flow: &Arc<Flow>) {
        let at = self.at(bit);
        if self.held & bit == 0 {
            self.held |= bit;
            self.flows.insert(at, flow.clone());
        } else {
            self.flows[at] = flow.clone();
        }
    }

    /// Returns a chunk with these flows alone.
    fn kept(&self, bits: u64) -> Self {
        let kept = self.flows.iter().filter(|flow| bits & place(flow.id).1 != 0);
        Self { held: self.held & bits, flows: kept.cloned().collect() }
    }
}

impl Store {
    pub const fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, id: FlowId) -> Option<&Arc<Flow>> {
        let (number, bit) = place(id);
        self.present.get(&number).filter(|bits| **bits & bit != 0)?;
        self.chunks.get(&number)?.get(bit)
    }

    pub fn ids(&self) -> impl Iterator<Item = FlowId> {
        let bits = u64::from(u64::BITS);
        self.present.iter().flat_map(move |(chunk, present)| {
            (0..bits).filter(move |bit| present >> bit & 1 != 0).map(move |bit| FlowId(chunk * bits + bit))
        })
    }

    /// Enters a flow, and replaces one with the same number.
    pub fn put(&mut self, flow: &Arc<Flow>) {
        let (number, bit) = place(flow.id);
        let Some(bits) = self.present.get_mut(&number) else {
            self.present.insert(number, bit);
            self.chunks.insert(number, Arc::new(Chunk { held: bit, flows: vec![flow.clone()] }));
            self.len += 1;
            return;
        };
        self.len += usize::from(*bits & bit == 0);
        *bits |= bit;
        if let Some(chunk) = self.chunks.get_mut(&number) {
            Arc::make_mut(chunk).put(bit, flow);
        }
    }

    pub fn remove(&mut self, id: FlowId) -> Option<Arc<Flow>> {
        let (number, bit) = place(id);
        let bits = self.present.get_mut(&number).filter(|bits| **bits & bit != 0)?;
        *bits &= !bit;
        let left = *bits;
        self.len -= 1;
        let chunk = self.chunks.get(&number)?;
        let flow = chunk.get(bit)?.clone();
        let is_long = flow.actions.len() > SHORT;
        if left == 0 {
            self.present.remove(&number);
            self.chunks.remove(&number);
        } else if is_long || chunk.flows.len() > 2 * left.count_ones() as usize {
            let kept = Arc::new(chunk.kept(left));
            self.chunks.insert(number, kept);
        }
        Some(flow)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use model::VifId;
    use model::ovs::Match;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn flow(id: u64, counter: u32) -> Arc<Flow> {
        let (id, port, matching) = (FlowId(id), VifId(1), Match::default());
        Arc::new(Flow { id, counter, port, matching, actions: vec![] })
    }

    proptest! {
        #[test]
        fn it_is_a_map_and_so_are_earlier_versions(
            steps in prop::collection::vec((0..200_u64, any::<bool>(), any::<bool>()), 1..600),
        ) {
            let (mut store, mut map) = (Store::default(), BTreeMap::new());
            let mut versions = Vec::new();
            for (counter, (id, removes, keeps)) in (0..).zip(steps) {
                if removes {
                    prop_assert_eq!(store.remove(FlowId(id)), map.remove(&id));
                } else {
                    let flow = flow(id, counter);
                    store.put(&flow);
                    map.insert(id, flow);
                }
                if keeps && versions.len() < 20 {
                    versions.push((store.clone(), map.clone()));
                }
            }
            versions.push((store, map));
            for (store, map) in versions {
                prop_assert_eq!(store.len(), map.len());
                prop_assert!(store.ids().eq(map.keys().copied().map(FlowId)));
                for id in 0..200 {
                    prop_assert_eq!(store.get(FlowId(id)), map.get(&id));
                }
                let held: usize = store.chunks.values().map(|chunk| chunk.flows.len()).sum();
                prop_assert!(held <= 2 * map.len());
            }
        }
    }

    /// The memory of removed flows is given back, if late.
    #[test]
    fn no_more_than_twice_the_flows_are_held() {
        let mut store = Store::default();
        let flows: Vec<_> = (0..64).map(|id| flow(id, 0)).collect();
        flows.iter().for_each(|flow| store.put(flow));
        let held = || flows.iter().filter(|flow| Arc::strong_count(flow) > 1).count();
        (0..32).for_each(|id| drop(store.remove(FlowId(id)).unwrap()));
        assert_eq!(held(), 64);
        store.remove(FlowId(32)).unwrap();
        assert_eq!(held(), 31);
        (33..64).for_each(|id| drop(store.remove(FlowId(id)).unwrap()));
        assert_eq!((held(), store.chunks.len()), (0, 0));
    }
}
