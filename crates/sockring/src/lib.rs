//! The memory that two programs share for a TCP connection: a ring for each direction, and the log by which a sender
//! switches between its ring and the kernel's socket.
//!
//! Owns: the layout of that memory, and of a file of it for many connections; positions, bounds and order of what is in it; the messages between the library in
//! a program and the daemon.
//!
//! Must not know: sockets, system calls, how a program waits. It allocates nothing.
//!
//! **The switch** is the sender's alone, for each direction by itself. A direction has an *epoch*: even, the bytes go
//! by the kernel; odd, by the ring. To switch, the sender logs at which position of the kernel's stream (`k`) and of
//! the ring (`r`) it does, and raises the epoch by one. The reader takes the kernel's bytes up to `k`, then the ring's
//! up to the next `r`, and so on. In an odd epoch, bytes in the kernel's stream are *bells*: they carry nothing, and
//! wake whoever sleeps on the socket. A sender switches only if the reader has acknowledged the epoch before.
#![warn(missing_docs)]

mod carried;
mod doors;
mod layout;
mod message;
mod reader;
mod sender;

pub use carried::{EndState, Sent};
pub use doors::{Doors, FILE, SLOTS, Slots, file_bytes};
pub use layout::{BYTES, Bell, Direction, HEADER, Link, RINGS, SIZE, Side};
pub use message::{LEN as MESSAGE_LEN, Message};
pub use reader::{Reader, Step};
pub use sender::Sender;

/// The peer wrote what no peer of this protocol writes. The connection can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// There is more in the ring than it holds, or a position went back.
    #[error("a position that can't be")]
    Position,
    /// The sender is more than one epoch ahead of the reader, or behind it.
    #[error("an epoch that can't be")]
    Epoch,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
