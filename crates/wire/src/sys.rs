//! Socket options, addresses and ioctls with C structures: calls that need `unsafe`, in a safe form.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::from_ref;

/// C structures for which every bit pattern, including zeros, is a valid value.
///
/// # Safety
/// The type has no pointer that safe code follows, no reference, and no invalid bit pattern.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: integers only.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: integers only.
unsafe impl Plain for libc::sockaddr_ll {}
// SAFETY: integers only.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: integers only.
unsafe impl Plain for libc::sockaddr_xdp {}
// SAFETY: integers only.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: integers only.
unsafe impl Plain for libc::xdp_options {}
// SAFETY: integers only.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: integers, one of them an address that only the kernel follows.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: an integer and a pointer that only the kernel follows.
unsafe impl Plain for libc::sock_fprog {}

/// Converts the result of a system call that returns -1 on failure.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes an error for an invalid request.
pub(crate) fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Makes the descriptor `old` refer to the file of `new`, atomically between calls on it.
pub(crate) fn replace(old: BorrowedFd<'_>, new: OwnedFd) -> io::Result<()> {
    // SAFETY: `old` stays open, with another file; its owner still closes it.
    check(unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) }).map(drop)
}

/// Opens a non-blocking socket, of the family's protocol 0, that is closed on exec.
pub(crate) fn socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    Ok(socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?)
}

pub(crate) fn set<T: Plain>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads size_of::<T>() bytes of `value`.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Returns a step of a packet filter (classic BPF) that goes nowhere else.
pub(crate) const fn filter_step(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Lets a socket receive only what a filter passes.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Reads a socket option. If the kernel writes fewer bytes than `T` has, the rest is zero.
pub(crate) fn get<T: Plain>(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: zeros are a value of any Plain type, and so is what the kernel writes: at most `len` bytes.
    unsafe {
        let mut value: T = zeroed();
        check(libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len))?;
        Ok(value)
    }
}

pub(crate) fn bind<T: Plain>(fd: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    // SAFETY: the kernel reads size_of::<T>() bytes of `address`.
    let result =
        unsafe { libc::bind(fd.as_raw_fd(), from_ref(address).cast(), size_of::<T>() as libc::socklen_t) };
    check(result).map(drop)
}

/// Makes an ioctl with a structure that the kernel reads and may write.
///
/// # Safety
/// `request` must take a `T`, and pointers in it must be valid for the request.
pub(crate) unsafe fn ioctl<T>(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    value: &mut T,
) -> io::Result<libc::c_int> {
    // SAFETY: by the caller's promise.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(value)) })
}
