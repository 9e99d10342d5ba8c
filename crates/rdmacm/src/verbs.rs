//! The parts of `libibverbs` that are needed.

use crate::abi::{
    CompChannel, Context, Cq, Device, DeviceAttr, Gid, Mr, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, RecvWr,
    SendWr, Srq, SrqInitAttr, Wc,
};
use libc::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use verbs_abi::verbs_context;

unsafe extern "C" {
    pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
    pub fn ibv_free_device_list(list: *mut *mut Device);
    pub fn ibv_open_device(device: *mut Device) -> *mut Context;
    pub fn ibv_close_device(context: *mut Context) -> c_int;
    pub fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int;
    pub fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
    pub fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    pub fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel;
    pub fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int;
    pub fn ibv_create_cq(
        context: *mut Context,
        entries: c_int,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        vector: c_int,
    ) -> *mut Cq;
    pub fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    pub fn ibv_get_cq_event(
        channel: *mut CompChannel,
        cq: *mut *mut Cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    pub fn ibv_ack_cq_events(cq: *mut Cq, events: u32);
    pub fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr;
    pub fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    pub fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq;
    pub fn ibv_destroy_srq(srq: *mut Srq) -> c_int;
    pub fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
    pub fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    pub fn ibv_attach_mcast(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int;
    pub fn ibv_detach_mcast(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int;
}

/// The only port (`ibv_device_attr.phys_port_cnt` is 1).
pub const PORT: u8 = 1;

/// The only partition key.
pub const PKEY: u16 = 0xffff;

type CreateQpEx = unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp;

/// Returns the extended call that creates queue pairs, if the device has it. It is a field of the context, not a
/// symbol.
///
/// # Safety
/// The context must come from `libibverbs`.
pub unsafe fn create_qp_ex(context: *mut Context) -> Option<CreateQpEx> {
    // SAFETY: contexts of libibverbs are complete.
    if unsafe { (*context).abi_compat }.addr() != usize::MAX {
        return None;
    }
    // A context with this mark is the end of a larger structure, which grows at its front.
    let whole = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: its size is right before the context.
    let size = unsafe { (&raw const (*whole).sz).read() };
    if size < size_of::<verbs_context>() - offset_of!(verbs_context, create_qp_ex) {
        return None;
    }
    // SAFETY: within that structure; the field is a function of that type, or null.
    unsafe { (&raw const (*whole).create_qp_ex).read() }
}

/// Posts one work request; returns an error number, or 0.
///
/// # Safety
/// The queue pair must come from `libibverbs`, and the request must be whole.
pub unsafe fn post_send(qp: *mut Qp, wr: &mut SendWr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's promise; contexts of libibverbs are complete.
    unsafe { (*(*qp).context).ops.post_send.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, &raw mut bad)) }
}

/// Posts one receive; returns an error number, or 0.
///
/// # Safety
/// The same as for [`post_send`].
pub unsafe fn post_receive(qp: *mut Qp, wr: &mut RecvWr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: as above.
    unsafe { (*(*qp).context).ops.post_recv.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, &raw mut bad)) }
}

/// Takes completions; returns their number, or a negative number.
///
/// # Safety
/// The completion queue must come from `libibverbs`.
pub unsafe fn poll_cq(cq: *mut Cq, found: &mut [Wc]) -> c_int {
    // SAFETY: as above; there is room for as many.
    unsafe {
        let poll = (*(*cq).context).ops.poll_cq;
        poll.map_or(-1, |poll| poll(cq, found.len() as c_int, found.as_mut_ptr()))
    }
}

/// Makes the next completion cause an event; returns an error number, or 0.
///
/// # Safety
/// The same as for [`poll_cq`].
pub unsafe fn request_notification(cq: *mut Cq) -> c_int {
    // SAFETY: as above.
    unsafe { (*(*cq).context).ops.req_notify_cq.map_or(libc::EOPNOTSUPP, |request| request(cq, 0)) }
}
