//! Operations that need privileges: opening taps, packet sockets and AF_XDP sockets, and attaching XDP programs.

use crate::device::Link;
use crate::packet::socket;
use crate::shared::{self, TunnelTraffic};
use crate::tap::{TapPort, attach, host};
use crate::xdp::{Attachment, XdpError, XdpProgram, XdpSocket};
use crate::{netlink, sys};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most queues of a tap or an AF_XDP port: the number of descriptors that fit one message (`SCM_MAX_FD`).
pub const MAX_QUEUES: usize = 253;

/// Opens the sockets and devices of ports: in this process ([`Here`]), or through a process that has the rights.
pub trait Opener: Send + Sync {
    /// Creates a tap that does not exist yet, sets it up, and returns its queues, and behind them what has to stay open
    /// as long as the tap ([`set_up_host_side`](crate::set_up_host_side)). If a tap was kept over the daemon's restart,
    /// returns its queues instead; it keeps its namespace, name, addresses and MTU.
    ///
    /// # Errors
    /// If the device exists already, /dev/net/tun is missing, or the process lacks permission (CAP_NET_ADMIN).
    fn tap(&self, tap: &TapPort) -> io::Result<Vec<OwnedFd>>;

    /// Closes the tap of a port that is dropped, if the opener kept it for the next daemon.
    fn forget_tap(&self, _device: &str) {}

    /// Returns the state of a tap's device, whatever namespace it is in and whatever its name there.
    ///
    /// # Errors
    /// If the device no longer exists, or permission is missing (CAP_NET_ADMIN in its namespace).
    fn tap_state(&self, tap: BorrowedFd<'_>) -> io::Result<TapState>;

    /// Changes the MTU of a tap's device and, if given, its link-layer address.
    ///
    /// # Errors
    /// If the device no longer exists. Also if it is in a different network namespace: the address is set, but the MTU
    /// can't be.
    fn configure_tap(&self, tap: BorrowedFd<'_>, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()>;

    /// Turns the carrier of a tap's device on or off.
    ///
    /// # Errors
    /// If the device no longer exists.
    fn tap_carrier(&self, tap: BorrowedFd<'_>, up: bool) -> io::Result<()>;

    /// Opens packet sockets on the interface with this index, for all frames or for tunnel packets alone. The kernel
    /// spreads received frames over them by flow.
    ///
    /// # Errors
    /// If there is no such interface, or permission is missing (CAP_NET_RAW).
    fn packet(&self, index: i32, sockets: u16, tunnels: Option<&TunnelTraffic>) -> io::Result<Vec<OwnedFd>>;

    /// Keeps the kernel from answering tunnel packets, as long as the descriptors are open.
    ///
    /// # Errors
    /// If the kernel lacks an address of the tunnels, somebody else has one of their ports, or permission is missing
    /// (CAP_NET_ADMIN).
    fn silence(&self, tunnels: &TunnelTraffic) -> io::Result<Vec<OwnedFd>>;

    /// Has the kernel find out the link-layer addresses of neighbours, or whether they are still right: pairs of a
    /// device's index and an address.
    ///
    /// # Errors
    /// If there is no such device, or permission is missing (CAP_NET_ADMIN).
    fn seek(&self, neighbours: &[(i32, IpAddr)]) -> io::Result<()>;

    /// Opens an AF_XDP socket that is not bound yet, with memory for its frames.
    ///
    /// # Errors
    /// If the kernel has no AF_XDP, or permission is missing (CAP_NET_RAW; CAP_IPC_LOCK, or a limit of locked memory
    /// of 12 MiB for each socket).
    fn xdp_socket(&self) -> io::Result<XdpSocket>;

    /// Returns the descriptors that the running daemon shares of an AF_XDP port which this process is to take over
    /// ([`mem::Port::share`]); empty if no daemon shares any.
    fn shared_xdp(&self) -> Vec<OwnedFd> {
        Vec::new()
    }

    /// Attaches a program that passes frames to these sockets; the first is for queue 0, and so on.
    ///
    /// # Errors
    /// If the kernel refuses the program, a different one is attached, or permission is missing (CAP_NET_ADMIN,
    /// CAP_BPF).
    fn attach_xdp(&self, program: &XdpProgram, sockets: &[BorrowedFd<'_>]) -> Result<Attachment, XdpError>;

    /// Replaces the attached program with `program`.
    ///
    /// # Errors
    /// As for [`Self::attach_xdp`].
    fn replace_xdp(&self, program: &XdpProgram, attachment: &Attachment) -> Result<(), XdpError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TapState {
    pub link: Link,
    /// Number of frames that the kernel dropped because the device did not accept them.
    pub dropped: u64,
    /// Whether it is in another network namespace than the opener, if that is known.
    pub elsewhere: Option<bool>,
}

/// Returns an opener that opens everything in this process.
#[must_use]
pub fn here() -> Arc<dyn Opener> {
    Arc::new(Here)
}

/// Opens everything in this process, with its own rights.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Opener for Here {
    fn tap(&self, tap: &TapPort) -> io::Result<Vec<OwnedFd>> {
        if usize::from(tap.queues) > MAX_QUEUES {
            return Err(sys::invalid("more queues than a tap has"));
        }
        let mut opened = attach::create(tap)?;
        if let Some(host) = &tap.host {
            let rules = host::set_up(opened[0].as_fd(), host)?;
            opened.extend(rules);
        }
        Ok(opened)
    }

    fn tap_state(&self, tap: BorrowedFd<'_>) -> io::Result<TapState> {
        let name = attach::name(tap)?;
        let namespace = attach::namespace(tap)?;
        let state = netlink::link_in(namespace.as_fd(), &name)?;
        Ok(TapState { elsewhere: attach::is_here(&namespace).ok().map(|here| !here), ..state })
    }

    fn configure_tap(&self, tap: BorrowedFd<'_>, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()> {
        attach::configure(tap, mtu, mac)
    }

    fn tap_carrier(&self, tap: BorrowedFd<'_>, up: bool) -> io::Result<()> {
        attach::set_carrier(tap, up)
    }

    fn packet(&self, index: i32, sockets: u16, tunnels: Option<&TunnelTraffic>) -> io::Result<Vec<OwnedFd>> {
        if usize::from(sockets) > MAX_QUEUES {
            return Err(sys::invalid("more sockets than there are cores"));
        }
        socket::open(index, sockets, tunnels)
    }

    fn silence(&self, tunnels: &TunnelTraffic) -> io::Result<Vec<OwnedFd>> {
        shared::silence(tunnels)
    }

    fn seek(&self, neighbours: &[(i32, IpAddr)]) -> io::Result<()> {
        // One that is refused keeps no other from being found.
        let seek =
            |all: io::Result<()>, &(device, addr): &(i32, IpAddr)| all.and(netlink::seek(device, addr));
        neighbours.iter().fold(Ok(()), seek)
    }

    fn xdp_socket(&self) -> io::Result<XdpSocket> {
        XdpSocket::new()
    }

    fn attach_xdp(&self, program: &XdpProgram, sockets: &[BorrowedFd<'_>]) -> Result<Attachment, XdpError> {
        Attachment::new(program, sockets)
    }

    fn replace_xdp(&self, program: &XdpProgram, attachment: &Attachment) -> Result<(), XdpError> {
        attachment.replace(program)
    }
}
