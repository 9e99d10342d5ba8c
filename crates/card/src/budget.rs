//! How much of the host's work a port may cause.

/// Number of packets that a port may send to the host in a window of 2^18 clocks (about 1 ms at 250 MHz). The card
/// drops further ones, as [`model::DropReason::PuntBudget`]. 0 allows any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    pub guest: u32,
    /// For a wire; there are many hosts behind it.
    pub wire: u32,
}

impl Budgets {
    /// Allows any number of packets.
    pub const NONE: Self = Self { guest: 0, wire: 0 };
    /// For a simulated card, whose windows last for seconds. It must suffice for a guest that only the host serves, for
    /// example during a capture, but not for a flood of small packets.
    pub const SIMULATED: Self = Self { guest: 16_384, wire: 65_536 };
}

impl Default for Budgets {
    /// Allows about a million packets per second from a guest, which one core of the host can decide, and eight million
    /// from a wire.
    fn default() -> Self {
        Self { guest: 1024, wire: 8192 }
    }
}
