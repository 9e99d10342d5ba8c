//! The library as programs see it, with a mock `libibverbs` and mock devices; and its structures compared with the
//! headers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod connections;
mod devices;
mod fabric;
mod layout;
mod multicast;
mod names;
mod programs;
mod rsocket_rules;
mod rsockets;
mod symbols;
mod synchronous;
mod verbs;
mod wiring;
