//! Replaces the running daemon with a new one (`--replace`), with a pause that guests do not notice.
//!
//! The new daemon connects to `RUN_DIR/replace.sock`. From then on the old one accepts no changes, and shares
//! everything that both can have open at a time: locks, listening sockets, the queues of taps and wires. The
//! new one starts as far as it can without moving a packet. Then the old one stops between two bursts, and
//! sends the connections of its guests with the positions of their rings. The new one leaves these positions
//! as they are until the old daemon has handed over everything. If that does not happen in time, the old one
//! goes on from the same positions. Meanwhile packets wait in rings, in taps and in sockets.

pub mod message;
mod new;
mod old;
#[cfg(test)]
mod tests;

pub use message::socket;

/// The name of `replace.sock` among the sockets that the old daemon shares.
pub const NAME: &str = "replace";

pub use new::{New, Shared};
pub use old::Old;

use rustix::time::{ClockId, clock_gettime};

/// Returns the monotonic clock, which all processes share, in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
