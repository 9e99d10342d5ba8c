//! The daemon's side of `librte_net_viaduct.so` (`ovs-pmd/`), the DPDK driver by which an unmodified Open vSwitch has
//! its flows carried out by Viaduct.
//!
//! Owns: the protocol, the sessions of drivers, which flows they made and what becomes of these when a session ends,
//! the rings by which packets go to and from OVS, and the page of counters that it reads.
//!
//! ```text
//! ovs-vswitchd ── rte_flow ── driver ══ messages ══ Service ── State ── Tables (the executor)
//!                  bursts ───────┴───── rings ───── OVS side of a port ── workers
//! ```
//!
//! Everything that comes from a driver is hostile until checked: messages (`protocol`), what they ask for
//! (`encoding`), indexes and lengths in rings (`ring`).
//!
//! Must not know: how flows are looked up, what guests are connected to.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "memory that drivers read")]
mod counters;
mod encoding;
mod flows;
mod heritage;
mod kinds;
mod port;
mod protocol;
mod refused;
#[allow(unsafe_code, reason = "memory that a driver writes as well")]
mod ring;
mod service;
mod state;
mod status;
#[cfg(test)]
mod tests;
mod turn;

pub use port::OvsPort;
pub use refused::Refused;
pub use service::{Service, ServiceError};
pub use state::{Tables, Times};
pub use status::{FlowState, FlowStatus, PortStatus, RefusedCount, SessionStatus, Status};
