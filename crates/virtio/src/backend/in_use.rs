//! Tells the watcher whether the guest's memory may be written beside its rings. If a VMM copies the memory
//! while others write there and do not log it, the guest that goes on with the copy lacks these writes.

use super::Backend;
use crate::control::VmmEvent;
use crate::features::Features;
use std::sync::atomic::Ordering;

impl Backend {
    /// Tells the watcher if the memory may be written from now on, or no longer. It may not if no ring runs,
    /// because then the guest does not run either, or if there is a log.
    pub(crate) fn tell_use(&mut self) {
        let runs = self.shared.pairs.load(Ordering::Relaxed) > 0;
        // The VMM hands over the log before it says that there is one, or after it.
        let is_logged = self.dirty.is_some() || self.features.has(Features::LOG_ALL);
        self.set_in_use(runs && !is_logged);
    }

    /// Tells the watcher that the memory is no longer written, because the VMM is gone.
    pub(super) fn tell_end(&mut self) {
        self.set_in_use(false);
    }

    fn set_in_use(&mut self, is_in_use: bool) {
        if std::mem::replace(&mut self.is_in_use, is_in_use) != is_in_use {
            let event = if is_in_use { VmmEvent::Runs } else { VmmEvent::Halts };
            self.watch.iter().for_each(|watch| watch(event));
        }
    }
}
