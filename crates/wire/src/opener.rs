//! What takes privileges: opening taps, packet sockets and AF_XDP sockets, attaching XDP programs.

use crate::device::Link;
use crate::packet::socket;
use crate::tap::{TapPort, attach};
use crate::xdp::{Attachment, XdpError, XdpProgram, XdpSocket};
use crate::{netlink, sys};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most queues of a tap or an AF_XDP port: as many descriptors go into one message (`SCM_MAX_FD`).
pub const MAX_QUEUES: usize = 253;

/// Opens what a port needs: this process ([`Here`]), or another one that has the rights.
pub trait Opener: Send + Sync {
    /// Makes a tap that is not there yet, sets it up, and returns its queues.
    ///
    /// # Errors
    /// The device exists already, no /dev/net/tun, no permission (CAP_NET_ADMIN).
    fn tap(&self, tap: &TapPort) -> io::Result<Vec<OwnedFd>>;

    /// State of a tap's device, wherever it is now and whatever it is called there.
    ///
    /// # Errors
    /// It is gone; no permission (CAP_NET_ADMIN in its namespace).
    fn tap_state(&self, tap: BorrowedFd<'_>) -> io::Result<TapState>;

    /// Opens packet sockets on the interface with this index, among which frames are spread by flow.
    ///
    /// # Errors
    /// No such interface, no permission (CAP_NET_RAW).
    fn packet(&self, index: i32, sockets: u16) -> io::Result<Vec<OwnedFd>>;

    /// Opens an AF_XDP socket that is not bound yet, with memory for its frames.
    ///
    /// # Errors
    /// The kernel has none, no permission (CAP_NET_RAW; CAP_IPC_LOCK, or a limit of locked memory of 12 MiB for each).
    fn xdp_socket(&self) -> io::Result<XdpSocket>;

    /// Attaches a program that gives frames to these sockets, the first for queue 0.
    ///
    /// # Errors
    /// The kernel refuses the program; another one is there; no permission (CAP_NET_ADMIN, CAP_BPF).
    fn attach_xdp(&self, program: &XdpProgram, sockets: &[BorrowedFd<'_>]) -> Result<Attachment, XdpError>;

    /// Puts another program in the place of the one attached.
    ///
    /// # Errors
    /// As for [`Self::attach_xdp`].
    fn replace_xdp(&self, program: &XdpProgram, attachment: &Attachment) -> Result<(), XdpError>;
}

/// State of a tap's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TapState {
    /// Its link.
    pub link: Link,
    /// Frames that the kernel dropped because the device did not take them.
    pub dropped: u64,
}

/// An opener that is this process.
#[must_use]
pub fn here() -> Arc<dyn Opener> {
    Arc::new(Here)
}

/// This process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Opener for Here {
    fn tap(&self, tap: &TapPort) -> io::Result<Vec<OwnedFd>> {
        if usize::from(tap.queues) > MAX_QUEUES {
            return Err(sys::invalid("more queues than a tap has"));
        }
        attach::create(tap)
    }

    fn tap_state(&self, tap: BorrowedFd<'_>) -> io::Result<TapState> {
        let name = attach::name(tap)?;
        netlink::link_in(attach::namespace(tap)?.as_fd(), &name)
    }

    fn packet(&self, index: i32, sockets: u16) -> io::Result<Vec<OwnedFd>> {
        if usize::from(sockets) > MAX_QUEUES {
            return Err(sys::invalid("more sockets than there are cores"));
        }
        socket::open(index, sockets)
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
