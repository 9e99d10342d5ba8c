//! The receive queue of a queue pair: its own, or a shared one.

use crate::base::ids::{CqId, SrqId};
use std::sync::Arc;
use uverbs::{Corrupt, Memory, Segment, Shape, WorkRequest, WorkSource};

/// A receive that was taken from its queue.
#[derive(Debug, Default)]
pub(crate) struct Receive {
    pub id: u64,
    pub segments: Vec<Segment>,
}

/// The queue from which receives come.
#[derive(Debug)]
pub(crate) enum Receives {
    /// A queue of the queue pair itself, and the queue's place in the memory of the queue pair.
    Private(WorkSource, Shape),
    /// The shared receive queue with this handle.
    Shared(SrqId),
}

#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub receives: Receives,
    /// The completion queue for receives.
    pub cq: CqId,
    /// The number by which a peer takes from a shared queue. No other queue pair of the application has it.
    pub taker: u32,
    /// The receive that was taken last.
    pub last: Receive,
    /// How many receives were flushed in this turn.
    pub flushed: u32,
    /// The application must be told when no receive of the shared queue is in progress any more.
    pub tells_last: bool,
    /// In the error state: the queue pair must check once more for receives that were posted before.
    pub looks_again: bool,
}

impl Receives {
    /// Opens the queue of this shape in the queue pair's memory or, without one, names the shared queue.
    pub fn new(memory: &Arc<Memory>, shape: Option<Shape>, srq: Option<SrqId>) -> Result<Self, Corrupt> {
        Ok(match shape {
            Some(shape) => Self::Private(WorkSource::new(memory.clone(), shape)?, shape),
            None => Self::Shared(srq.unwrap_or_default()),
        })
    }
}

impl ReceiveQueue {
    pub fn new(receives: Receives, cq: CqId, taker: u32) -> Self {
        let last = Receive::default();
        Self { receives, cq, taker, last, flushed: 0, tells_last: false, looks_again: false }
    }

    pub const fn is_shared(&self) -> bool {
        matches!(self.receives, Receives::Shared(_))
    }

    /// Is true if its receives come from this shared queue.
    pub fn takes_from(&self, srq: SrqId) -> bool {
        matches!(self.receives, Receives::Shared(used) if used == srq)
    }

    /// Enters the error state, in which the application announces receives. The queue pair checks once more for
    /// receives that were posted before.
    pub fn fail(&mut self) {
        if let Receives::Private(source, _) = &mut self.receives {
            source.want_doorbell(true);
            self.looks_again = true;
        }
        self.tells_last = self.is_shared();
    }

    /// Forgets all receives of a queue of its own.
    pub fn reset(&mut self) {
        if let Receives::Private(source, _) = &mut self.receives {
            source.reset();
        }
        self.tells_last = false;
    }
}

/// Takes a receive from its own queue. Returns whether there was one.
pub(crate) fn take_receive(source: &mut WorkSource, into: &mut Receive) -> Result<bool, Corrupt> {
    into.segments.clear();
    let Some((_, WorkRequest { id, .. })) = source.take_known(&mut into.segments, |_, _| ())? else {
        return Ok(false);
    };
    into.id = id;
    Ok(true)
}
