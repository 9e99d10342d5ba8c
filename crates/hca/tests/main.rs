//! Tests of the crate through its public interface. They are one program, because each further one takes seconds to link.

mod atomics;
mod common;
mod deaths;
mod fuzz;
mod fuzz_streams;
mod guests;
mod hostile;
mod hostile_guests;
mod loopback;
mod multicast;
mod programs;
mod shared;
mod verbs;
mod windows;
mod wire;
