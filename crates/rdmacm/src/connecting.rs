//! Connections, from beginning to end.

use crate::abi::{CmId, ConnParam, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_PS_TCP};
use crate::device::{self, Device};
use crate::error::{Errno, returned};
use crate::events::{self, complete};
use crate::id::Id;
use crate::{queue_pair, resolving, returning};
use libc::{c_int, c_void};
use std::net::{Ipv6Addr, SocketAddr};
use std::ptr;
use uverbs::cm::{CmParameters, CmRequest};

/// `IBV_EVENT_COMM_EST`.
const COMMUNICATION_ESTABLISHED: c_int = 4;
/// A reason for a rejection: the vendor's option is not supported.
const VENDOR_OPTION: u16 = 35;

/// Copies bytes from C.
///
/// # Safety
/// `data` must be null, or `len` bytes must be readable there.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast(), len.into()) }.to_vec()
}

/// Checks that the device supports the parameters.
fn check(id: &Id, device: &Device, param: Option<&ConnParam>) -> Result<(), Errno> {
    let (ps, has_qp) = id.visible(|public| (public.ps, !public.qp.is_null()));
    let fits = param.map_or(has_qp, |param| {
        let (resources, depth) = (param.responder_resources, param.initiator_depth);
        (resources == RDMA_MAX_RESP_RES || resources <= device.max_responder_resources)
            && (depth == RDMA_MAX_INIT_DEPTH || depth <= device.max_initiator_depth)
    });
    if ps != RDMA_PS_TCP || fits { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

/// Returns the requested parameters, completed from the identifier and its queue pair.
///
/// # Safety
/// Private data must be readable.
unsafe fn parameters(id: &Id, param: Option<&ConnParam>) -> CmParameters {
    let qp = id.visible(|public| public.qp);
    // SAFETY: it is the queue pair of the identifier, which has not been destroyed.
    let (own_number, own_srq) =
        unsafe { qp.as_ref() }.map_or((None, None), |qp| (Some(qp.qp_num), Some(!qp.srq.is_null())));
    // SAFETY: the caller's promise.
    let said = param.map_or_else(Vec::new, |p| unsafe { bytes(p.private_data, p.private_data_len) });
    id.state(|state| CmParameters {
        qp_num: own_number.or(param.map(|param| param.qp_num)).unwrap_or(0),
        qkey: None,
        srq: own_srq.or(param.map(|param| param.srq != 0)).unwrap_or(false),
        responder_resources: state.responder_resources,
        initiator_depth: state.initiator_depth,
        flow_control: param.is_some_and(|param| param.flow_control != 0),
        retry_count: param.map_or(7, |param| param.retry_count),
        rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count),
        private: [&state.connect[..], &said].concat(),
    })
}

/// Asks the peer for a connection.
///
/// # Safety
/// Private data must be readable.
pub unsafe fn connect(id: &Id, param: Option<&ConnParam>) -> Result<(), Errno> {
    let device = id.binding()?.device;
    check(id, device, param)?;
    let depth = param.map(|param| param.initiator_depth).filter(|depth| *depth != RDMA_MAX_INIT_DEPTH);
    let resources =
        param.map(|param| param.responder_resources).filter(|resources| *resources != RDMA_MAX_RESP_RES);
    id.state(|state| {
        state.initiator_depth = depth.unwrap_or(device.max_initiator_depth);
        state.responder_resources = resources.unwrap_or(device.max_responder_resources);
    });
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters(id, param) };
    id.order(|id| CmRequest::Connect { id, parameters })?;
    id.state(|state| state.connect.clear());
    complete(id)
}

/// Accepts a connection.
///
/// # Safety
/// Private data must be readable.
pub unsafe fn accept(id: &Id, param: Option<&ConnParam>) -> Result<(), Errno> {
    let device = id.binding()?.device;
    if param.is_none() && id.visible(|public| public.qp.is_null()) {
        return Err(Errno(libc::EINVAL));
    }
    check(id, device, param)?;
    let depth = param.map(|param| param.initiator_depth).filter(|depth| *depth != RDMA_MAX_INIT_DEPTH);
    let resources =
        param.map(|param| param.responder_resources).filter(|resources| *resources != RDMA_MAX_RESP_RES);
    let (resources, depth) = id.state(|state| {
        state.initiator_depth = depth.unwrap_or(state.initiator_depth.min(device.max_initiator_depth));
        state.responder_resources =
            resources.unwrap_or(state.responder_resources.min(device.max_responder_resources));
        (state.responder_resources, state.initiator_depth)
    });
    if !id.is_datagram() {
        queue_pair::ready_to_receive(id, resources)?;
        queue_pair::ready_to_send(id, depth)?;
    }
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters(id, param) };
    let accepted = id.order(|id| CmRequest::Accept { id, parameters });
    if accepted.is_err() {
        queue_pair::fail(id);
        return accepted;
    }
    if !id.is_datagram() {
        return complete(id);
    }
    if id.state(|state| state.sync) {
        let event = id.visible(|public| std::mem::replace(&mut public.event, ptr::null_mut()));
        // SAFETY: it is one that was reported and not acknowledged, or null.
        unsafe { events::acknowledge(event) };
    }
    Ok(())
}

pub fn listen(id: &Id, backlog: c_int) -> Result<(), Errno> {
    if id.state(|state| state.bound.is_none() && state.bindings.is_empty()) {
        resolving::bind(id, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))?;
    }
    let backlog = u32::try_from(backlog).unwrap_or(0);
    // A device that goes from now on is waited for.
    let (bindings, bound) = id.state(|state| {
        state.backlog = Some(backlog);
        (state.bindings.clone(), state.bound)
    });
    for binding in &bindings {
        let listens = binding.device.order(CmRequest::Listen { id: binding.handle, backlog });
        if listens.is_err() && !binding.device.is_lost() {
            id.state(|state| state.backlog = None);
            return listens;
        }
    }
    let is_everywhere = bound.is_some_and(|bound| device::is_loopback(bound.ip()));
    if bindings.is_empty() || is_everywhere && device::any_is_lost() {
        returning::add(id);
    }
    Ok(())
}

fn disconnect(id: &Id) -> Result<(), Errno> {
    if id.visible(|public| public.verbs.is_null()) {
        return Err(Errno(libc::EINVAL));
    }
    queue_pair::fail(id);
    id.order(|id| CmRequest::Disconnect { id })?;
    complete(id)
}

fn establish(id: &Id) -> Result<(), Errno> {
    if id.visible(|public| !public.qp.is_null()) {
        return Err(Errno(libc::EINVAL));
    }
    id.order(|id| CmRequest::Establish { id })
}

/// Rejects a request for a reason.
///
/// # Safety
/// C's rules: see the crate.
unsafe fn reject(id: *mut CmId, data: *const c_void, len: u8, reason: u16) -> c_int {
    // SAFETY: the caller's promise.
    let (id, private) = unsafe { (Id::of(id), bytes(data, len)) };
    returned(id.and_then(|id| id.order(|id| CmRequest::Reject { id, reason, private })))
}

/// Asks the peer for a connection.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut CmId, conn_param: *mut ConnParam) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id).and_then(|id| connect(id, conn_param.as_ref())) })
}

/// Accepts a connection.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut CmId, conn_param: *mut ConnParam) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id).and_then(|id| accept(id, conn_param.as_ref())) })
}

/// Listens for requests.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id) }.and_then(|id| listen(id, backlog)))
}

/// Rejects a request.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    id: *mut CmId,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reject(id, private_data, private_data_len, 0) }
}

/// Rejects a request because of its vendor's option.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut CmId,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reject(id, private_data, private_data_len, VENDOR_OPTION) }
}

/// Ends a connection.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut CmId) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id) }.and_then(disconnect))
}

/// Establishes a connection that the peer has accepted.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut CmId) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id) }.and_then(establish))
}

/// Reports an event of a queue pair to the connection manager.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut CmId, event: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let id = unsafe { Id::of(id) };
    returned(id.and_then(|id| match event {
        COMMUNICATION_ESTABLISHED => id.order(|id| CmRequest::Notify { id }),
        _ => Err(Errno(libc::EINVAL)),
    }))
}
