//! Memory of the IPv4 tries: pages of 256 KiB, each of which is a first level or is cut into blocks of 1 KiB.
use std::collections::{BTreeMap, BTreeSet};

/// Number of blocks in a page.
pub const BLOCKS: u32 = 256;

/// The free memory.
pub struct Pool {
    total: u32,
    /// Free pages that are not cut.
    pages: BTreeSet<u32>,
    /// Free blocks of cut pages.
    blocks: BTreeSet<u32>,
    /// For each cut page, the number of blocks in use.
    used: BTreeMap<u32, u32>,
}

impl Pool {
    /// Starts with this many pages, all free.
    pub fn new(pages: u32) -> Self {
        Self { total: pages, pages: (0..pages).collect(), blocks: BTreeSet::new(), used: BTreeMap::new() }
    }

    /// Takes a page. Returns its address in units of 256 KiB.
    pub fn page(&mut self) -> Option<u32> {
        self.pages.pop_first()
    }

    pub fn free_page(&mut self, page: u32) {
        self.pages.insert(page);
    }

    /// Takes a block. Returns its address in units of 1 KiB.
    pub fn block(&mut self) -> Option<u32> {
        if self.blocks.is_empty() {
            let page = self.page()?;
            self.blocks.extend(page * BLOCKS..(page + 1) * BLOCKS);
        }
        let block = self.blocks.pop_first()?;
        *self.used.entry(block / BLOCKS).or_default() += 1;
        Some(block)
    }

    /// Frees a block, and the page if this was its last block in use.
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

    /// Returns the memory in use, in KiB.
    pub fn in_use(&self) -> u32 {
        (self.total - self.pages.len() as u32) * BLOCKS - self.blocks.len() as u32
    }
}
