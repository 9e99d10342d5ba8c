//! A send queue: numbers, and slots for requests. Both posting interfaces put their requests in here.

use crate::abi::*;
use crate::direct::Bytes;
use crate::errno::Outcome;
use crate::moved_pages::StandIns;
use crate::publish::{Sharing, at_once};
use crate::queue_pair::Qp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use uverbs::{Capacity, Segment, WorkQueue, WorkRequest};

const ON_RC: u64 = bit(IBV_WR_RDMA_READ) | bit(IBV_WR_ATOMIC_CMP_AND_SWP) | bit(IBV_WR_ATOMIC_FETCH_AND_ADD);
const ON_CONNECTED: u64 = bit(IBV_WR_RDMA_WRITE)
    | bit(IBV_WR_RDMA_WRITE_WITH_IMM)
    | bit(IBV_WR_SEND_WITH_INV)
    | bit(IBV_WR_LOCAL_INV)
    | bit(IBV_WR_BIND_MW);
const ON_ANY: u64 = bit(IBV_WR_SEND) | bit(IBV_WR_SEND_WITH_IMM);

/// Longest time for which a send waits for a slot that the device is about to return: the device may have no CPU.
const PATIENCE: Duration = Duration::from_secs(1);

/// Operations that each type of queue pair supports. The bits are those of `ibv_qp_create_send_ops_flags`, which
/// equal 1 << opcode.
pub(crate) const OFFERED: [(u32, u64); 3] = [
    (IBV_QPT_RC, ON_ANY | ON_CONNECTED | ON_RC),
    (IBV_QPT_UC, ON_ANY | (ON_CONNECTED & !bit(IBV_WR_SEND_WITH_INV))),
    (IBV_QPT_UD, ON_ANY),
];

const fn bit(opcode: u32) -> u64 {
    1 << opcode
}

/// Is true if a queue pair of this type supports an operation.
pub(crate) fn is_offered(qp_type: u32, opcode: u32) -> bool {
    opcode < u64::BITS && OFFERED.iter().any(|(of, flags)| *of == qp_type && flags & bit(opcode) != 0)
}

pub(crate) struct SendQueue {
    pub(crate) queue: WorkQueue,
    /// Number of sends, including those that are filled and not published.
    posted: u32,
    /// Number of sends whose completion, or a later one, was polled.
    retired: Arc<AtomicU32>,
    /// Largest number of sends that are posted and not polled.
    limit: u32,
    pub(crate) sharing: Sharing,
    stand_ins: Arc<StandIns>,
    /// The segments of the current request.
    pub(crate) list: Vec<Segment>,
}

impl SendQueue {
    /// Reserves room for the largest request, so that posting does not allocate.
    pub(crate) fn new(
        (queue, retired): (WorkQueue, Arc<AtomicU32>),
        capacity: &Capacity,
        qp_type: u32,
        is_trusting: bool,
        stand_ins: Arc<StandIns>,
    ) -> Self {
        Self {
            queue,
            posted: 0,
            retired,
            limit: capacity.max_send_wr,
            sharing: Sharing::new(qp_type, is_trusting),
            stand_ins,
            list: Vec::with_capacity(capacity.max_send_sge as usize),
        }
    }

    /// Resets everything, including the peer. The queue's completions must have been dropped before.
    pub(crate) fn begin_anew(&mut self, qp_type: u32, is_trusting: bool) {
        self.queue.reset();
        self.retired.store(self.posted, Ordering::Release);
        self.sharing = Sharing::new(qp_type, is_trusting);
    }

    /// Returns the number of the next send, if there is room for it. The send takes room until its completion, or a
    /// later one, is polled.
    fn next(&mut self) -> Option<u32> {
        if self.posted.wrapping_sub(self.retired.load(Ordering::Acquire)) >= self.limit {
            return None;
        }
        (self.queue.has_room() || self.waits_for_room()).then_some(self.posted)
    }

    /// Waits for a slot: the device returns each one right after it completes its request.
    #[cold]
    fn waits_for_room(&mut self) -> bool {
        let began = Instant::now();
        while !self.queue.has_room() {
            if began.elapsed() >= PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Gives a request its number, if there is room for it.
    pub(crate) fn number(&mut self, request: &mut WorkRequest) -> Outcome<()> {
        request.number = self.next().ok_or(libc::ENOMEM)?;
        Ok(())
    }

    /// Counts a send that was executed or filled.
    const fn count(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// Fills a slot with a numbered request. Returns false if the request does not fit.
    ///
    /// # Safety
    /// The bytes of an inline message, and registered memory that is sent, must exist.
    pub(crate) unsafe fn fill(&mut self, request: &WorkRequest, list: &[Segment], inline: &[Bytes]) -> bool {
        let is_filled = if is_inline(request) {
            // SAFETY: the caller's promise.
            unsafe { self.queue.fill_inline(request, inline) }
        } else {
            if !returns_data(request) {
                // SAFETY: the caller's promise.
                unsafe { self.stand_ins.take_up(list) };
            }
            self.queue.fill(request, list)
        };
        if is_filled {
            self.count();
        }
        is_filled
    }

    /// Executes a numbered request at once, if none waits before it and that is possible; otherwise fills a slot with
    /// it. Returns false if the request does not fit.
    ///
    /// # Safety
    /// The bytes of an inline message, and registered memory, must exist.
    pub(crate) unsafe fn put(
        &mut self,
        qp: &Qp,
        request: &WorkRequest,
        list: &[Segment],
        inline: &[Bytes],
    ) -> bool {
        let Self { queue, sharing, .. } = self;
        // SAFETY: the caller's promise.
        if queue.unpublished() == 0 && unsafe { at_once(qp, queue, sharing, request, list, inline) } {
            self.count();
            return true;
        }
        // SAFETY: the caller's promise.
        unsafe { self.fill(request, list, inline) }
    }

    /// Takes back the requests that were filled and not published.
    pub(crate) fn abort(&mut self) {
        self.posted = self.posted.wrapping_sub(self.queue.unpublished());
        self.queue.abort();
    }
}

/// Is true if the data of a message is in its slot.
pub(crate) fn is_inline(request: &WorkRequest) -> bool {
    u32::from(request.flags) & IBV_SEND_INLINE != 0
}

/// Is true if the request's segments are the destination of what it returns.
const fn returns_data(request: &WorkRequest) -> bool {
    matches!(
        request.opcode as u32,
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
    )
}

/// Is true if the request returns no data, or has a valid destination for it: not inline, and a single segment of
/// eight bytes for an atomic operation.
pub(crate) fn has_place(request: &WorkRequest, list: &[Segment]) -> bool {
    let is_inline = is_inline(request);
    match request.opcode.into() {
        IBV_WR_RDMA_READ => !is_inline,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            !is_inline && matches!(list, [Segment { len: 8, .. }])
        }
        _ => true,
    }
}
