//! What a sender that died left behind in a completion queue.

use crate::{Bond, CompletionSink, Hold, Place};

/// The state of its place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It had none.
    Nothing,
    /// It reserved this place, which nobody fills any more.
    Hole(u32),
    /// It filled its place.
    Completed,
}

/// What a sender that died left behind, according to its notes in the bond. `is_tried` tells whether a living sender
/// tries to get a place, or has it. `None` if it is not known yet whose the place is; later it will be.
pub fn left(bond: &Bond, sink: &CompletionSink, is_tried: impl FnOnce(u32) -> bool) -> Option<Left> {
    match bond.place() {
        None => Some(Left::Nothing),
        Some(Hold::Has(at)) if sink.look(at) == Place::Empty => Some(Left::Hole(at)),
        Some(Hold::Has(_)) => Some(Left::Completed),
        // A sender that fills a place has noted that it has it: a place that is not empty belongs to another.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Left::Nothing),
        Some(Hold::Tries(at)) if is_tried(at) => None,
        // A sender that was seen not to try any more may have filled it before.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Left::Nothing),
        Some(Hold::Tries(at)) => Some(Left::Hole(at)),
    }
}
