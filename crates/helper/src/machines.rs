//! The socket by which programs in virtual machines reach the daemon (vsock(7)).

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, VsockAddr, bind, listen, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The vsock port on which the daemon listens.
pub const PORT: u32 = 4791;
/// Length of the backlog.
const WAITING: i32 = 128;

/// Listens on [`PORT`] for all virtual machines of the host that have a vhost-vsock device of the kernel. Accepting
/// never waits.
///
/// # Errors
/// The kernel has no such sockets, or another process listens there.
pub fn listen_to_machines() -> io::Result<OwnedFd> {
    listen_on(PORT)
}

fn listen_on(port: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    bind(socket.as_raw_fd(), &VsockAddr::new(nix::libc::VMADDR_CID_ANY, port))?;
    listen(&socket, Backlog::new(WAITING)?)?;
    Ok(socket)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::net::AddressFamily;
    use rustix::net::sockopt::{socket_acceptconn, socket_domain};

    /// Only the listening is tested: a connection would need a virtual machine with a vhost-vsock device.
    #[test]
    fn it_listens_once() {
        // Takes any port: a daemon may run and have its own.
        let socket = match listen_on(nix::libc::VMADDR_PORT_ANY) {
            Err(e) if e.raw_os_error() == Some(nix::libc::EAFNOSUPPORT) => return,
            other => other.unwrap(),
        };
        assert_eq!(socket_domain(&socket), Ok(AddressFamily::VSOCK));
        assert_eq!(socket_acceptconn(&socket), Ok(true));
        let port = nix::sys::socket::getsockname::<VsockAddr>(socket.as_raw_fd()).unwrap().port();
        let taken = listen_on(port).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
