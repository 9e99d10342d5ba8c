//! Shadow of the IPv6 prefixes of all networks: a table with two choices, and the lengths of each network.
//!
//! The card searches a network's lengths one after the other, longest first, so a look-up reads several entries at
//! several moments. A look-up that missed a change of a longer prefix must not see a later change of a shorter one. So
//! before a change of a shorter prefix, a barrier waits for look-ups under way. A batch works best from the shortest
//! prefixes to the longest.
use crate::cuckoo::{Cuckoo, Entry, Full};
use crate::hash::Words;
use crate::registers::Route6;
use crate::step::Step;
use std::collections::BTreeMap;
use thiserror::Error;

/// Number of prefix lengths that a network may have.
pub const LENGTHS: usize = 16;

/// The reason why a change is not possible. Nothing was changed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Route6Error {
    /// The table has no room.
    #[error(transparent)]
    Full(#[from] Full),
    /// The network would have too many lengths.
    #[error(
        "network {0} has IPv6 prefixes of more than {LENGTHS} lengths: leave its IPv6 packets to the host"
    )]
    Lengths(u16),
}

pub struct Routes6 {
    table: Cuckoo<Route6>,
    /// For each network, the number of prefixes by length.
    lengths: BTreeMap<u16, BTreeMap<u8, u32>>,
    /// The longest prefix whose change look-ups under way may have missed.
    longest: u8,
    /// Whether look-ups under way may not know a length.
    unknown: bool,
}

/// Returns the first `length` bits of an address.
fn mask(address: u128, length: u8) -> u128 {
    address & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl Routes6 {
    /// Makes a shadow without routes, in a table of 2^`bits` lines in each way.
    #[must_use]
    pub fn new(bits: u32, secret: Words) -> Self {
        Self { table: Cuckoo::new(bits, secret), lengths: BTreeMap::new(), longest: 0, unknown: false }
    }

    /// Returns the lengths for a network's line: the longest first, a byte each; 255 ends them. The line may be written
    /// before or after the steps of a change, but must be written before those of the next change.
    #[must_use]
    pub fn lengths(&self, vrf: u16) -> u128 {
        let lengths = self.lengths.get(&vrf).into_iter().flat_map(BTreeMap::keys);
        // Starts with the shortest: each length shifts the shorter ones behind itself.
        lengths.fold(u128::MAX, |lengths, &length| lengths << 8 | u128::from(length))
    }

    /// Returns the nexthop of an address according to a network's routes.
    #[must_use]
    pub fn find(&self, vrf: u16, address: u128) -> Option<u32> {
        self.lengths.get(&vrf)?.keys().rev().find_map(|&length| {
            let route = Route6 { prefix: mask(address, length), vrf, length, ..Route6::default() };
            self.table.find(&route.key()).map(|route| route.nexthop)
        })
    }

    /// Adds a route, or changes the nexthop of this prefix.
    ///
    /// # Errors
    /// If there is no room, or the network would have too many lengths.
    pub fn insert(
        &mut self,
        vrf: u16,
        prefix: u128,
        length: u8,
        nexthop: u32,
    ) -> Result<Vec<Step>, Route6Error> {
        let route = Route6 { prefix: mask(prefix, length), vrf, length, valid: true, nexthop };
        let lengths = self.lengths.get(&vrf);
        if lengths.is_some_and(|lengths| lengths.len() == LENGTHS && !lengths.contains_key(&length)) {
            return Err(Route6Error::Lengths(vrf));
        }
        let new = self.table.find(&route.key()).is_none();
        let steps = self.table.insert(route)?;
        let steps = self.after_others(length, false, steps);
        if new {
            let count = self.lengths.entry(vrf).or_default().entry(length).or_default();
            *count += 1;
            self.unknown |= *count == 1;
        }
        Ok(steps)
    }

    /// Removes the route of this prefix, if there is one.
    pub fn remove(&mut self, vrf: u16, prefix: u128, length: u8) -> Vec<Step> {
        let route = Route6 { prefix: mask(prefix, length), vrf, length, ..Route6::default() };
        let steps = self.table.remove(&route.key());
        if !steps.is_empty()
            && let Some(lengths) = self.lengths.get_mut(&vrf)
            && let Some(count) = lengths.get_mut(&length)
        {
            *count -= 1;
            lengths.retain(|_, count| *count > 0);
        }
        self.after_others(length, true, steps)
    }

    /// Returns the steps of a change. They begin with a barrier if longer prefixes were changed before; for a removal,
    /// also if a look-up may miss the replacing prefix because it does not know its length.
    fn after_others(&mut self, length: u8, removal: bool, mut steps: Vec<Step>) -> Vec<Step> {
        if steps.is_empty() {
            return steps;
        }
        if length < self.longest || removal && self.unknown {
            steps.insert(0, Step::Barrier);
            (self.longest, self.unknown) = (0, false);
        }
        self.longest = self.longest.max(length);
        steps
    }
}

#[cfg(test)]
mod tests;
