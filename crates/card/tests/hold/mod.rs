//! Flows that change hands: what the driver writes, and which packets wait on the card; the unit alone and in the
//! engine.

#[cfg(feature = "card-sim")]
mod engine;
mod lines;
#[cfg(feature = "card-test")]
mod unit;
#[allow(dead_code, reason = "lines need less of it than the engine")]
mod world;
