//! A port made of two rings in this process's memory, between workers and other threads: a verbs device sends
//! and receives through one, as does the host's side of a simulated card.
//!
//! Owns: the rings, and who wakes whom. [`open`] makes a port for the executor, the [`Uplink`] through which
//! any thread sends, and the [`Downlink`] through which one thread receives.
//!
//! Must not know: packet formats, queue pairs, tables.
#![deny(unsafe_code)]

mod bell;
mod port;
#[allow(unsafe_code, reason = "memory that both ends of a ring write")]
mod ring;
#[cfg(test)]
mod tests;

pub use port::{Downlink, RingPort, Uplink, open};
