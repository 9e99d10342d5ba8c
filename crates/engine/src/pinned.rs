//! The tables that a worker reads, pinned while it forwards a burst.

use model::Seconds;
use tables::{Shared, Snapshot, View};

/// The tables as a burst sees them.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub shared: &'a Shared,
    pub snapshot: &'a Snapshot,
}

impl<'a> Tables<'a> {
    /// Returns the tables in the form that `decide` reads.
    pub fn view(self, now: Seconds) -> View<'a> {
        self.snapshot.view(self.shared.flows(), now)
    }
}
