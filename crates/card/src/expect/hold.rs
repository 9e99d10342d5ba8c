//! What waits before an output of the card, as in `rtl/pipe/hold.sv`.

use crate::hold::{GROUPS, Hold};

/// The packets that wait before an output.
#[derive(Clone, Debug)]
pub struct Holding<T> {
    /// Beats for which a group has room.
    room: usize,
    /// Releases that make one.
    releases: usize,
    /// The turns released last.
    turns: [bool; GROUPS],
    released: [usize; GROUPS],
    /// Beats in the rings, and their packets.
    rings: [(usize, Vec<T>); GROUPS],
    /// Packets that had to wait.
    pub kept: u32,
    /// Packets that were dropped.
    pub full: u32,
}

impl<T> Holding<T> {
    /// Empty. A group has room for `room` beats, and `releases` packets release it.
    #[must_use]
    pub fn new(room: usize, releases: usize) -> Self {
        let rings = std::array::from_fn(|_| (0, Vec::new()));
        Self { room, releases, turns: [false; GROUPS], released: [0; GROUPS], rings, kept: 0, full: 0 }
    }

    /// A packet of `beats` beats arrives; returned if it need not wait.
    pub fn pass(&mut self, hold: Option<Hold>, beats: usize, packet: T) -> Option<T> {
        let Some(hold) = hold.filter(|hold| self.turns[hold.group()] != hold.turn()) else {
            return Some(packet);
        };
        let (level, ring) = &mut self.rings[hold.group()];
        if *level + beats > self.room {
            self.full += 1;
            return None;
        }
        *level += beats;
        ring.push(packet);
        self.kept += 1;
        None
    }

    /// A release arrives; returns the packets that leave.
    pub fn release(&mut self, hold: Hold) -> Vec<T> {
        let group = hold.group();
        self.released[group] += 1;
        if self.released[group] < self.releases {
            return Vec::new();
        }
        self.released[group] = 0;
        self.turns[group] = hold.turn();
        std::mem::take(&mut self.rings[group]).1
    }

    /// The turns that were released last, one bit each.
    #[must_use]
    pub fn turns(&self) -> u32 {
        (0..GROUPS).fold(0, |turns, group| turns | u32::from(self.turns[group]) << group)
    }
}
