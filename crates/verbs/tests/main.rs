//! Tests of the crate through its public interface. They are one program, because each further one takes seconds to link.

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
