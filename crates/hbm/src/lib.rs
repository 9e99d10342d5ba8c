//! One HBM2 pseudo channel behind an AXI3 port, stepped once a card clock: the memory of the simulated card.
//!
//! Owns: the timing of the memory ([`Timing`]: presets with their sources), the controller in front of it
//! ([`Controller`]: queue, order, page policy, refresh), the port ([`Channel`]) and the stored bytes.
//!
//! Must not know: tables, packets, who reads.
//!
//! The memory is closed-page by default: each request activates its row, and its last column command closes it.
//! Look-ups by hash rarely meet the same row again. An open row would only put a precharge in the way of the next
//! look-up. [`Controller::row_hits`] makes it first-ready, first-come-first-served over open rows instead.
//!
//! The model leaves out: the switch between ports (each port uses its own channel), write strobes, exclusive access,
//! ECC, temperature, postponed refreshes, and any order between a read and a write: as on AXI, one can rely on a write
//! only after its response.
//!
//! A card clock, in short:
//! ```
//! # use hbm::{Channel, Controller, Timing};
//! let mut channel = Channel::new(Timing::hbm2(), Controller::default());
//! channel.poke(0x40, &[7; 32]);
//! if channel.can_read() {
//!     channel.read(3, 0x40, 1)?; // ID 3, one beat of 32 bytes
//! }
//! let beat = loop {
//!     channel.tick(); // 4 ns
//!     if let Some(beat) = channel.r() {
//!         let beat = *beat;
//!         channel.accept_r();
//!         break beat;
//!     }
//! };
//! assert!(beat.id == 3 && beat.last && beat.data == [7; 32]);
//! # Ok::<(), hbm::Refused>(())
//! ```
#![deny(unsafe_code)]

mod channel;
mod device;
mod memory;
mod queue;
mod schedule;
mod timing;
mod trace;

pub use channel::{Beat, Channel, Controller, Refused};
pub use timing::{BANKS, GROUPS, Refresh, Timing};
pub use trace::{Command, Kind};
