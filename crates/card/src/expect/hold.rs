//! The packets that wait before an output of the card, as in `rtl/pipe/hold.sv`.

use crate::hold::{GROUPS, Hold};

#[derive(Clone, Debug)]
pub struct Holding<T> {
    /// Beats for which a group has room.
    room: usize,
    /// Number of release packets that release a group.
    releases: usize,
    /// The turn in which each group was last released.
    turns: [bool; GROUPS],
    released: [usize; GROUPS],
    /// For each group, the number of waiting beats, and their packets.
    rings: [(usize, Vec<T>); GROUPS],
    /// Number of packets that had to wait.
    pub kept: u32,
    /// Number of packets that were dropped for lack of room.
    pub full: u32,
}

impl<T> Holding<T> {
    /// Starts empty. A group has room for `room` beats, and is released by `releases` packets.
    #[must_use]
    pub fn new(room: usize, releases: usize) -> Self {
        let rings = std::array::from_fn(|_| (0, Vec::new()));
        Self { room, releases, turns: [false; GROUPS], released: [0; GROUPS], rings, kept: 0, full: 0 }
    }

    /// Takes a packet of `beats` beats. Returns it if it need not wait.
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

    /// Takes a release. Returns the packets that leave.
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

    /// Returns the turns in which groups were last released, one bit each.
    #[must_use]
    pub fn turns(&self) -> u32 {
        (0..GROUPS).fold(0, |turns, group| turns | u32::from(self.turns[group]) << group)
    }
}
