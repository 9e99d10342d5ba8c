//! The ports that the card serves.

use crate::line::{Line, Taken};
use card::buffers::Buffers;
use mem::{Burst, RxQueue};
use model::VifId;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

pub struct Ports {
    lines: BTreeMap<VifId, Line>,
    burst: Burst,
    /// Memory for frames that are taken from a port; otherwise empty.
    taken: Vec<Taken>,
}

impl Ports {
    pub fn new() -> Self {
        Self { lines: BTreeMap::new(), burst: Burst::new(), taken: Vec::new() }
    }

    pub fn insert(&mut self, vif: VifId, line: Line) {
        self.lines.insert(vif, line);
    }

    pub fn remove(&mut self, vif: VifId) -> Option<Line> {
        self.lines.remove(&vif)
    }

    pub fn get(&self, vif: VifId) -> Option<&Line> {
        self.lines.get(&vif)
    }

    pub fn get_mut(&mut self, vif: VifId) -> Option<&mut Line> {
        self.lines.get_mut(&vif)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (VifId, &mut Line)> {
        self.lines.iter_mut().map(|(vif, line)| (*vif, line))
    }

    /// Iterates over the receiving queues of all ports.
    pub fn queues(&mut self) -> impl Iterator<Item = &mut Box<dyn RxQueue>> {
        self.lines.values_mut().flat_map(|line| &mut line.rx)
    }

    /// Returns the first interface after `vif`, or the first one at all.
    pub fn after(&self, vif: Option<VifId>) -> Option<VifId> {
        let from = vif.map_or(Unbounded, Excluded);
        self.lines.range((from, Unbounded)).next().map(|(vif, _)| *vif)
    }

    /// Takes a burst from each queue of an interface. The caller empties the list and returns it with
    /// [`Self::give_back`].
    pub fn take(&mut self, vif: VifId, buffers: &mut Buffers) -> Vec<Taken> {
        let mut taken = std::mem::take(&mut self.taken);
        if let Some(line) = self.lines.get_mut(&vif) {
            line.take(&mut self.burst, buffers, &mut taken);
        }
        taken
    }

    /// Keeps the memory of a list from [`Self::take`] for the next call.
    pub fn give_back(&mut self, taken: Vec<Taken>) {
        self.taken = taken;
    }

    /// Passes frames to the engine that wait for room in its rings. Returns whether some still wait.
    pub fn push(&mut self, buffers: &mut Buffers) -> bool {
        self.lines.values_mut().fold(false, |waits, line| line.push(buffers) | waits)
    }

    /// Passes waiting frames to the engine. Returns whether the engine has finished all frames that it was given.
    pub fn settle(&mut self, buffers: &mut Buffers) -> bool {
        self.lines.values_mut().all(|line| !line.push(buffers) && line.is_settled())
    }

    /// Returns how many frames of each interface the engine was given.
    pub fn handed(&self) -> BTreeMap<VifId, u64> {
        self.lines.iter().map(|(vif, line)| (*vif, line.handed)).collect()
    }

    /// Returns whether the engine has finished this many frames of an interface, or the interface no longer exists.
    pub fn is_done(&self, vif: VifId, number: u64) -> bool {
        self.lines.get(&vif).is_none_or(|line| line.done() >= number)
    }
}
