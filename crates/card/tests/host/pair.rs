//! Two cards that get the same writes: a simulated one and a model in memory.

use super::Known;
use card::Card;
use card::expect::{Memory, Sizes};
use card::registers::identity;

/// The simulated card and the model of it. Reads come from the simulated card.
pub struct Pair<C> {
    pub sim: C,
    pub memory: Memory,
}

impl<C: Card> Pair<C> {
    /// Makes a pair of the simulated card, just out of reset, and a model of the same size.
    pub fn of(mut sim: C) -> Self {
        let sizes = Sizes {
            nexthops: sim.read32(identity::NEXTHOPS),
            flow_buckets: sim.read32(identity::FLOW_BUCKETS),
            bridge_lines: sim.read32(identity::BRIDGE_LINES),
            route6_lines: sim.read32(identity::ROUTE6_LINES),
            stash_flows: sim.read32(identity::STASH_FLOWS),
            ..Sizes::default()
        };
        Self { sim, memory: Memory::new(sizes) }
    }
}

impl<C: Card> Known for Pair<C> {
    fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl<C: Card> Card for Pair<C> {
    fn read32(&mut self, offset: u32) -> u32 {
        self.memory.read32(offset);
        self.sim.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.memory.write32(offset, value);
        self.sim.write32(offset, value);
    }
}
