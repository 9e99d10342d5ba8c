//! Fuzz targets whose state persists from packet to packet. `cargo test` replays `__fuzz__/*/corpus` and some random
//! inputs; `cargo bolero test transport::pair -p rdma` continues from there.
#![cfg(not(miri))]

mod found;
mod guarded;
mod transport;
