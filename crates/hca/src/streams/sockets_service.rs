//! Programs in virtual machines that have no verbs: an agent there offers their sockets to a service of this host.

use crate::window::rings::RingMemory;
use sockets::Untrusted;
use std::sync::Arc;

/// A program for which an agent speaks. It claims what is said of it here.
#[derive(Debug)]
pub struct SocketsProgram {
    /// The guest.
    pub guest: String,
    /// The user in the machine.
    pub user: u32,
    /// The process number in the machine.
    pub pid: i32,
    /// The stream of the agent, for this program alone.
    pub socket: Arc<Untrusted>,
    /// The source of its memory in common with others.
    pub memory: RingMemory,
}

/// Whoever serves sockets.
pub trait SocketsService: Send + Sync {
    /// Lets in a program. Returns false if there is no room, or its guest has no sockets.
    fn admit(&self, program: SocketsProgram) -> bool;
}
