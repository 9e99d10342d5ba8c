//! TCP's MD5 signatures (RFC 2385): segments of a connection are signed with a password that both ends have.

use crate::sys::{self, Plain};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// `struct tcp_md5sig` of `linux/tcp.h`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Key {
    address: [u8; 128],
    flags: u8,
    prefix_len: u8,
    length: [u8; 2],
    interface: [u8; 4],
    password: [u8; LONGEST],
}

// SAFETY: it has only bytes, and no padding: 216 of them.
unsafe impl Plain for Key {}

/// The longest password, in bytes.
const LONGEST: usize = 80;

/// The option of `linux/tcp.h` that takes keys for prefixes, and the flag of such a key.
const TCP_MD5SIG_EXT: i32 = 32;
const TCP_MD5SIG_FLAG_PREFIX: u8 = 1;

/// Signs the segments that a socket sends to peers, and has the kernel drop unsigned ones from there. On a listener,
/// that holds for all connections with them. The peers are those whose addresses begin with so many bits of this one
/// (those of IPv4, if it is IPv4-mapped); of several keys, the one for the longest prefix counts. `None` ends it.
///
/// # Errors
/// The password has no byte or more than 80 bytes, or the kernel refuses.
pub fn sign(
    socket: &impl AsFd,
    (address, prefix_len): (IpAddr, u8),
    password: Option<&str>,
) -> io::Result<()> {
    let text = password.unwrap_or_default().as_bytes();
    if text.len() > LONGEST || password.is_some() == text.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a password has 1 to 80 bytes"));
    }
    let mut key = Key {
        address: [0; 128],
        flags: TCP_MD5SIG_FLAG_PREFIX,
        prefix_len,
        length: (text.len() as u16).to_ne_bytes(),
        interface: [0; 4],
        password: [0; LONGEST],
    };
    let (family, at) = match address {
        IpAddr::V4(_) => (libc::AF_INET, 4),
        IpAddr::V6(_) => (libc::AF_INET6, 8),
    };
    key.address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    match address {
        IpAddr::V4(address) => key.address[at..at + 4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => key.address[at..at + 16].copy_from_slice(&address.octets()),
    }
    key.password[..text.len()].copy_from_slice(text);
    match sys::set(socket.as_fd(), libc::IPPROTO_TCP, TCP_MD5SIG_EXT, &key) {
        // There was none, or the kernel knows none.
        Err(e)
            if password.is_none() && matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT)) =>
        {
            Ok(())
        }
        set => set,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, connect, getsockname};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::os::fd::OwnedFd;

    fn begin(listener: &TcpListener, password: &str) -> OwnedFd {
        let socket = sys::socket(AddressFamily::INET, SocketType::STREAM).unwrap();
        sign(&socket, (Ipv4Addr::LOCALHOST.into(), 32), Some(password)).unwrap();
        let _ = connect(&socket, &listener.local_addr().unwrap());
        socket
    }

    #[test]
    fn only_who_knows_the_password_connects() {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let peer = (Ipv4Addr::LOCALHOST.into(), 32);
        sign(&listener, peer, None).unwrap();
        sign(&listener, peer, Some("one")).unwrap();
        let _stranger = begin(&listener, "two");
        let known = begin(&listener, "one");
        let accepted = SocketAddr::try_from(getsockname(&known).unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap().1, accepted);
        // A password of one peer counts before that of its range.
        let range = ([127, 0, 0, 0].into(), 8);
        sign(&listener, range, Some("all")).unwrap();
        let _of_range = begin(&listener, "all");
        let known = begin(&listener, "one");
        let accepted = SocketAddr::try_from(getsockname(&known).unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap().1, accepted);
        sign(&listener, peer, None).unwrap();
        let of_range = begin(&listener, "all");
        let accepted = SocketAddr::try_from(getsockname(&of_range).unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap().1, accepted);
        assert!(sign(&listener, peer, Some("")).is_err());
        assert!(sign(&listener, peer, Some(&"x".repeat(81))).is_err());
    }
}
