//! Simulates the end of the process just before one of the writes to an entry: the thread unwinds from there,
//! and the entry stays as it is.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    /// Number of writes that still happen before the end.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Counts a write that follows; unwinds instead if it is the one before which the process ends.
pub fn here() {
    LEFT.with(|left| match left.get() {
        Some(0) => {
            left.set(None);
            resume_unwind(Box::new(()));
        }
        Some(n) => left.set(Some(n - 1)),
        None => {}
    });
}

/// Does something until `writes` were made; returns whether it completed before.
pub fn after(writes: u32, does: impl FnOnce()) -> bool {
    LEFT.with(|left| left.set(Some(writes)));
    let ended = catch_unwind(AssertUnwindSafe(does)).is_ok();
    LEFT.with(|left| left.set(None));
    ended
}
