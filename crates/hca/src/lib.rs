//! The RDMA device of each guest (a host channel adapter, in the standard's words), in the daemon.
//!
//! Owns: the sockets on which applications ask for protection domains, memory regions, completion queues and queue
//! pairs; one thread for each application, which runs the transport (`rdma`) of its queue pairs and is the only one
//! that touches its memory, unless that is of windows (`client/seat.rs`); the way of packets from one to another on this
//! host.
//!
//! Must not know: how packets travel between hosts, and what rules there are. It asks those by addresses ([`Rules`]).
//!
//! A request of a program walks down one stair. `client`, the program's thread in the daemon, takes it out of the
//! shared queue of its queue pair (`qp`). The transport (crate `rdma`) makes packets of it. `carry` copies the payload
//! out of the program's memory into them, and puts them into the `inbox` of the peer's thread, or into the ring of the
//! guest's port (`wire`). Only the transport calls back: `carry` has the functions that it calls. A packet that comes
//! walks the same stair. Modules import only modules that stand below them:
//!
//! | modules | what they are |
//! |---|---|
//! | `device`, `client` | threads: of a device, and of each application |
//! | `qp`, `modify`, `describe`, `cm` | queue pairs with their transport; the connection manager |
//! | `carry`, `local`, `grant`, `unshare` | what is done for a queue pair, without its transport |
//! | `endpoint`, `context` | a queue pair without its transport; everything else that an application has |
//! | `wire`, `path`, `fabric`, `adapter`, `groups` | the devices of the host, and the ways between them |
//! | `reception`, `tickets` | streams of programs in virtual machines |
//! | `kept`, `guest_window`, `ranges` | where memory that is shared with programs comes from: files, windows |
//! | `owners`, `notes`, `host_process` | whose pages of windows are, for the next daemon too, and when their programs have ended |
//! | `question`, `inbox`, `regions`, `sharing`, `spec`, ... | what all of them speak of |
#![deny(unsafe_code)]

mod adapter;
mod address_space;
mod ah;
mod atomics;
mod budget;
mod carry;
mod client;
mod clock;
mod cm;
mod context;
mod counters;
mod cq;
mod create_qp;
mod describe;
mod description;
mod device;
mod doorbells;
mod endpoint;
mod events;
mod fabric;
mod frame;
mod grant;
mod groups;
mod guest_window;
mod handed;
mod header;
mod holders;
mod host_process;
mod icmp;
mod ids;
mod inbox;
mod kept;
mod keys;
mod limits;
mod local;
mod modify;
mod mr;
mod notes;
mod owners;
mod path;
mod pd;
mod peer;
mod program_pages;
mod qp;
mod question;
mod queue_memory;
mod quota;
mod random;
mod ranges;
mod receive_queue;
mod reception;
mod refusal;
mod refusal_log;
mod regions;
mod registered;
mod send_queue;
mod shaper;
mod sharing;
mod spec;
mod srq;
mod taken;
mod terms;
mod threads;
mod tickets;
mod transitions;
mod unshare;
mod watches;
mod who;
mod windows;
mod wire;
mod wire_errors;

pub use cm::CmDescription;
pub use counters::{COUNTERS, Counters};
pub use description::{ClientDescription, CqDescription, MrDescription, QpDescription};
pub use device::{Answers, Device, DeviceError};
pub use fabric::{Fabric, RoceFlow, Rules};
pub use guest_window::{Window, WindowDescription, WindowError, WindowUser};
pub use holders::{Given, HolderDescription};
pub use limits::Limits;
pub use notes::{Notes, WindowNotes};
pub use shaper::Rate;
pub use spec::DeviceSpec;

#[cfg(test)]
extern crate self as hca;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[path = "../tests/common/mod.rs"]
mod common;
