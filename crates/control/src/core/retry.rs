//! Tries again to open ports that could not be opened.

use super::opening::Opening;
use super::{Core, Error, State, View};
use crate::ports::PortSpec;
use std::sync::PoisonError;
use std::time::Instant;

impl Core {
    /// Tries again to open ports that have a fault and are due. With `devices`, network devices changed, so
    /// all of these are due.
    ///
    /// # Errors
    /// As for [`Self::refresh`].
    pub fn retry(&self, devices: bool) -> Result<(), Error> {
        if self.is_leaving() {
            return Ok(());
        }
        let _retrying = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let faults = self.due(now, devices);
        let is_due = devices || !faults.is_empty();
        let mut opening = Opening::new(self.ports.clone());
        for spec in faults {
            let Some(_claimed) = self.claims.take_one(&spec) else { continue };
            // Without the lock, because it may take long.
            let opened = opening.open(&spec);
            let mut state = self.lock();
            let state = &mut *state;
            let vif = state.ids.vif(&spec.name);
            if let Some(slot) = state.slots.get_mut(&spec.name).filter(|slot| slot.spec == spec) {
                slot.tried(&*self.ports, opened, vif);
            }
            self.publish(View::new(state, self.executor.clone(), self.started));
        }
        if is_due { self.refresh() } else { Ok(()) }
    }

    /// Returns ports that are due, after taking the results of attempts that were late and have ended.
    fn due(&self, now: Instant, devices: bool) -> Vec<PortSpec> {
        let mut state = self.lock();
        let State { slots, ids, .. } = &mut *state;
        let (mut due, mut was_late) = (Vec::new(), false);
        for slot in slots.values_mut() {
            let Some(spec) = slot.due(now, devices) else { continue };
            match slot.take_late() {
                Some(late) => {
                    was_late = true;
                    slot.tried(&*self.ports, late.get(), ids.vif(&spec.name));
                }
                None => due.push(spec),
            }
        }
        if was_late {
            self.publish(View::new(&state, self.executor.clone(), self.started));
        }
        due
    }
}
