//! The functions that this library stands before.

use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The calls of the next library, found at the first call of each.
macro_rules! real {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            /// Calls the next library's function of this name.
            ///
            /// # Safety
            /// As that function's.
            pub unsafe fn $name($($argument: $kind),*) -> $result {
                static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let mut found = FOUND.load(Ordering::Relaxed);
                if found.is_null() {
                    found = find(concat!(stringify!($name), "\0"));
                    FOUND.store(found, Ordering::Relaxed);
                }
                // SAFETY: libc's functions of these names have these types.
                let function: unsafe extern "C" fn($($kind),*) -> $result = unsafe { std::mem::transmute(found) };
                // SAFETY: the caller promises the rest.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

/// Returns the next function of a name; without one, one that fails.
pub fn find(name: &str) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    if found.is_null() { missing as *mut c_void } else { found }
}

extern "C" fn missing() -> isize {
    crate::sys::set_errno(libc::ENOSYS);
    -1
}

real! {
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, to: *mut c_void, len: size_t, flags: c_int, address: *mut libc::sockaddr,
        address_len: *mut libc::socklen_t) -> ssize_t;
    sendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, address: *const libc::sockaddr,
        address_len: libc::socklen_t) -> ssize_t;
    recvmsg(fd: c_int, header: *mut libc::msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, header: *const libc::msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, headers: *mut libc::mmsghdr, count: c_uint, flags: c_int, time: *mut libc::timespec) -> c_int;
    sendmmsg(fd: c_int, headers: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut i64, len: size_t) -> ssize_t;
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: size_t, flags: c_uint) -> ssize_t;
    socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    connect(fd: c_int, address: *const libc::sockaddr, len: libc::socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut libc::sockaddr, len: *mut libc::socklen_t, flags: c_int) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: std::ffi::c_ulong, argument: usize) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut libc::socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: libc::socklen_t) -> c_int;
    ppoll(fds: *mut libc::pollfd, count: libc::nfds_t, time: *const libc::timespec,
        mask: *const libc::sigset_t) -> c_int;
    poll(fds: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int;
    select(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, error: *mut libc::fd_set,
        time: *mut libc::timeval) -> c_int;
    pselect(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, error: *mut libc::fd_set,
        time: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, milliseconds: c_int,
        mask: *const libc::sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, events: *mut libc::epoll_event, count: c_int, time: *const libc::timespec,
        mask: *const libc::sigset_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawnp(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int;
}
