//! The card's counters: drops by reason, flows' packets and bytes, and seen bits.

use crate::registers::counters;
use std::collections::{HashMap, VecDeque};

/// Kinds of counters ([`counters::SELECT`]).
const DROPS: u32 = 5;
const FLOW_PACKETS: u32 = 6;
/// Bits of a flow's counters: for packets, for bytes.
const WIDTHS: [u32; 2] = [36, 44];
/// Most events to keep.
const EVENTS: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Counts by kind (bits 31:24) and number.
    counted: HashMap<u32, u64>,
    seen: HashMap<u32, u64>,
    events: VecDeque<u32>,
    lost: bool,
    /// Values that registers show.
    value: u64,
    taken: u64,
    event: u32,
}

impl Counts {
    pub fn drop(&mut self, reason: u8) {
        *self.counted.entry(DROPS << 24 | u32::from(reason)).or_default() += 1;
    }

    /// Counts packets of a flow, in total fewer than an eighth of the counters' range.
    pub fn flow(&mut self, index: u32, flows: u32, packets: u64, bytes: u64) {
        *self.seen.entry(index / 64).or_default() |= 1 << (index % 64);
        if index >= flows {
            return;
        }
        let mut passed = 0;
        for (kind, (width, more)) in (0..).zip(WIDTHS.into_iter().zip([packets, bytes])) {
            let count = self.counted.entry((FLOW_PACKETS + kind) << 24 | index).or_default();
            let sum = *count + more;
            passed |= u32::from(sum >> (width - 3) != *count >> (width - 3)) << kind;
            *count = sum & ((1 << width) - 1);
        }
        match self.events.len() {
            _ if passed == 0 => {}
            EVENTS.. => self.lost = true,
            _ => self.events.push_back(1 << 31 | passed << 24 | index),
        }
    }

    pub const fn read(&self, register: u32) -> u32 {
        match register {
            counters::LOW => self.value as u32,
            counters::HIGH => (self.value >> 32) as u32,
            counters::SEEN_LOW => self.taken as u32,
            counters::SEEN_HIGH => (self.taken >> 32) as u32,
            counters::FLOW_EVENT => self.event,
            _ => 0,
        }
    }

    pub fn write(&mut self, register: u32, value: u32) {
        match register {
            counters::SELECT => self.value = self.counted.get(&value).copied().unwrap_or_default(),
            counters::SEEN => self.taken = self.seen.remove(&value).unwrap_or_default(),
            counters::FLOW_EVENT => {
                let lost = u32::from(std::mem::take(&mut self.lost));
                self.event = self.events.pop_front().unwrap_or_default() | lost << 30;
            }
            _ => {}
        }
    }
}
