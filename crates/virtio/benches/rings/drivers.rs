//! The tests' driver, included here so that it is among the rings.
#![allow(dead_code, clippy::unwrap_used)] // tests do that, and use more of it

use crate::ring::Addresses;

#[path = "../../src/ring/mock.rs"]
pub mod mock;

/// Replaces the ring's function. The driver needs it only to find out whether a kick is wanted, which no
/// benchmark does.
fn passes(_event: u16, _new: u16, _old: u16) -> bool {
    false
}
