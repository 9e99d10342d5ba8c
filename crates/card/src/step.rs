//! What the driver does to the card's memory, one thing after the other.
use crate::registers::Table;

/// Bytes of a line, the most that is written at once: a reader sees all of a write or nothing.
pub const LINE: usize = 32;

/// A line of the card's memory.
pub type Line = [u8; LINE];

/// What the shadow of a table yields: done in this order, look-ups give at every moment what was right before or is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a line.
    Write {
        /// Of this table.
        table: Table,
        /// Which line of it.
        address: u32,
        /// What it holds from then on.
        data: Line,
    },
    /// Wait until every look-up that began before has ended ([`crate::registers::Command::Barrier`]).
    Barrier,
}
