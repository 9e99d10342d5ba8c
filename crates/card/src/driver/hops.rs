//! Numbers of the card's nexthops: equal ones share a number, which counts its users.

use crate::compile::{Compiler, Hop};
use crate::registers::{Nexthop, NexthopKind};
use model::Lookup;
use std::collections::{BTreeMap, BTreeSet};

/// The number of [`Hop::Host`], always there.
pub const HOST: u32 = 0;

/// A nexthop in use.
#[derive(Debug)]
struct Used {
    number: u32,
    /// By how many.
    count: usize,
    line: Nexthop,
    /// The card has the host's line instead, until [`Hops::waiting`] returns this one.
    waits: bool,
}

/// The numbers.
#[derive(Debug)]
pub struct Hops {
    used: BTreeMap<Hop, Used>,
    /// Numbers without users, not even packets under way. The lowest is taken first, because low ones are on chip.
    free: BTreeSet<u32>,
    /// Numbers without users, but packets under way may still use them.
    retired: Vec<u32>,
    /// Numbers from here on were never used.
    next: u32,
    end: u32,
}

impl Hops {
    /// Room for that many.
    pub const fn new(end: u32) -> Self {
        Self { used: BTreeMap::new(), free: BTreeSet::new(), retired: Vec::new(), next: HOST + 1, end }
    }

    /// Takes all numbers below this one that were never used.
    #[cfg(feature = "testing")]
    pub fn skip_to(&mut self, number: u32) {
        self.next = self.next.max(number);
    }

    /// Whether only a barrier would make room.
    pub fn is_tight(&self) -> bool {
        self.free.is_empty() && self.next == self.end && !self.retired.is_empty()
    }

    /// The number of a nexthop with one more user, and its line if that must be written. If there is no room, the
    /// host's number.
    pub fn acquire(&mut self, hop: Hop, line: impl FnOnce() -> Nexthop) -> (u32, Option<Nexthop>) {
        if hop == Hop::Host {
            return (HOST, None);
        }
        if let Some(used) = self.used.get_mut(&hop) {
            used.count += 1;
            return (used.number, None);
        }
        // Without room it is counted all the same, so its current users lead to the host for good.
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

    /// Removes one user.
    pub fn release(&mut self, hop: Hop) {
        let Some(used) = self.used.get_mut(&hop) else { return };
        used.count -= 1;
        if used.count == 0 {
            self.retired.extend((used.number != HOST).then_some(used.number));
            self.used.remove(&hop);
        }
    }

    /// All packets that were under way when numbers were released have left.
    pub fn reclaim(&mut self) {
        self.free.extend(self.retired.drain(..));
    }

    /// The lines that have changed. What leads to a guest waits, and leads to the host until all tables say the same of
    /// the guest: else packets of the network that it left would follow the rules of the one that it moved to. A guest
    /// that only is at another port has one line or the other.
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

    /// The lines that waited.
    pub fn waiting(&mut self) -> Vec<(u32, Nexthop)> {
        let line = |used: &mut Used| std::mem::take(&mut used.waits).then_some((used.number, used.line));
        self.used.values_mut().filter_map(line).collect()
    }
}
