//! The conditions that a card must bear: outputs that don't accept, inputs that pause, memory that stalls.

use super::both::STREAMS;
use card::sim::SimCard;
use model::generate::Rng;

/// Conditions at the card's inputs, outputs and memory.
pub struct Weather {
    rng: Rng,
    /// Chances that an input offers a beat, and that an output accepts one, in percent.
    pub offers: usize,
    pub takes: usize,
    /// Clocks in a thousand in which a memory channel stalls.
    pub stalls: usize,
}

impl Weather {
    pub const fn calm() -> Self {
        Self::new(0, 100, 100, 0)
    }

    pub const fn new(seed: u64, offers: usize, takes: usize, stalls: usize) -> Self {
        Self { rng: Rng::new(seed), offers, takes, stalls }
    }

    pub fn blow(&mut self, sim: &mut SimCard) {
        sim.set_offering(self.mask(self.offers));
        sim.set_taking(self.mask(self.takes));
        if self.rng.below(1000) < self.stalls {
            let channels = sim.memory();
            let which = self.rng.below(channels.len());
            channels[which].stall(1 + self.rng.below(150) as u32);
        }
    }

    fn mask(&mut self, likely: usize) -> u32 {
        (0..STREAMS).fold(0, |mask, bit| mask | u32::from(self.rng.percent(likely)) << bit)
    }
}
