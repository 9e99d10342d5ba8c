//! Two cards that get the same writes: the simulated one and one in memory.

use super::weather::Weather;
use crate::host::Known;
use card::expect::{Memory, Sizes};
use card::registers::{Command, Table, command, identity};
use card::sim::{Received, Sent, SimCard};
use card::{Card, Identity};
use std::collections::BTreeSet;

/// Number of pipes of each direction.
pub const PIPES: usize = if cfg!(feature = "card-sim-2x2") { 2 } else { 1 };
/// Number of pipes of both directions together, which is the number of inputs and of outputs. Guests' inputs and the
/// host's outputs come first.
pub const STREAMS: usize = 2 * PIPES;
/// Number of registers for data, table and address in the command block.
const WORDS: usize = 18;

/// The simulated card and the model of it, driven alike. Leaves out work that only costs clocks: registers are written
/// only if they change, and before the first packet, lines of tables in memory appear at once.
pub struct Both {
    sim: SimCard,
    memory: Memory,
    pub weather: Weather,
    block: u32,
    /// The values that the driver wrote to the command block.
    wanted: [u32; WORDS],
    /// The values that the simulated card has there.
    held: [Option<u32>; WORDS],
    /// Whether no packet has come since reset, so that no line is in a cache.
    fresh: bool,
    running: bool,
    done: u32,
    /// Number of commands that the simulated card did not need to execute.
    spared: u32,
    /// Lines of tables on chip that are not zero.
    chip: BTreeSet<(Table, u32)>,
}

impl Both {
    pub fn new() -> Self {
        let mut sim = sim();
        let sizes = Sizes {
            nexthops: sim.read32(identity::NEXTHOPS),
            nexthops_on_chip: sim.read32(identity::NEXTHOPS_ON_CHIP),
            flow_buckets: sim.read32(identity::FLOW_BUCKETS),
            bridge_lines: sim.read32(identity::BRIDGE_LINES),
            route6_lines: sim.read32(identity::ROUTE6_LINES),
            stash_flows: sim.read32(identity::STASH_FLOWS),
            ..Sizes::default()
        };
        Self {
            block: Identity::read(&mut sim).unwrap().command,
            sim,
            memory: Memory::new(sizes),
            weather: Weather::calm(),
            wanted: [0; WORDS],
            held: [None; WORDS],
            fresh: true,
            running: false,
            done: 0,
            spared: 0,
            chip: BTreeSet::new(),
        }
    }

    /// Resets the cards. They are like new ones, except for their counters and the lines on chip that are yet to be
    /// cleared, which are returned.
    pub fn reset(mut self) -> (Self, BTreeSet<(Table, u32)>) {
        self.sim.reset();
        let memory = Memory::new(*self.memory.sizes());
        let chip = std::mem::take(&mut self.chip);
        let same = Self { memory, weather: Weather::calm(), held: [None; WORDS], fresh: true, ..self };
        (Self { running: false, done: 0, spared: 0, ..same }, chip)
    }

    pub fn send(&mut self, input: usize, packet: Sent) {
        self.fresh = false;
        self.sim.send(input, packet);
    }

    pub fn receive(&mut self, output: usize) -> Option<Received> {
        self.sim.receive(output)
    }

    pub fn tick(&mut self) {
        self.weather.blow(&mut self.sim);
        self.sim.tick();
    }

    pub const fn sim(&mut self) -> &mut SimCard {
        &mut self.sim
    }

    /// Sets whether memory answers requests for a line in HBM with an error.
    pub fn fail(&mut self, table: Table, address: u32, fails: bool) {
        self.sim.fail(table, address, fails);
        self.memory.fail(table, address, fails);
    }

    fn command(&mut self, value: u32) {
        let (table, address) = (Table::ALL[self.wanted[WORDS - 2] as usize], self.wanted[WORDS - 1]);
        let in_memory = matches!(table, Table::Flow | Table::Bridge | Table::Route);
        let passing = table == Table::NexthopChange
            || table == Table::Nexthop && address >= self.memory.sizes().nexthops_on_chip;
        if value == Command::Write as u32 && passing {
            // A reset loses these.
        } else if value == Command::Write as u32 && !in_memory {
            let line = self.memory.line::<64>(table, address);
            let zero = line == [0; 64];
            if zero {
                self.chip.remove(&(table, address))
            } else {
                self.chip.insert((table, address))
            };
        } else if self.fresh {
            if value == Command::Write as u32 {
                self.sim.load(table, address, &self.memory.line(table, address));
            }
            self.spared = self.spared.wrapping_add(1);
            return;
        }
        for (offset, (wanted, held)) in (self.block..).step_by(4).zip(self.wanted.iter().zip(&mut self.held))
        {
            if held.replace(*wanted) != Some(*wanted) {
                self.sim.write32(offset, *wanted);
            }
        }
        self.running = true;
        self.sim.write32(self.block + command::COMMAND, value);
    }
}

#[cfg(feature = "card-sim-2x2")]
pub fn sim() -> SimCard {
    SimCard::new_2x2(hbm::Timing::hbm2())
}

#[cfg(not(feature = "card-sim-2x2"))]
pub fn sim() -> SimCard {
    SimCard::new(hbm::Timing::hbm2())
}

impl Known for Both {
    fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Card for Both {
    fn read32(&mut self, offset: u32) -> u32 {
        if offset != self.block + command::DONE {
            return self.sim.read32(offset);
        }
        if self.running {
            self.weather.blow(&mut self.sim);
            let done = self.sim.read32(offset);
            self.running = done == std::mem::replace(&mut self.done, done);
        }
        self.done.wrapping_add(self.spared)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.memory.write32(offset, value);
        match offset.wrapping_sub(self.block) {
            command::COMMAND => self.command(value),
            register if (register as usize) < 4 * WORDS => self.wanted[register as usize / 4] = value,
            _ => self.sim.write32(offset, value),
        }
    }
}
