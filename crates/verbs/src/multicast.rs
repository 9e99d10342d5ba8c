//! Multicast groups.

use crate::abi::*;
use crate::context::Context;
use crate::errno::code;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use uverbs::Request;

/// Makes a request for a queue pair and a group.
///
/// # Safety
/// `qp` must be one of our queue pairs, and `gid` must point to a GID.
unsafe fn order(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    request: impl FnOnce(u32, Ipv6Addr) -> Request,
) -> c_int {
    // SAFETY: the caller's promise; a GID may be at any alignment.
    let (context, qpn, gid) = unsafe { (Context::of((*qp).context), (*qp).qp_num, gid.read_unaligned()) };
    code(context.link.ask(&request(qpn, gid.into())).map(drop))
}

/// Attaches a queue pair for datagrams to a group. Ignores the LID: there are none over Ethernet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: a queue pair of ours, and the program's GID.
    unsafe { order(qp, gid, |qpn, gid| Request::AttachMcast { qpn, gid }) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: as above.
    unsafe { order(qp, gid, |qpn, gid| Request::DetachMcast { qpn, gid }) }
}
