//! The queues' own sources: a port's queues exist only with a VMM on a socket, and here there is none.
#![allow(dead_code, unused_imports)] // only the port's control thread uses some of it

#[path = "../../src/announcement.rs"]
pub mod announcement;
#[path = "../../src/aside.rs"]
pub mod aside;
#[path = "../../src/features.rs"]
pub mod features;
#[path = "../../src/frames.rs"]
pub mod frames;
#[path = "../../src/lease.rs"]
pub mod lease;
#[path = "../../src/queue.rs"]
pub mod queue;
#[path = "../../src/ring/mod.rs"]
pub mod ring;
#[path = "../../src/rx.rs"]
pub mod rx;
#[path = "../../src/tx.rs"]
pub mod tx;
