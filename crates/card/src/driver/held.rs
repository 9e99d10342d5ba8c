//! Flows whose packets wait on the card until the host has sent the earlier ones.

use super::Driver;
use crate::frame::Key;
use crate::hold::Hold;
use crate::{Card, CardError};

impl<C: Card> Driver<C> {
    /// Takes a hold group for flows that move onto the card together ([`Driver::decided_behind`]); `None` if all are in
    /// use.
    pub fn begin_hold(&mut self) -> Option<Hold> {
        self.groups.take()
    }

    /// Returns a group that no flow has entered.
    pub fn cancel_hold(&mut self, hold: Hold) {
        self.groups.put_back(hold);
    }

    pub fn is_held(&self, key: &Key, hold: Hold) -> bool {
        self.flows.is_held(key, hold)
    }

    /// Returns whether the group is released at all outputs.
    pub fn is_released(&mut self, hold: Hold) -> bool {
        let identity = self.commands.identity();
        let outputs = usize::from(identity.downstream) + usize::from(identity.upstream);
        hold.is_released(self.commands.released(), outputs)
    }

    /// Ends a hold after the group's release: changes those of these flows that are still in it to plain forwarding,
    /// and makes the group available again.
    ///
    /// # Errors
    /// If the card hangs.
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
