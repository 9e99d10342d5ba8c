//! The CPU executor: workers that move packets from port to port by [`model::decide`].
//!
//! Owns: the workers and their queues, bursts and their scratch, the flow cache that memoises decisions, rewriting in
//! place, segmentation and checksums in software, packets held for neighbours, counters, the drop log and captures.
//!
//! Must not know: what kinds of ports there are (it sees the traits of `mem`), how the tables are configured or kept
//! (it reads them through `tables`), what the control plane speaks.
//!
//! A burst's way: `worker` polls it when it is its turn (`receivers`), `core` leads it through snapshot (`lanes`), fast
//! parse (`key`, `outer`), flow cache (`cache`) or `decide` (`core::slow`), rewrite (`rewrite`, by a `template`) and
//! delivery (`deliver`, `frame`, `frame::segment`). What has more than one destination goes through `core::conclude`.
#![deny(unsafe_code)]

mod actions;
mod announcer;
mod asked;
mod beside;
mod bfd;
mod cache;
mod capture;
mod clock;
mod common;
mod contexts;
mod core;
mod counters;
mod datagrams;
mod deliver;
mod engine;
mod frame;
mod hash;
mod hold;
mod housekeeping;
mod huge;
mod key;
mod lanes;
mod linear;
mod mailbox;
mod message;
mod meters;
mod mutex;
mod notice;
mod outer;
mod patience;
mod pinned;
mod reassembly;
mod receivers;
mod replies;
mod rewrite;
mod shape;
mod shaping;
mod storms;
mod sums;
mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
mod turn;
mod worker;

// Benchmarks of instructions put their own counter in its place (`benches/stages/cycles.rs`).
use mem::cycles;

pub use asked::{Asked, Place};
pub use engine::{AttachError, Engine, EngineConfig, Stalled};
pub use mailbox::{Mailbox, Pending, Receipt};
