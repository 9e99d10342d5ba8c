//! Keeps the kernel from answering the tunnel packets of a wire that is its own.

use crate::{nft, sys};
use packet::proto;
use rustix::net::{AddressFamily, SocketType, bind};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// The packets that are taken of a wire that the kernel keeps: those of tunnels to addresses of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelTraffic {
    /// The addresses, at most one per family.
    pub addresses: Vec<IpAddr>,
    /// Whether Geneve is used.
    pub geneve: bool,
    /// Whether tunnel packets over IPv4 may come in fragments.
    pub fragments: bool,
    /// Whether BFD from behind routers (RFC 5883) and seamless BFD (RFC 7881) are taken.
    #[serde(default)]
    pub bfd: bool,
    /// Whether the kernel gets that as well.
    #[serde(default)]
    pub bfd_of_peers: bool,
}

impl TunnelTraffic {
    /// Returns the UDP ports whose packets are taken: those of tunnels, and of BFD.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let geneve = self.geneve.then_some(proto::PORT_GENEVE);
        let bfd = if self.bfd { &[proto::PORT_BFD_MULTIHOP, proto::PORT_SBFD][..] } else { &[] };
        [proto::PORT_MPLS, proto::PORT_VXLAN].into_iter().chain(geneve).chain(bfd.iter().copied()).collect()
    }

    /// Returns the ports of which the kernel gets nothing.
    pub(crate) fn silent_ports(&self) -> Vec<u16> {
        let is_heard = |port: &u16| *port == proto::PORT_BFD_MULTIHOP && self.bfd_of_peers;
        self.ports().into_iter().filter(|port| !is_heard(port)).collect()
    }
}

/// Opens sockets on the tunnels' UDP ports, which drop what comes, and has rules drop it before. Without them, the kernel
/// would track the packets as connections, answer that nobody is there, and give the ports to others. They end with the
/// descriptors.
///
/// # Errors
/// If the kernel lacks an address, somebody else has a port, the kernel has no nf_tables, or permission is missing
/// (CAP_NET_ADMIN).
pub(crate) fn silence(traffic: &TunnelTraffic) -> io::Result<Vec<OwnedFd>> {
    let mut silent = vec![nft::drop_tunnels(&traffic.addresses, &traffic.silent_ports())?];
    for addr in &traffic.addresses {
        for port in traffic.silent_ports() {
            silent.push(sink(SocketAddr::new(*addr, port))?);
        }
    }
    Ok(silent)
}

fn sink(at: SocketAddr) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = sys::socket(family, SocketType::DGRAM)?;
    let mut nothing = [sys::filter_step(libc::BPF_RET | libc::BPF_K, 0)];
    sys::attach_filter(socket.as_fd(), &mut nothing)?;
    // Each wire of the daemon has its own.
    sys::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
    bind(&socket, &at).map_err(|e| unbound(at, e.into()))?;
    Ok(socket)
}

/// Says in words why an address and port can't be had.
fn unbound(at: SocketAddr, error: io::Error) -> io::Error {
    let (addr, port) = (at.ip(), at.port());
    io::Error::other(match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => format!(
            "the kernel does not have {addr}, the source of tunnels; add it to the device, or name another one in \
             `tunnel_source` of [host]"
        ),
        Some(libc::EADDRINUSE) => format!(
            "UDP port {port} of {addr} is taken by another program, or by a tunnel device of the kernel (`ss -lunp sport = \
             {port}`)"
        ),
        _ => format!("UDP port {port} of {addr} can't be had: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_takes_the_port_and_names_who_may_have_it() {
        let any = sink("127.0.0.1:0".parse().unwrap()).unwrap();
        let at: SocketAddr = rustix::net::getsockname(&any).unwrap().try_into().unwrap();
        let sent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sent.connect(at).unwrap();
        for _ in 0..2 {
            // The second call would tell of a refusal.
            sent.send(b"x").unwrap();
        }
        let mut bytes = [0; 8];
        assert!(rustix::net::recv(&any, bytes.as_mut_slice(), rustix::net::RecvFlags::empty()).is_err());
        sink(at).unwrap();
        let taken = sink(sent.local_addr().unwrap()).unwrap_err().to_string();
        assert!(
            taken.contains(&format!("UDP port {} of 127.0.0.1", sent.local_addr().unwrap().port())),
            "{taken}"
        );
        let lacking = sink("192.0.2.77:6635".parse().unwrap()).unwrap_err().to_string();
        assert!(lacking.contains("the kernel does not have 192.0.2.77"), "{lacking}");
    }
}
