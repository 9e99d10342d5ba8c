//! Multicast: identifiers for datagrams join groups, which have IP addresses.
//!
//! The device returns a group's GID; `libibverbs` attaches the queue pair to it.

use crate::abi::{
    CmEvent, CmId, Gid, JoinMcAttrEx, RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
    RDMA_MC_JOIN_FLAG_FULLMEMBER, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, event as kind,
};
use crate::address;
use crate::error::{Errno, checked, returned};
use crate::events::complete;
use crate::id::Id;
use crate::verbs;
use libc::{c_int, c_void, sockaddr};
use std::net::SocketAddr;
use uverbs::cm::{CmGroup, CmRequest};

/// A group that an identifier has joined, or is about to join.
#[derive(Debug)]
pub struct Joined {
    /// The number of the join at the device.
    join: u32,
    address: SocketAddr,
    /// The pointer that the program passed with the join.
    context: usize,
    only_sends: bool,
    /// The group's GID, once the queue pair is attached.
    attached: Option<Gid>,
}

fn join(id: &Id, address: SocketAddr, flags: u32, context: *mut c_void) -> Result<(), Errno> {
    id.binding()?;
    let only_sends = flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    let join = id.state(|state| {
        state.joins = state.joins.wrapping_add(1);
        let (join, context) = (state.joins, context as usize);
        state.groups.push(Joined { join, address, context, only_sends, attached: None });
        join
    });
    let asked = id.order(|id| CmRequest::JoinMulticast { id, address, join });
    if asked.is_err() {
        id.state(|state| state.groups.retain(|group| group.join != join));
    }
    asked?;
    complete(id)
}

/// Attaches the queue pair to a group whose GID the device has returned: its packets arrive from now on, until
/// [`leave`]. Returns the pointer that the program passed with the join, or `None` if it has left the group meanwhile.
pub fn joined(id: &Id, told: &CmGroup, event: &mut CmEvent) -> Option<*mut c_void> {
    let find = |group: &&mut Joined| group.join == told.join;
    let (context, only_sends) = id.state(|state| {
        state.groups.iter_mut().find(find).map(|group| (group.context as *mut c_void, group.only_sends))
    })?;
    let qp = id.visible(|public| public.qp);
    if event.event == kind::MULTICAST_JOIN && !only_sends && !qp.is_null() {
        let gid = Gid::from(told.gid);
        // SAFETY: it is the identifier's queue pair, which has not been destroyed.
        match checked(unsafe { verbs::ibv_attach_mcast(qp, &raw const gid, 0) }) {
            Ok(()) => {
                let attach = |group: &mut Joined| group.attached = Some(gid);
                id.state(|state| state.groups.iter_mut().find(find).into_iter().for_each(attach));
            }
            Err(Errno(number)) => (event.event, event.status) = (kind::MULTICAST_ERROR, -number),
        }
    }
    Some(context)
}

fn leave(id: &Id, address: SocketAddr) -> Result<(), Errno> {
    let group = id.state(|state| {
        let at = state.groups.iter().position(|group| group.address == address)?;
        Some(state.groups.remove(at))
    });
    group.ok_or(Errno(libc::EADDRNOTAVAIL)).and_then(|mut group| detach(id, &mut group))
}

fn detach(id: &Id, group: &mut Joined) -> Result<(), Errno> {
    let qp = id.visible(|public| public.qp);
    let Some(gid) = group.attached.take().filter(|_| !qp.is_null()) else { return Ok(()) };
    // SAFETY: it is the identifier's queue pair, which has not been destroyed.
    checked(unsafe { verbs::ibv_detach_mcast(qp, &raw const gid, 0) })
}

/// Detaches the queue pair from all groups. Must come before its destruction, which fails while it is attached.
pub fn detach_all(id: &Id) {
    id.state(|state| state.groups.iter_mut().for_each(|group| _ = detach(id, group)));
}

/// Joins the group with an address; `flags` are those of the C structure.
///
/// # Safety
/// C's rules: see the crate.
unsafe fn join_at(id: *mut CmId, addr: *const sockaddr, flags: u32, context: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let (id, addr) = unsafe { (Id::of(id), address::read(addr)) };
    returned(id.and_then(|id| join(id, addr.ok_or(Errno(libc::EINVAL))?, flags, context)))
}

/// Joins a group. The event `RDMA_CM_EVENT_MULTICAST_JOIN`, or `_ERROR`, reports the result.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut CmId,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { join_at(id, addr, RDMA_MC_JOIN_FLAG_FULLMEMBER, context) }
}

/// Joins a group like [`rdma_join_multicast`]; the program may want only to send.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut CmId,
    mc_join_attr: *mut JoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(attr) = (unsafe { mc_join_attr.as_ref() }) else { return returned(Err(Errno(libc::EINVAL))) };
    let known = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    if attr.comp_mask & !known != 0 {
        return returned(Err(Errno(libc::ENOTSUP)));
    }
    if attr.comp_mask != known || attr.join_flags > RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller's promise.
    unsafe { join_at(id, attr.addr, attr.join_flags, context) }
}

/// Leaves a group.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut CmId, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller's promise.
    let (id, addr) = unsafe { (Id::of(id), address::read(addr)) };
    returned(id.and_then(|id| leave(id, addr.ok_or(Errno(libc::EINVAL))?)))
}
