//! What is needed of `libibverbs`.

use crate::abi::{
    Context, Device, DeviceAttr, Gid, Opaque, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, SrqInitAttr,
};
use libc::{c_int, c_void};

unsafe extern "C" {
    pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
    pub fn ibv_free_device_list(list: *mut *mut Device);
    pub fn ibv_open_device(device: *mut Device) -> *mut Context;
    pub fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int;
    pub fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
    pub fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    pub fn ibv_create_comp_channel(context: *mut Context) -> *mut Opaque;
    pub fn ibv_destroy_comp_channel(channel: *mut Opaque) -> c_int;
    pub fn ibv_create_cq(
        context: *mut Context,
        entries: c_int,
        cq_context: *mut c_void,
        channel: *mut Opaque,
        vector: c_int,
    ) -> *mut Opaque;
    pub fn ibv_destroy_cq(cq: *mut Opaque) -> c_int;
    pub fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Opaque;
    pub fn ibv_destroy_srq(srq: *mut Opaque) -> c_int;
    pub fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
    pub fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
}

/// `ibv_device_attr.phys_port_cnt` is 1: the port.
pub const PORT: u8 = 1;

/// The index of the only partition key.
pub const PKEY: u16 = 0xffff;

/// `IBV_QP_INIT_ATTR_PD`.
pub const INIT_ATTR_PD: u32 = 1;

type CreateQpEx = unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp;

/// Before a context that has extensions (`verbs_context`), from its end: how many bytes, the mark that it has them
/// (`abi_compat` of `ibv_context`), and where `create_qp_ex` is.
mod extended {
    pub const ABI_COMPAT: usize = 320;
    pub const SIZE: usize = 8;
    pub const CREATE_QP_EX: usize = 56;
    /// Of an `ibv_context`, which is the last member.
    pub const CONTEXT: usize = 328;
}

/// The extended call that makes queue pairs, if the device has it: in the header, it is no symbol but a field.
///
/// # Safety
/// The context must be one of `libibverbs`.
pub unsafe fn create_qp_ex(context: *mut Context) -> Option<CreateQpEx> {
    let at = context.cast::<u8>();
    // SAFETY: contexts of libibverbs are at least so long.
    let mark = unsafe { at.add(extended::ABI_COMPAT).cast::<usize>().read() };
    if mark != usize::MAX {
        return None;
    }
    // SAFETY: a context with that mark is the end of a larger structure, whose size is before it.
    let size = unsafe { at.sub(extended::SIZE).cast::<usize>().read() };
    if size < extended::CONTEXT + extended::CREATE_QP_EX {
        return None;
    }
    // SAFETY: within that structure; what is there is a function of that type, or null.
    unsafe { at.sub(extended::CREATE_QP_EX).cast::<Option<CreateQpEx>>().read() }
}
