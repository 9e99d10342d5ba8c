//! The extended interface of send queues: a work request is made call by call, between `ibv_wr_start` and
//! `ibv_wr_complete`.

use crate::abi::*;
use crate::direct::Bytes;
use crate::errno::set;
use crate::memory_window::ask_to_bind;
use crate::post::may_send;
use crate::publish::{Sharing, at_once, hand_over, publish};
use crate::queue_pair::Qp;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uverbs::{Capacity, Segment, WorkQueue, WorkRequest};

const ON_RC: u64 = bit(IBV_WR_RDMA_READ) | bit(IBV_WR_ATOMIC_CMP_AND_SWP) | bit(IBV_WR_ATOMIC_FETCH_AND_ADD);
const ON_CONNECTED: u64 = bit(IBV_WR_RDMA_WRITE)
    | bit(IBV_WR_RDMA_WRITE_WITH_IMM)
    | bit(IBV_WR_SEND_WITH_INV)
    | bit(IBV_WR_LOCAL_INV)
    | bit(IBV_WR_BIND_MW);
const ON_ANY: u64 = bit(IBV_WR_SEND) | bit(IBV_WR_SEND_WITH_IMM);

/// Yields while a slot is about to be given back: the device may wait for a CPU.
const PATIENCE: u32 = 1 << 14;

/// Operations that each type of queue pair offers: bits `ibv_qp_create_send_ops_flags`, which are those of the opcodes.
pub(crate) const OFFERED: [(u32, u64); 3] = [
    (IBV_QPT_RC, ON_ANY | ON_CONNECTED | ON_RC),
    (IBV_QPT_UC, ON_ANY | (ON_CONNECTED & !bit(IBV_WR_SEND_WITH_INV))),
    (IBV_QPT_UD, ON_ANY),
];

const fn bit(opcode: u32) -> u64 {
    1 << opcode
}

/// Whether a queue pair of that type offers an operation.
pub(crate) fn is_offered(qp_type: u32, opcode: u32) -> bool {
    opcode < u64::BITS && OFFERED.iter().any(|(of, flags)| *of == qp_type && flags & bit(opcode) != 0)
}

/// A send queue, and the request that is being made.
pub(crate) struct SendQueue {
    pub(crate) queue: WorkQueue,
    /// Sends since the beginning, with those that are filled and not published.
    posted: u32,
    /// Those among them that were polled, or came before one that was.
    retired: Arc<AtomicU32>,
    /// Sends that may be posted and not polled.
    limit: u32,
    pub(crate) sharing: Sharing,
    /// The list of a request, while it is performed.
    pub(crate) list: Vec<Segment>,
    /// Parts of an inline message, while its slot is filled.
    pub(crate) parts: Vec<Bytes>,
    draft: Option<WorkRequest>,
    segments: Vec<Segment>,
    inline: Vec<u8>,
    /// Of a datagram: whether it is said where it goes, as it must be.
    has_address: bool,
    needs_address: bool,
    /// The first error since `ibv_wr_start`.
    error: c_int,
}

// SAFETY: pointers among the parts are used by the call that put them there.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// With room for what a request may have, so that posting does not allocate.
    pub(crate) fn new(
        (queue, retired): (WorkQueue, Arc<AtomicU32>),
        capacity: &Capacity,
        qp_type: u32,
        is_trusting: bool,
    ) -> Self {
        Self {
            queue,
            posted: 0,
            retired,
            limit: capacity.max_send_wr,
            sharing: Sharing::new(qp_type, is_trusting),
            list: Vec::with_capacity(capacity.max_send_sge as usize),
            parts: Vec::with_capacity(capacity.max_send_sge as usize),
            draft: None,
            segments: Vec::with_capacity(capacity.max_send_sge as usize),
            inline: Vec::with_capacity(capacity.max_inline_data as usize),
            has_address: false,
            needs_address: qp_type == IBV_QPT_UD,
            error: 0,
        }
    }

    /// Forgets everything, the peer too. Its completions must be forgotten by now.
    pub(crate) fn begin_anew(&mut self, qp_type: u32, is_trusting: bool) {
        self.queue.reset();
        self.retired.store(self.posted, Ordering::Release);
        self.sharing = Sharing::new(qp_type, is_trusting);
    }

    /// The number of the next send, if there is room for it: until its completion, or a later one, is polled.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if self.posted.wrapping_sub(self.retired.load(Ordering::Acquire)) >= self.limit {
            return None;
        }
        // The device gives a slot back right after it completed what was there.
        for _ in 0..PATIENCE {
            if self.queue.has_room() {
                return Some(self.posted);
            }
            std::thread::yield_now();
        }
        None
    }

    /// The next send is done, or filled.
    pub(crate) const fn count(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// Takes back what was filled and not published.
    fn abort(&mut self) {
        self.posted = self.posted.wrapping_sub(self.queue.unpublished());
        self.queue.abort();
    }

    fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }

    fn begin(&mut self, is_offered: bool, draft: WorkRequest) {
        if let Some(request) = self.end_draft() {
            self.fill(&request);
        }
        if !is_offered {
            self.fail(libc::EINVAL);
        }
        self.segments.clear();
        self.inline.clear();
        self.has_address = false;
        self.draft = Some(draft);
    }

    /// The request that was made last, if it can be one.
    fn end_draft(&mut self) -> Option<WorkRequest> {
        let mut request = self.draft.take().filter(|_| self.error == 0)?;
        let is_inline = u32::from(request.flags) & IBV_SEND_INLINE != 0;
        let lacks = self.needs_address && !self.has_address
            || !has_place(request.opcode.into(), is_inline, &self.segments);
        if lacks {
            self.fail(libc::EINVAL);
            return None;
        }
        let Some(number) = self.next() else {
            self.fail(libc::ENOMEM);
            return None;
        };
        request.number = number;
        if is_inline {
            request.inline_len = self.inline.len() as u32;
            self.segments.clear();
        } else {
            request.segments = self.segments.len() as u16;
            self.inline.clear();
        }
        Some(request)
    }

    /// Fills a slot with it.
    fn fill(&mut self, request: &WorkRequest) {
        let is_filled = if request.inline_len == 0 {
            self.queue.fill(request, &self.segments)
        } else {
            // SAFETY: a vector of that length.
            unsafe { self.queue.fill_inline(request, &[(self.inline.as_ptr(), self.inline.len())]) }
        };
        if is_filled {
            self.count();
        } else {
            self.fail(libc::EINVAL);
        }
    }

    /// Has everything done that was made, if all of it can be requests. One alone is done at once, where that can be.
    fn finish(&mut self, qp: &Qp) {
        let Some(request) = self.end_draft() else { return };
        let Self { queue, sharing, segments, inline, .. } = self;
        let is_alone = queue.unpublished() == 0;
        let inline = [(inline.as_ptr(), inline.len())];
        // SAFETY: a vector of that length; memory that is registered is there, says the program.
        if is_alone && unsafe { at_once(qp, queue, sharing, &request, segments, &inline) } {
            self.count();
            return;
        }
        self.fill(&request);
        match self.error {
            0 if is_alone => hand_over(qp, self),
            0 => publish(qp, self),
            _ => {}
        }
    }
}

/// Whether a request that brings something back says where to: inline it can't, and the value of an atomic has one
/// place.
pub(crate) fn has_place(opcode: u32, is_inline: bool, list: &[Segment]) -> bool {
    match opcode {
        IBV_WR_RDMA_READ => !is_inline,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            !is_inline && matches!(list, [Segment { len: 8, .. }])
        }
        _ => true,
    }
}

/// What the program makes, of a queue locked by `ibv_wr_start`.
///
/// # Safety
/// It must be a queue pair of ours, and locked so.
unsafe fn making<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a mut SendQueue) {
    // SAFETY: the caller's promise; the C part comes first.
    unsafe {
        let ours = Qp::of(qp.cast());
        (ours, ours.send.held())
    }
}

/// # Safety
/// As of [`making`].
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: u32, aim: impl FnOnce(&mut WorkRequest)) {
    // SAFETY: the caller's promise.
    let ((ours, send), id, flags) = unsafe { (making(qp), (*qp).wr_id, (*qp).wr_flags) };
    // Whether it is inline is said by what sets its data.
    let flags = (flags & SEND_FLAGS & !IBV_SEND_INLINE) as u8;
    let mut draft = WorkRequest { id, opcode: opcode as u8, flags, ..WorkRequest::default() };
    aim(&mut draft);
    send.begin(is_offered(ours.qp_type, opcode), draft);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair of ours, which is locked here.
    unsafe {
        Qp::of(qp.cast()).send.acquire();
        let (ours, send) = making(qp);
        send.draft = None;
        send.error = if may_send(ours) { 0 } else { libc::EINVAL };
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a queue pair of ours, locked by `wr_start`; nothing is used of it after.
    unsafe {
        let (ours, send) = making(qp);
        send.finish(ours);
        let error = send.error;
        if error != 0 {
            send.abort();
            set(error);
        }
        ours.send.release();
        error
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair of ours, locked by `wr_start`; nothing is used of it after.
    unsafe {
        let (ours, send) = making(qp);
        send.draft = None;
        send.abort();
        ours.send.release();
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_SEND, |_| ()) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_SEND_WITH_IMM, |draft| draft.immediate = immediate) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_SEND_WITH_INV, |draft| draft.immediate = rkey) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_RDMA_WRITE, |draft| (draft.rkey, draft.address) = (rkey, address)) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, address: u64, immediate: u32) {
    let aim = |draft: &mut WorkRequest| {
        (draft.rkey, draft.address, draft.immediate) = (rkey, address, immediate);
    };
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_RDMA_WRITE_WITH_IMM, aim) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_RDMA_READ, |draft| (draft.rkey, draft.address) = (rkey, address)) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, address: u64, compare: u64, swap: u64) {
    let aim = |draft: &mut WorkRequest| {
        (draft.rkey, draft.address, draft.compare_add, draft.swap) = (rkey, address, compare, swap);
    };
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, aim) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    let aim = |draft: &mut WorkRequest| {
        (draft.rkey, draft.address, draft.compare_add) = (rkey, address, add);
    };
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, aim) };
}

/// For an operation that is not offered: the whole batch fails.
///
/// # Safety
/// As of [`making`].
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { making(qp) }.1.fail(libc::EOPNOTSUPP);
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: a queue pair of ours, locked by `wr_start`, a window of ours, and the program's wish.
    unsafe {
        let mut outcome = Ok(());
        begin(qp, IBV_WR_BIND_MW, |draft| outcome = ask_to_bind(draft, mw, rkey, &*info));
        if let Err(errno) = outcome {
            making(qp).1.fail(errno);
        }
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { begin(qp, IBV_WR_LOCAL_INV, |draft| draft.immediate = rkey) };
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _len: u16, _mss: u16) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, _number: u32) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, _rkey: u32, _address: u64, _what: *const c_void) {
    // SAFETY: a queue pair of ours, locked by `wr_start`.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: a queue pair of ours, locked by `wr_start`, and an address handle of ours, or null.
    unsafe {
        let (_, send) = making(qp);
        let Some(ah) = ah.as_ref() else { return send.fail(libc::EINVAL) };
        if let Some(draft) = &mut send.draft {
            (draft.ah, draft.remote_qpn, draft.remote_qkey) = (ah.handle, remote_qpn, remote_qkey);
            send.has_address = true;
        }
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: a queue pair of ours, locked by `wr_start`; one segment.
    unsafe { wr_set_sge_list(qp, 1, &ibv_sge { addr, length, lkey }) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: a queue pair of ours, locked by `wr_start`; a list as long as the program says.
    unsafe {
        let (ours, send) = making(qp);
        if count > ours.capacity.max_send_sge as usize {
            return send.fail(libc::EINVAL);
        }
        send.segments.clear();
        send.segments.extend((0..count).map(|at| list.add(at).cast::<Segment>().read()));
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: a queue pair of ours, locked by `wr_start`; one buffer.
    unsafe { wr_set_inline_data_list(qp, 1, &ibv_data_buf { addr, length }) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: a queue pair of ours, locked by `wr_start`; a list as long as the program says, of buffers that may be
    // read.
    unsafe {
        let (ours, send) = making(qp);
        send.inline.clear();
        for at in 0..count {
            let buffer = list.add(at).read();
            if buffer.length > ours.capacity.max_inline_data as usize - send.inline.len() {
                return send.fail(libc::EINVAL);
            }
            if buffer.length > 0 {
                send.inline.extend_from_slice(std::slice::from_raw_parts(buffer.addr.cast(), buffer.length));
            }
        }
        if let Some(draft) = &mut send.draft {
            draft.flags |= IBV_SEND_INLINE as u8;
        }
    }
}

/// A queue pair with the operations of the extended interface.
pub(crate) fn operations(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: Some(wr_send_tso),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
    }
}
