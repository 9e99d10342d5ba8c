//! Traces of a dead sender in a completion queue.

use crate::{Bond, CompletionSink, Hold, Place};

/// The state of the dead sender's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The sender had no place.
    Nothing,
    /// The sender reserved this place, which nobody fills any more.
    Hole(u32),
    /// The sender filled its place.
    Completed,
}

/// Returns the state of a dead sender's place, according to its notes in the bond. `is_tried` tells whether a living
/// sender tries to get a place, or has it. Returns `None` if the place's owner is not known yet; later it will be.
pub fn left(bond: &Bond, sink: &CompletionSink, is_tried: impl FnOnce(u32) -> bool) -> Option<Left> {
    match bond.place() {
        None => Some(Left::Nothing),
        Some(Hold::Has(at)) if sink.look(at) == Place::Empty => Some(Left::Hole(at)),
        Some(Hold::Has(_)) => Some(Left::Completed),
        // A sender that fills a place has noted that it has it, so a place that is not empty belongs to somebody else.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Left::Nothing),
        Some(Hold::Tries(at)) if is_tried(at) => None,
        // A sender that no longer tries may have filled the place before.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Left::Nothing),
        Some(Hold::Tries(at)) => Some(Left::Hole(at)),
    }
}
