//! Hold groups: flows that move onto the card together, and whose packets wait there until those that the host still
//! has have left.
//!
//! At an output, a group is released by one packet through each pipe, after what the host sent there. So nothing is
//! under way when its next turn begins, and no clock is needed in which it is neither released nor held.

use crate::registers::PuntMeta;
use std::collections::VecDeque;

/// Hold groups of a card.
pub const GROUPS: usize = 4;
/// Beats of 64 bytes for which a group has room at an output.
pub const RING: usize = 512;
/// From this number on, a flow's action is a hold, and forwards.
const ACTION: u8 = 8;

/// A hold group in one of its two turns: the group in bits 1:0, the turn in bit 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold(u8);

impl Hold {
    /// The hold in a flow's action.
    #[must_use]
    pub const fn of_action(action: u8) -> Option<Self> {
        if action & ACTION != 0 { Some(Self(action & 7)) } else { None }
    }

    /// The action of a flow that waits for its release.
    #[must_use]
    pub const fn action(self) -> u8 {
        ACTION | self.0
    }

    /// The group.
    #[must_use]
    pub const fn group(self) -> usize {
        (self.0 & 3) as usize
    }

    /// The group's turn.
    #[must_use]
    pub const fn turn(self) -> bool {
        self.0 & 4 != 0
    }

    /// What each pipe must be sent to release the group at an output.
    #[must_use]
    pub fn release(self, egress: u8) -> PuntMeta {
        PuntMeta { egress, release_hold: true, hold: self.0, ..PuntMeta::default() }
    }

    /// The hold that a packet from the host releases, if it does.
    #[must_use]
    pub fn of_release(meta: &PuntMeta) -> Option<Self> {
        meta.release_hold.then_some(Self(meta.hold))
    }

    /// Whether the group is released at the first `outputs` outputs, according to the card's turns
    /// ([`crate::registers::engine::RELEASED`]).
    #[must_use]
    pub fn is_released(self, turns: u32, outputs: usize) -> bool {
        (0..outputs).all(|output| (turns >> (GROUPS * output + self.group()) & 1 != 0) == self.turn())
    }

    const fn next_turn(self) -> Self {
        Self(self.0 ^ 4)
    }
}

/// The groups without flows, each in its next turn.
#[derive(Debug)]
pub struct Free(VecDeque<Hold>);

impl Default for Free {
    /// All: the card begins with the turns 0 released.
    fn default() -> Self {
        Self((0..GROUPS as u8).map(|group| Hold(group).next_turn()).collect())
    }
}

impl Free {
    /// Takes the one that was returned first.
    pub fn take(&mut self) -> Option<Hold> {
        self.0.pop_front()
    }

    /// Puts back one that no flow entered.
    pub fn put_back(&mut self, hold: Hold) {
        self.0.push_front(hold);
    }

    /// Returns one that was released.
    pub fn give_back(&mut self, hold: Hold) {
        self.0.push_back(hold.next_turn());
    }
}
