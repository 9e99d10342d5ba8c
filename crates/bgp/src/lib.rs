//! The leaf speaker of a host: sessions with BGP peers, the routes that they sent, and those that the host announces.
//!
//! Owns: the state machine and its timers (RFC 4271), messages, learned routes, which of them are used and for which
//! network. Nothing here does I/O: bytes, the time and what the host has come in; bytes, wishes for connections and
//! changes of routes go out. Families: VPNv4 and VPNv6 (RFC 4364, 4659), EVPN types 2, 3 and 5 (RFC 7432, 9136),
//! route target constraint (RFC 4684), plain IPv4 and IPv6 (RFC 4271, 2545). A peer is hostile until checked: it
//! costs at most one message of input, a bounded output and [`PeerConfig::max_routes`] routes.
//!
//! Must not know: sockets, threads, clocks, ports, tables.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod bandwidth;
mod config;
mod message;
mod names;
mod notification;
mod open;
mod own;
mod peer;
mod rib;
mod route;
mod session;
mod speaker;
mod status;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod update;

pub use bandwidth::Bandwidth;
pub use config::{Config, Import, Link, PeerConfig, RangeConfig};
pub use names::{BadName, Encapsulation, Family, Rd, RouteTarget};
pub use notification::Notification;
pub use route::{
    Announcement, Change, KnownMac, LEAVING, Label, MAX_FLOOD, MAX_PATHS, MacPath, Mobility, Nlri, Path,
    Tunnel, VrfId,
};
pub use session::Conn;
pub use speaker::{Event, Speaker};
pub use status::{Candidate, Counts, Down, MAX_CANDIDATES, PeerStatus, RangeStatus, State, Verdict};
