//! Finds the two ends of a TCP connection, and gives their programs memory in common, or carries the bytes between two
//! hosts.
//!
//! Owns: the sockets on which programs offer connections; the proof that an offered connection is theirs, which is the
//! socket itself; who may have how many; the pairs, and how they are told to return to TCP.
//!
//! Must not know: how packets are forwarded ([`Ways`] says whether two guests may share memory for a connection), what
//! programs do with the memory, whose which pages of a window are ([`Window`]).
//!
//! Programs in virtual machines come by an agent, which reads their sockets there ([`Frame`]).
//!
//! One thread serves all programs. It never waits for one of them.
#![warn(missing_docs)]

mod agent;
mod bells;
mod carriage;
mod client;
mod closing;
mod counters;
mod elsewhere;
mod files;
mod offer;
mod pairs;
mod receive;
mod service;
mod window;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

pub use agent::Frame;
pub use bells::{bell, ring};
pub use carriage::Carriage;
pub use client::Limits;
pub use counters::Counters;
pub use offer::{End, Key, Offered, namespace};
pub use pairs::PairStatus;
pub use receive::receive;
pub use service::{Agent, Error, GuestSpec, Service, Status};
pub use window::{Job, Piece, Window};

use std::net::SocketAddr;

/// The tables, as far as they are about connections between guests.
pub trait Ways: Send + Sync {
    /// Returns a connection of a guest by inside addresses, the guest's own end first; `own` and `peer` are its addresses
    /// as the guest has them. `None`: it stays with TCP.
    fn inside(&self, guest: &str, own: SocketAddr, peer: SocketAddr) -> Option<Key>;
    /// Returns a connection of a guest by inside addresses whose other end may be on another host. `None`: it stays with
    /// TCP.
    fn elsewhere(&self, guest: &str, own: SocketAddr, peer: SocketAddr) -> Option<Key>;
    /// Returns whether the daemon may carry a connection of a guest to another host: all that the vRouter would do with
    /// the packets that the guest sends on it is to send them there.
    fn may_carry(&self, guest: &str, key: &Key) -> bool;
    /// Returns whether the programs of two guests may share memory for a connection, whose first end is the first
    /// guest's: all that the vRouter would do with its packets is to deliver them.
    fn may_share(&self, guests: (&str, &str), key: &Key) -> bool;
    /// Notes that a connection is in use, with the bytes that its ends have exchanged since the last time, the first
    /// end's first: its entry must not expire.
    fn in_use(&self, key: &Key, bytes: (u64, u64));
}
