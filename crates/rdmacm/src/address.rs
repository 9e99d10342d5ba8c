//! Conversion between C's addresses and the device's.

use crate::abi::Gid;
use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The family of addresses that are GIDs.
pub const AF_IB: libc::c_int = 27;

/// `sockaddr_ib`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SockaddrIb {
    pub sib_family: u16,
    pub sib_pkey: u16,
    pub sib_flowinfo: u32,
    pub sib_addr: Gid,
    pub sib_sid: u64,
    pub sib_sid_mask: u64,
    pub sib_scope_id: u64,
}

/// Returns an address of no family.
#[must_use]
pub const fn nothing() -> sockaddr_storage {
    // SAFETY: zeroes are an address of no family.
    unsafe { std::mem::zeroed() }
}

/// Reads an address of family IPv4, IPv6 or `AF_IB`. For `AF_IB`, the GID is an IP address, and the port is in the last
/// bits of the service identifier (IBTA A11.3.2). Returns `None` for other families and a null pointer.
///
/// # Safety
/// The pointer must be null, or point to an address as long as its family requires.
#[must_use]
pub unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; it may not be aligned for more.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match family.into() {
        AF_INET => {
            // SAFETY: the caller's promise, of this family.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        AF_INET6 => {
            // SAFETY: the caller's promise, of this family.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        AF_IB => {
            // SAFETY: the caller's promise, of this family.
            let ib = unsafe { address.cast::<SockaddrIb>().read_unaligned() };
            Some(SocketAddr::new(of_gid(ib.sib_addr), u64::from_be(ib.sib_sid) as u16))
        }
        _ => None,
    }
}

/// Converts an address to the form of C.
#[must_use]
pub fn write(address: SocketAddr) -> sockaddr_storage {
    let mut storage = nothing();
    let at = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            let value = sockaddr_in {
                sin_family: AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough and aligned for any address.
            unsafe { at.cast::<sockaddr_in>().write(value) };
        }
        SocketAddr::V6(v6) => {
            let value = sockaddr_in6 {
                sin6_family: AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the storage is large enough and aligned for any address.
            unsafe { at.cast::<sockaddr_in6>().write(value) };
        }
    }
    storage
}

#[must_use]
pub fn gid(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

#[must_use]
pub fn of_gid(gid: Gid) -> IpAddr {
    IpAddr::V6(gid.into()).to_canonical()
}
