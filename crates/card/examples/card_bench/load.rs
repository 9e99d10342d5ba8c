//! The load that is sent: the packets' flows, sizes and rate.

use crate::shape::Shape;
use crate::world::{Direction, World};
use model::generate::Rng;

/// The flows to which packets belong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flows {
    /// Any flows through tunnels, to any output.
    Random,
    /// Flows through tunnels whose packets leave by the output with their pipe's number.
    Straight,
    /// Like `Straight`; the higher a flow's rank, the rarer it is: Zipf's law with exponent 1.
    Zipf,
    /// Like `Straight`, but only [`FEW`] for each pipe: a flow's next packet comes while others of it are on the card.
    Few,
    /// Any flows, also those between guests of this host.
    Mixed,
    /// One flow for each pipe, all through one nexthop.
    OnePerPipe,
    /// One flow, hence one pipe of each direction.
    One,
}

/// Sizes of guests' frames, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    All(usize),
    /// "Simple IMIX": of twelve frames, seven have 64 bytes, four 594 and one 1518, at random.
    Imix,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Updating {
    Nothing,
    /// Many changes together, at once through the engine's command block.
    Together,
    /// Flow by flow, by the driver, over PCIe.
    Driver,
}

#[derive(Clone, Copy)]
pub struct Load {
    pub down: bool,
    pub up: bool,
    pub shape: Shape,
    pub sizes: Sizes,
    pub flows: Flows,
    /// If set, packets arrive at random, at this fraction of the rate that the beats allow; otherwise as fast as the
    /// card takes them.
    pub part: Option<f64>,
    pub updating: Updating,
    /// Clocks at the start during which nothing is counted.
    pub warm: u64,
    pub clocks: u64,
}

impl Sizes {
    const IMIX: [usize; 12] = [64, 64, 64, 64, 64, 64, 64, 594, 594, 594, 594, 1518];

    /// Returns the size of a flow's packet with this number.
    pub fn of(self, flow: u32, number: u32) -> usize {
        match self {
            Self::All(size) => size,
            Self::Imix => {
                let any = (u64::from(flow) << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Self::IMIX[(any >> 32) as usize % Self::IMIX.len()]
            }
        }
    }

    /// Returns the mean of `of` over the sizes.
    pub fn mean(self, of: impl Fn(usize) -> usize) -> f64 {
        match self {
            Self::All(size) => of(size) as f64,
            Self::Imix => {
                Self::IMIX.iter().map(|size| of(*size) as f64).sum::<f64>() / Self::IMIX.len() as f64
            }
        }
    }
}

/// Number of flows of each pipe with [`Flows::Few`].
pub const FEW: u32 = 64;
/// Distance between numbers of flows that differ only in their pipe, and have the same nexthop.
const PIPE: u32 = 1 << 13;

/// Returns the pipe of a flow. On a real card, a hash of the flow selects the pipe.
pub fn pipe_of(flow: u32, pipes: usize) -> usize {
    (Shape::of(flow).1 / PIPE) as usize % pipes
}

pub struct Chooser {
    load: Load,
    pipes: usize,
    rng: Rng,
    /// For Zipf's law: for each rank, the sum of the weights of all ranks up to it.
    sums: Vec<f64>,
}

impl Chooser {
    pub fn new(load: Load, pipes: usize, world: &World) -> Self {
        let ranks = if load.flows == Flows::Zipf { world.count_of(load.shape) } else { 0 };
        let mut sum = 0.0;
        let sums = (1..=ranks).map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        });
        Self { load, pipes, rng: Rng::new(1), sums: sums.collect() }
    }

    /// Returns a random number from 0 to below 1.
    fn chance(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the clocks to the next arrival if arrivals are random: their distribution is exponential.
    pub fn gap(&mut self, part: f64) -> f64 {
        let shape = self.load.shape;
        -(1.0 - self.chance()).ln() * self.load.sizes.mean(|size| shape.beats(size)) / part
    }

    pub fn flow(&mut self, world: &World, pipe: usize, direction: Direction) -> u32 {
        let count = world.count_of(self.load.shape);
        loop {
            let number = match self.load.flows {
                Flows::One => 64 * 5,
                Flows::OnePerPipe => 64 * 5 + pipe as u32 * PIPE,
                Flows::Few => 64 + self.rng.below(FEW as usize) as u32 + pipe as u32 * PIPE,
                Flows::Zipf => {
                    let at = self.chance() * self.sums.last().copied().unwrap_or_default();
                    let rank = self.sums.partition_point(|sum| *sum <= at) as u32;
                    rank.wrapping_mul(0x9e37_79b1) % count
                }
                Flows::Random | Flows::Straight | Flows::Mixed => self.rng.below(count as usize) as u32,
            };
            let flow = self.load.shape.flow(number);
            let tunnel = !World::is_local(flow);
            let fits = match self.load.flows {
                Flows::Random => tunnel,
                Flows::Straight | Flows::Zipf | Flows::Few => {
                    tunnel && world.output(flow, direction) as usize % self.pipes == pipe
                }
                _ => true,
            };
            if fits && pipe_of(flow, self.pipes) == pipe {
                return flow;
            }
        }
    }
}
