//! The RDMA device of each guest (a host channel adapter, in the standard's words), in the daemon.
//!
//! Owns: the sockets on which applications ask for protection domains, memory regions, completion queues and queue
//! pairs; one thread for each application, which runs the transport (`rdma`) of its queue pairs, and which alone touches
//! the application's memory, unless that is in windows (`client/run.rs`); the way of packets between applications of
//! this host.
//!
//! Must not know: how packets travel between hosts, and what rules there are. It asks those by addresses ([`Rules`]).
//!
//! A request of a program walks down one stair. `client`, the program's thread in the daemon, takes it out of the
//! shared queue of its queue pair (`qp`). The transport (crate `rdma`) makes packets of it. `transfer` copies the
//! payload out of the program's memory into them (`transfer/carry.rs`), and puts them into the `inbox` of the peer's
//! thread, or into the ring of the guest's port (`net/wire.rs`). Only the transport calls back: `transfer/carry.rs`
//! has the functions that it calls. A packet that comes walks the same stair. A folder imports only itself and those
//! below it:
//!
//! | folder | owns |
//! |---|---|
//! | `device` | a device's socket and thread, and the list of its applications |
//! | `client` | the thread of an application: its requests, and when it works, polls and sleeps |
//! | `cm` | the connection manager of a device |
//! | `lines` | connections of the daemon itself with devices of other hosts, for whoever has something to carry |
//! | `qp` | queue pairs with their transport: creation, state transitions, work, description |
//! | `transfer` | what is done for a queue pair without its transport: copies, local requests, sharing with the peer |
//! | `context` | an application's objects: completion queues, protection domains ..., queue pairs without transport |
//! | `net` | the devices of the host, and the ways between them: addresses, paths, groups, frames |
//! | `streams` | what carries events to programs, and streams of programs in virtual machines |
//! | `inbox` | what threads tell each other: packets, and messages with their answers |
//! | `program` | what is known of a program: who it is, its process, its description |
//! | `memory` | a program's memory by its keys: regions, memory windows, atomic operations |
//! | `window` | memory that the device shares with programs: windows, files, and whose pages are whose |
//! | `base` | what all of them use: numbers, limits, budgets, counters, clock, headers |
#![deny(unsafe_code)]

mod base;
mod client;
mod cm;
mod context;
mod device;
mod inbox;
mod lines;
mod memory;
mod net;
mod program;
mod qp;
mod streams;
mod transfer;
mod window;

pub use base::counters::{COUNTERS, Counters};
pub use base::limits::Limits;
pub use base::shaper::Rate;
pub use base::spec::DeviceSpec;
pub use cm::CmDescription;
pub use device::{Answers, Device, DeviceError};
pub use lines::{Cargo, Ends, Freight, HEAD, Load};
pub use net::fabric::{Fabric, RoceFlow, Rules};
pub use program::description::{ClientDescription, CqDescription, MrDescription, QpDescription};
pub use program::grants::{GrantedMemory, HolderDescription};
pub use streams::sockets_service::{SocketsProgram, SocketsService};
pub use window::notes::{Notes, WindowNotes};
pub use window::rings::{RingMemory, RingPages};
pub use window::{Window, WindowDescription, WindowError, WindowUser};

#[cfg(test)]
extern crate self as hca;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[path = "../tests/common/mod.rs"]
mod common;
