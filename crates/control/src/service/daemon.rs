//! The daemon itself, as `Status` tells of it: its rights, and whom it can't serve.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The daemon's remaining rights.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// User, capabilities and filters.
    pub report: sandbox::Report,
    /// Process ID of the helper, which opens devices and sockets for the daemon. `None`: the daemon has no
    /// sandbox.
    pub helper: Option<u32>,
}

/// Reasons in words why clients are not served.
#[derive(Clone, Debug, Default)]
pub struct Missing(Arc<Mutex<Vec<String>>>);

impl Missing {
    pub fn add(&self, why: String) {
        self.lock().push(why);
    }

    /// Takes back a reason that no longer holds.
    pub fn remove(&self, why: &str) {
        self.lock().retain(|one| one != why);
    }

    pub(crate) fn list(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
