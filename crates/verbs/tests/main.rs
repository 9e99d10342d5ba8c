//! Tests of the crate through its public interface: one program, because each further one takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[macro_use]
mod program;

mod advise;
mod deregistration;
mod device;
mod peers;
mod queues;
mod shared_queue;
mod sleepers;
mod windows;
