//! Random tables and packets for them, for property and differential tests of every executor.
//!
//! Everything follows from a seed, so one number describes a failure.

mod ovs;
mod packets;
mod tables;

pub use ovs::{
    OVS_PORTS, UNDERLAY, ovs_change, ovs_neighbours, ovs_packet, ovs_ports, ruled_ovs_ports,
    tunnelled_ovs_packet, tunnelled_ovs_ports,
};
pub use packets::{Packet, packet, warm_up};
pub use tables::tables;

/// A pseudo-random generator (SplitMix64): small, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns a generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub const fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next_u64() % end as u64) as usize }
    }

    /// Returns true with a probability of `n` per cent.
    pub const fn percent(&mut self, n: usize) -> bool {
        self.below(100) < n
    }

    /// Returns one of `values`, which must not be empty.
    pub fn one<V: Clone>(&mut self, values: &[V]) -> V {
        values[self.below(values.len())].clone()
    }
}
