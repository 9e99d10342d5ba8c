//! Death of the device at each of its stores, for tests: by a panic, which leaves all memory as it was.

use std::cell::Cell;

thread_local! {
    /// Number of stores before the device dies.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The payload of the panic by which a device dies.
#[derive(Debug)]
pub(super) struct Killed;

/// Is called before each store; kills the device if this is the store before which it must die.
pub(super) fn step() {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            std::panic::resume_unwind(Box::new(Killed));
        }
        left => LEFT.set(left.map(|left| left - 1)),
    }
}

/// Makes the device die before store number `store`, counted from 0, of those in `live`. Returns the result
/// of `live` if it makes fewer stores.
pub(super) fn dies_at<T>(store: u32, live: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(Some(store));
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(live));
    LEFT.set(None);
    match lived {
        Ok(value) => Some(value),
        Err(why) if why.is::<Killed>() => None,
        Err(why) => std::panic::resume_unwind(why),
    }
}
