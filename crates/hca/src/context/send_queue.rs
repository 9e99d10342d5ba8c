//! The send queue of a queue pair, and its requests in progress.

use crate::base::ids::CqId;
use crate::context::sharing::Invalidation;
use std::mem::swap;
use uverbs::work::send_flags;
use uverbs::{Completion, Corrupt, Segment, SendSource, WorkRequest, completion};

/// Longest message (IBTA 9.7.1.1).
const LONGEST_MESSAGE: u64 = 1 << 31;

/// A request in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    id: u64,
    /// `ibv_wr_opcode`.
    opcode: u8,
    pub segments: Vec<Segment>,
    /// The message itself, if it was sent inline.
    pub inline: Vec<u8>,
    pub len: u32,
    /// The number that the library has for it.
    number: u32,
}

/// The scatter/gather list, or the inline bytes, of a request.
#[derive(Debug, Default)]
struct RequestBuffers {
    segments: Vec<Segment>,
    inline: Vec<u8>,
}

/// A request that needs no peer. It waits for requests before it, and later ones wait for it.
#[derive(Debug)]
pub(crate) struct LocalRequest {
    /// The number of its slot.
    pub number: u32,
    pub request: WorkRequest,
    /// Set once the request is done: peers may still use the key that it invalidated.
    pub invalidation: Option<Invalidation>,
}

impl LocalRequest {
    pub const fn new(number: u32, request: WorkRequest) -> Self {
        Self { number, request, invalidation: None }
    }
}

#[derive(Debug)]
pub(crate) struct SendQueue {
    source: SendSource,
    /// Requests in progress, by their slot.
    works: Vec<Work>,
    /// Buffers for the next request that is taken.
    buffers: RequestBuffers,
    /// The completion queue for sends.
    pub cq: CqId,
    /// Every request gets a completion, whether it asks for one or not.
    all_signaled: bool,
    /// True if the application need not ring the doorbell.
    spares_doorbell: bool,
    /// True if the device polls the queue, so that no doorbell is needed.
    is_polled: bool,
    /// True if requests were found by polling, and none was taken since.
    is_found: bool,
    /// True if the queue was found empty since the last turn began: the application posts no faster than the device
    /// polls.
    is_empty: bool,
    /// True if the application must be told when no request is in progress any more.
    pub tells_drained: bool,
    /// The waiting local request.
    pub local: Option<LocalRequest>,
}

impl SendQueue {
    /// Opens a queue of this many slots, a power of two.
    pub fn new(source: SendSource, slots: u32, cq: CqId, all_signaled: bool) -> Self {
        Self {
            source,
            works: vec![Work::default(); slots as usize],
            buffers: RequestBuffers::default(),
            cq,
            all_signaled,
            spares_doorbell: false,
            is_polled: false,
            is_found: false,
            is_empty: false,
            tells_drained: false,
            local: None,
        }
    }

    const fn slot(&self, number: u64) -> usize {
        number as usize & (self.works.len() - 1)
    }

    /// Returns the request in the slot with this number.
    pub fn work(&self, number: u64) -> &Work {
        &self.works[self.slot(number)]
    }

    /// Begins a turn. Returns whether it should take one request only. The device looks at a polled queue again soon;
    /// if it looked for the next request before it sends this one, it would wait for a slot that is in the
    /// application's cache.
    pub const fn begin_turn(&mut self) -> bool {
        let was_empty = self.is_empty;
        self.is_empty = false;
        self.is_polled && was_empty
    }

    /// Takes the next request: the number of its slot, and the request.
    #[inline]
    pub fn take(&mut self) -> Result<Option<(u32, WorkRequest)>, Corrupt> {
        let RequestBuffers { segments, inline } = &mut self.buffers;
        segments.clear();
        inline.clear();
        let Some((number, request)) = self.source.take(segments, inline)? else { return Ok(None) };
        let sum: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
        let len = sum.max(inline.len() as u64);
        if len > LONGEST_MESSAGE {
            return Err(Corrupt);
        }
        let slot = self.slot(number.into());
        let work = &mut self.works[slot];
        (work.id, work.opcode, work.len) = (request.id, request.opcode, len as u32);
        work.number = request.number;
        swap(&mut work.segments, &mut self.buffers.segments);
        swap(&mut work.inline, &mut self.buffers.inline);
        self.is_found = false;
        Ok(Some((number, request)))
    }

    /// Is true if the application wants a completion for a request with these flags.
    pub const fn is_signaled(&self, flags: u8) -> bool {
        self.all_signaled || flags & send_flags::SIGNALED != 0
    }

    /// Writes into a completion which request it completes: the one in the slot with this number.
    pub fn complete(&mut self, number: u64, completion: &mut Completion) {
        let slot = self.slot(number);
        let work = &mut self.works[slot];
        (completion.id, completion.number) = (work.id, work.number);
        completion.opcode = completion::opcode::of(work.opcode);
        work.inline.clear();
    }

    /// Returns the slots up to this one to the library.
    pub fn release(&mut self, number: u64) {
        self.source.release_before((number as u32).wrapping_add(1));
    }

    /// Returns all taken slots to the library.
    pub fn release_all(&mut self) {
        self.source.release_taken();
    }

    /// Says whether the device polls the queue, using [`Self::has_more`].
    pub fn set_polled(&mut self, polled: bool) {
        self.is_polled = polled;
        self.spare_doorbell(polled);
    }

    /// Returns whether there are requests that were not taken. `None`: the device need not poll, for it is told of
    /// new requests, or takes none now.
    pub fn has_more(&mut self) -> Option<bool> {
        if !self.is_polled {
            return None;
        }
        let waits = self.waits();
        self.is_empty |= !waits;
        if waits && std::mem::replace(&mut self.is_found, true) {
            self.set_polled(false);
            return None;
        }
        Some(waits)
    }

    /// Is true if there are requests that were not taken.
    pub fn waits(&self) -> bool {
        self.source.has_next()
    }

    /// Is true if requests wait that may have come while the application need not ring the doorbell. It must ring
    /// it now.
    pub fn has_unannounced(&self) -> bool {
        !self.spares_doorbell && self.local.is_none() && self.waits()
    }

    /// Tells the application whether it must ring the doorbell.
    pub fn spare_doorbell(&mut self, spared: bool) {
        let spared = spared || self.is_polled;
        if std::mem::replace(&mut self.spares_doorbell, spared) != spared {
            self.source.spare_doorbell(spared);
        }
    }

    /// Forgets all requests.
    pub fn reset(&mut self) {
        self.source.reset();
        (self.spares_doorbell, self.is_polled) = (false, false);
        (self.tells_drained, self.local) = (false, None);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::Arc;
    use uverbs::{Memory, Shape, WorkQueue};

    #[test]
    fn one_request_is_enough_for_a_turn_unless_more_wait_at_once() {
        let shape = Shape::new(0, 4, 1, 0);
        let memory = Arc::new(Memory::create("test", shape.end()).unwrap().0);
        let mut library = WorkQueue::new(memory.clone(), shape, 4).unwrap();
        let mut queue = SendQueue::new(SendSource::new(memory, shape).unwrap(), shape.slots, CqId(0), false);
        assert!(!queue.begin_turn(), "it is not looked at all the time");
        queue.set_polled(true);
        assert_eq!(queue.has_more(), Some(false));
        (0..3).for_each(|_| assert!(library.fill(&WorkRequest::default(), &[])));
        library.publish();
        assert_eq!(queue.has_more(), Some(true));
        assert!(queue.begin_turn() && queue.take().unwrap().is_some());
        assert_eq!(queue.has_more(), Some(true), "the others are found by looking");
        assert!(!queue.begin_turn());
        assert_eq!([(); 3].map(|()| queue.take().unwrap().is_some()), [true, true, false]);
        assert_eq!(queue.has_more(), Some(false));
        assert!(queue.begin_turn());
    }
}
