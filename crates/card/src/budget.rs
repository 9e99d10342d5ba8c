//! How much of the host a port may take up.

/// Packets that a port may send to the host in a window of 2^18 clocks (about 1 ms at 250 MHz); what is beyond the card
/// drops, as [`model::DropReason::PuntBudget`]. 0: any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Of a guest.
    pub guest: u32,
    /// Of a wire, behind which are many hosts.
    pub wire: u32,
}

impl Budgets {
    /// Any number of packets.
    pub const NONE: Self = Self { guest: 0, wire: 0 };
    /// Of a simulated card, whose windows last for seconds: a guest that the host serves alone, as while there is a
    /// capture, must get along with it, and a flood of small packets must not.
    pub const SIMULATED: Self = Self { guest: 16_384, wire: 65_536 };
}

impl Default for Budgets {
    /// About a million packets a second of a guest, which a core of the host decides, and eight million of a wire.
    fn default() -> Self {
        Self { guest: 1024, wire: 8192 }
    }
}
