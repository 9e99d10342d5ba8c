//! Tests of the crate through its public interface: one program, because each further one takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod brief;
mod captures;
mod cm;
mod common;
mod datagrams;
mod fuzz;
mod goodput;
#[path = "common/moves.rs"]
mod moves;
mod pair;
#[path = "../../../tests/captures/captures.rs"]
mod recordings;
mod requester;
mod responder;
