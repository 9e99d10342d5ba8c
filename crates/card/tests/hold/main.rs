//! Flows that change hands: what the driver writes, what waits on the card, by itself and in the engine.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a test")]

#[cfg(feature = "card-sim")]
mod engine;
mod lines;
#[cfg(feature = "card-test")]
mod unit;
#[allow(dead_code, reason = "lines need less of it than the engine")]
mod world;
