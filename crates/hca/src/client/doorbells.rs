//! Which queue pair has which doorbell.

use crate::base::ids::Qpn;

/// The application's doorbells, by number, with the queue pair that each belongs to.
#[derive(Debug, Default)]
pub(crate) struct Bells(Vec<Option<Qpn>>);

impl Bells {
    /// Returns a doorbell that no queue pair has, out of `count`. The lowest numbers come first, since the device
    /// listens to all doorbells up to the highest assigned one.
    pub fn free(&mut self, count: u32) -> Option<u32> {
        let free = self.0.iter().position(Option::is_none);
        let free = free.or_else(|| {
            (self.0.len() < count as usize).then(|| self.0.push(None))?;
            Some(self.0.len() - 1)
        });
        free.map(|bell| bell as u32)
    }

    /// Assigns a free doorbell to a queue pair.
    pub fn give(&mut self, bell: u32, qpn: Qpn) {
        self.0[bell as usize] = Some(qpn);
    }

    /// Takes a queue pair's doorbell back.
    pub fn take_back(&mut self, qpn: Qpn) {
        self.0.iter_mut().filter(|bell| **bell == Some(qpn)).for_each(|bell| *bell = None);
    }

    /// Returns the queue pair that a doorbell belongs to.
    pub fn qpn(&self, bell: u32) -> Option<Qpn> {
        self.0.get(bell as usize).copied().flatten()
    }

    /// Returns how many doorbells the device listens to.
    pub const fn listened_to(&self) -> u32 {
        self.0.len() as u32
    }
}
