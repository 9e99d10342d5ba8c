//! Two cards that are told the same: the engine in OpenNIC's box and one made of memory.

use crate::host::Host;
use crate::shell::Shell;
use card::Card;
use card::expect::{Memory, Sizes};
use card::registers::identity;
use model::VifId;

/// Both.
pub struct Both {
    pub sim: Shell,
    pub memory: Memory,
}

impl Both {
    pub fn new() -> Self {
        let mut sim = Shell::new();
        let sizes = Sizes {
            nexthops: sim.read32(identity::NEXTHOPS),
            flow_buckets: sim.read32(identity::FLOW_BUCKETS),
            bridge_lines: sim.read32(identity::BRIDGE_LINES),
            route6_lines: sim.read32(identity::ROUTE6_LINES),
            ..Sizes::default()
        };
        Self { sim, memory: Memory::new(sizes) }
    }

    /// Whether it is at the card: the box's one MAC port is the first wire.
    pub fn has(vif: VifId) -> bool {
        vif != VifId(2)
    }
}

impl Host {
    pub fn sim(&mut self) -> &mut Shell {
        &mut self.both().sim
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
