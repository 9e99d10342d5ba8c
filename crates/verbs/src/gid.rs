//! The tables of GIDs and partition keys.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Outcome, code, or_minus_one};
use crate::query::port;
use std::ffi::c_int;
use std::net::Ipv6Addr;

/// The key of the only partition, of which everyone is a full member; in wire order.
const PKEY: u16 = 0xffff;

fn entry(gid: Ipv6Addr, index: u32) -> ibv_gid_entry {
    let gid_type = IBV_GID_TYPE_ROCE_V2;
    ibv_gid_entry { gid: gid.into(), gid_index: index, port_num: 1, gid_type, ndev_ifindex: 0 }
}

/// Returns the GID at an index.
///
/// # Errors
/// `EINVAL` if there is none; the device's error.
pub fn gid(context: &Context, port_number: u32, index: u32) -> Outcome<Ipv6Addr> {
    port(context, port_number)?.gids.get(index as usize).copied().ok_or(libc::EINVAL)
}

/// Returns the index of a GID.
///
/// # Errors
/// `EINVAL` if it is not in the table; the device's error.
pub fn index_of(context: &Context, port_number: u32, gid: Ipv6Addr) -> Outcome<u8> {
    let gids = port(context, port_number)?.gids;
    let at = gids.iter().position(|known| *known == gid).ok_or(libc::EINVAL)?;
    u8::try_from(at).map_err(|_| libc::EINVAL)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_number: u8,
    index: c_int,
    to: *mut ibv_gid,
) -> c_int {
    let Ok(index) = u32::try_from(index) else { return or_minus_one(Err(libc::EINVAL)) };
    // SAFETY: a context of ours, and room for a GID.
    or_minus_one(unsafe {
        gid(Context::of(context), port_number.into(), index).map(|gid| to.write(gid.into())).map(|()| 0)
    })
}

/// Copies an entry into a structure of the size that the program knows.
///
/// # Safety
/// There must be room for a structure of that size.
unsafe fn put(entry: &ibv_gid_entry, to: *mut ibv_gid_entry, size: usize) {
    let known = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(entry).cast::<u8>(), to.cast(), known) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_number: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 {
        return crate::errno::set(libc::EINVAL);
    }
    // SAFETY: a context of ours, and room for so many bytes.
    code(unsafe {
        gid(Context::of(context), port_number, index).map(|gid| put(&entry(gid, index), to, size))
    })
}

/// Returns the number of entries, or a negative `errno`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let refuse = |errno: c_int| -(crate::errno::set(errno) as isize);
    // SAFETY: a context of ours.
    let gids = match unsafe { port(Context::of(context), 1) } {
        Err(errno) => return refuse(errno),
        Ok(port) if flags != 0 || port.gids.len() > room => return refuse(libc::EINVAL),
        Ok(port) => port.gids,
    };
    for (index, gid) in gids.iter().enumerate() {
        // SAFETY: the program promises that there is room for that many of that size.
        unsafe { put(&entry(*gid, index as u32), entries.byte_add(index * size), size) };
    }
    gids.len() as isize
}

/// Returns the type of a GID. This function is private between `libibverbs` and its utilities.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_number: u8,
    index: u32,
    to: *mut u32,
) -> c_int {
    // SAFETY: a context of ours, and room for a number.
    or_minus_one(
        unsafe {
            gid(Context::of(context), port_number.into(), index).map(|_| to.write(IBV_GID_TYPE_SYSFS_ROCE_V2))
        }
        .map(|()| 0),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port_number: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port_number != 1 || index != 0 {
        return or_minus_one(Err(libc::EINVAL));
    }
    // SAFETY: the caller has room for a key there.
    unsafe { pkey.write(PKEY.to_be()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port_number: u8, pkey: u16) -> c_int {
    let known = port_number == 1 && u16::from_be(pkey) == PKEY;
    or_minus_one(if known { Ok(0) } else { Err(libc::EINVAL) })
}
