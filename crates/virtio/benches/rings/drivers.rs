//! The tests' driver, which has its place among the rings.
#![allow(dead_code, clippy::unwrap_used)] // tests do that, and ask more of it

use crate::ring::Addresses;

#[path = "../../src/ring/mock.rs"]
pub mod mock;

/// Asked only whether a kick is wanted, which no benchmark does.
fn passes(_event: u16, _new: u16, _old: u16) -> bool {
    false
}
