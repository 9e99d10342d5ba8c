//! A daemon that takes over from the running one (`--replace`), with a pause that guests do not notice.
//!
//! The new daemon connects to `RUN_DIR/replace.sock`. The old one accepts no changes from then on, and shares what both
//! can have open at a time: locks, listening sockets, the queues of taps and wires. The new one starts as far as it can
//! without moving a packet. Then the old one stops between two bursts, and sends the connections of its guests with
//! the positions of their rings; these do not move before the old daemon has said that all is the new one's. If that
//! does not happen in time, the old one goes on from the same positions. Packets wait meanwhile: in rings, in taps, in
//! sockets.

pub mod message;
mod new;
mod old;
#[cfg(test)]
mod tests;

pub use message::socket;

/// The name of that socket among those that the old daemon shares.
pub const NAME: &str = "replace";

pub use new::{New, Shared};
pub use old::Old;

use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock, which all processes share, in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
