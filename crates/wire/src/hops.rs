//! The generalized TTL security mechanism (RFC 5082): each router lowers the TTL, so packets from far away can't have
//! the highest one.

use crate::sys;
use rustix::net::sockopt;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

const MOST: u8 = 255;
/// The options of `linux/in.h` and `linux/in6.h` for the least TTL that counts.
const IP_MINTTL: i32 = 21;
const IPV6_MINHOPCOUNT: i32 = 73;
/// The options of `linux/tcp.h` by which a listener keeps the first packet of each connection.
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;

/// Has a socket of this family send with the highest TTL, as peers want it that look how far away somebody is.
///
/// # Errors
/// The kernel refuses.
pub fn highest_ttl(socket: &impl AsFd, is_v4: bool) -> io::Result<()> {
    if !is_v4 {
        sockopt::set_ipv6_unicast_hops(socket, Some(MOST))?;
    }
    // One of IPv6 may have peers of IPv4.
    Ok(sockopt::set_ip_ttl(socket, MOST.into())?)
}

/// Makes a listener ready for peers that look how far away somebody is, and for [`came_within`].
///
/// # Errors
/// The kernel refuses.
pub fn watch_hops(listener: &impl AsFd, is_v4: bool) -> io::Result<()> {
    highest_ttl(listener, is_v4)?;
    sys::set(listener.as_fd(), libc::IPPROTO_TCP, TCP_SAVE_SYN, &1)
}

/// Returns whether the first packet of an accepted connection came from at most so many hops away: with it, data may
/// have come before [`limit_hops`]. The kernel tells it once.
///
/// # Errors
/// The kernel did not keep it: the listener is not one of [`watch_hops`].
pub fn came_within(socket: &impl AsFd, hops: u8) -> io::Result<bool> {
    let syn: Syn = sys::get(socket.as_fd(), libc::IPPROTO_TCP, TCP_SAVED_SYN)?;
    let ttl = match syn.0[0] >> 4 {
        4 => syn.0[8],
        6 => syn.0[7],
        _ => return Err(sys::invalid("the kernel has not kept the first packet")),
    };
    Ok(ttl >= least(hops))
}

/// The headers of a SYN: of IP, and of TCP.
#[repr(C)]
#[derive(Clone, Copy)]
struct Syn([u8; 256]);

// SAFETY: it has only bytes, and no padding.
unsafe impl sys::Plain for Syn {}

const fn least(hops: u8) -> u8 {
    MOST - hops.saturating_sub(1)
}

/// Has the kernel drop packets to a TCP socket whose TTL shows that the sender is farther away than so many hops.
/// `peer` is its address as the socket sees it.
///
/// # Errors
/// The kernel refuses.
pub fn limit_hops(socket: &impl AsFd, peer: IpAddr, hops: u8) -> io::Result<()> {
    let least = i32::from(least(hops));
    let (level, option) = match peer.to_canonical() {
        IpAddr::V4(_) => (libc::IPPROTO_IP, IP_MINTTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT),
    };
    sys::set(socket.as_fd(), level, option, &least)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Returns whether bytes arrive that a peer sends with this TTL.
    fn arrives(listen: &str, hops: u8, ttl: u8) -> bool {
        let listener = TcpListener::bind(listen).unwrap();
        let address = listener.local_addr().unwrap();
        watch_hops(&listener, address.is_ipv4()).unwrap();
        let mut near = TcpStream::connect(address).unwrap();
        let (mut socket, from) = listener.accept().unwrap();
        // The client sent its SYN with the usual 64.
        assert_eq!(came_within(&socket, hops).unwrap(), hops >= 192);
        assert!(came_within(&socket, hops).is_err());
        limit_hops(&socket, from.ip(), hops).unwrap();
        // An accepted socket is like its listener.
        if address.is_ipv4() {
            assert_eq!(socket.ttl().unwrap(), 255);
        } else {
            assert_eq!(sockopt::ipv6_unicast_hops(&socket).unwrap(), 255);
        }
        match from.ip().to_canonical() {
            IpAddr::V4(_) => near.set_ttl(ttl.into()).unwrap(),
            IpAddr::V6(_) => sockopt::set_ipv6_unicast_hops(&near, Some(ttl)).unwrap(),
        }
        near.write_all(b"x").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket.read(&mut [0]).is_ok_and(|read| read == 1)
    }

    #[test]
    fn only_what_comes_from_near_arrives() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            for (hops, ttl, expected) in [(1, 255, true), (1, 254, false), (2, 254, true), (254, 1, false)] {
                assert_eq!(arrives(address, hops, ttl), expected, "{address} {hops} {ttl}");
            }
        }
    }
}
