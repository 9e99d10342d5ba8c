//! Options of sockets that the library needs otherwise than the program wants them.

use super::get;
use crate::{leaving, real};
use libc::{c_int, c_void, socklen_t};
use std::sync::atomic::{AtomicU32, Ordering};

/// Options with which only the kernel can work, on a level.
const KERNELS: [(c_int, c_int); 10] = [
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, 35), // TCP_ZEROCOPY_RECEIVE
];

fn kept(conn: &crate::conn::Conn, level: c_int, name: c_int) -> Option<&AtomicU32> {
    match (level, name) {
        _ if conn.quick.load(Ordering::Acquire) == 0 => None,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(&conn.nodelay),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Some(&conn.cork),
        _ => None,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the program calls it.
    let result = unsafe { real::getsockopt(fd, level, name, value, len) };
    // SAFETY: the kernel has written it.
    if result != 0 || value.is_null() || unsafe { *len } as usize != size_of::<c_int>() {
        return result;
    }
    if let Some(conn) = get(fd) {
        let value = value.cast::<c_int>();
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            // SAFETY: the kernel has written it.
            if unsafe { value.read_unaligned() } == 0
                && let Some(error) = conn.take_error()
            {
                // SAFETY: as above.
                unsafe { value.write_unaligned(error) };
            }
        } else if let Some(kept) = kept(&conn, level, name) {
            // SAFETY: as above.
            unsafe { value.write_unaligned(kept.load(Ordering::Relaxed) as c_int) };
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(conn) = get(fd) {
        // SAFETY: as the program calls it.
        let number = || unsafe { value.cast::<c_int>().read_unaligned() };
        let given = !value.is_null() && len as usize >= size_of::<c_int>();
        if let Some(kept) = kept(&conn, level, name).filter(|_| given) {
            kept.store(u32::from(number() != 0), Ordering::Relaxed);
            return 0;
        }
        let is_low = || (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) && given && number() <= 1;
        if KERNELS.contains(&(level, name)) && !is_low() {
            leaving::leave(&conn, fd);
        }
    }
    // SAFETY: as the program calls it.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}
