//! Why a card is given up.

use card::CardError;

/// The reason why the card can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The driver can't use it.
    #[error(transparent)]
    Driver(#[from] CardError),
    /// Packets went in, and none comes out.
    #[error("the card hangs: {inside} packets are inside, and none came out in {clocks} clocks")]
    Silent {
        inside: u64,
        /// How many clocks the carrier waited for them.
        clocks: u32,
    },
}
