//! The extended interface of send queues: several calls between `ibv_wr_start` and `ibv_wr_complete` make a work
//! request.

use crate::abi::*;
use crate::direct::Bytes;
use crate::errno::set;
use crate::memory_window::ask_to_bind;
use crate::post::may_send;
use crate::publish::{hand_over, publish};
use crate::queue_pair::Qp;
use crate::send_queue::{SendQueue, has_place, is_inline, is_offered};
use std::ffi::{c_int, c_void};
use uverbs::{Capacity, Segment, WorkRequest};

pub(crate) struct Sending {
    pub(crate) queue: SendQueue,
    /// Parts of an inline message, used while its slot is filled.
    pub(crate) parts: Vec<Bytes>,
    draft: Option<WorkRequest>,
    segments: Vec<Segment>,
    inline: Vec<u8>,
    /// Whether the destination of a datagram is set; if `needs_address`, it must be.
    has_address: bool,
    needs_address: bool,
    /// The first error since `ibv_wr_start`.
    error: c_int,
}

// SAFETY: only the call that put pointers among the parts uses them.
unsafe impl Send for Sending {}

impl Sending {
    /// Reserves room for the largest request, so that posting does not allocate.
    pub(crate) fn new(queue: SendQueue, capacity: &Capacity, qp_type: u32) -> Self {
        Self {
            queue,
            parts: Vec::with_capacity(capacity.max_send_sge as usize),
            draft: None,
            segments: Vec::with_capacity(capacity.max_send_sge as usize),
            inline: Vec::with_capacity(capacity.max_inline_data as usize),
            has_address: false,
            needs_address: qp_type == IBV_QPT_UD,
            error: 0,
        }
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

    /// Ends the request under construction, and returns it if it is valid.
    fn end_draft(&mut self) -> Option<WorkRequest> {
        let mut request = self.draft.take().filter(|_| self.error == 0)?;
        if self.needs_address && !self.has_address || !has_place(&request, &self.segments) {
            self.fail(libc::EINVAL);
            return None;
        }
        if let Err(errno) = self.queue.number(&mut request) {
            self.fail(errno);
            return None;
        }
        if is_inline(&request) {
            request.inline_len = self.inline.len() as u32;
            self.segments.clear();
        } else {
            request.segments = self.segments.len() as u16;
            self.inline.clear();
        }
        Some(request)
    }

    fn fill(&mut self, request: &WorkRequest) {
        let inline = [(self.inline.as_ptr(), self.inline.len())];
        // SAFETY: a vector of that length.
        if !unsafe { self.queue.fill(request, &self.segments, &inline) } {
            self.fail(libc::EINVAL);
        }
    }

    /// Executes all requests since `ibv_wr_start`, if they are all valid. A single one is executed at once, if
    /// possible.
    fn finish(&mut self, qp: &Qp) {
        let Some(request) = self.end_draft() else { return };
        let is_alone = self.queue.queue.unpublished() == 0;
        let inline = [(self.inline.as_ptr(), self.inline.len())];
        // SAFETY: a vector of that length; the program promises that registered memory exists.
        if !unsafe { self.queue.put(qp, &request, &self.segments, &inline) } {
            self.fail(libc::EINVAL);
        }
        match self.error {
            0 if is_alone => hand_over(qp, &mut self.queue),
            0 => publish(qp, &mut self.queue),
            _ => {}
        }
    }
}

/// Returns a queue pair that `ibv_wr_start` locked, with its request under construction.
///
/// # Safety
/// It must be one of our queue pairs, locked by that call.
unsafe fn making<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a mut Sending) {
    // SAFETY: the caller's promise; the C part comes first.
    unsafe {
        let ours = Qp::of(qp.cast());
        (ours, ours.send.held())
    }
}

/// Begins a request, and lets `aim` set the fields that depend on its opcode.
///
/// # Safety
/// The same as for [`making`].
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: u32, aim: impl FnOnce(&mut WorkRequest)) {
    // SAFETY: the caller's promise.
    let ((ours, send), id, flags) = unsafe { (making(qp), (*qp).wr_id, (*qp).wr_flags) };
    // The call that sets its data determines whether it is inline.
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
    // SAFETY: a queue pair of ours, locked by `wr_start`; nothing of it is used afterwards.
    unsafe {
        let (ours, send) = making(qp);
        send.finish(ours);
        let error = send.error;
        if error != 0 {
            send.queue.abort();
            set(error);
        }
        ours.send.release();
        error
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair of ours, locked by `wr_start`; nothing of it is used afterwards.
    unsafe {
        let (ours, send) = making(qp);
        send.draft = None;
        send.queue.abort();
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

/// Fails the whole batch, because of an unsupported operation.
///
/// # Safety
/// The same as for [`making`].
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
    // SAFETY: a queue pair of ours, locked by `wr_start`; a list as long as the program says, of readable buffers.
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

/// Returns a queue pair with the operations of the extended interface.
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
