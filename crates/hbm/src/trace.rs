//! Commands as the controller sent them, for a checker of the timing rules.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Time in tCK since the start. For a command of several cycles, the last one counts.
    pub at: u64,
    pub kind: Kind,
}

/// A kind of command, with its bank and row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Opens a row.
    Activate { bank: u8, row: u32 },
    /// Closes the bank's row.
    Precharge { bank: u8 },
    /// Reads a burst of the open row; `close` precharges the bank after it.
    Read { bank: u8, close: bool },
    /// Writes a burst to the open row; `close` precharges the bank after it.
    Write { bank: u8, close: bool },
    /// Refreshes the banks whose bits are set: all of them, or one.
    Refresh { banks: u16 },
}
