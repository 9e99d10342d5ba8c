//! The tests of the crate as programs use it, in one program, because each one more takes seconds to link.

#[macro_use]
mod program;

mod advise;
mod deregistration;
mod device;
mod peers;
mod queues;
mod shared_queue;
mod sleepers;
mod windows;
