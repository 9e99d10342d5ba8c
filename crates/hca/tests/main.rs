//! Tests of the crate through its public interface: one program, because each further one takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod atomics;
mod common;
mod deaths;
mod fuzz;
mod fuzz_streams;
mod guests;
mod hostile;
mod hostile_guests;
mod loopback;
mod multicast;
mod programs;
mod shared;
mod verbs;
mod windows;
mod wire;
