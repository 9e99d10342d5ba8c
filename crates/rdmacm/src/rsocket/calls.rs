//! The C interface of rsockets.

use super::parts::{Parts, PartsMut};
use super::polling::{self, Selected};
use super::socket::Socket;
use super::{options, table};
use crate::address;
use crate::error::{Errno, returned, set};
use libc::{
    MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_WAITALL, O_NONBLOCK, c_int, c_long, c_void, fd_set, iovec, msghdr,
    nfds_t, off_t, pollfd, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t, ssize_t,
    timeval,
};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Largest number of parts of a message.
const PARTS: usize = 1024;

fn number(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|error| returned(Err(error)))
}

fn count(result: Result<usize, Errno>) -> ssize_t {
    result.map_or_else(|error| returned(Err(error)) as ssize_t, |count| count as ssize_t)
}

/// Makes the program end its sockets when it exits. The program's children have its sockets, but do not own them.
fn end_with_program() {
    static OWNER: OnceLock<u32> = OnceLock::new();
    extern "C" fn end() {
        if OWNER.get() == Some(&std::process::id()) {
            table::end_all();
        }
    }
    OWNER.get_or_init(|| {
        // SAFETY: the function may be called at any time.
        unsafe { libc::atexit(end) };
        std::process::id()
    });
}

fn create(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    let is_ip = matches!(domain, libc::AF_INET | libc::AF_INET6);
    // Programs that set flags here also call `accept4`, which `librspreload.so` does not redirect: they keep TCP.
    let is_stream = kind == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if !is_ip || !is_stream {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    table::sweep();
    let socket = Socket::new(domain)?;
    end_with_program();
    Ok(table::add(socket))
}

/// Creates a socket for streams of IPv4 or IPv6. Refuses other kinds, and flags in `kind`, with `EOPNOTSUPP`:
/// `librspreload.so` then uses TCP.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(create(domain, kind, protocol))
}

/// Reads an address from C.
///
/// # Safety
/// `len` bytes must be readable.
unsafe fn address_of(addr: *const sockaddr, len: socklen_t) -> Result<std::net::SocketAddr, Errno> {
    let least = |family: c_int| match family {
        libc::AF_INET => size_of::<sockaddr_in>(),
        _ => size_of::<sockaddr_in6>(),
    };
    if addr.is_null() || (len as usize) < size_of::<sockaddr_in>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's promise; it may not be aligned for more.
    let family = c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() });
    if !matches!(family, libc::AF_INET | libc::AF_INET6) {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    if (len as usize) < least(family) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's promise.
    unsafe { address::read(addr) }.ok_or(Errno(libc::EAFNOSUPPORT))
}

/// Binds a socket to an address.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let to = unsafe { address_of(addr, addrlen) };
    returned(table::get(socket).and_then(|socket| socket.bind(to?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    returned(table::get(socket).and_then(|socket| socket.listen(backlog)))
}

/// Accepts the next connection.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    table::sweep();
    let accepted = table::get(socket).and_then(|socket| socket.accept());
    number(accepted.map(|accepted| {
        if !addr.is_null() {
            let (_, peer) = accepted.addresses();
            // SAFETY: the caller's promise.
            let _ = unsafe { tell(&peer, addr, addrlen) };
        }
        table::add(accepted)
    }))
}

/// Connects a socket.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let to = unsafe { address_of(addr, addrlen) };
    returned(table::get(socket).and_then(|socket| socket.connect(to?)))
}

/// Ends one direction, or both.
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    let ends = match how {
        libc::SHUT_RD => Ok((true, false)),
        libc::SHUT_WR => Ok((false, true)),
        libc::SHUT_RDWR => Ok((true, true)),
        _ => Err(Errno(libc::EINVAL)),
    };
    returned(table::get(socket).and_then(|socket| {
        let (reads, writes) = ends?;
        socket.shut(reads, writes)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rclose(socket: c_int) -> c_int {
    returned(table::close(socket))
}

fn receive(socket: c_int, parts: PartsMut<'_>, flags: c_int) -> Result<usize, Errno> {
    if flags & (MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC) != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let socket = table::get(socket)?;
    let (stream, patience) = socket.stream(flags & MSG_DONTWAIT != 0)?;
    if flags & MSG_PEEK == 0 {
        stream.receive(parts, patience, flags & MSG_WAITALL != 0)
    } else {
        stream.peek(parts, patience)
    }
}

fn send(socket: c_int, parts: Parts<'_>, flags: c_int) -> Result<usize, Errno> {
    if flags & MSG_OOB != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let socket = table::get(socket)?;
    let (stream, patience) = socket.stream(flags & MSG_DONTWAIT != 0)?;
    stream.send(parts, patience)
}

/// Returns a buffer of C.
///
/// # Safety
/// `len` bytes must be writable.
unsafe fn room<'a>(buf: *mut c_void, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) }
}

/// Returns bytes of C.
///
/// # Safety
/// `len` bytes must be readable.
unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(buf.cast(), len) }
}

/// Returns a list of parts.
///
/// # Safety
/// The list must have `len` parts.
unsafe fn list<'a>(iov: *const iovec, len: usize) -> Result<&'a [iovec], Errno> {
    match len {
        0 => Ok(&[]),
        1..=PARTS if !iov.is_null() => {
            // SAFETY: the caller's promise.
            Ok(unsafe { std::slice::from_raw_parts(iov, len) })
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

#[allow(clippy::unnecessary_cast, reason = "musl has another type")]
const fn parts_of(msg: &msghdr) -> usize {
    msg.msg_iovlen as usize
}

/// Receives bytes into several parts.
///
/// # Safety
/// The parts must be writable.
unsafe fn receive_parts(socket: c_int, iov: *const iovec, len: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let list = unsafe { list(iov, len) }?;
    // SAFETY: the caller's promise.
    let mut parts: Vec<_> = list.iter().map(|part| unsafe { room(part.iov_base, part.iov_len) }).collect();
    receive(socket, PartsMut::new(&mut parts), flags)
}

/// Sends bytes from several parts.
///
/// # Safety
/// The parts must be readable.
unsafe fn send_parts(socket: c_int, iov: *const iovec, len: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let list = unsafe { list(iov, len) }?;
    // SAFETY: the caller's promise.
    let parts: Vec<_> = list.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) }).collect();
    send(socket, Parts::new(&parts), flags)
}

/// Receives bytes.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let mut part = [unsafe { room(buf, len) }];
    count(receive(socket, PartsMut::new(&mut part), flags))
}

/// Receives bytes, and returns the peer's address.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let got = unsafe { rrecv(socket, buf, len, flags) };
    if got > 0 && !src_addr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { rgetpeername(socket, src_addr, addrlen) };
    }
    got
}

/// Receives bytes into several parts.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let Some(msg) = (unsafe { msg.as_mut() }) else { return count(Err(Errno(libc::EINVAL))) };
    (msg.msg_namelen, msg.msg_controllen, msg.msg_flags) = (0, 0, 0);
    // SAFETY: the caller's promise.
    count(unsafe { receive_parts(socket, msg.msg_iov, parts_of(msg), flags) })
}

/// Sends bytes.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    count(send(socket, Parts::new(&[unsafe { bytes(buf, len) }]), flags))
}

/// Sends bytes. Refuses an address, because the socket is connected.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    dest_addr: *const sockaddr,
    _addrlen: socklen_t,
) -> ssize_t {
    if !dest_addr.is_null() {
        return count(Err(Errno(libc::EISCONN)));
    }
    // SAFETY: the caller's promise.
    unsafe { rsend(socket, buf, len, flags) }
}

/// Sends bytes from several parts.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return count(Err(Errno(libc::EINVAL))) };
    if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
        return count(Err(Errno(libc::EOPNOTSUPP)));
    }
    // SAFETY: the caller's promise.
    count(unsafe { send_parts(socket, msg.msg_iov, parts_of(msg), flags) })
}

/// Receives bytes.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { rrecv(socket, buf, len, 0) }
}

/// Receives bytes into several parts.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    count(unsafe { receive_parts(socket, iov, usize::try_from(iovcnt).unwrap_or(usize::MAX), 0) })
}

/// Sends bytes.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { rsend(socket, buf, len, 0) }
}

/// Sends bytes from several parts.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    count(unsafe { send_parts(socket, iov, usize::try_from(iovcnt).unwrap_or(usize::MAX), 0) })
}

fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Waits for events of sockets and other descriptors.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    let none: &mut [pollfd] = &mut [];
    // SAFETY: the caller's promise.
    let fds = if nfds == 0 { none } else { unsafe { std::slice::from_raw_parts_mut(fds, nfds as usize) } };
    number(polling::poll(fds, milliseconds(timeout)).map(|found| found as c_int))
}

/// Waits for events of sockets and other descriptors.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [readfds, writefds, exceptfds];
    // SAFETY: the caller's promise: sets are whole.
    let has = |set: *mut fd_set, fd| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
    let mut wanted: Vec<Selected> = (0..nfds.min(libc::FD_SETSIZE as c_int))
        .map(|fd| Selected { fd, wanted: sets.map(|set| has(set, fd)) })
        .filter(|one| one.wanted != [false; 3])
        .collect();
    // SAFETY: the caller's promise.
    let timeout = unsafe { timeout.as_ref() }.map(|time| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    });
    let found = polling::select(&mut wanted, timeout);
    if found.is_ok() {
        for (at, set) in sets.into_iter().enumerate().filter(|(_, set)| !set.is_null()) {
            // SAFETY: the caller's promise: sets are whole.
            unsafe {
                libc::FD_ZERO(set);
                wanted.iter().filter(|one| one.wanted[at]).for_each(|one| libc::FD_SET(one.fd, set));
            }
        }
    }
    number(found.map(|found| found as c_int))
}

/// Writes an address to C, truncated to the room there.
///
/// # Safety
/// The length must be readable and writable, and as many bytes must be writable.
unsafe fn tell(of: &sockaddr_storage, addr: *mut sockaddr, addrlen: *mut socklen_t) -> Result<(), Errno> {
    if addrlen.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let is_v4 = c_int::from(of.ss_family) == libc::AF_INET;
    let len = if is_v4 { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
    // SAFETY: the caller's promise.
    unsafe {
        let room = (*addrlen as usize).min(len);
        if room > 0 {
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(of).cast::<u8>(), addr.cast(), room);
        }
        *addrlen = len as socklen_t;
    }
    Ok(())
}

/// Returns the peer's address.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    returned(table::get(socket).and_then(|socket| {
        let (_, peer) = socket.addresses();
        if peer.ss_family == 0 {
            return Err(Errno(libc::ENOTCONN));
        }
        // SAFETY: the caller's promise.
        unsafe { tell(&peer, addr, addrlen) }
    }))
}

/// Returns a socket's own address.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    returned(table::get(socket).and_then(|socket| {
        let (own, _) = socket.addresses();
        // SAFETY: the caller's promise.
        unsafe { tell(&own, addr, addrlen) }
    }))
}

/// Sets an option of a socket.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    let one = size_of::<c_int>();
    if optval.is_null() || (optlen as usize) < one {
        return returned(Err(Errno(libc::EINVAL)));
    }
    let optval = optval.cast::<c_int>();
    // SAFETY: the caller's promise: as many bytes are there.
    let (value, second) = unsafe {
        let second = if optlen as usize >= 2 * one { optval.add(1).read_unaligned() } else { 0 };
        (optval.read_unaligned(), second)
    };
    returned(table::get(socket).and_then(|socket| options::set(&socket, level, optname, value, second)))
}

/// Returns an option of a socket.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    returned(table::get(socket).and_then(|socket| {
        let value = options::get(&socket, level, optname)?;
        if optval.is_null() || optlen.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let len = (*optlen as usize).min(value.len());
            std::ptr::copy_nonoverlapping(value.as_ptr(), optval.cast(), len);
            *optlen = len as socklen_t;
        }
        Ok(())
    }))
}

fn control(socket: c_int, cmd: c_int, arg: c_int) -> Result<c_int, Errno> {
    let socket = table::get(socket)?;
    match cmd {
        libc::F_GETFL => Ok(libc::O_RDWR | if socket.is_nonblocking() { O_NONBLOCK } else { 0 }),
        libc::F_SETFL => {
            socket.set_nonblocking(arg & O_NONBLOCK != 0);
            Ok(0)
        }
        libc::F_GETFD => Ok(socket.descriptor_flags.load(Ordering::Relaxed)),
        libc::F_SETFD => {
            socket.descriptor_flags.store(arg, Ordering::Relaxed);
            Ok(0)
        }
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// Gets or sets flags. In C this function takes any number of arguments; no command needs more than these.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int {
    number(control(socket, cmd, arg as c_int))
}

/// Refuses: memory can't be mapped for a peer.
#[unsafe(no_mangle)]
pub extern "C" fn riomap(
    _socket: c_int,
    _buf: *mut c_void,
    _len: usize,
    _prot: c_int,
    _flags: c_int,
    _offset: off_t,
) -> off_t {
    returned(Err(Errno(libc::EOPNOTSUPP))).into()
}

/// Refuses: nothing is mapped.
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(_socket: c_int, _buf: *mut c_void, _len: usize) -> c_int {
    returned(Err(Errno(libc::EOPNOTSUPP)))
}

/// Refuses: no peer has mapped memory.
#[unsafe(no_mangle)]
pub extern "C" fn riowrite(
    _socket: c_int,
    _buf: *const c_void,
    _count: usize,
    _offset: off_t,
    _flags: c_int,
) -> usize {
    set(Errno(libc::EOPNOTSUPP));
    usize::MAX
}
