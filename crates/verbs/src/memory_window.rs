//! Memory windows.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Outcome, code, pointer};
use crate::post::{hand_over_local, may_send};
use crate::queue_pair::Qp;
use std::ffi::c_int;
use uverbs::{Reply, Request, WorkRequest};

/// The lowest byte of a key, which a bind changes.
const TAG: u32 = 0xff;

unsafe fn alloc(pd: *mut ibv_pd, mw_type: u32) -> Outcome<*mut ibv_mw> {
    // SAFETY: a domain of ours.
    let (context, handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: its context.
    let link = unsafe { &Context::of(context).link };
    let Reply::Mw { mw, rkey } = link.ask(&Request::AllocMw { pd: handle, mw_type })? else {
        return Err(libc::EIO);
    };
    Ok(Box::into_raw(Box::new(ibv_mw { context, pd, rkey, handle: mw, type_: mw_type })))
}

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    // SAFETY: a domain of ours.
    pointer(unsafe { alloc(pd, mw_type) })
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a window of ours, which the program gives up.
    code(unsafe {
        let taken = Context::of((*mw).context).link.take_away(&Request::DeallocMw { mw: (*mw).handle });
        taken.map(|()| drop(Box::from_raw(mw)))
    })
}

/// Makes a request bind a window with this key, whose lowest byte the program chooses.
///
/// # Safety
/// The window must be one of ours, and the region one of ours or null.
pub(crate) unsafe fn ask_to_bind(
    request: &mut WorkRequest,
    mw: *const ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (window, region) = unsafe { (mw.as_ref().ok_or(libc::EINVAL)?, info.mr.as_ref()) };
    if (window.rkey ^ rkey) & !TAG != 0 || region.is_none() && info.length > 0 {
        return Err(libc::EINVAL);
    }
    request.immediate = region.map_or(0, |region| region.lkey);
    (request.rkey, request.address) = (rkey, info.addr);
    (request.compare_add, request.swap) = (info.length, info.mw_access_flags.into());
    Ok(())
}

unsafe fn bind(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *const ibv_mw_bind) -> Outcome<()> {
    // SAFETY: a queue pair and a window of ours, and the program's wish.
    let (qp, mw, bind) = unsafe { (Qp::of(qp), &mut *mw, &*bind) };
    let (id, opcode) = (bind.wr_id, IBV_WR_BIND_MW as u8);
    let flags = (bind.send_flags & SEND_FLAGS & !IBV_SEND_INLINE) as u8;
    let mut request = WorkRequest { id, opcode, flags, ..WorkRequest::default() };
    let rkey = mw.rkey & !TAG | mw.rkey.wrapping_add(1) & TAG;
    // SAFETY: as above.
    unsafe { ask_to_bind(&mut request, mw, rkey, &bind.bind_info) }?;
    let mut send = qp.send.lock();
    if !may_send(qp) || mw.type_ != IBV_MW_TYPE_1 {
        return Err(libc::EINVAL);
    }
    hand_over_local(qp, &mut send.queue, &mut request)?;
    mw.rkey = rkey;
    Ok(())
}

pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, wish: *mut ibv_mw_bind) -> c_int {
    // SAFETY: a queue pair and a window of ours, and the program's wish.
    code(unsafe { bind(qp, mw, wish) })
}
