//! The process at the other end of a unix socket.

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// A process and its user, as they were when it connected (`SO_PEERCRED`, `unix(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// 0 if the process is in none of our process namespaces: then it has no number here.
    pub pid: i32,
    pub uid: u32,
}

/// Returns the process at the other end. (`rustix` uses a type that excludes 0 for the number.)
///
/// # Errors
/// The kernel's error.
pub fn peer(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut said = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: there is room for as much as the length says.
    let failed = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut said).cast(), &raw mut len) != 0
    };
    if failed {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(Peer { pid: said.pid, uid: said.uid })
}

/// Ports of the family `AF_VSOCK` below this one are root's (`vsock(7)`).
const PRIVILEGED: u32 = 1024;

/// Returns the other end of a socket of the family `AF_VSOCK`.
fn vsock_peer(socket: impl AsFd) -> Option<libc::sockaddr_vm> {
    // SAFETY: it consists of numbers.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: there is room for as much as the length says.
    let done = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &raw mut len) } == 0;
    (done && i32::from(address.svm_family) == libc::AF_VSOCK).then_some(address)
}

/// Returns the machine at the other end of a socket of the family `AF_VSOCK` (`vsock(7)`): its CID. `None` for other
/// sockets.
pub fn machine(socket: impl AsFd) -> Option<u32> {
    vsock_peer(socket).map(|address| address.svm_cid)
}

/// Returns whether the program at the other end may be its machine's root: its port is one that only root gets. Of
/// sockets of other families nobody knows.
pub fn is_privileged(socket: impl AsFd) -> bool {
    vsock_peer(socket).is_none_or(|address| address.svm_port < PRIVILEGED)
}

#[cfg(all(test, not(any(miri, loom))))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_and_nobody_at_a_socket_of_none() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: it has no arguments.
        let uid = unsafe { libc::getuid() };
        assert_eq!((machine(&one), is_privileged(&one)), (None, true));
        assert_eq!(peer(&one), Ok(Peer { pid: std::process::id() as i32, uid }));
        let lonely = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert_eq!(peer(&lonely), Ok(Peer { pid: 0, uid: u32::MAX }));
    }
}
