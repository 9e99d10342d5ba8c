//! The port of a verbs device: in place of a guest's rings, two rings in our own memory between the workers and the
//! threads that run the device.
//!
//! Owns: the rings, and who wakes whom. [`open`] makes a port for the executor, the [`Uplink`] by which any thread
//! sends, and the [`Downlink`] by which one receives.
//!
//! Must not know: packet formats, queue pairs, tables.
#![deny(unsafe_code)]

mod bell;
mod port;
#[allow(unsafe_code, reason = "memory that both ends of a ring write")]
mod ring;
#[cfg(test)]
mod tests;

pub use port::{Downlink, RdmaPort, Uplink, open};
