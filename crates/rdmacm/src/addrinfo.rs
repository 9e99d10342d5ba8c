//! Addresses by name.

use crate::abi::{
    AddrInfo, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IB, RDMA_PS_IPOIB,
    RDMA_PS_TCP, RDMA_PS_UDP,
};
use crate::address::AF_IB;
use crate::error::{self, Errno, returned};
use libc::{
    AI_NUMERICHOST, AI_PASSIVE, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_STREAM, addrinfo, c_char, c_int,
    c_void, sockaddr, socklen_t,
};
use std::ptr;

/// `IBV_QPT_XRC_SEND`, `IBV_QPT_XRC_RECV`.
const XRC: std::ops::RangeInclusive<u32> = 9..=10;

/// Converts hints to those of the C library.
fn asked(hints: &AddrInfo) -> addrinfo {
    // SAFETY: zeroes are hints that want nothing.
    let mut ai: addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        ai.ai_flags |= AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ai.ai_flags |= AI_NUMERICHOST;
    }
    // Host names have no `AF_IB` addresses.
    ai.ai_family = if hints.ai_family == AF_IB { libc::AF_UNSPEC } else { hints.ai_family };
    ai.ai_socktype = match hints.ai_qp_type as u32 {
        IBV_QPT_RC | IBV_QPT_UC => SOCK_STREAM,
        other if XRC.contains(&other) => SOCK_STREAM,
        IBV_QPT_UD => SOCK_DGRAM,
        _ => 0,
    };
    ai.ai_protocol = match (hints.ai_port_space as u32, ai.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, SOCK_STREAM) => IPPROTO_TCP,
        (RDMA_PS_IPOIB | RDMA_PS_UDP, _) | (RDMA_PS_IB, SOCK_DGRAM) => IPPROTO_UDP,
        _ => 0,
    };
    ai
}

/// Copies bytes to memory that C may free.
///
/// # Safety
/// `len` bytes must be readable at `from`.
unsafe fn copy(from: *const c_void, len: usize) -> Result<*mut c_void, Errno> {
    // SAFETY: `malloc` accepts any value.
    let to = unsafe { libc::malloc(len.max(1)) };
    if to.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the caller's promise; that many bytes were just allocated.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len) };
    Ok(to)
}

/// Copies an address to memory that C may free; returns it with its length.
///
/// # Safety
/// The same as for [`copy`].
unsafe fn copy_address(from: *const sockaddr, len: socklen_t) -> Result<(*mut sockaddr, socklen_t), Errno> {
    // SAFETY: the caller's promise.
    Ok((unsafe { copy(from.cast(), len as usize) }?.cast(), len))
}

/// An error of the C library's look-up, or an error number.
enum Failed {
    Name(c_int),
    Errno(Errno),
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

/// Fills in the result of a name look-up.
///
/// # Safety
/// C's rules: see the crate.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
    out: &mut AddrInfo,
) -> Result<(), Failed> {
    let wanted = hints.map(asked);
    let mut found = ptr::null_mut();
    let wanted = wanted.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's promise.
    let failed = unsafe { libc::getaddrinfo(node, service, wanted, &raw mut found) };
    if failed != 0 {
        return Err(Failed::Name(failed));
    }
    // SAFETY: it exists, since the call succeeded.
    let filled = unsafe { fill(&*found, hints, out) };
    // SAFETY: it was just got.
    unsafe { libc::freeaddrinfo(found) };
    Ok(filled?)
}

/// Fills in a result from that of the C library.
///
/// # Safety
/// `found` must be a result of `getaddrinfo`.
unsafe fn fill(found: &addrinfo, hints: Option<&AddrInfo>, out: &mut AddrInfo) -> Result<(), Errno> {
    let hint = |value: fn(&AddrInfo) -> c_int| hints.map(value).filter(|value| *value != 0);
    out.ai_family = found.ai_family;
    let stream = found.ai_socktype == SOCK_STREAM;
    out.ai_qp_type =
        hint(|hints| hints.ai_qp_type).unwrap_or(if stream { IBV_QPT_RC } else { IBV_QPT_UD } as c_int);
    let tcp = found.ai_protocol == IPPROTO_TCP;
    out.ai_port_space =
        hint(|hints| hints.ai_port_space).unwrap_or(if tcp { RDMA_PS_TCP } else { RDMA_PS_UDP } as c_int);
    let name = if found.ai_canonname.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: the caller's promise.
        unsafe { libc::strdup(found.ai_canonname) }
    };
    // SAFETY: the caller's promise.
    let (address, len) = unsafe { copy_address(found.ai_addr, found.ai_addrlen) }?;
    if found.ai_flags & AI_PASSIVE != 0 {
        out.ai_flags = RAI_PASSIVE;
        (out.ai_src_addr, out.ai_src_len, out.ai_src_canonname) = (address, len, name);
    } else {
        (out.ai_dst_addr, out.ai_dst_len, out.ai_dst_canonname) = (address, len, name);
    }
    Ok(())
}

/// Looks up a name, and adds the addresses that the hints give.
///
/// # Safety
/// C's rules: see the crate.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
    out: &mut AddrInfo,
) -> Result<(), Failed> {
    if !node.is_null() || !service.is_null() {
        // SAFETY: the caller's promise.
        unsafe { look_up(node, service, hints, out) }?;
    } else if let Some(hints) = hints {
        (out.ai_flags, out.ai_family) = (hints.ai_flags, hints.ai_family);
        (out.ai_qp_type, out.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
        if hints.ai_dst_len > 0 {
            // SAFETY: the caller's promise.
            (out.ai_dst_addr, out.ai_dst_len) = unsafe { copy_address(hints.ai_dst_addr, hints.ai_dst_len) }?;
        }
    }
    if let Some(hints) = hints.filter(|hints| out.ai_src_len == 0 && hints.ai_src_len > 0) {
        // SAFETY: the caller's promise.
        (out.ai_src_addr, out.ai_src_len) = unsafe { copy_address(hints.ai_src_addr, hints.ai_src_len) }?;
    }
    Ok(())
}

/// Looks up a name. Returns 0, an error of `getaddrinfo`, or -1 with `errno`.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    res: *mut *mut AddrInfo,
) -> c_int {
    if node.is_null() && service.is_null() && hints.is_null() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: `calloc` accepts any value.
    let out = unsafe { libc::calloc(1, size_of::<AddrInfo>()) }.cast::<AddrInfo>();
    if out.is_null() {
        return returned(Err(Errno(libc::ENOMEM)));
    }
    // SAFETY: it was just allocated, and zeroes are an empty one. The rest is the caller's promise.
    let resolved = unsafe { resolve(node, service, hints.as_ref(), &mut *out) };
    match resolved {
        Ok(()) => {
            // SAFETY: the caller's promise.
            unsafe { res.write(out) };
            return 0;
        }
        Err(Failed::Name(_)) => {}
        Err(Failed::Errno(error)) => error::set(error),
    }
    // SAFETY: it was just made.
    unsafe { rdma_freeaddrinfo(out) };
    if let Err(Failed::Name(number)) = resolved { number } else { -1 }
}

/// Frees the result of a look-up.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut AddrInfo) {
    let mut next = res;
    // SAFETY: the caller got it from `rdma_getaddrinfo`.
    while let Some(this) = unsafe { next.as_ref() } {
        let parts = [
            this.ai_connect,
            this.ai_route,
            this.ai_src_canonname.cast(),
            this.ai_dst_canonname.cast(),
            this.ai_src_addr.cast(),
            this.ai_dst_addr.cast(),
        ];
        let following = this.ai_next;
        for part in parts.into_iter().chain([next.cast()]) {
            // SAFETY: all of it was allocated so, or is null.
            unsafe { libc::free(part) };
        }
        next = following;
    }
}
