//! Tests of the packet path as a whole.

mod announcements;
mod budgets;
mod connections;
mod differential;
mod fragments;
mod harness;
mod mapping;
mod offloads;
mod ovs;
mod paths;
mod shapes;
mod shared;
mod stalls;
mod tcp;
mod threads;
mod vectors;
mod world;
