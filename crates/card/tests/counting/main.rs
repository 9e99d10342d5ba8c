//! What counts and limits, as modules of their own with small parameters, against the same in a few lines of Rust.
#![cfg(feature = "card-test")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod budget;
mod clear;
mod events;
mod seen;
