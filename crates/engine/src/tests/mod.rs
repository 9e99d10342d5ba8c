//! Tests of the packet path as a whole.

mod differential;
mod harness;
mod world;
