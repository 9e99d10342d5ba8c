//! What is sent: packets of which flows, of which sizes, how fast.

use crate::shape::Shape;
use crate::world::{Direction, World};
use model::generate::Rng;

/// Which flows packets are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flows {
    /// Any through tunnels, to any output.
    Random,
    /// Those whose packets leave by the output with their pipe's number.
    Straight,
    /// Of these any, the more seldom the higher its rank: Zipf's law with exponent 1.
    Zipf,
    /// Of these [`FEW`] for each pipe, so that a flow's next packet comes while others of it are on the card.
    Few,
    /// Any.
    Mixed,
    /// One for each pipe, all through one nexthop.
    OnePerPipe,
    /// One, hence one pipe of each direction.
    One,
}

/// Guests' frames, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// All alike.
    All(usize),
    /// "Simple IMIX": of twelve frames seven of 64, four of 594, one of 1518, by chance.
    Imix,
}

/// How the tables are updated meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Updating {
    Nothing,
    /// Many changes made together, by the engine's command block at once.
    Together,
    /// Flow by flow, by the driver, over PCIe.
    Driver,
}

/// What is sent.
#[derive(Clone, Copy)]
pub struct Load {
    pub down: bool,
    pub up: bool,
    pub shape: Shape,
    pub sizes: Sizes,
    pub flows: Flows,
    /// Arrivals by chance, as this part of what the beats allow; else as fast as the card takes them.
    pub part: Option<f64>,
    pub updating: Updating,
    /// Clocks before which nothing is counted.
    pub warm: u64,
    pub clocks: u64,
}

impl Sizes {
    const IMIX: [usize; 12] = [64, 64, 64, 64, 64, 64, 64, 594, 594, 594, 594, 1518];

    /// The size of a flow's packet with this number.
    pub fn of(self, flow: u32, number: u32) -> usize {
        match self {
            Self::All(size) => size,
            Self::Imix => {
                let any = (u64::from(flow) << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Self::IMIX[(any >> 32) as usize % Self::IMIX.len()]
            }
        }
    }

    /// The mean of what a packet's size says.
    pub fn mean(self, of: impl Fn(usize) -> usize) -> f64 {
        match self {
            Self::All(size) => of(size) as f64,
            Self::Imix => {
                Self::IMIX.iter().map(|size| of(*size) as f64).sum::<f64>() / Self::IMIX.len() as f64
            }
        }
    }
}

/// Flows of each pipe where there are few.
pub const FEW: u32 = 64;
/// Flows that differ by this alone are of other pipes, and have the same nexthop.
const PIPE: u32 = 1 << 13;

/// The pipe of a flow, as its hash would say it.
pub fn pipe_of(flow: u32, pipes: usize) -> usize {
    (Shape::of(flow).1 / PIPE) as usize % pipes
}

/// Chooses flows.
pub struct Chooser {
    load: Load,
    pipes: usize,
    rng: Rng,
    /// Of Zipf's law: the sum of what belongs to all ranks up to each.
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

    /// A number from 0 up to 1.
    fn chance(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Clocks to the next arrival where that is by chance: exponential.
    pub fn gap(&mut self, part: f64) -> f64 {
        let shape = self.load.shape;
        -(1.0 - self.chance()).ln() * self.load.sizes.mean(|size| shape.beats(size)) / part
    }

    /// A flow of a pipe.
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
