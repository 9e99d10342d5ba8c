//! Hold groups: flows that go onto the card at once, and whose packets wait there until what the host still has of
//! them is in front.
//!
//! A group is released at an output by a packet through each pipe, behind what the host sent there. So nothing is
//! under way when its next turn begins, and no clock is needed in which it is neither released nor not.

use crate::registers::PuntMeta;
use std::collections::VecDeque;

/// Hold groups of a card.
pub const GROUPS: usize = 4;
/// Beats of 64 bytes that a group has room for at an output.
pub const RING: usize = 512;
/// From here on a flow's action is a hold, and forwards.
const ACTION: u8 = 8;

/// A hold group in one of its two turns: the group in bits 1:0, the turn in bit 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold(u8);

impl Hold {
    /// What a flow's action says.
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

    /// Which of the group's turns.
    #[must_use]
    pub const fn turn(self) -> bool {
        self.0 & 4 != 0
    }

    /// What each pipe is to be sent so that the group is released at an output.
    #[must_use]
    pub fn release(self, egress: u8) -> PuntMeta {
        PuntMeta { egress, release_hold: true, hold: self.0, ..PuntMeta::default() }
    }

    /// What a packet from the host releases, if it does.
    #[must_use]
    pub fn of_release(meta: &PuntMeta) -> Option<Self> {
        meta.release_hold.then_some(Self(meta.hold))
    }

    /// Whether the group is released at the first `outputs`, by the turns that the card tells
    /// ([`crate::registers::engine::RELEASED`]).
    #[must_use]
    pub fn is_released(self, turns: u32, outputs: usize) -> bool {
        (0..outputs).all(|output| (turns >> (GROUPS * output + self.group()) & 1 != 0) == self.turn())
    }

    const fn next_turn(self) -> Self {
        Self(self.0 ^ 4)
    }
}

/// The groups that no flow is in, each in its next turn.
#[derive(Debug)]
pub struct Free(VecDeque<Hold>);

impl Default for Free {
    /// All: the card begins with the turns 0 released.
    fn default() -> Self {
        Self((0..GROUPS as u8).map(|group| Hold(group).next_turn()).collect())
    }
}

impl Free {
    /// Takes the one that was given back first.
    pub fn take(&mut self) -> Option<Hold> {
        self.0.pop_front()
    }

    /// Puts one back that no flow was in.
    pub fn put_back(&mut self, hold: Hold) {
        self.0.push_front(hold);
    }

    /// Gives one back that was released.
    pub fn give_back(&mut self, hold: Hold) {
        self.0.push_back(hold.next_turn());
    }
}
