//! Writing the card's tables: the command block, and a few other registers.

use crate::budget::Budgets;
use crate::card::{Card, CardError, Identity};
use crate::registers::{Command, Table, command, counters, engine};
use model::DropReason;
use std::collections::HashSet;

/// How often to poll the card until it counts as hung: about a second over PCIe, where a read takes about 1 us and a
/// command less.
const POLLS: u32 = 1_000_000;

/// Most lines that one command clears: this takes tens of microseconds.
const CLEARED: u32 = 1024;

/// Set in `done` if HBM answered a write with an error.
const UNWRITTEN: u32 = 1 << 31;

/// Memory's error responses since reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryErrors {
    pub count: u32,
    /// The channels that gave them, one bit each.
    pub channels: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEvent {
    /// If there is an event, the flow with a counter that passed another eighth of its range.
    pub flow: Option<u32>,
    /// Whether counters of further flows may have passed an eighth: there were more events than the card keeps.
    pub lost: bool,
}

/// An open card: writes its tables, and reads its registers.
#[derive(Debug)]
pub struct Commands<C> {
    card: C,
    identity: Identity,
    polls: u32,
    /// The contents of the registers for table, address and data, where known. They are written only if they differ: a
    /// line mostly equals the one before.
    operands: [Option<u32>; 18],
    /// Number of commands begun since reset, as the card counts finished ones.
    begun: u32,
    /// The last command, if it may still run.
    running: Option<Command>,
    /// If memory was blank at the start, the lines that are no longer zero.
    written: Option<HashSet<(Table, u32)>>,
}

impl<C: Card> Commands<C> {
    /// Opens a card.
    ///
    /// # Errors
    /// If this driver can't drive it.
    pub fn open(mut card: C) -> Result<Self, CardError> {
        let identity = Identity::read(&mut card)?;
        let begun = done(card.read32(identity.command + command::DONE))?;
        Ok(Self { card, identity, polls: POLLS, operands: [None; 18], begun, running: None, written: None })
    }

    /// Sets how often to poll the card until it counts as hung.
    #[must_use]
    pub const fn with_polls(mut self, polls: u32) -> Self {
        self.polls = polls;
        self
    }

    /// Declares that the card's memory is all zeros, like a simulated one's. Lines of zeros are then written only over
    /// lines that were written before.
    #[must_use]
    pub fn with_blank_memory(mut self) -> Self {
        self.written = Some(HashSet::new());
        self
    }

    /// Returns whether the card's memory and counters were all zeros at the start.
    #[must_use]
    pub const fn is_blank(&self) -> bool {
        self.written.is_some()
    }

    /// Returns whether a line need not be written.
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

    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub const fn card(&mut self) -> &mut C {
        &mut self.card
    }

    #[must_use]
    pub fn into_card(self) -> C {
        self.card
    }

    /// Writes a line of a table: up to 64 bytes.
    ///
    /// # Errors
    /// If the card hangs, or its memory fails to write.
    pub fn write(&mut self, table: Table, address: u32, line: &[u8]) -> Result<(), CardError> {
        self.post(table, address, line)?;
        self.finish()
    }

    /// Begins to write a line. The next command begins after it.
    ///
    /// # Errors
    /// If the card hangs, or its memory fails to write.
    pub fn post(&mut self, table: Table, address: u32, line: &[u8]) -> Result<(), CardError> {
        debug_assert!(line.len() <= 64, "the command block has 16 data words");
        if self.is_there(table, address, line) {
            return Ok(());
        }
        self.begin_at(Command::Write, table, address, line)
    }

    /// Writes zeros to `count` lines of a table.
    ///
    /// # Errors
    /// If the card hangs, or its memory fails to write.
    pub fn clear(&mut self, table: Table, address: u32, lines: u32) -> Result<(), CardError> {
        let end = address + lines;
        if let Some(written) = &mut self.written {
            written.retain(|(of, line)| *of != table || !(address..end).contains(line));
        }
        for first in (address..end).step_by(CLEARED as usize) {
            let lines = CLEARED.min(end - first);
            self.begin_at(Command::Clear, table, first, &lines.to_le_bytes())?;
        }
        self.finish()
    }

    fn begin_at(
        &mut self,
        command: Command,
        table: Table,
        address: u32,
        data: &[u8],
    ) -> Result<(), CardError> {
        let block = self.identity.command;
        let words = data.chunks(4).map(|word| {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            u32::from_le_bytes(bytes)
        });
        let place = [(command::TABLE, table as u32), (command::ADDRESS, address)];
        let operands = place.into_iter().chain((command::DATA..).step_by(4).zip(words));
        for ((register, word), held) in operands.zip(&mut self.operands) {
            if held.replace(word) != Some(word) {
                self.card.write32(block + register, word);
            }
        }
        self.begin(command)
    }

    /// Waits until every packet sees all earlier writes, and every earlier packet has left.
    ///
    /// # Errors
    /// If the card hangs, or its memory fails to write.
    pub fn barrier(&mut self) -> Result<(), CardError> {
        self.begin(Command::Barrier)?;
        self.finish()
    }

    /// Sets whether the card forwards packets; otherwise all go to the host.
    pub fn enable(&mut self, on: bool) {
        self.card.write32(self.identity.engine + engine::ENABLE, on.into());
    }

    /// Sets how many packets ports may send to the host.
    pub fn set_budgets(&mut self, budgets: Budgets) {
        let engine = self.identity.engine;
        self.card.write32(engine + engine::BUDGET_REASON, DropReason::PuntBudget as u32);
        self.card.write32(engine + engine::GUEST_BUDGET, budgets.guest);
        self.card.write32(engine + engine::WIRE_BUDGET, budgets.wire);
    }

    /// Sets the secret of the tables' hash. The tables must be empty.
    pub fn set_secret(&mut self, secret: &[u64; 5]) {
        let words = secret.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        for (offset, word) in (self.identity.engine + engine::SECRET..).step_by(4).zip(words) {
            self.card.write32(offset, word);
        }
    }

    /// Reads the turns in which hold groups were last released ([`engine::RELEASED`]).
    pub fn released(&mut self) -> u32 {
        self.card.read32(self.identity.engine + engine::RELEASED)
    }

    /// Returns how many packets had to wait for a release, and how many were dropped because there was no room.
    pub fn held(&mut self) -> (u32, u32) {
        let block = self.identity.engine;
        (self.card.read32(block + engine::HELD), self.card.read32(block + engine::HOLD_FULL))
    }

    pub fn memory_errors(&mut self) -> MemoryErrors {
        let block = self.identity.engine;
        MemoryErrors {
            count: self.card.read32(block + engine::MEMORY_ERRORS),
            channels: self.card.read32(block + engine::FAILING_CHANNELS),
        }
    }

    /// Reads the counter of this kind ([`counters::SELECT`]) with this number.
    pub fn counter(&mut self, kind: u8, number: u32) -> u64 {
        let block = self.identity.counters;
        self.card.write32(block + counters::SELECT, u32::from(kind) << 24 | number & 0xff_ffff);
        let low = self.card.read32(block + counters::LOW);
        u64::from(self.card.read32(block + counters::HIGH)) << 32 | u64::from(low)
    }

    /// Takes the seen bits of the 64 flows from 64 times `word` on: returns and clears them.
    pub fn take_seen(&mut self, word: u32) -> u64 {
        let block = self.identity.counters;
        self.card.write32(block + counters::SEEN, word);
        let low = self.card.read32(block + counters::SEEN_LOW);
        u64::from(self.card.read32(block + counters::SEEN_HIGH)) << 32 | u64::from(low)
    }

    /// Takes the next event of flow counters.
    pub fn flow_event(&mut self) -> FlowEvent {
        let register = self.identity.counters + counters::FLOW_EVENT;
        self.card.write32(register, 1);
        let event = self.card.read32(register);
        FlowEvent { flow: (event >> 31 != 0).then_some(event & 0xff_ffff), lost: event >> 30 & 1 != 0 }
    }

    /// Begins a command once the last one is done.
    fn begin(&mut self, command: Command) -> Result<(), CardError> {
        self.finish()?;
        self.card.write32(self.identity.command + command::COMMAND, command as u32);
        self.begun = self.begun.wrapping_add(1) & !UNWRITTEN;
        self.running = Some(command);
        Ok(())
    }

    /// Waits for the end of the running command. The register `done` shows it; `busy` may not be set yet when it is
    /// first read.
    ///
    /// # Errors
    /// If the card hangs, or its memory fails to write.
    pub fn finish(&mut self) -> Result<(), CardError> {
        let Some(command) = self.running else { return Ok(()) };
        for poll in 0..self.polls {
            if done(self.card.read32(self.identity.command + command::DONE))? == self.begun {
                self.running = None;
                return Ok(());
            }
            // In a test, the thread that simulates the card may need this CPU.
            if poll % 64 == 63 {
                std::thread::yield_now();
            }
        }
        Err(CardError::Hangs { command: command.name(), polls: self.polls })
    }
}

/// Returns the number of finished commands, from the value of `done`. All ones mean that the card is gone; it then
/// counts as hung.
const fn done(register: u32) -> Result<u32, CardError> {
    if register & UNWRITTEN == 0 || register == u32::MAX { Ok(register) } else { Err(CardError::Unwritten) }
}
