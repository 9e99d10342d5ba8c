//! Functions on descriptors.

use super::get;
use super::sockets::before_close;
use crate::{daemon, leaving, real, receiving, settings, sys, table};
use libc::{c_char, c_int, c_uint, c_ulong};
use std::sync::atomic::Ordering;

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if settings::is_on() {
        if daemon::is_own(fd) {
            sys::set_errno(libc::EBADF);
            return -1;
        }
        before_close(fd);
        crate::epoll::forget(fd);
        table::remove(fd);
    }
    // SAFETY: it takes no memory.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if !settings::is_on() || flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 {
        // SAFETY: it takes no memory.
        return unsafe { real::close_range(first, last, flags) };
    }
    table::each(|fd, _| {
        if (first..=last).contains(&(fd as c_uint)) {
            before_close(fd);
            table::remove(fd);
        }
    });
    crate::epoll::forget_range(first, last);
    let (mut first, mut result) = (first, 0);
    while let Some(own) = daemon::next_own(first.min(c_int::MAX as c_uint) as c_int).map(|own| own as c_uint)
        && (first..=last).contains(&own)
    {
        if first < own {
            // SAFETY: it takes no memory.
            result |= unsafe { real::close_range(first, own - 1, flags) };
        }
        first = own + 1;
    }
    if first <= last {
        // SAFETY: it takes no memory.
        result |= unsafe { real::close_range(first, last, flags) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: it takes no memory.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Notes that a number now is another descriptor.
fn duplicated(of: c_int, new: c_int) -> c_int {
    if new >= 0 && settings::is_on() {
        match get(of) {
            Some(conn) => table::duplicate(&conn, new),
            None => table::remove(new),
        }
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: it takes no memory.
    duplicated(fd, unsafe { real::dup(fd) })
}

/// Frees a number that a program gives to another descriptor.
fn make_way(fd: c_int, to: c_int) {
    if settings::is_on() && fd != to {
        daemon::move_from(to);
        before_close(to);
        crate::epoll::forget(to);
        table::remove(to);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    make_way(fd, to);
    // SAFETY: it takes no memory.
    let new = unsafe { real::dup2(fd, to) };
    if fd == to { new } else { duplicated(fd, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    make_way(fd, to);
    // SAFETY: it takes no memory.
    duplicated(fd, unsafe { real::dup3(fd, to, flags) })
}

// A function with C's variable arguments gets them in the same registers.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: as the program calls it.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result >= 0 {
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return duplicated(fd, result),
            libc::F_SETFL => {
                let nonblocking = argument & libc::O_NONBLOCK as usize != 0;
                get(fd).iter().for_each(|conn| conn.nonblocking.store(nonblocking.into(), Ordering::Relaxed));
            }
            _ => {}
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: as the program calls it.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: as the program calls it.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result != 0 || (request != libc::FIONBIO && request != libc::FIONREAD) {
        return result;
    }
    if let Some(conn) = get(fd) {
        let value = argument as *mut c_int;
        if request == libc::FIONBIO {
            // SAFETY: the kernel has read it, wherever it is.
            let is_on = unsafe { value.read_unaligned() } != 0;
            conn.nonblocking.store(u32::from(is_on), Ordering::Relaxed);
        } else if let Some(bytes) = receiving::readable_bytes(&conn, fd) {
            // SAFETY: the kernel has written it, wherever it is.
            unsafe { value.write_unaligned(bytes.min(c_int::MAX as u64) as c_int) };
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    // libc's streams call the kernel by themselves, and close the descriptor so.
    if let Some(conn) = get(fd) {
        leaving::leave(&conn, fd);
        table::remove(fd);
    }
    // SAFETY: as the program calls it.
    unsafe { real::fdopen(fd, mode) }
}
