//! Shadow of the IPv4 tries, with levels of 16, 8 and 8 bits, and the writes that change the card's.
//!
//! An entry of a level is a leaf or leads to a block of the next level, so a prefix is written to all entries for
//! which it is the longest one, including those in blocks below. A block exists where a prefix is longer than the
//! level above resolves. New blocks are written completely before anything refers to them; a block is free once the
//! look-ups that may be in it have ended. An address has one path through its trie, and a change writes one entry of
//! that: at every moment, look-ups give the old or the new result.
mod network;
#[cfg(test)]
mod tests;

use crate::pool::Pool;
use crate::registers::{Route4, Table};
use crate::step::Step;
use network::{NetworkTrie, Range, mask};
use std::collections::BTreeMap;
use thiserror::Error;

/// The reason why a change is not possible. Nothing was changed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TrieError {
    /// There is no room for a route or trie of this network.
    #[error("the card's memory for IPv4 routes is full: leave the IPv4 packets of network {0} to the host")]
    Full(u16),
    /// This network has no trie.
    #[error("network {0} has no IPv4 trie on the card: add it first")]
    Unknown(u16),
}

pub struct Trie {
    pool: Pool,
    networks: BTreeMap<u16, NetworkTrie>,
}

impl Trie {
    /// Makes room for tries in this many pages of 256 KiB, from the beginning of the route memory. Each network takes a
    /// page, and every 256 blocks take one.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        Self { pool: Pool::new(pages), networks: BTreeMap::new() }
    }

    /// Creates a network's trie without routes. Returns its root, for the network's line once the steps are done.
    ///
    /// # Errors
    /// If there is no room.
    pub fn add(&mut self, vrf: u16) -> Result<(u32, Vec<Step>), TrieError> {
        if let Some(network) = self.networks.get(&vrf) {
            return Ok((network.root, Vec::new()));
        }
        let network = NetworkTrie::new(self.pool.page().ok_or(TrieError::Full(vrf))?);
        let (root, mut steps) = (network.root, Vec::new());
        network.write(Range::ROOT, &mut steps);
        steps.push(Step::Barrier);
        self.networks.insert(vrf, network);
        Ok((root, steps))
    }

    /// Reclaims a network's trie. The network's line must no longer refer to it. The returned step comes before all
    /// others.
    pub fn take(&mut self, vrf: u16) -> Vec<Step> {
        let Some(network) = self.networks.remove(&vrf) else { return Vec::new() };
        self.pool.free_page(network.root);
        network.blocks.iter().flat_map(BTreeMap::values).for_each(|block| self.pool.free_block(block.at));
        vec![Step::Barrier]
    }

    /// Returns the nexthop of an address according to a network's routes.
    #[must_use]
    pub fn find(&self, vrf: u16, address: u32) -> Option<u32> {
        self.networks.get(&vrf)?.cover(address, 32)
    }

    /// Returns the memory in use, in KiB.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.pool.in_use()
    }

    /// Adds a route, or changes the nexthop of this prefix.
    ///
    /// # Errors
    /// If there is no room, or the network is unknown.
    pub fn insert(
        &mut self,
        vrf: u16,
        prefix: u32,
        length: u8,
        nexthop: u32,
    ) -> Result<Vec<Step>, TrieError> {
        let prefix = mask(prefix, length);
        let network = self.networks.get_mut(&vrf).ok_or(TrieError::Unknown(vrf))?;
        let before = network.affected(prefix, length);
        let fresh = if network.routes.contains_key(&(prefix, length)) {
            Vec::new()
        } else {
            network.grow(&mut self.pool, prefix, length).ok_or(TrieError::Full(vrf))?
        };
        network.routes.insert((prefix, length), nexthop);
        let mut steps = Vec::new();
        for &(level, index) in &fresh {
            network.write(Range::block(level, index), &mut steps);
        }
        if let Some(&(level, index)) = fresh.first() {
            steps.push(Step::Barrier);
            network.write(Range::line(level - 1, index), &mut steps);
        } else {
            network.rewrite(before, &mut steps);
        }
        Ok(steps)
    }

    /// Removes the route of this prefix, if there is one.
    ///
    /// # Errors
    /// If the network is unknown.
    pub fn remove(&mut self, vrf: u16, prefix: u32, length: u8) -> Result<Vec<Step>, TrieError> {
        let prefix = mask(prefix, length);
        let network = self.networks.get_mut(&vrf).ok_or(TrieError::Unknown(vrf))?;
        if !network.routes.contains_key(&(prefix, length)) {
            return Ok(Vec::new());
        }
        let mut steps = Vec::new();
        let before = network.affected(prefix, length);
        network.routes.remove(&(prefix, length));
        let gone = network.shrink(prefix, length);
        if let Some(&(level, index, _)) = gone.first() {
            network.write(Range::line(level - 1, index), &mut steps);
            steps.push(Step::Barrier);
            gone.iter().for_each(|&(_, _, at)| self.pool.free_block(at));
        } else {
            network.rewrite(before, &mut steps);
        }
        Ok(steps)
    }
}
