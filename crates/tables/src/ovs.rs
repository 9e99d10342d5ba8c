//! The flows of Open vSwitch, for look-ups: a tuple space for each port.
//!
//! A tuple is a mask with the flows that have it, by their masked keys. A look-up tries each mask of the
//! port. OVS has tens of masks for hundred thousands of flows.

mod index;
mod store;

use crate::cells::{Cell, Touched};
use imbl::OrdMap;
use index::Index;
use model::ovs::{Action, Change, Flow, FlowId, Key, Match};
use model::{Vif, VifId};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use store::Store;

/// Most flows that [`Ovs::find_of_all`] looks through.
const SCANNED: usize = 4096;

/// The flows with one mask.
#[derive(Clone)]
struct Tuple {
    mask: Key,
    /// Hashes keys with a secret, because guests choose the keys.
    hasher: RandomState,
    /// Flows by the hashes of their masked keys.
    flows: Index,
}

#[derive(Clone, Default)]
struct Port {
    tuples: Vec<Arc<Tuple>>,
    flows: Store,
    /// The highest number that any flow of the port ever had.
    last: FlowId,
    /// The bits at which some flow looks.
    mask: Key,
    /// The interfaces to which flows send packets, and how many outputs of flows go to each.
    outputs: OrdMap<VifId, usize>,
    /// How many times flows put the headers of a tunnel in front.
    encaps: usize,
}

/// The flows of all ports. A clone is cheap.
#[derive(Clone, Default)]
pub(crate) struct Ovs {
    ports: OrdMap<VifId, Arc<Port>>,
}

impl Ovs {
    /// Finds the matching flow of a port that has the lowest number.
    pub fn find(&self, port: VifId, key: &Key) -> Option<&Flow> {
        let Port { tuples, flows, .. } = &**self.ports.get(&port)?;
        tuples.iter().filter_map(|tuple| tuple.find(key, flows)).min_by_key(|flow| flow.id)
    }

    /// Finds the flow of a port that decides all packets with these fields, whatever they have in the bits
    /// `free`. `None` also if more than [`SCANNED`] flows look at such a bit.
    pub fn find_of_all(&self, port: VifId, key: &Key, free: &Key) -> Option<&Flow> {
        let Port { tuples, flows, .. } = &**self.ports.get(&port)?;
        let (others, own): (Vec<_>, Vec<_>) =
            tuples.iter().partition(|tuple| tuple.mask.masked(free) != Key::default());
        let found = own.into_iter().filter_map(|tuple| tuple.find(key, flows)).min_by_key(|flow| flow.id)?;
        if others.iter().map(|tuple| tuple.flows.len()).sum::<usize>() > SCANNED {
            return None;
        }
        let is_older = |id: FlowId| {
            let matches = |flow: &Arc<Flow>| flow.matching.may_match(key, free);
            id < found.id && flows.get(id).is_some_and(matches)
        };
        let older = others.into_iter().any(|tuple| tuple.flows.all().any(is_older));
        (!older).then_some(found)
    }

    pub fn mask(&self, port: VifId) -> Key {
        self.ports.get(&port).map_or_else(Key::default, |port| port.mask)
    }

    /// Returns whether the treatment of a port's packets never depends on their addresses and ports: no flow
    /// looks at them, no rules see them, and no tunnel takes its source port from them. `vif` finds
    /// interfaces.
    pub fn is_coarse<'a>(&self, port: &Vif, vif: impl Fn(VifId) -> Option<&'a Vif>) -> bool {
        let reads = |vif: &Vif| vif.rules.is_some() || vif.tunnel().is_some();
        let flows = |flows: &Arc<Port>| {
            let Key { ip_src, ip_dst, l4_src, l4_dst, .. } = flows.mask;
            let looks = (ip_src | ip_dst, l4_src | l4_dst) != (0, 0);
            !looks && flows.encaps == 0 && !flows.outputs.keys().any(|to| vif(*to).is_some_and(reads))
        };
        !reads(port) && self.ports.get(&port.id).is_none_or(flows)
    }

    /// Returns how many flows and how many masks a port has.
    #[cfg(test)]
    pub fn count(&self, port: VifId) -> (usize, usize) {
        self.ports.get(&port).map_or((0, 0), |port| (port.flows.len(), port.tuples.len()))
    }

    /// Carries out changes; those to ports for which `takes_flows` is false are left out. Returns whether a flow was
    /// removed.
    pub fn apply(
        &mut self,
        changes: &[Change],
        takes_flows: impl Fn(VifId) -> bool,
        touched: &mut Touched,
    ) -> bool {
        let mut removed = false;
        for change in changes {
            match change {
                Change::Add(flow) if takes_flows(flow.port) => removed |= self.add(flow, touched),
                Change::Add(_) => {}
                Change::Remove { port, id } => {
                    if let Some(port) = self.ports.get_mut(port) {
                        removed |= Arc::make_mut(port).remove(*id, touched);
                    }
                }
                Change::Flush { port } => removed |= self.flush(*port, touched),
            }
        }
        removed
    }

    fn add(&mut self, flow: &Arc<Flow>, touched: &mut Touched) -> bool {
        let port = Arc::make_mut(self.ports.entry(flow.port).or_default());
        if port.replace(flow) {
            touched.add(Cell::ovs_flow(flow.id));
            return true;
        }
        let replaced = flow.id <= port.last && port.remove(flow.id, touched);
        port.insert(flow);
        touched.add(Cell::ovs_misses(flow.port));
        if flow.id < port.last {
            // The flow comes before others, and may take packets from them.
            touched.add_all(Cell::all_ovs_flows());
        }
        port.last = port.last.max(flow.id);
        replaced
    }

    fn flush(&mut self, port: VifId, touched: &mut Touched) -> bool {
        let Some(port) = self.ports.remove(&port) else { return false };
        touched.add_all(port.flows.ids().map(Cell::ovs_flow));
        port.flows.len() > 0
    }

    /// Forgets the flows of ports for which `takes_flows` is false.
    pub fn retain(&mut self, takes_flows: impl Fn(VifId) -> bool, touched: &mut Touched) {
        let gone: Vec<_> = self.ports.keys().copied().filter(|port| !takes_flows(*port)).collect();
        for port in gone {
            self.flush(port, touched);
        }
    }
}

impl Tuple {
    /// Finds the matching flow with the lowest number.
    fn find<'a>(&self, key: &Key, flows: &'a Store) -> Option<&'a Flow> {
        let matching = Match::new(key, &self.mask);
        let same = self.flows.of(self.hash(matching.key())).filter_map(|id| flows.get(id));
        same.filter(|flow| flow.matching == matching).min_by_key(|flow| flow.id).map(|flow| &**flow)
    }

    /// Returns the hash of a masked key. In tests, many keys have the same hash.
    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key) & if cfg!(test) { 3 << 62 | 3 } else { u64::MAX }
    }
}

impl Port {
    fn insert(&mut self, flow: &Arc<Flow>) {
        let mask = flow.matching.mask();
        let at = self.tuples.iter().position(|tuple| tuple.mask == *mask).unwrap_or_else(|| {
            let hasher = RandomState::new();
            self.tuples.push(Arc::new(Tuple { mask: *mask, hasher, flows: Index::default() }));
            self.mask = self.mask.united(mask);
            self.tuples.len() - 1
        });
        let tuple = Arc::make_mut(&mut self.tuples[at]);
        let flows = &self.flows;
        tuple.flows.insert(tuple.hash(flow.matching.key()), flow.id, |id| flows.get(id).is_some());
        self.flows.put(flow);
        self.count(flow);
    }

    /// Adds the outputs and tunnels of a flow to the counts.
    fn count(&mut self, flow: &Flow) {
        for action in &flow.actions {
            match action {
                Action::Output(to) => *self.outputs.entry(*to).or_default() += 1,
                Action::Encap(_) => self.encaps += 1,
                _ => {}
            }
        }
    }

    /// Replaces a flow by one with the same number and match. False if there is none.
    fn replace(&mut self, flow: &Arc<Flow>) -> bool {
        if flow.id > self.last {
            return false;
        }
        let Some(old) = self.flows.get(flow.id).filter(|old| old.matching == flow.matching).cloned() else {
            return false;
        };
        self.flows.put(flow);
        self.discount(&old);
        self.count(flow);
        true
    }

    /// Subtracts the outputs and tunnels of a flow from the counts.
    fn discount(&mut self, flow: &Flow) {
        for action in &flow.actions {
            match action {
                Action::Output(to) => match self.outputs.get_mut(to) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(self.outputs.remove(to)),
                },
                Action::Encap(_) => self.encaps -= 1,
                _ => {}
            }
        }
    }

    fn remove(&mut self, id: FlowId, touched: &mut Touched) -> bool {
        let Some(flow) = self.flows.remove(id) else { return false };
        touched.add(Cell::ovs_flow(id));
        self.discount(&flow);
        let mask = flow.matching.mask();
        let Some(at) = self.tuples.iter().position(|tuple| tuple.mask == *mask) else { return true };
        let tuple = Arc::make_mut(&mut self.tuples[at]);
        let flows = &self.flows;
        tuple.flows.remove(|id| flows.get(id).is_some());
        if tuple.flows.len() == 0 {
            self.tuples.remove(at);
            self.mask = self.tuples.iter().fold(Key::default(), |all, tuple| all.united(&tuple.mask));
        }
        true
    }
}

#[cfg(test)]
mod tests;
