//! Tests of the packet path as a whole.

mod budgets;
mod differential;
mod harness;
mod offloads;
mod paths;
mod stalls;
mod threads;
mod vectors;
mod world;
