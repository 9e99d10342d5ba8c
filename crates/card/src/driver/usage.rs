//! The use of flows: the number of packets, for flows with counters; whether there were any, for others.

use super::Driver;
use crate::Card;
use crate::commands::Commands;
use crate::frame::Key;
use std::collections::HashMap;

/// Kinds of counters ([`crate::registers::counters::SELECT`]).
const FLOW_PACKETS: u8 = 6;
const FLOW_BYTES: u8 = 7;
/// Largest counts of packets and of bytes before counters wrap around.
const PACKETS: u64 = (1 << 36) - 1;
const BYTES: u64 = (1 << 44) - 1;

/// The packets of a flow since the last query, or since it is on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Exact counts.
    Counted { packets: u64, bytes: u64 },
    /// For a flow without counters, whether there were packets.
    Seen(bool),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counter {
    pub index: u32,
    /// The values of the card's counters when they were last read: packets and bytes.
    pub last: (u64, u64),
    /// Packets and bytes that were counted until then and not queried yet.
    pub more: (u64, u64),
}

impl Counter {
    /// Takes new values of the card's counters, which may have wrapped around once since the last time.
    const fn follow(&mut self, now: (u64, u64)) {
        self.more.0 += now.0.wrapping_sub(self.last.0) & PACKETS;
        self.more.1 += now.1.wrapping_sub(self.last.1) & BYTES;
        self.last = now;
    }
}

/// Seen bits that were taken from the card together with others of their word, and not queried yet.
#[derive(Debug, Default)]
pub struct Seen {
    words: HashMap<u32, u64>,
}

impl Seen {
    /// Returns whether packets of a flow arrived since the last query.
    pub fn take<C: Card>(&mut self, commands: &mut Commands<C>, index: u32) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        let bits = self.words.remove(&word).unwrap_or_default() | commands.take_seen(word);
        if bits & !bit != 0 {
            self.words.insert(word, bits & !bit);
        }
        bits & bit != 0
    }
}

impl<C: Card> Driver<C> {
    /// Returns the use of a flow since the last query; `None` if it isn't on the card.
    pub fn usage(&mut self, key: &Key) -> Option<Usage> {
        let index = self.flows.counter(key)?.index;
        if !self.flows.is_counted(key) {
            return Some(Usage::Seen(self.seen.take(&mut self.commands, index)));
        }
        let (packets, bytes) = std::mem::take(&mut self.read(key)?.more);
        Some(Usage::Counted { packets, bytes })
    }

    fn read(&mut self, key: &Key) -> Option<&mut Counter> {
        let index = self.flows.counter(key)?.index;
        let now = self.count(index);
        let counter = self.flows.counter(key)?;
        counter.follow(now);
        Some(counter)
    }

    pub fn is_counted(&self, key: &Key) -> bool {
        self.flows.is_counted(key)
    }

    /// Makes the counter of a new flow.
    pub(super) fn begin(&mut self, index: u32, used: bool) -> Counter {
        if index >= self.commands.identity().flow_counters {
            self.seen.take(&mut self.commands, index);
            return Counter { index, ..Counter::default() };
        }
        let fresh = !used && self.commands.is_blank();
        Counter { index, last: if fresh { (0, 0) } else { self.count(index) }, more: (0, 0) }
    }

    /// Reads up to `most` counters that advanced by an eighth of their range since they were last read, so that none
    /// wraps around twice in between. Call it every few seconds: the fastest counter takes a minute for half of its
    /// range.
    pub fn follow_counters(&mut self, most: usize) {
        for _ in 0..most {
            let event = self.commands.flow_event();
            if event.lost {
                for key in self.flows.counted() {
                    self.read(&key);
                }
            }
            let Some(index) = event.flow else { return };
            if let Some(key) = self.flows.owner(index) {
                self.read(&key);
            }
        }
    }

    fn count(&mut self, index: u32) -> (u64, u64) {
        (self.commands.counter(FLOW_PACKETS, index), self.commands.counter(FLOW_BYTES, index))
    }
}
