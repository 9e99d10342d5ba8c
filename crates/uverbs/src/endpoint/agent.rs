//! The windows of a virtual machine, for its agent of sockets: it opens a stream for each program, and gives programs the
//! window that the machine has in common with others.

use super::{Dial, Endpoint, JoinError, Window, claim, dial_host_by, find_common};
use crate::opening::{Claim, open_sockets};
use crate::stream::Stream;
use crate::suspect::started;
use crate::window::DATA;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Ports that only root may have (`vsock(7)`) are this one and those below.
const PRIVILEGED: u32 = 1023;

/// A program for which the agent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The process number.
    pub pid: i32,
    /// The user.
    pub uid: u32,
}

/// The window that a virtual machine has in common with others, as the agent found it.
#[derive(Debug)]
pub struct AgentWindow {
    /// The device, or file.
    pub file: Arc<OwnedFd>,
    /// Bytes before its data.
    pub base: u64,
    /// Bytes of its data.
    pub len: u64,
}

impl Endpoint {
    /// Opens a stream of the service of sockets for a program.
    ///
    /// # Errors
    /// The kernel's or the device's error.
    pub fn connect_sockets(&self, caller: Caller) -> Result<(Stream, AgentWindow), JoinError> {
        let (own, dial, common) = match self {
            Self::Socket(_) => return Err(JoinError::NoWindow),
            Self::Window(path) => {
                let own = Window::open(path, 0)?;
                let port = own.header.port;
                (own, Dial::Host(port), None)
            }
            Self::Files { own, common, socket } => {
                (Window::open(own, DATA)?, Dial::Socket(socket.clone()), common.as_ref())
            }
        };
        let stream = match dial {
            Dial::Host(port) => dial_privileged(port)?,
            dial => dial.stream()?,
        };
        let claim = claim_of(caller, own.is_virtio());
        let (stream, found) = open_sockets(stream, own.header.uuid, claim, |offset| own.read(offset))?;
        let uuid = found.ok_or(JoinError::NoCommon)?;
        let window = match common {
            Some(path) => Window::open(path, DATA)?,
            None => find_common(uuid)?,
        };
        if window.header.uuid != uuid {
            return Err(JoinError::NoCommon);
        }
        Ok((stream, AgentWindow { file: window.file, base: window.base, len: window.header.len }))
    }
}

/// Returns the claim that identifies a program of this machine.
fn claim_of(caller: Caller, is_virtio: bool) -> Claim {
    let program = std::fs::read_to_string(format!("/proc/{}/comm", caller.pid)).unwrap_or_default();
    Claim {
        pid: caller.pid,
        uid: caller.uid,
        program: program.trim_end().to_owned(),
        started: started(&caller.pid.to_string()).unwrap_or(0),
        ..claim(is_virtio)
    }
}

/// Connects to a port of the host from a port that only root may have: so the host knows that this is the agent.
fn dial_privileged(port: u32) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The host may take a stream from the same port as before a reboot for one that goes on.
    let first = RandomState::new().build_hasher().finish() as u32 % PRIVILEGED;
    for own in (0..PRIVILEGED).map(|n| 1 + (first + n) % PRIVILEGED) {
        // SAFETY: numbers, which may all be zero.
        let mut name: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        (name.svm_family, name.svm_port, name.svm_cid) =
            (libc::AF_VSOCK as libc::sa_family_t, own, libc::VMADDR_CID_ANY);
        let len = size_of_val(&name) as libc::socklen_t;
        // SAFETY: an address of that length.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) } == 0 {
            return dial_host_by(socket, port);
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::ADDRINUSE) => {}
            error => return Err(error.unwrap_or(Errno::IO)),
        }
    }
    Err(Errno::ADDRINUSE)
}
