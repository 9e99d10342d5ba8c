//! Two cards that are told the same: the simulated one and one made of memory.

use card::Card;
use card::expect::{Memory, Sizes};
use card::registers::identity;
use card::sim::SimCard;

/// Both.
pub struct Both {
    pub sim: SimCard,
    pub memory: Memory,
}

impl Both {
    pub fn new() -> Self {
        let mut sim = SimCard::new(hbm::Timing::hbm2());
        let sizes = Sizes {
            nexthops: sim.read32(identity::NEXTHOPS),
            flow_buckets: sim.read32(identity::FLOW_BUCKETS),
            bridge_lines: sim.read32(identity::BRIDGE_LINES),
            route6_lines: sim.read32(identity::ROUTE6_LINES),
            ..Sizes::default()
        };
        Self { sim, memory: Memory::new(sizes) }
    }
}

impl Card for Both {
    fn read32(&mut self, offset: u32) -> u32 {
        self.memory.read32(offset);
        self.sim.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.memory.write32(offset, value);
        self.sim.write32(offset, value);
    }
}
