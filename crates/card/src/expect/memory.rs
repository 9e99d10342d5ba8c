//! A card in this process's memory: its registers, and the lines that commands wrote to its tables.

use super::Counts;
use crate::card::Card;
use crate::registers::{Command, Punt, Table, VERSION, command, counters, engine, identity};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

/// Offsets of the card's blocks.
const COMMAND: u32 = 0x1000;
const ENGINE: u32 = 0x2000;
const COUNTERS: u32 = 0x3000;

/// The sizes of the card's tables, as in the registers of [`identity`].
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub nexthops: u32,
    pub nexthops_on_chip: u32,
    pub flow_buckets: u32,
    pub bridge_lines: u32,
    pub route6_lines: u32,
    pub flow_counters: u32,
    pub flows_seen: u32,
    pub stash_flows: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            nexthops: 1 << 20,
            nexthops_on_chip: 16_384,
            flow_buckets: 12,
            bridge_lines: 10,
            route6_lines: 10,
            flow_counters: 1 << 18,
            flows_seen: 1 << 23,
            stash_flows: 16,
        }
    }
}

/// The model of a card's registers and tables.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    sizes: Sizes,
    scratch: u32,
    enabled: bool,
    secret: [u64; 5],
    /// Budgets of guests' ports and of wires'.
    budgets: [u32; 2],
    budget_reason: u8,
    data: [u32; 16],
    table: u32,
    address: u32,
    done: u32,
    /// Written lines, extended with zeros.
    lines: HashMap<(Table, u32), [u8; 64]>,
    /// Lines in HBM that can't be read.
    failing: HashSet<(Table, u32)>,
    /// Number of reads of such lines by look-ups.
    errors: Cell<u32>,
    /// The nexthop that replaces the one with this number in HBM.
    changing: Option<Write>,
    counts: Counts,
    barriers: usize,
    /// The writes since [`Memory::record`].
    log: Option<Vec<Write>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Write {
    table: Table,
    address: u32,
    line: [u8; 64],
}

impl Write {
    #[must_use]
    pub const fn table(&self) -> Table {
        self.table
    }

    #[must_use]
    pub const fn address(&self) -> u32 {
        self.address
    }
}

impl Memory {
    #[must_use]
    pub fn new(sizes: Sizes) -> Self {
        Self { sizes, ..Self::default() }
    }

    #[must_use]
    pub const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    #[must_use]
    pub const fn enabled(&self) -> bool {
        self.enabled
    }

    #[must_use]
    pub const fn secret(&self) -> &[u64; 5] {
        &self.secret
    }

    /// Returns the number of packets that a port may send to the host in a window. 0 stands for any number.
    #[must_use]
    pub fn budget(&self, wire: bool) -> u32 {
        self.budgets[usize::from(wire)]
    }

    #[must_use]
    pub const fn budget_reason(&self) -> u8 {
        self.budget_reason
    }

    /// Returns the number of finished commands, and of barriers among them.
    #[must_use]
    pub const fn commands(&self) -> (u32, usize) {
        (self.done, self.barriers)
    }

    pub fn count_drop(&mut self, reason: u8) {
        self.counts.drop(reason);
    }

    /// Counts packets of a flow, in total fewer than an eighth of the counters' range.
    pub fn count_flow(&mut self, index: u32, packets: u64, bytes: u64) {
        self.counts.flow(index, self.sizes.flow_counters, packets, bytes);
    }

    pub fn record(&mut self) {
        self.log = Some(Vec::new());
    }

    pub fn recorded(&mut self) -> Vec<Write> {
        self.log.take().unwrap_or_default()
    }

    pub fn replay(&mut self, write: &Write) {
        if write.table == Table::NexthopChange {
            self.changing = Some(*write);
        }
        self.lines.insert((write.table, write.address), write.line);
    }

    /// Sets whether memory answers reads of a line in HBM with an error.
    pub fn fail(&mut self, table: Table, address: u32, fails: bool) {
        if fails {
            self.failing.insert((table, address))
        } else {
            self.failing.remove(&(table, address))
        };
    }

    /// Returns the written lines in HBM, sorted.
    #[must_use]
    pub fn lines_in_hbm(&self) -> Vec<(Table, u32)> {
        let on_chip = self.sizes.nexthops_on_chip;
        let in_hbm =
            |line: &&(Table, u32)| is_memory(line.0) || line.0 == Table::Nexthop && line.1 >= on_chip;
        let mut lines: Vec<_> = self.lines.keys().filter(in_hbm).copied().collect();
        lines.sort();
        lines
    }

    /// Checks that a line in HBM can be read.
    ///
    /// # Errors
    /// If it can't be read: the reason to punt a packet that needs it.
    pub fn check(&self, table: Table, address: u32) -> Result<(), Punt> {
        if self.failing.contains(&(table, address)) {
            self.errors.update(|errors| errors + 1);
            return Err(Punt::MemoryError);
        }
        Ok(())
    }

    /// Returns the first `N` bytes of a line.
    #[must_use]
    pub fn line<const N: usize>(&self, table: Table, address: u32) -> [u8; N] {
        let line = self.lines.get(&(table, address)).copied().unwrap_or([0; 64]);
        std::array::from_fn(|at| line[at])
    }

    /// Returns whether a replacement stands in for this nexthop.
    #[must_use]
    pub fn is_changing(&self, number: u32) -> bool {
        number >= self.sizes.nexthops_on_chip && self.changing.is_some_and(|change| change.address == number)
    }

    /// Returns the line of a nexthop, or of its replacement.
    #[must_use]
    pub fn nexthop_line(&self, number: u32) -> [u8; 64] {
        let changing = self.changing.filter(|_| self.is_changing(number));
        changing.map_or_else(|| self.line(Table::Nexthop, number), |change| change.line)
    }

    fn run(&mut self, code: u32) {
        match (Command::ALL.get(code as usize), Table::ALL.get(self.table as usize)) {
            (Some(Command::Write), Some(table)) => {
                let mut line = [0; 64];
                let used = if is_memory(*table) { 32 } else { 64 };
                for (bytes, word) in line[..used].chunks_mut(4).zip(self.data) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                let write = Write { table: *table, address: self.address, line };
                self.replay(&write);
                self.log.iter_mut().for_each(|log| log.push(write));
            }
            (Some(Command::Barrier), _) => self.barriers += 1,
            (Some(Command::Clear), Some(table)) => {
                let lines = self.address..self.address + self.data[0];
                self.lines.retain(|(of, line), _| of != table || !lines.contains(line));
            }
            _ => {}
        }
        self.done += 1;
    }
}

/// Returns whether a table is in HBM, where a write has 32 bytes.
const fn is_memory(table: Table) -> bool {
    matches!(table, Table::Flow | Table::Bridge | Table::Route)
}

impl Card for Memory {
    fn read32(&mut self, offset: u32) -> u32 {
        let block =
            |kind: u8, version: u8, at: u32| u32::from(kind) << 24 | u32::from(version) << 16 | at >> 12;
        let directory = [
            block(identity::TYPE, identity::VERSION, 0),
            block(command::TYPE, command::VERSION, COMMAND),
            block(engine::TYPE, engine::VERSION, ENGINE),
            block(counters::TYPE, counters::VERSION, COUNTERS),
        ];
        match offset {
            identity::MAGIC => 0x5644_4354,
            identity::REVISION => VERSION,
            identity::PIPES => 0x0202,
            identity::CLOCK => 250,
            identity::NEXTHOPS => self.sizes.nexthops,
            identity::NEXTHOPS_ON_CHIP => self.sizes.nexthops_on_chip,
            identity::FLOW_BUCKETS => self.sizes.flow_buckets,
            identity::BRIDGE_LINES => self.sizes.bridge_lines,
            identity::ROUTE6_LINES => self.sizes.route6_lines,
            identity::FLOW_COUNTERS => self.sizes.flow_counters,
            identity::FLOWS_SEEN => self.sizes.flows_seen,
            identity::STASH_FLOWS => self.sizes.stash_flows,
            identity::SCRATCH => self.scratch,
            identity::BLOCKS => directory.len() as u32,
            identity::DIRECTORY.. if offset < identity::DIRECTORY + 64 => {
                directory.get((offset - identity::DIRECTORY) as usize / 4).copied().unwrap_or_default()
            }
            _ if offset == COMMAND + command::DONE => self.done,
            _ if offset == ENGINE + engine::MEMORY_ERRORS => self.errors.get(),
            _ if offset & !0xfff == COUNTERS => self.counts.read(offset & 0xfff),
            _ => 0,
        }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        let (block, register) = (offset & !0xfff, offset & 0xfff);
        match (block, register) {
            (0, identity::SCRATCH) => self.scratch = value,
            (COMMAND, command::DATA..command::TABLE) => self.data[register as usize / 4] = value,
            (COMMAND, command::TABLE) => self.table = value,
            (COMMAND, command::ADDRESS) => self.address = value,
            (COMMAND, command::COMMAND) => self.run(value),
            (ENGINE, engine::ENABLE) => self.enabled = value & 1 != 0,
            (ENGINE, engine::GUEST_BUDGET) => self.budgets[0] = value,
            (ENGINE, engine::WIRE_BUDGET) => self.budgets[1] = value,
            (ENGINE, engine::BUDGET_REASON) => self.budget_reason = value as u8,
            (ENGINE, engine::SECRET..0x68) => {
                let word = (register - engine::SECRET) / 4;
                let (word, shift) = (&mut self.secret[word as usize / 2], 32 * (word % 2));
                *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
            }
            (COUNTERS, _) => self.counts.write(register, value),
            _ => {}
        }
    }
}
