//! Endpoints: identifiers that are created together with everything that belongs to them, and whose calls block.

use crate::abi::{AddrInfo, CmEvent, CmId, Pd, QpInitAttr, RAI_PASSIVE, event as kind};
use crate::address;
use crate::error::{Errno, returned};
use crate::events;
use crate::id::Id;
use crate::{queue_pair, resolving};
use libc::c_int;
use std::ptr;

/// Binds or resolves an identifier as a look-up says, and creates its queue pair if it has attributes.
///
/// # Safety
/// C's rules: see the crate.
unsafe fn prepare(id: &Id, res: &AddrInfo, pd: *mut Pd, attr: *mut QpInitAttr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (source, destination) = unsafe { (address::read(res.ai_src_addr), address::read(res.ai_dst_addr)) };
    // SAFETY: the caller's promise.
    let mut wanted = unsafe { attr.as_mut() };
    if let Some(attr) = &mut wanted {
        attr.qp_type = res.ai_qp_type as u32;
    }
    if res.ai_flags & RAI_PASSIVE != 0 {
        resolving::bind(id, source.ok_or(Errno(libc::EINVAL))?)?;
        if !pd.is_null() {
            id.visible(|public| public.pd = pd);
        }
        id.state(|state| state.qp_init_attr = wanted.map(|attr| *attr));
        return Ok(());
    }
    resolving::resolve(id, source, destination.ok_or(Errno(libc::EINVAL))?)?;
    resolving::route(id)?;
    if let Some(attr) = wanted {
        // SAFETY: the caller's promise.
        unsafe { queue_pair::create_plain(id, pd, attr) }?;
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        // SAFETY: the caller's promise.
        let connect = unsafe { std::slice::from_raw_parts(res.ai_connect.cast(), res.ai_connect_len) };
        id.state(|state| state.connect = connect.to_vec());
    }
    Ok(())
}

/// Creates an endpoint.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut CmId,
    res: *mut AddrInfo,
    pd: *mut Pd,
    qp_init_attr: *mut QpInitAttr,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(res) = (unsafe { res.as_ref() }) else { return returned(Err(Errno(libc::EINVAL))) };
    let (ps, qp_type) = (res.ai_port_space as u32, res.ai_qp_type as u32);
    let made = Id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type);
    returned(made.and_then(|made| {
        // SAFETY: it was just made; the rest is the caller's promise.
        let prepared = unsafe { prepare(&*made, res, pd, qp_init_attr) };
        if prepared.is_err() {
            // SAFETY: it was just made.
            unsafe { rdma_destroy_ep(made.cast()) };
            return prepared;
        }
        // SAFETY: the caller's promise.
        unsafe { id.write(made.cast()) };
        Ok(())
    }))
}

/// Destroys an endpoint.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut CmId) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(public) = id.as_ref() else { return };
        if !public.qp.is_null() {
            queue_pair::rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            queue_pair::rdma_destroy_srq(id);
        }
        Id::destroy(id.cast());
    }
}

/// Waits for the next request to a synchronous listener. Creates its queue pair if the listener has attributes for
/// that.
pub fn request(listener: &Id) -> Result<*mut CmId, Errno> {
    if !listener.state(|state| state.sync) {
        return Err(Errno(libc::EINVAL));
    }
    let old = listener.visible(|public| std::mem::replace(&mut public.event, ptr::null_mut()));
    // SAFETY: it is one that was reported and not acknowledged, or null.
    unsafe { events::acknowledge(old) };
    let channel = listener.channel()?;
    let event = events::next(&channel)?;
    let taken = take(listener, event);
    if taken.is_err() {
        listener.visible(|public| public.event = event);
    }
    taken
}

fn take(listener: &Id, event: *mut CmEvent) -> Result<*mut CmId, Errno> {
    // SAFETY: it was just reported.
    let (kind, status, id) = unsafe { ((*event).event, (*event).status, (*event).id) };
    match (kind, status) {
        (kind::REJECTED, _) => return Err(Errno(libc::ECONNREFUSED)),
        (kind::DEVICE_REMOVAL, _) => return Err(Errno(libc::ENODEV)),
        (kind::CONNECT_REQUEST, 0) => {}
        (_, 0) => return Err(Errno(libc::EINVAL)),
        (_, status) => return Err(Errno(status.abs())),
    }
    // SAFETY: it was just made, for the request.
    let request = unsafe { Id::of(id) }?;
    if let Some(mut attr) = listener.state(|state| state.qp_init_attr) {
        let pd = listener.visible(|public| public.pd);
        // SAFETY: `attr` is ours.
        unsafe { queue_pair::create_plain(request, pd, &raw mut attr) }?;
    }
    request.visible(|public| public.event = event);
    Ok(id)
}

/// Waits for the next request to a listener.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut CmId, id: *mut *mut CmId) -> c_int {
    // SAFETY: the caller's promise.
    let got = unsafe { Id::of(listen) }.and_then(request);
    returned(got.map(|got| {
        // SAFETY: the caller's promise.
        unsafe { id.write(got) };
    }))
}
