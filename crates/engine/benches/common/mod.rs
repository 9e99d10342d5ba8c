//! Code that the benchmarks share: ports without rings, and a host with tables and packets for it.

pub mod host;
pub mod ports;
