//! Sockets of bidirectional forwarding detection (RFC 5881, RFC 5883): only neighbours that the file names are heard.

use crate::sys::{self, filter_step};
use libc::sock_filter;
use rustix::net::{AddressFamily, SocketType, bind, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

/// The TTL of packets to a neighbour on a link: nobody behind a router can send such packets (RFC 5082).
const TTL: u8 = 255;
/// The first port from which packets may come (RFC 5881, 4).
const FIRST_SOURCE: u16 = 49152;

/// Opens a socket that receives packets of neighbours of one family, at all addresses of the host.
///
/// # Errors
/// The port is taken, or the system refuses.
pub fn bfd_receiver(v6: bool, port: u16) -> io::Result<UdpSocket> {
    let (family, any) = if v6 {
        (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED))
    } else {
        (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    };
    let socket = sys::socket(family, SocketType::DGRAM)?;
    if v6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Nothing passes before the neighbours are known.
    sys::attach_filter(socket.as_fd(), &mut hears(&[], false))?;
    bind(&socket, &SocketAddr::new(any, port))?;
    Ok(socket.into())
}

/// Has a socket of [`bfd_receiver`] hear these neighbours alone, which are of its family. `by_link`: and only packets
/// that no router has passed on.
///
/// # Errors
/// The system refuses.
pub fn bfd_hear(socket: &UdpSocket, neighbours: &[IpAddr], by_link: bool) -> io::Result<()> {
    sys::attach_filter(socket.as_fd(), &mut hears(neighbours, by_link))
}

/// Opens a socket that sends packets to a neighbour, from this address if there is one. `port` is where the search for a
/// free source port begins.
///
/// # Errors
/// No port is free, or the system refuses.
pub fn bfd_sender(to: IpAddr, from: Option<IpAddr>, port: u16) -> io::Result<UdpSocket> {
    let (family, any) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let socket = sys::socket(family, SocketType::DGRAM)?;
    // The host may get its address later.
    if to.is_ipv4() {
        sockopt::set_ip_ttl(&socket, TTL.into())?;
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_unicast_hops(&socket, Some(TTL))?;
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    // Nothing comes back to it.
    sys::attach_filter(socket.as_fd(), &mut hears(&[], false))?;
    let ports = u16::MAX - FIRST_SOURCE;
    let mut tries = (0..=ports).map(|next| FIRST_SOURCE + (port % ports).wrapping_add(next) % ports);
    let is_bound = tries.any(|port| bind(&socket, &SocketAddr::new(from.unwrap_or(any), port)).is_ok());
    if is_bound { Ok(socket.into()) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

/// Returns the filter (classic BPF) that passes what comes from these addresses.
fn hears(neighbours: &[IpAddr], by_link: bool) -> Vec<sock_filter> {
    let (load_byte, load_word) =
        (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    let load = |code, at: u32| filter_step(code, (libc::SKF_NET_OFF as u32).wrapping_add(at));
    // Goes on if the value is there, else behind so many steps.
    let must = |value: u32, jf: usize| sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: jf as u8,
        k: value,
    };
    let end = |length: u32| filter_step(libc::BPF_RET | libc::BPF_K, length);
    let mut steps = Vec::new();
    if by_link {
        let hops_at = if neighbours.iter().any(IpAddr::is_ipv6) { 7 } else { 8 };
        let other = sock_filter { jt: 1, ..must(TTL.into(), 0) };
        steps.extend([load(load_byte, hops_at), other, end(0)]);
    }
    for neighbour in neighbours {
        let (octets, first) = match neighbour {
            IpAddr::V4(address) => (address.octets().to_vec(), 12),
            IpAddr::V6(address) => (address.octets().to_vec(), 8),
        };
        let words = octets.as_chunks::<4>().0;
        for (index, word) in words.iter().enumerate() {
            let left = 2 * (words.len() - index) - 1;
            steps.extend([load(load_word, first + 4 * index as u32), must(u32::from_be_bytes(*word), left)]);
        }
        steps.push(end(u32::MAX));
    }
    steps.push(end(0));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a packet from one address to the other is heard, if the socket hears `neighbours`.
    fn is_heard(from: &str, to: &str, neighbours: &[&str], (by_link, ttl): (bool, u8)) -> bool {
        let [from, to]: [IpAddr; 2] = [from, to].map(|address| address.parse().unwrap());
        let neighbours: Vec<IpAddr> = neighbours.iter().map(|address| address.parse().unwrap()).collect();
        let receiver = bfd_receiver(to.is_ipv6(), 0).unwrap();
        bfd_hear(&receiver, &neighbours, by_link).unwrap();
        let sender = bfd_sender(to, Some(from), 7).unwrap();
        assert!(sender.local_addr().unwrap().port() >= FIRST_SOURCE);
        if ttl != TTL && to.is_ipv4() {
            sockopt::set_ip_ttl(&sender, ttl.into()).unwrap();
        } else if ttl != TTL {
            sockopt::set_ipv6_unicast_hops(&sender, Some(ttl)).unwrap();
        }
        sender.send_to(&[1; 24], (to, receiver.local_addr().unwrap().port())).unwrap();
        // The kernel has put it into the queue, or dropped it.
        receiver.recv_from(&mut [0; 64]).is_ok()
    }

    #[test]
    fn only_neighbours_are_heard_and_on_a_link_only_without_a_router() {
        let (link, routed) = ((true, TTL), (false, 64));
        for (neighbour, other, own) in [("127.0.0.2", "127.0.0.3", "127.0.0.1"), ("::1", "fd00::9", "::1")] {
            for way in [link, routed] {
                assert!(is_heard(neighbour, own, &[other, neighbour], way), "{neighbour} {way:?}");
                assert!(!is_heard(neighbour, own, &[other], way), "{neighbour} {way:?}");
                assert!(!is_heard(neighbour, own, &[], way), "{neighbour} {way:?}");
            }
            assert!(!is_heard(neighbour, own, &[other, neighbour], (true, 254)), "{neighbour}");
        }
    }
}
