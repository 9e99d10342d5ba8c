//! Addresses of identifiers, and routes to destinations.

use crate::abi::CmId;
use crate::address;
use crate::device;
use crate::error::{Errno, returned};
use crate::events::complete;
use crate::id::{Binding, Id};
use libc::{c_int, sockaddr};
use std::net::SocketAddr;
use uverbs::Reply;
use uverbs::cm::{CmReply, CmRequest};

pub fn bind(id: &Id, to: SocketAddr) -> Result<(), Errno> {
    if id.state(|state| state.bound.is_some() || !state.bindings.is_empty()) {
        return Err(Errno(libc::EINVAL));
    }
    // A loopback address is bound at all devices: a client of this guest may come through any of them.
    let bound = if device::is_loopback(to.ip()) { bind_everywhere(id, to) } else { bind_there(id, to) };
    if bound.is_err() {
        id.detach_but(None);
    }
    let bound = bound?;
    id.state(|state| state.bound = Some(bound));
    id.set_addresses(Some(bound), None);
    Ok(())
}

fn bind_there(id: &Id, to: SocketAddr) -> Result<SocketAddr, Errno> {
    let Some(device) = device::with_address(to.ip()) else {
        // A socket needs no device until it listens there.
        let waits = id.state(|state| state.is_socket) && to.port() != 0 && device::had_address(to.ip());
        return if waits { Ok(to) } else { Err(Errno(libc::EADDRNOTAVAIL)) };
    };
    let bound = bind_at(id.attach(device)?, to)?;
    id.use_device(device)?;
    Ok(bound)
}

/// Binds an identifier at all devices, with the same port.
fn bind_everywhere(id: &Id, to: SocketAddr) -> Result<SocketAddr, Errno> {
    let mut bound = to;
    for device in device::all() {
        bound = bind_at(id.attach(device)?, bound)?;
    }
    let waits = to.port() != 0 && device::any_is_lost();
    if id.binding().is_ok() || waits { Ok(bound) } else { Err(Errno(libc::ENODEV)) }
}

pub fn bind_at(binding: Binding, address: SocketAddr) -> Result<SocketAddr, Errno> {
    match binding.device.ask(CmRequest::BindAddr { id: binding.handle, address })? {
        Reply::Cm(CmReply::Bound(bound)) => Ok(bound),
        _ => Err(Errno(libc::EPROTO)),
    }
}

pub fn resolve(id: &Id, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Errno> {
    let source = source.filter(|source| !source.ip().is_unspecified() || source.port() != 0);
    let bindings = id.state(|state| {
        state.bound = None;
        state.bindings.clone()
    });
    let binding = match bindings[..] {
        [] => {
            let wanted = source.filter(|source| !device::is_loopback(source.ip()));
            let device = match wanted {
                Some(source) => device::with_address(source.ip()).ok_or(Errno(libc::EADDRNOTAVAIL))?,
                None => device::towards(destination.ip()).ok_or(Errno(libc::ENODEV))?,
            };
            id.attach(device)?
        }
        [only] => only,
        // The identifier was bound at all devices: now one is chosen.
        ref several => {
            let device = device::towards(destination.ip()).ok_or(Errno(libc::ENODEV))?;
            let chosen = several.iter().find(|binding| binding.device.tag == device.tag);
            let chosen = *chosen.ok_or(Errno(libc::ENODEV))?;
            id.detach_but(Some(chosen));
            chosen
        }
    };
    id.use_device(binding.device)?;
    binding.device.order(CmRequest::ResolveAddr { id: binding.handle, source, destination })?;
    id.set_addresses(None, Some(destination));
    complete(id)
}

pub fn route(id: &Id) -> Result<(), Errno> {
    id.order(|id| CmRequest::ResolveRoute { id })?;
    complete(id)
}

/// Binds an identifier to an address.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut CmId, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller's promise.
    let (id, addr) = unsafe { (Id::of(id), address::read(addr)) };
    returned(id.and_then(|id| bind(id, addr.ok_or(Errno(libc::EINVAL))?)))
}

/// Resolves a destination. Ignores the timeout: the device answers at once.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut CmId,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (id, source, destination) = unsafe { (Id::of(id), address::read(src_addr), address::read(dst_addr)) };
    if !src_addr.is_null() && source.is_none() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    returned(id.and_then(|id| resolve(id, source, destination.ok_or(Errno(libc::EINVAL))?)))
}

/// Resolves the route to a resolved destination. Ignores the timeout: the device answers at once.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id) }.and_then(route))
}
