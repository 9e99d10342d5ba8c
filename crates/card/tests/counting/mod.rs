//! Modules that count and limit, with small parameters, compared with a few lines of Rust.
#![cfg(feature = "card-test")]

mod budget;
mod clear;
mod events;
mod seen;
