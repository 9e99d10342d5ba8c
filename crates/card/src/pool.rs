//! Memory of the IPv4 tries: pages of 256 KiB, each of which is a first level or is cut into blocks of 1 KiB.
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of a page.
pub const BLOCKS: u32 = 256;

/// What is free.
pub struct Pool {
    /// Of so many pages.
    total: u32,
    /// Whole pages.
    pages: BTreeSet<u32>,
    /// Free blocks of cut pages.
    blocks: BTreeSet<u32>,
    /// How many blocks of a cut page are in use.
    used: BTreeMap<u32, u32>,
}

impl Pool {
    /// All of this many pages are free.
    pub fn new(pages: u32) -> Self {
        Self { total: pages, pages: (0..pages).collect(), blocks: BTreeSet::new(), used: BTreeMap::new() }
    }

    /// A page: address in units of 256 KiB.
    pub fn page(&mut self) -> Option<u32> {
        self.pages.pop_first()
    }

    /// Gives it back.
    pub fn free_page(&mut self, page: u32) {
        self.pages.insert(page);
    }

    /// A block: address in units of 1 KiB.
    pub fn block(&mut self) -> Option<u32> {
        if self.blocks.is_empty() {
            let page = self.page()?;
            self.blocks.extend(page * BLOCKS..(page + 1) * BLOCKS);
        }
        let block = self.blocks.pop_first()?;
        *self.used.entry(block / BLOCKS).or_default() += 1;
        Some(block)
    }

    /// Returns a block, and with its last block the page.
    pub fn free_block(&mut self, block: u32) {
        let page = block / BLOCKS;
        self.blocks.insert(block);
        let Some(used) = self.used.get_mut(&page) else { return };
        *used -= 1;
        if *used == 0 {
            self.used.remove(&page);
            self.blocks.retain(|block| block / BLOCKS != page);
            self.pages.insert(page);
        }
    }

    /// Memory in use, KiB.
    pub fn in_use(&self) -> u32 {
        (self.total - self.pages.len() as u32) * BLOCKS - self.blocks.len() as u32
    }
}
