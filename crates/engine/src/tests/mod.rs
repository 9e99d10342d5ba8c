//! Tests of the packet path as a whole.

mod connections;
mod differential;
mod harness;
mod offloads;
mod paths;
mod threads;
mod vectors;
mod world;
