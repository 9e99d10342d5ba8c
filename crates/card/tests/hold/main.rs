//! Flows that change hands: what waits on the card, by itself and in the engine.
#![cfg(feature = "card-sim")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod engine;
#[cfg(feature = "card-test")]
mod unit;
mod world;
