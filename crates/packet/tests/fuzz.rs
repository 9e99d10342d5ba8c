//! Fuzz target over whole frames. `cargo test` replays `__fuzz__/*/corpus` and a few random inputs;
//! `cargo bolero test frames -p packet` goes on from there.
#![cfg(not(miri))]

mod common;

use common::exercise::exercise;

#[test]
fn frames() {
    bolero::check!().for_each(|bytes: &[u8]| {
        exercise(bytes, 0, bytes.len());
        exercise(&bytes[..bytes.len() / 2], 0, bytes.len());
    });
}
