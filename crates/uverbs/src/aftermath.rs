//! What one left behind who died at work with a completion queue.

use crate::{Bond, CompletionSink, Hold, Place};

/// What that is, of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It had none.
    Nothing,
    /// This one, which nobody fills any more.
    Hole(u32),
    /// It filled its place.
    Completed,
}

/// What one left behind who died, whose notes these are. `is_tried` says whether somebody alive tries to get a place,
/// or has it. `None`: nobody knows yet whose the place is; others will show.
pub fn left(bond: &Bond, sink: &CompletionSink, is_tried: impl FnOnce(u32) -> bool) -> Option<Left> {
    match bond.place() {
        None => Some(Left::Nothing),
        Some(Hold::Has(at)) if sink.look(at) == Place::Empty => Some(Left::Hole(at)),
        Some(Hold::Has(_)) => Some(Left::Completed),
        // Who fills a place has noted that it has it: one that is not empty is another's.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Left::Nothing),
        Some(Hold::Tries(at)) if is_tried(at) => None,
        // One who was seen not to try any more may have filled it before.
        Some(Hold::Tries(at)) if sink.look(at) != Place::Empty => Some(Left::Nothing),
        Some(Hold::Tries(at)) => Some(Left::Hole(at)),
    }
}
