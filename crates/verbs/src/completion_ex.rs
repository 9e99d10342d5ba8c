//! The extended interface of completion queues: one completion at a time, field by field.

use crate::abi::*;
use crate::completion::{Cq, State, create};
use crate::errno::pointer;
use std::ffi::c_int;
use uverbs::Completion;

/// Returns a completion queue with the readers of the fields that it supports.
pub(crate) fn extended(base: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: IBV_WC_SUCCESS,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_nothing),
        read_completion_ts: Some(read_completion_ts),
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: None,
    }
}

pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the program's attributes.
    let attr = unsafe { &*attr };
    if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
        return pointer(Err(libc::EINVAL));
    }
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    let offered = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    if attr.wc_flags & !offered != 0 || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    let timestamps = attr.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0;
    // SAFETY: a context of ours, and, where there is one, a channel of it.
    let made =
        unsafe { create(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector, timestamps) };
    pointer(made.map(|cq| cq.cast()))
}

/// Takes the next completion, and sets the fields that programs read without a call.
///
/// # Safety
/// The caller must hold the queue's lock.
unsafe fn advance(cq: *mut ibv_cq_ex, ours: &Cq, state: &mut State) -> c_int {
    let Some(completion) = ours.take(state) else { return libc::ENOENT };
    // SAFETY: a completion queue of ours; programs read these fields while it is locked.
    unsafe { ((*cq).status, (*cq).wr_id) = (completion.status.into(), completion.id) };
    state.current = completion;
    0
}

/// Locks the queue until `end_poll`, if there is a completion.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program's attributes, where it gave any.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: a completion queue of ours; the lock is acquired, and released here if there was no completion.
    unsafe {
        let ours = Cq::of(cq.cast());
        ours.state.acquire();
        let found = advance(cq, ours, ours.state.held());
        if found != 0 {
            let gives_way = ours.idle(ours.state.held());
            ours.state.release();
            if gives_way {
                ours.give_way();
            }
        } else {
            ours.pause();
        }
        found
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a completion queue of ours, locked by `start_poll`.
    unsafe {
        let ours = Cq::of(cq.cast());
        let state = ours.state.held();
        ours.resume(state);
        let found = advance(cq, ours, state);
        ours.pause();
        found
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a completion queue of ours, locked by `start_poll`.
    unsafe {
        let ours = Cq::of(cq.cast());
        ours.resume(ours.state.held());
        ours.state.release();
    }
}

unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Completion {
    // SAFETY: a completion queue of ours, locked by `start_poll`.
    unsafe { &Cq::of(cq.cast()).state.held().current }
}

macro_rules! readers {
    ($($name:ident -> $kind:ty: $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $kind {
            // SAFETY: programs ask between `start_poll` and `end_poll`.
            <$kind>::from(unsafe { current(cq) }.$field)
        }
    )*};
}

readers! {
    read_opcode -> u32: opcode;
    read_byte_len -> u32: byte_len;
    read_imm_data -> u32: immediate;
    read_qp_num -> u32: qpn;
    read_src_qp -> u32: source_qpn;
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: programs ask between `start_poll` and `end_poll`.
    wc_flags(unsafe { current(cq) }.flags)
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: programs ask between `start_poll` and `end_poll`.
    packet_type(unsafe { current(cq) }.flags)
}

/// Returns the time of the completion. Peers that share memory do not read the clock: their completions, and those of
/// a queue created without timestamps, get the time at which the program sees them.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: programs ask between `start_poll` and `end_poll`.
    let completion = unsafe { &mut Cq::of(cq.cast()).state.held().current };
    if completion.timestamp == 0 {
        completion.timestamp = nanoseconds();
    }
    completion.timestamp
}

/// Returns the time of the device's clock, in nanoseconds.
fn nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Returns 0: there is no further information about an error.
unsafe extern "C" fn read_vendor_err(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

/// Returns 0: there are no LIDs over Ethernet.
unsafe extern "C" fn read_slid(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_nothing(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
