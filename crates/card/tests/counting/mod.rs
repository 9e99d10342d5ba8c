//! Modules that count and limit, with small parameters, compared with a few lines of Rust.
#![cfg(feature = "card-test")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod budget;
mod clear;
mod events;
mod seen;
