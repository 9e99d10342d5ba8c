//! An offered connection: what its socket says of it.

use rustix::net::sockopt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// The network of the address.
    pub vrf: u16,
    /// The inside address.
    pub addr: IpAddr,
    /// The port.
    pub port: u16,
}

/// A connection from one of its ends: this one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The network namespace, for connections that do not leave it: then no packet of them comes to the vRouter.
    pub within: Option<u64>,
    /// This end.
    pub own: End,
    /// The other end.
    pub peer: End,
    /// The address of this end as the other one sees it, and that of the other one as this end sees it: inside addresses
    /// unless there is NAT between the ends.
    pub seen: [IpAddr; 2],
}

impl Key {
    /// Returns the connection from the other end.
    #[must_use]
    pub const fn reverse(self) -> Self {
        let [own, peer] = self.seen;
        Self { within: self.within, own: self.peer, peer: self.own, seen: [peer, own] }
    }
}

/// An offered socket, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The address of this end.
    pub own: SocketAddr,
    /// The address of the other end.
    pub peer: SocketAddr,
    /// The network namespace; 0: it is one of a virtual machine.
    pub namespace: u64,
    /// The kernel's number of the socket, which no other socket ever has.
    pub cookie: u64,
}

impl Offered {
    /// Reads a descriptor that a program sent. `None`: it is no established TCP connection.
    #[must_use]
    pub fn read(descriptor: &OwnedFd) -> Option<Self> {
        // Nothing is asked that a file system would answer, which may take long.
        if sockopt::socket_protocol(descriptor).ok()? != Some(rustix::net::ipproto::TCP)
            || !is_established(descriptor)
        {
            return None;
        }
        let own = SocketAddr::try_from(rustix::net::getsockname(descriptor).ok()?).ok()?;
        let peer = SocketAddr::try_from(rustix::net::getpeername(descriptor).ok()??).ok()?;
        let own = canonical(own);
        Some(Self {
            own,
            peer: canonical(peer),
            namespace: namespace(descriptor)?,
            cookie: cookie(descriptor)?,
        })
    }

    /// Returns whether the connection does not leave its network namespace.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.own.ip() == self.peer.ip() || (self.own.ip().is_loopback() && self.peer.ip().is_loopback())
    }

    pub(crate) fn within(&self) -> Key {
        let end = |of: SocketAddr| End { vrf: 0, addr: of.ip(), port: of.port() };
        let seen = [self.own.ip(), self.peer.ip()];
        Key { within: Some(self.namespace), own: end(self.own), peer: end(self.peer), seen }
    }
}

/// An offer without another end. It is a hint: the socket may have been closed meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The program, and its name of the connection.
    pub program: u64,
    pub token: u64,
    /// The socket's namespace and number.
    pub socket: (u64, u64),
    /// When the socket was seen last.
    pub seen: Instant,
    /// When the program was asked to offer it again, and has not answered yet.
    pub asked: Option<Instant>,
    /// Whether the other end may be on another host.
    pub is_elsewhere: bool,
}

impl Waiting {
    pub fn new(program: u64, token: u64, of: &Offered, is_elsewhere: bool) -> Self {
        let (socket, seen) = ((of.namespace, of.cookie), Instant::now());
        Self { program, token, socket, seen, asked: None, is_elsewhere }
    }

    /// Returns whether both are the same program's offers of the same socket.
    pub fn is_of(&self, other: &Self) -> bool {
        (self.program, self.token, self.socket) == (other.program, other.token, other.socket)
    }
}

/// Returns an IPv4 address as such, also that of an IPv6 socket.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Asks the kernel for an option of a socket.
pub(crate) fn option<T: Default>(socket: &impl AsFd, level: i32, name: i32) -> Option<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let at: *mut T = &mut value;
    // SAFETY: the value is there, and as long as is said.
    let failed = unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, at.cast(), &mut len) };
    (failed == 0).then_some(value)
}

fn is_established(descriptor: &OwnedFd) -> bool {
    // The first byte of `struct tcp_info` is the state.
    option::<[u8; 8]>(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO).is_some_and(|info| info[0] == 1)
}

fn cookie(descriptor: &OwnedFd) -> Option<u64> {
    option(descriptor, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Returns the network namespace of a socket (`SO_NETNS_COOKIE`).
#[must_use]
pub fn namespace(descriptor: &OwnedFd) -> Option<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    option(descriptor, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}
