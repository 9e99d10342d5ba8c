//! The engine in lock-step with the card's pipe in Rust (`card::expect`), which is held against `decide` elsewhere:
//! what each packet becomes, byte for byte, why it goes to the host, the order of what leaves, and what the counters
//! say.
#![cfg(feature = "card-sim")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod both;
mod checksums;
mod hops;
#[path = "../host/mod.rs"]
mod host;
mod ledger;
mod lockstep;
mod random;
mod reasons;
mod storms;
mod tables;
mod updates;
mod vectors;
mod weather;
