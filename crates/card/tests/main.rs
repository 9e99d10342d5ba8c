//! Tests of the crate through its public interface: one program, because each further one takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[cfg(feature = "card-test")]
mod channel;
mod counter_ram;
mod counting;
mod decide;
mod driver;
mod engine;
mod flood;
mod flow;
mod flows;
mod hold;
mod host;
mod lookup;
mod memory;
mod open;
mod opennic;
mod parser;
mod rewriter;
