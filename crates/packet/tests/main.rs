//! Tests of the crate through its public interface: one program, because each further one takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../../tests/captures/captures.rs"]
mod captures;
mod checksum;
mod common;
mod edit;
mod entropy;
mod fuzz;
mod parse;
mod properties;
mod reply;
mod roce;
mod tunnel;
