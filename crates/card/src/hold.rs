//! Hold groups: flows that move onto the card together. Their packets wait on the card until the host has sent the
//! flows' earlier packets.
//!
//! At an output, a group is released by one packet through each pipe, after everything that the host sent there. So no
//! packet of the group is under way when its next turn begins, and the group can be held again at once.

use crate::registers::PuntMeta;
use std::collections::VecDeque;

/// Number of hold groups of a card.
pub const GROUPS: usize = 4;
/// Beats of 64 bytes for which a group has room at an output.
pub const RING: usize = 512;
/// Flow actions from this number on hold the packets of a flow that is forwarded.
const ACTION: u8 = 8;

/// A hold group in one of its two turns: the group in bits 1:0, the turn in bit 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold(u8);

impl Hold {
    /// Returns the hold in a flow's action.
    #[must_use]
    pub const fn of_action(action: u8) -> Option<Self> {
        if action & ACTION != 0 { Some(Self(action & 7)) } else { None }
    }

    /// Returns the action of a flow that waits for the release of this hold.
    #[must_use]
    pub const fn action(self) -> u8 {
        ACTION | self.0
    }

    #[must_use]
    pub const fn group(self) -> usize {
        (self.0 & 3) as usize
    }

    #[must_use]
    pub const fn turn(self) -> bool {
        self.0 & 4 != 0
    }

    /// Returns the packet that releases the group at an output; each pipe must be sent one.
    #[must_use]
    pub fn release(self, egress: u8) -> PuntMeta {
        PuntMeta { egress, release_hold: true, hold: self.0, ..PuntMeta::default() }
    }

    /// Returns the hold that a packet from the host releases, if it is a release.
    #[must_use]
    pub fn of_release(meta: &PuntMeta) -> Option<Self> {
        meta.release_hold.then_some(Self(meta.hold))
    }

    /// Returns whether the group is released at the first `outputs` outputs, according to the card's turns
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
    /// Starts with all groups, in their second turns: the card begins with the first turns released.
    fn default() -> Self {
        Self((0..GROUPS as u8).map(|group| Hold(group).next_turn()).collect())
    }
}

impl Free {
    /// Takes the group that was returned first.
    pub fn take(&mut self) -> Option<Hold> {
        self.0.pop_front()
    }

    /// Puts back a group that no flow has entered. It keeps its turn.
    pub fn put_back(&mut self, hold: Hold) {
        self.0.push_front(hold);
    }

    /// Returns a group that was released. Its next turn begins.
    pub fn give_back(&mut self, hold: Hold) {
        self.0.push_back(hold.next_turn());
    }
}
