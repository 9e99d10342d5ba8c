//! Sets of rule slots, sparse by chunk.

pub(super) const CHUNK: usize = 512;
pub(super) const CHUNKS: usize = 256;

/// The slots of one chunk, a cache line.
pub(super) type Line = [u64; CHUNK / 64];

/// The chunks for which a set has lines.
pub(super) type Presence = [u64; CHUNKS / 64];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub chunk: u8,
    pub bit: u16,
}

/// A set of slots: a line for each chunk in which it has members.
#[derive(Clone, Default)]
pub(super) struct Lines {
    present: Presence,
    /// Number of lines before those of each word of `present`.
    before: [u8; CHUNKS / 64],
    lines: Vec<Line>,
}

impl Lines {
    fn rank(&self, chunk: u8) -> Result<usize, usize> {
        let (word, bit) = (usize::from(chunk / 64), chunk % 64);
        let below = u32::from(self.before[word]) + (self.present[word] & ((1 << bit) - 1)).count_ones();
        if self.present[word] >> bit & 1 == 1 { Ok(below as usize) } else { Err(below as usize) }
    }

    pub fn add(&mut self, slot: Slot) {
        let rank = self.rank(slot.chunk).unwrap_or_else(|rank| {
            self.present[usize::from(slot.chunk / 64)] |= 1 << (slot.chunk % 64);
            self.count();
            self.lines.reserve_exact(1);
            self.lines.insert(rank, Line::default());
            rank
        });
        self.lines[rank][usize::from(slot.bit / 64)] |= 1 << (slot.bit % 64);
    }

    pub fn remove(&mut self, slot: Slot) {
        let Ok(rank) = self.rank(slot.chunk) else { return };
        let line = &mut self.lines[rank];
        line[usize::from(slot.bit / 64)] &= !(1 << (slot.bit % 64));
        if *line == Line::default() {
            self.present[usize::from(slot.chunk / 64)] &= !(1 << (slot.chunk % 64));
            self.count();
            self.lines.remove(rank);
        }
    }

    fn count(&mut self) {
        for word in 1..self.present.len() {
            // Fewer than 256, because the last word is not counted.
            self.before[word] = self.before[word - 1] + self.present[word - 1].count_ones() as u8;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn present(&self) -> &Presence {
        &self.present
    }

    /// Adds this set's members in `chunk` to `line`.
    pub fn or_into(&self, chunk: u8, line: &mut Line) {
        if let Ok(rank) = self.rank(chunk) {
            line.iter_mut().zip(&self.lines[rank]).for_each(|(to, from)| *to |= from);
        }
    }
}
