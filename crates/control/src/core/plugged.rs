//! Taps that somebody has put into another network namespace: a container's. If both the daemon and its helper are
//! killed, or the container is gone, the tap is created anew in the daemon's own namespace, where it looks up.

use super::view::View;
use mem::PortStatus;
use model::VifKind;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names of guests whose tap was seen in another namespace. Shared by all views.
#[derive(Clone, Debug, Default)]
pub(super) struct Plugged(Arc<Mutex<BTreeSet<String>>>);

impl Plugged {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the names that the previous daemon knew.
    pub(super) fn resume(&self, names: BTreeSet<String>) {
        self.lock().extend(names);
    }

    /// Looks where the taps are that were not seen elsewhere yet, forgets guests that are gone, and returns the names.
    pub(super) fn look(&self, view: &View) -> BTreeSet<String> {
        let taps = || view.tables.vifs.values().filter(|vif| vif.kind == VifKind::Tap && !vif.is_second());
        let known = self.lock().clone();
        let is_elsewhere = |name: &str| known.contains(name) || view.port(name).elsewhere == Some(true);
        let names: BTreeSet<_> =
            taps().filter(|vif| is_elsewhere(&vif.name)).map(|vif| vif.name.to_string()).collect();
        self.lock().clone_from(&names);
        names
    }

    /// Returns whether a guest's tap was in another namespace, and is in the daemon's own.
    /// Calls `port` only if it may be so: that is a request to the helper.
    pub(super) fn has_lost(&self, name: &str, port: impl FnOnce() -> PortStatus) -> bool {
        let is_known = self.lock().contains(name);
        is_known && port().elsewhere == Some(false)
    }
}
