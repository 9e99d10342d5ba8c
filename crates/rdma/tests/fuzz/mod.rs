//! Fuzz targets whose state persists from packet to packet. `cargo test` replays `__fuzz__/*/corpus` and some random
//! inputs; `cargo bolero test transport::pair -p rdma` continues from there.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod found;
mod guarded;
mod transport;
