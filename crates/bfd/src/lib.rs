//! Bidirectional forwarding detection (RFC 5880): whether packets reach a neighbour and come back.
//!
//! Owns: control packets, the state machine of a session and its timers. Nothing here does I/O: packets and the time
//! come in, packets and changes go out. Sessions are active, in asynchronous mode, without authentication and echo.
//! Seamless BFD (RFC 7880) says which of several paths work. A neighbour is hostile until checked: each of its packets
//! costs at most one of ours.
//!
//! Must not know: sockets, threads, clocks, BGP.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod packet;
mod seamless;
mod session;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use packet::{Diagnostic, LEN, Malformed, Packet, State};
pub use seamless::{Initiator, reflect};
pub use session::{Change, Config, Counts, Held, Session, Status};

/// The port of neighbours on a link (RFC 5881, 4).
pub const PORT: u16 = 3784;
/// The port of neighbours behind routers (RFC 5883, 5).
pub const MULTIHOP_PORT: u16 = 4784;

/// Returns the next of a sequence of random numbers (splitmix64).
const fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
