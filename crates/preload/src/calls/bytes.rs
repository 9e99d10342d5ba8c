//! Functions that move bytes.

use super::{get, returned};
use crate::cursor::Cursor;
use crate::leaving;
use crate::real;
use crate::receiving::{self, How, Taken};
use crate::sending;
use crate::table::Ref;
use libc::{c_int, c_uint, c_void, iovec, size_t, ssize_t};

/// Reads by the library, or else by the kernel.
fn reading(fd: c_int, parts: &[iovec], flags: c_int, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    // Urgent bytes and errors with messages are the kernel's.
    let Some(conn) = (if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0 { get(fd) } else { None }) else {
        return kernel();
    };
    // SAFETY: the program gave this memory.
    let cursor = unsafe { Cursor::new(parts.as_ptr(), parts.len()) };
    match receiving::receive(&conn, fd, cursor, How::of(flags)) {
        Taken::Done(result) => returned(result),
        Taken::Kernel => {
            let n = kernel();
            receiving::kernel_done(&conn);
            if flags & libc::MSG_PEEK == 0 {
                conn.count(fd, 0, n.max(0) as usize);
            }
            n
        }
    }
}

fn writing(fd: c_int, parts: &[iovec], flags: c_int, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some(conn) = get(fd) else { return kernel() };
    // SAFETY: the program gave this memory.
    let cursor = unsafe { Cursor::new(parts.as_ptr(), parts.len()) };
    match sending::send(&conn, fd, cursor, flags) {
        Taken::Done(result) => returned(result),
        Taken::Kernel => {
            let n = kernel();
            sending::kernel_done(&conn);
            conn.count(fd, n.max(0) as usize, 0);
            n
        }
    }
}

fn one(at: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// Returns the parts of a call.
///
/// # Safety
/// There are `count` at `parts`.
unsafe fn parts<'a>(parts: *const iovec, count: usize) -> &'a [iovec] {
    if parts.is_null() || count == 0 || count > 1024 {
        return &[];
    }
    // SAFETY: the caller promises them.
    unsafe { std::slice::from_raw_parts(parts, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as the program calls it.
    reading(fd, &one(to, len), 0, || unsafe { real::read(fd, to, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    assert!(len <= room, "buffer overflow detected");
    // SAFETY: as the program calls it.
    unsafe { read(fd, to, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the program calls it.
    reading(fd, &one(to, len), flags, || unsafe { real::recv(fd, to, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    assert!(len <= room, "buffer overflow detected");
    // SAFETY: as the program calls it.
    unsafe { recv(fd, to, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut libc::sockaddr,
    address_len: *mut libc::socklen_t,
) -> ssize_t {
    // SAFETY: as the program calls it.
    let kernel = || unsafe { real::recvfrom(fd, to, len, flags, address, address_len) };
    let n = reading(fd, &one(to, len), flags, kernel);
    if n >= 0 && !address_len.is_null() && get(fd).is_some() {
        // TCP gives no address here.
        // SAFETY: the program gave the place.
        unsafe { *address_len = 0 };
    }
    n
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut libc::sockaddr,
    address_len: *mut libc::socklen_t,
) -> ssize_t {
    assert!(len <= room, "buffer overflow detected");
    // SAFETY: as the program calls it.
    unsafe { recvfrom(fd, to, len, flags, address, address_len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the program calls it.
    reading(fd, unsafe { parts(list, count.max(0) as usize) }, 0, || unsafe { real::readv(fd, list, count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, header: *mut libc::msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as the program calls it.
    let kernel = || unsafe { real::recvmsg(fd, header, flags) };
    // SAFETY: as the program calls it.
    let Some(into) = (unsafe { header.as_mut() }).filter(|_| get(fd).is_some()) else { return kernel() };
    let mut by_kernel = false;
    // SAFETY: as the program calls it.
    let list = unsafe { parts(into.msg_iov, into.msg_iovlen as usize) };
    let n = reading(fd, list, flags, || {
        by_kernel = true;
        kernel()
    });
    if n >= 0 && !by_kernel {
        into.msg_namelen = 0;
        into.msg_controllen = 0;
        into.msg_flags = 0;
    }
    n
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    headers: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    time: *mut libc::timespec,
) -> c_int {
    if get(fd).is_none() || count == 0 {
        // SAFETY: as the program calls it.
        return unsafe { real::recvmmsg(fd, headers, count, flags, time) };
    }
    // A stream fills the first.
    // SAFETY: as the program calls it.
    let n = unsafe { recvmsg(fd, &raw mut (*headers).msg_hdr, flags & !libc::MSG_WAITFORONE) };
    if n < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { (*headers).msg_len = n as c_uint };
    1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as the program calls it.
    writing(fd, &one(from, len), 0, || unsafe { real::write(fd, from, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the program calls it.
    writing(fd, &one(from, len), flags, || unsafe { real::send(fd, from, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const libc::sockaddr,
    address_len: libc::socklen_t,
) -> ssize_t {
    // SAFETY: as the program calls it.
    let kernel = || unsafe { real::sendto(fd, from, len, flags, address, address_len) };
    writing(fd, &one(from, len), flags, kernel)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the program calls it.
    writing(fd, unsafe { parts(list, count.max(0) as usize) }, 0, || unsafe { real::writev(fd, list, count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, header: *const libc::msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as the program calls it.
    let kernel = || unsafe { real::sendmsg(fd, header, flags) };
    // SAFETY: as the program calls it.
    let Some(from) = (unsafe { header.as_ref() }) else { return kernel() };
    if from.msg_controllen != 0 && crate::settings::is_on() {
        // SAFETY: as the program calls it.
        unsafe { leave_sent(from) };
    }
    // SAFETY: as the program calls it.
    writing(fd, unsafe { parts(from.msg_iov, from.msg_iovlen as usize) }, flags, kernel)
}

/// Returns connections to TCP whose descriptors go to another process with a message.
///
/// # Safety
/// The header is a program's.
unsafe fn leave_sent(header: &libc::msghdr) {
    // SAFETY: the program's control messages are as the macros say.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: as above.
    while let Some(control) = unsafe { at.as_ref() } {
        if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let (data, head) = unsafe { (libc::CMSG_DATA(at).cast::<c_int>(), libc::CMSG_LEN(0) as usize) };
            for n in 0..(control.cmsg_len as usize).saturating_sub(head) / size_of::<c_int>() {
                // SAFETY: as above.
                let fd = unsafe { data.add(n).read_unaligned() };
                get(fd).iter().for_each(|conn| leaving::leave(conn, fd));
            }
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, headers: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if get(fd).is_none() {
        for n in 0..count as usize {
            // SAFETY: as the program calls it.
            let header = unsafe { &(*headers.add(n)).msg_hdr };
            if header.msg_controllen != 0 && crate::settings::is_on() {
                // SAFETY: as the program calls it.
                unsafe { leave_sent(header) };
            }
        }
        // SAFETY: as the program calls it.
        return unsafe { real::sendmmsg(fd, headers, count, flags) };
    }
    for n in 0..count as usize {
        // SAFETY: as the program calls it.
        let header = unsafe { &mut *headers.add(n) };
        // SAFETY: as above.
        let sent = unsafe { sendmsg(fd, &header.msg_hdr, flags) };
        if sent < 0 {
            return if n == 0 { -1 } else { n as c_int };
        }
        header.msg_len = sent as c_uint;
    }
    count as c_int
}

/// Returns whether a descriptor is a connection whose bytes may go by a ring.
fn moved(fd: c_int) -> Option<Ref> {
    get(fd).filter(|conn| conn.is_matched())
}

/// Bytes of a file that are sent at a time.
const PIECE: usize = 64 << 10;

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut i64, len: size_t) -> ssize_t {
    let Some(conn) = get(to) else {
        // SAFETY: as the program calls it.
        return unsafe { real::sendfile(to, from, offset, len) };
    };
    // SAFETY: as the program calls it.
    let mut at = match unsafe { offset.as_ref() } {
        Some(at) => *at,
        // SAFETY: it takes no memory.
        None => unsafe { libc::lseek(from, 0, libc::SEEK_CUR) },
    };
    if !conn.is_matched() || at < 0 || conn.link().is_none_or(|link| !link.tx().is_ring()) {
        // Nothing is switched while the kernel sends by itself.
        conn.senders.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if !conn.is_matched() || conn.link().is_none_or(|link| !link.tx().is_ring()) {
            // SAFETY: as the program calls it.
            let n = unsafe { real::sendfile(to, from, offset, len) };
            sending::kernel_done(&conn);
            conn.count(to, n.max(0) as usize, 0);
            return n;
        }
        sending::kernel_done(&conn);
        if at < 0 {
            leaving::leave(&conn, to);
            // SAFETY: as the program calls it.
            return unsafe { real::sendfile(to, from, offset, len) };
        }
    }
    let mut piece = [0_u8; PIECE];
    let mut done = 0;
    while done < len {
        let most = (len - done).min(PIECE);
        // SAFETY: the array has as many bytes.
        let n = unsafe { libc::pread(from, piece.as_mut_ptr().cast(), most, at) };
        if n <= 0 {
            if n < 0 && done == 0 {
                return -1;
            }
            break;
        }
        // SAFETY: as above.
        let sent = unsafe { send(to, piece.as_ptr().cast(), n as usize, 0) };
        if sent <= 0 {
            if done == 0 {
                return sent;
            }
            break;
        }
        done += sent as usize;
        at += sent as i64;
        if sent < n {
            break;
        }
    }
    // SAFETY: as the program calls it.
    match unsafe { offset.as_mut() } {
        Some(offset) => *offset = at,
        // SAFETY: it takes no memory.
        None => _ = unsafe { libc::lseek(from, at, libc::SEEK_SET) },
    }
    done as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut i64, len: size_t) -> ssize_t {
    // SAFETY: as the program calls it.
    unsafe { sendfile(to, from, offset, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    for fd in [from, to] {
        if let Some(conn) = moved(fd) {
            leaving::leave(&conn, fd);
        } else if let Some(conn) = get(fd) {
            conn.ends_offer();
        }
    }
    // SAFETY: as the program calls it.
    unsafe { real::splice(from, from_at, to, to_at, len, flags) }
}
