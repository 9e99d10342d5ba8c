//! Writing the card's tables: the command block, and the few registers beside it.

use crate::card::{Card, CardError, Identity};
use crate::registers::{Command, Table, command, counters, engine};
use std::collections::HashSet;

/// How often the card is asked whether it is done before it is given up: about a second over PCIe, where a read takes
/// about 1 us and a command less than that.
const POLLS: u32 = 1_000_000;

/// A card that was opened.
#[derive(Debug)]
pub struct Commands<C> {
    card: C,
    identity: Identity,
    polls: u32,
    /// What the data words hold, where that is known: most of a line is as the one before.
    data: [Option<u32>; 16],
    /// Of a blank memory, the lines that are not zeros any more.
    written: Option<HashSet<(Table, u32)>>,
}

impl<C: Card> Commands<C> {
    /// Opens a card.
    ///
    /// # Errors
    /// Why this driver can't drive it.
    pub fn open(mut card: C) -> Result<Self, CardError> {
        let identity = Identity::read(&mut card)?;
        Ok(Self { card, identity, polls: POLLS, data: [None; 16], written: None })
    }

    /// Asks the card this often before giving it up.
    #[must_use]
    pub const fn with_polls(mut self, polls: u32) -> Self {
        self.polls = polls;
        self
    }

    /// The card's memory is all zeros, as a simulated one's: lines of zeros are written only where something else was.
    #[must_use]
    pub fn with_blank_memory(mut self) -> Self {
        self.written = Some(HashSet::new());
        self
    }

    /// Whether a line need not be written.
    fn is_there(&mut self, table: Table, address: u32, line: &[u8]) -> bool {
        let Some(written) = &mut self.written else { return false };
        if !matches!(table, Table::Flow | Table::Bridge | Table::Route) {
            return false;
        }
        if line.iter().any(|byte| *byte != 0) {
            written.insert((table, address));
            return false;
        }
        !written.remove(&(table, address))
    }

    /// What the card is.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The card itself.
    pub const fn card(&mut self) -> &mut C {
        &mut self.card
    }

    /// Gives the card back.
    #[must_use]
    pub fn into_card(self) -> C {
        self.card
    }

    /// Writes a line of a table: up to 64 bytes.
    ///
    /// # Errors
    /// The card hangs.
    pub fn write(&mut self, table: Table, address: u32, line: &[u8]) -> Result<(), CardError> {
        debug_assert!(line.len() <= 64, "the command block has 16 data words");
        if self.is_there(table, address, line) {
            return Ok(());
        }
        let block = self.identity.command;
        let held = (block + command::DATA..).step_by(4).zip(&mut self.data);
        for ((offset, held), word) in held.zip(line.chunks(4)) {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            let word = u32::from_le_bytes(bytes);
            if held.replace(word) != Some(word) {
                self.card.write32(offset, word);
            }
        }
        self.card.write32(block + command::TABLE, table as u32);
        self.card.write32(block + command::ADDRESS, address);
        self.run(Command::Write)
    }

    /// Waits until every packet sees what was written, and every earlier packet has left.
    ///
    /// # Errors
    /// The card hangs.
    pub fn barrier(&mut self) -> Result<(), CardError> {
        self.run(Command::Barrier)
    }

    /// Whether packets are forwarded; else all go to the host.
    pub fn enable(&mut self, on: bool) {
        self.card.write32(self.identity.engine + engine::ENABLE, on.into());
    }

    /// Sets the secret of the tables' hash; while they are empty.
    pub fn set_secret(&mut self, secret: &[u64; 5]) {
        let words = secret.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        for (offset, word) in (self.identity.engine + engine::SECRET..).step_by(4).zip(words) {
            self.card.write32(offset, word);
        }
    }

    /// The turns in which hold groups were released last ([`engine::RELEASED`]).
    pub fn released(&mut self) -> u32 {
        self.card.read32(self.identity.engine + engine::RELEASED)
    }

    /// Packets that had to wait for a release, and those dropped as there was no room.
    pub fn held(&mut self) -> (u32, u32) {
        let block = self.identity.engine;
        (self.card.read32(block + engine::HELD), self.card.read32(block + engine::HOLD_FULL))
    }

    /// Reads a counter.
    pub fn counter(&mut self, kind: u8, number: u32) -> u64 {
        let block = self.identity.counters;
        self.card.write32(block + counters::SELECT, u32::from(kind) << 24 | number & 0xff_ffff);
        let low = self.card.read32(block + counters::LOW);
        u64::from(self.card.read32(block + counters::HIGH)) << 32 | u64::from(low)
    }

    /// `done` tells the end of a command: `busy` may not be set yet when it is read first.
    fn run(&mut self, command: Command) -> Result<(), CardError> {
        let block = self.identity.command;
        let before = self.card.read32(block + command::DONE);
        self.card.write32(block + command::COMMAND, command as u32);
        for poll in 0..self.polls {
            if self.card.read32(block + command::DONE) != before {
                return Ok(());
            }
            // Who plays the card in a test may need this CPU.
            if poll % 64 == 63 {
                std::thread::yield_now();
            }
        }
        Err(CardError::Hangs { command: command.name(), polls: self.polls })
    }
}
