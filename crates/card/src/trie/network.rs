//! A network's trie: the values of its entries according to its routes.
use super::{Pool, Route4, Step, Table};
use crate::registers::RouteKind;
use crate::step::{LINE, Line};
use std::collections::BTreeMap;

/// For each level, the number of address bits that it and the levels above resolve.
const DEPTHS: [u8; 3] = [16, 24, 32];
/// Numbers of entries in a line and in a block.
const ENTRIES: u32 = 8;
const BLOCK: u32 = 256;
/// Numbers of lines in a first level and in a block.
const ROOT_LINES: u32 = 1 << 13;
const BLOCK_LINES: u32 = BLOCK / ENTRIES;

/// A network's trie and the routes in it.
#[derive(Debug)]
pub struct NetworkTrie {
    /// Address of the first level, in units of 256 KiB.
    pub root: u32,
    /// Nexthops by address and length. A prefix comes before those that it contains.
    pub routes: BTreeMap<(u32, u8), u32>,
    /// Blocks of the second and of the third level, by the address bits that lead to them.
    pub blocks: [BTreeMap<u32, Block>; 2],
}

/// A block of the second or third level.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub at: u32,
    /// Number of prefixes that need the block.
    routes: u32,
}

/// A range of entries of a level, in whole lines: `count` of them, a power of two, starting at `first`, a multiple of
/// it. An entry's number consists of the address bits that lead to it.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    level: usize,
    first: u32,
    count: u32,
}

impl Range {
    /// A network's whole first level.
    pub const ROOT: Self = Self { level: 0, first: 0, count: 1 << 16 };

    /// Returns the range of a whole block of the second or third level.
    pub fn block(level: usize, index: u32) -> Self {
        Self { level, first: index * BLOCK, count: BLOCK }
    }

    /// Returns the range of the line whose entry leads to a block of the level below.
    pub fn line(level: usize, index: u32) -> Self {
        Self { level, first: index & !(ENTRIES - 1), count: ENTRIES }
    }

    /// Returns the entries that a prefix covers at its level, in whole lines.
    fn prefix(prefix: u32, length: u8) -> Self {
        let level = level(length);
        let count = (1 << (DEPTHS[level] - length)).max(ENTRIES);
        Self { level, first: (prefix >> (32 - DEPTHS[level])) & !(count - 1), count }
    }
}

/// Returns the first `length` bits of an address.
pub fn mask(address: u32, length: u8) -> u32 {
    address & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

/// Returns the level to which a prefix is written.
fn level(length: u8) -> usize {
    DEPTHS.iter().position(|&depth| length <= depth).unwrap_or(2)
}

/// Iterates over the blocks that a prefix needs: their levels and numbers.
fn needed(prefix: u32, length: u8) -> impl Iterator<Item = (usize, u32)> {
    (1..=level(length)).map(move |level| (level, prefix >> (32 - DEPTHS[level - 1])))
}

fn leaf(nexthop: Option<u32>) -> Route4 {
    match nexthop {
        Some(value) => Route4 { value, kind: RouteKind::Nexthop as u8 },
        None => Route4 { value: 0, kind: RouteKind::None as u8 },
    }
}

impl NetworkTrie {
    pub fn new(root: u32) -> Self {
        Self { root, routes: BTreeMap::new(), blocks: [BTreeMap::new(), BTreeMap::new()] }
    }

    /// Returns the nexthop of the longest prefix of at most `length` bits that contains this address.
    pub fn cover(&self, address: u32, length: u8) -> Option<u32> {
        (0..=length).rev().find_map(|length| self.routes.get(&(mask(address, length), length)).copied())
    }

    /// Counts a prefix in the blocks that it needs. Returns the new blocks, the upper one first.
    pub fn grow(&mut self, pool: &mut Pool, prefix: u32, length: u8) -> Option<Vec<(usize, u32)>> {
        let fresh: Vec<_> = needed(prefix, length)
            .filter(|(level, index)| !self.blocks[level - 1].contains_key(index))
            .collect();
        let mut room: Vec<_> = fresh.iter().map_while(|_| pool.block()).collect();
        if room.len() < fresh.len() {
            room.into_iter().for_each(|at| pool.free_block(at));
            return None;
        }
        for (level, index) in needed(prefix, length) {
            let block = self.blocks[level - 1].entry(index);
            let block = block.or_insert_with(|| Block { at: room.pop().unwrap_or_default(), routes: 0 });
            block.routes += 1;
        }
        Some(fresh)
    }

    /// Stops counting a prefix. Returns the blocks that are no longer needed, the upper one first, with their
    /// addresses.
    pub fn shrink(&mut self, prefix: u32, length: u8) -> Vec<(usize, u32, u32)> {
        let mut gone = Vec::new();
        for (level, index) in needed(prefix, length) {
            let Some(block) = self.blocks[level - 1].get_mut(&index) else { continue };
            block.routes -= 1;
            if block.routes == 0 {
                gone.push((level, index, block.at));
                self.blocks[level - 1].remove(&index);
            }
        }
        gone
    }

    /// Returns the current values of all entries for which a prefix may be the longest one.
    pub fn affected(&self, prefix: u32, length: u8) -> Vec<(Range, Vec<Line>)> {
        let own = Range::prefix(prefix, length);
        let mut ranges = Vec::new();
        if own.level == 0 || self.blocks[own.level - 1].contains_key(&(own.first / BLOCK)) {
            ranges.push(own);
        }
        for below in own.level + 1..DEPTHS.len() {
            let bits = DEPTHS[below - 1];
            let first = prefix >> (32 - bits);
            let last = first + ((1 << (bits - length)) - 1);
            ranges.extend(
                self.blocks[below - 1].range(first..=last).map(|(&index, _)| Range::block(below, index)),
            );
        }
        ranges.into_iter().map(|range| (range, self.lines(range))).collect()
    }

    pub fn write(&self, range: Range, steps: &mut Vec<Step>) {
        let lines = (self.address(range)..).zip(self.lines(range));
        steps.extend(lines.map(|(address, data)| Step::Write { table: Table::Route, address, data }));
    }

    /// Writes the lines that differ from `before`.
    pub fn rewrite(&self, before: Vec<(Range, Vec<Line>)>, steps: &mut Vec<Step>) {
        for (range, before) in before {
            let changed = (self.address(range)..).zip(self.lines(range)).zip(before);
            let changed = changed.filter(|((_, data), before)| data != before);
            steps.extend(changed.map(|((address, data), _)| Step::Write {
                table: Table::Route,
                address,
                data,
            }));
        }
    }

    fn address(&self, range: Range) -> u32 {
        let block =
            range.level.checked_sub(1).and_then(|above| self.blocks[above].get(&(range.first / BLOCK)));
        match block {
            None => self.root * ROOT_LINES + range.first / ENTRIES,
            Some(block) => block.at * BLOCK_LINES + range.first % BLOCK / ENTRIES,
        }
    }

    /// Returns the lines of a range. Shorter prefixes come first, longer ones over them, blocks of the next level over
    /// all.
    fn lines(&self, Range { level, first, count }: Range) -> Vec<Line> {
        let depth = DEPTHS[level];
        let (shift, length) = (32 - depth, depth - count.trailing_zeros() as u8);
        let base = first << shift;
        let last = base | u32::MAX >> length;
        let mut entries = vec![leaf(self.cover(base, length)); count as usize];
        for (&(address, length), &nexthop) in self.routes.range((base, length + 1)..=(last, 32)) {
            if length <= depth {
                let at = ((address >> shift) - first) as usize;
                entries[at..at + (1 << (depth - length))].fill(leaf(Some(nexthop)));
            }
        }
        if let Some(blocks) = self.blocks.get(level) {
            for (index, block) in blocks.range(first..=first + (count - 1)) {
                entries[(index - first) as usize] = Route4 { value: block.at, kind: RouteKind::Child as u8 };
            }
        }
        entries.chunks(ENTRIES as usize).map(line).collect()
    }
}

/// Encodes a line of eight entries.
fn line(entries: &[Route4]) -> Line {
    let mut line = [0; LINE];
    for (bytes, entry) in line.chunks_mut(Route4::SIZE).zip(entries) {
        bytes.copy_from_slice(&entry.encode());
    }
    line
}
