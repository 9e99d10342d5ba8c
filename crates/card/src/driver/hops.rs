//! Numbers of the card's nexthops: equal ones share a number, which counts its users.

use crate::compile::{Compiler, Hop};
use crate::registers::{Nexthop, NexthopKind};
use model::Lookup;
use std::collections::{BTreeMap, BTreeSet};

/// The number of [`Hop::Host`], which is always on the card.
pub const HOST: u32 = 0;

#[derive(Debug)]
struct Used {
    number: u32,
    count: usize,
    line: Nexthop,
    /// Whether the card has the host's line instead, until [`Hops::waiting`] returns this one.
    waits: bool,
}

/// Assigns numbers to nexthops.
#[derive(Debug)]
pub struct Hops {
    used: BTreeMap<Hop, Used>,
    /// Numbers without users, of which no packet under way makes use either. The lowest is taken first, because low
    /// ones are on chip.
    free: BTreeSet<u32>,
    /// Numbers without users that packets under way may still be using.
    retired: Vec<u32>,
    /// The lowest number that was never used.
    next: u32,
    end: u32,
}

impl Hops {
    /// Starts with room for numbers below `end`.
    pub const fn new(end: u32) -> Self {
        Self { used: BTreeMap::new(), free: BTreeSet::new(), retired: Vec::new(), next: HOST + 1, end }
    }

    /// Skips all numbers below this one that were never used.
    #[cfg(feature = "testing")]
    pub fn skip_to(&mut self, number: u32) {
        self.next = self.next.max(number);
    }

    /// Returns whether there is room only after a barrier.
    pub fn is_tight(&self) -> bool {
        self.free.is_empty() && self.next == self.end && !self.retired.is_empty()
    }

    /// Counts one more user of a nexthop. Returns its number, and its line if that must be written. If there is no
    /// room, returns the host's number.
    pub fn acquire(&mut self, hop: Hop, line: impl FnOnce() -> Nexthop) -> (u32, Option<Nexthop>) {
        if hop == Hop::Host {
            return (HOST, None);
        }
        if let Some(used) = self.used.get_mut(&hop) {
            used.count += 1;
            return (used.number, None);
        }
        // Without room, the nexthop is counted all the same, so its current users lead to the host for good.
        let number = self.free.pop_first().or_else(|| self.fresh()).unwrap_or(HOST);
        let line = line();
        self.used.insert(hop, Used { number, count: 1, line, waits: false });
        (number, (number != HOST).then_some(line))
    }

    fn fresh(&mut self) -> Option<u32> {
        let number = (self.next < self.end).then_some(self.next)?;
        self.next += 1;
        Some(number)
    }

    pub fn release(&mut self, hop: Hop) {
        let Some(used) = self.used.get_mut(&hop) else { return };
        used.count -= 1;
        if used.count == 0 {
            self.retired.extend((used.number != HOST).then_some(used.number));
            self.used.remove(&hop);
        }
    }

    /// Frees the retired numbers: all packets that were under way when they were released have left.
    pub fn reclaim(&mut self) {
        self.free.extend(self.retired.drain(..));
    }

    /// Returns the lines that have changed. A changed line to a guest waits: the card has the host's line until all its
    /// tables agree about the guest. Otherwise, packets of the network that the guest left would follow the rules of
    /// the one to which it moved. If only the guest's port changed, the new line is written at once.
    pub fn rewritten<T: Lookup>(&mut self, compiler: Compiler<'_, T>) -> Vec<(u32, Nexthop)> {
        let mut changed = Vec::new();
        for (hop, used) in &mut self.used {
            let line = compiler.line(hop);
            if line != used.line && used.number != HOST {
                let moved = Nexthop { port: line.port, egress: line.egress, ..used.line };
                used.line = line;
                used.waits = line.kind == NexthopKind::Guest as u8 && line != moved;
                changed.push((used.number, if used.waits { Nexthop::default() } else { line }));
            }
        }
        changed
    }

    pub fn waiting(&mut self) -> Vec<(u32, Nexthop)> {
        let line = |used: &mut Used| std::mem::take(&mut used.waits).then_some((used.number, used.line));
        self.used.values_mut().filter_map(line).collect()
    }
}
