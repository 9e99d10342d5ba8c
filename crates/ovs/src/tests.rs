//! What drivers can do, hostile ones included.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod descriptors;
mod encodings;
mod fake;
mod rings;
mod sessions;
mod turns;
