//! Flows whose packets wait on the card until those that the host still has have left.

use super::Driver;
use crate::frame::Key;
use crate::hold::Hold;
use crate::{Card, CardError};

impl<C: Card> Driver<C> {
    /// A hold group for flows that move onto the card together ([`Driver::decided_behind`]); `None` if all are in use.
    pub fn begin_hold(&mut self) -> Option<Hold> {
        self.groups.take()
    }

    /// Returns a group that no flow entered.
    pub fn cancel_hold(&mut self, hold: Hold) {
        self.groups.put_back(hold);
    }

    /// Whether a flow's packets wait for the group's release.
    pub fn is_held(&self, key: &Key, hold: Hold) -> bool {
        self.flows.is_held(key, hold)
    }

    /// Whether the group is released at all outputs.
    pub fn is_released(&mut self, hold: Hold) -> bool {
        let identity = self.commands.identity();
        let outputs = usize::from(identity.downstream) + usize::from(identity.upstream);
        hold.is_released(self.commands.released(), outputs)
    }

    /// The group is released: forwards those of these flows that are still in it, and makes the group available again.
    ///
    /// # Errors
    /// The card hangs.
    pub fn end_hold<'a>(
        &mut self,
        hold: Hold,
        keys: impl IntoIterator<Item = &'a Key>,
    ) -> Result<(), CardError> {
        for key in keys {
            let steps = self.flows.free(key, hold);
            self.run(&steps)?;
        }
        self.groups.give_back(hold);
        Ok(())
    }
}
