//! The socket by which programs in virtual machines reach the daemon through the kernel (vhost-vsock).

use crate::privileges::Privileges;
use hca::Fabric;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Name of the socket between daemons.
pub const NAME: &str = "vsock";

/// The socket, which is opened with the first window.
pub struct Machines(Mutex<State>);

enum State {
    /// Not needed yet. Holds the socket of the old daemon if this one takes over.
    Unused(Option<OwnedFd>),
    /// A copy of the socket.
    Open(OwnedFd),
    Failed(String),
}

impl Machines {
    /// Starts without a socket, or with that of the old daemon.
    pub fn new(shared: Option<OwnedFd>) -> Self {
        let fits = |socket: &OwnedFd| {
            socket_domain(socket) == Ok(AddressFamily::VSOCK) && socket_acceptconn(socket) == Ok(true)
        };
        Self(Mutex::new(State::Unused(shared.filter(fits))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the socket if needed, so that programs can reach the devices through it.
    pub fn open(&self, privileges: &Privileges, fabric: &Fabric) {
        let mut state = self.lock();
        let shared = match &mut *state {
            State::Open(_) => return,
            State::Unused(shared) => shared.take(),
            State::Failed(_) => None,
        };
        let open = || -> io::Result<OwnedFd> {
            let socket = shared.map_or_else(|| privileges.machines(), Ok)?;
            let copy = socket.as_fd().try_clone_to_owned()?;
            fabric.listen_streams(socket)?;
            Ok(copy)
        };
        *state = match open() {
            Ok(copy) => State::Open(copy),
            Err(e) => State::Failed(e.to_string()),
        };
    }

    /// Returns the reason why a socket that is needed is not open.
    pub fn problem(&self) -> Option<String> {
        match &*self.lock() {
            State::Failed(why) => Some(why.clone()),
            State::Unused(_) | State::Open(_) => None,
        }
    }

    /// Duplicates the socket for a new daemon.
    pub fn share(&self) -> Option<OwnedFd> {
        match &*self.lock() {
            State::Open(socket) | State::Unused(Some(socket)) => socket.try_clone().ok(),
            State::Unused(None) | State::Failed(_) => None,
        }
    }
}
