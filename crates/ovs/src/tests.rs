//! Tests what drivers can do, including hostile ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod descriptors;
mod encodings;
mod fake;
mod left;
mod rings;
mod sessions;
mod turns;
