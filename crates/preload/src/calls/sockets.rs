//! Functions that make, connect and end sockets.

use super::get;
use crate::table::{self, Ref};
use crate::{conn, leaving, real, settings, sys};
use libc::{c_int, sockaddr, socklen_t};
use std::sync::atomic::Ordering;

/// Follows a new TCP socket.
fn follow(fd: c_int, nonblocking: bool) -> Option<Ref> {
    let new = table::add(fd)?;
    new.nonblocking.store(nonblocking.into(), Ordering::Relaxed);
    Some(new)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: it takes no memory.
    let fd = unsafe { real::socket(family, kind, protocol) };
    if fd >= 0 && settings::is_on() {
        let inet = family == libc::AF_INET || family == libc::AF_INET6;
        let stream = kind & 0xf == libc::SOCK_STREAM;
        if inet && stream && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
            follow(fd, kind & libc::SOCK_NONBLOCK != 0);
        } else {
            table::remove(fd);
        }
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as the program calls it.
    let result = unsafe { real::connect(fd, address, len) };
    if let Some(conn) = get(fd)
        && result == 0
    {
        conn.begins(fd);
    }
    result
}

/// Returns whether a descriptor that the library does not know is a TCP socket.
fn is_tcp(fd: c_int) -> bool {
    let (mut family, mut protocol): (c_int, c_int) = (0, 0);
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut family).is_ok()
        && sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol).is_ok()
        && (family == libc::AF_INET || family == libc::AF_INET6)
        && protocol == libc::IPPROTO_TCP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: as the program calls it.
    let new = unsafe { real::accept4(fd, address, len, flags) };
    if new >= 0 && settings::is_on() {
        if get(fd).is_some() || is_tcp(fd) {
            if let Some(conn) = follow(new, flags & libc::SOCK_NONBLOCK != 0) {
                conn.begins(new);
            }
        } else {
            table::remove(new);
        }
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as the program calls it.
    unsafe { accept4(fd, address, len, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    get(fd).iter().for_each(|conn| _ = conn.ends_offer());
    // SAFETY: it takes no memory.
    unsafe { real::listen(fd, backlog) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(conn) = get(fd).filter(|_| how != libc::SHUT_RD) {
        flush(&conn, fd);
        let held = conn.tx.take();
        conn.shut.store(1, Ordering::Release);
        // SAFETY: it takes no memory.
        let result = unsafe { real::shutdown(fd, how) };
        if result != 0 {
            conn.shut.store(0, Ordering::Release);
        } else if let Some(link) = conn.link().filter(|_| conn.is_carried()) {
            // The kernel's end of the stream may overtake what is in the ring.
            link.tx().set_left();
            conn.tell();
        }
        drop(held);
        return result;
    }
    // SAFETY: it takes no memory.
    unsafe { real::shutdown(fd, how) }
}

/// Sends what a reader left unread, before the stream ends.
fn flush(conn: &Ref, fd: c_int) {
    let Some(link) = conn.link().filter(|_| conn.is_matched()) else { return };
    for _ in 0..1000 {
        let Some(mut tx) = conn.tx.take() else { return };
        if !tx.sender.has_unsent() || leaving::send_rest(&link, &mut tx, fd) {
            return;
        }
        drop(tx);
        _ = sys::poll(fd, libc::POLLOUT, 10);
    }
}

/// Does what has to come before the last descriptor of a connection is closed: TCP resets if something is unread, and
/// bells are nothing.
pub fn before_close(fd: c_int) {
    let Some(conn) = get(fd) else { return };
    // As long as the daemon has a copy of the socket, the kernel leaves it in the sets in which it is.
    if conn.state() != conn::FRESH && conn.is_alone() && table::uses(&conn) == 2 {
        crate::epoll::leave(&conn, fd);
    }
    if conn.is_matched() && conn.is_alone() && table::uses(&conn) == 2 {
        flush(&conn, fd);
        if conn.has_unread(fd) {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let value: *const libc::linger = &linger;
            // SAFETY: the structure is there.
            unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value.cast(), 8) };
        }
    }
}
