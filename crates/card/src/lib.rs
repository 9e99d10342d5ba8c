//! The driver of the FPGA card: the contents of the card's tables, and the writes that put them there.
//!
//! Owns: the lines of the card's tables and its registers ([`registers`], described once in `rtl/registers.toml`), the
//! shadow of the card's tables, the translation of the model's tables into them.
//!
//! Must not know: how guests and wires are attached, how the host decides packets that the card punts.
#![deny(unsafe_code)]

#[allow(unsafe_code)] // Maps a device's registers; see the module.
mod bar;
mod budget;
pub mod buffers;
mod card;
mod commands;
pub mod compile;
pub mod cuckoo;
pub mod driver;
pub mod entries;
#[cfg(any(test, feature = "testing"))]
pub mod expect;
pub mod flows;
pub mod frame;
pub mod hash;
pub mod hold;
pub mod ovs;
mod pool;
pub mod registers;
pub mod route6;
#[cfg(feature = "card-sim")]
pub mod sim;
pub mod step;
pub mod trie;

pub use bar::{BarError, MmapBar};
pub use budget::Budgets;
pub use card::{Card, CardError, Identity};
pub use commands::{Commands, FlowEvent, MemoryErrors};
