//! The ports that the card serves.

use crate::line::{Line, Taken};
use card::buffers::Buffers;
use mem::{Burst, RxQueue};
use model::VifId;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// All of them, by interface.
pub struct Ports {
    lines: BTreeMap<VifId, Line>,
    burst: Burst,
    /// What was just taken from a port; otherwise empty.
    taken: Vec<Taken>,
}

impl Ports {
    /// None yet.
    pub fn new() -> Self {
        Self { lines: BTreeMap::new(), burst: Burst::new(), taken: Vec::new() }
    }

    /// Adds one.
    pub fn insert(&mut self, vif: VifId, line: Line) {
        self.lines.insert(vif, line);
    }

    /// Takes one out.
    pub fn remove(&mut self, vif: VifId) -> Option<Line> {
        self.lines.remove(&vif)
    }

    /// An interface's.
    pub fn get(&self, vif: VifId) -> Option<&Line> {
        self.lines.get(&vif)
    }

    /// An interface's port, to change.
    pub fn get_mut(&mut self, vif: VifId) -> Option<&mut Line> {
        self.lines.get_mut(&vif)
    }

    /// All ports, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (VifId, &mut Line)> {
        self.lines.iter_mut().map(|(vif, line)| (*vif, line))
    }

    /// Every receiving queue.
    pub fn queues(&mut self) -> impl Iterator<Item = &mut Box<dyn RxQueue>> {
        self.lines.values_mut().flat_map(|line| &mut line.rx)
    }

    /// The first interface after another one, or of all.
    pub fn after(&self, vif: Option<VifId>) -> Option<VifId> {
        let from = vif.map_or(Unbounded, Excluded);
        self.lines.range((from, Unbounded)).next().map(|(vif, _)| *vif)
    }

    /// Takes a burst from each queue of an interface. The caller returns the empty list to [`Self::give_back`].
    pub fn take(&mut self, vif: VifId, buffers: &mut Buffers) -> Vec<Taken> {
        let mut taken = std::mem::take(&mut self.taken);
        if let Some(line) = self.lines.get_mut(&vif) {
            line.take(&mut self.burst, buffers, &mut taken);
        }
        taken
    }

    /// Keeps the memory of what [`Self::take`] returned for the next time.
    pub fn give_back(&mut self, taken: Vec<Taken>) {
        self.taken = taken;
    }

    /// Passes to the engine what waits for room in its rings. Returns whether something still waits.
    pub fn push(&mut self, buffers: &mut Buffers) -> bool {
        self.lines.values_mut().fold(false, |waits, line| line.push(buffers) | waits)
    }

    /// The same. Returns whether the engine has finished all that it was given.
    pub fn settle(&mut self, buffers: &mut Buffers) -> bool {
        self.lines.values_mut().all(|line| !line.push(buffers) && line.is_settled())
    }

    /// How many frames of each interface the engine was given.
    pub fn handed(&self) -> BTreeMap<VifId, u64> {
        self.lines.iter().map(|(vif, line)| (*vif, line.handed)).collect()
    }

    /// Whether the engine has finished this many frames of an interface, or the interface no longer exists.
    pub fn is_done(&self, vif: VifId, number: u64) -> bool {
        self.lines.get(&vif).is_none_or(|line| line.done() >= number)
    }
}
