//! Tests of the crate through its public interface: one program, because each further one takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bgp;
mod config;
mod include;
mod ovs;
mod shared;
mod tunnels;
mod warnings;
