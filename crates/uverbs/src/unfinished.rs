//! Traces of a dead sender in a completion queue.

use crate::{CompletionSink, DirectSession, Hold, Place};

/// The state of the dead sender's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// The sender had no place.
    Nothing,
    /// The sender reserved this place, which nobody fills any more.
    Hole(u32),
    /// The sender filled its place.
    Completed,
}

/// Returns the state of a dead sender's place, according to its notes in the session. `is_tried` tells whether a living
/// sender tries to get a place, or has it. Returns `None` if the place's owner is not known yet; later it will be.
pub fn unfinished(
    session: &DirectSession,
    sink: &CompletionSink,
    is_tried: impl FnOnce(u32) -> bool,
) -> Option<Unfinished> {
    match session.place() {
        None => Some(Unfinished::Nothing),
        Some(Hold::Has(at)) if sink.look(at) == Place::Empty => Some(Unfinished::Hole(at)),
        Some(Hold::Has(_)) => Some(Unfinished::Completed),
        // A sender that fills a place has noted that it has it: a place that is not empty belongs to another.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Unfinished::Nothing),
        Some(Hold::Tries(at)) if is_tried(at) => None,
        // A sender that was seen not to try any more may have filled it before.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Unfinished::Nothing),
        Some(Hold::Tries(at)) => Some(Unfinished::Hole(at)),
    }
}
