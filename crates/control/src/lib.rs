//! The control plane: turns the objects that users configure into the tables by which the executor forwards.
//!
//! Owns: the objects of a host with their owners, their storage, their compilation to the tables of `model`, the
//! gRPC server, metrics. It drives the executor through [`executor::Executor`], and opens ports through [`Ports`].
//!
//! Must not know: the kind of executor, how ports are opened.
//!
//! Its rooms, from the ground up. None uses one that stands below it in this table, but for `View`, which
//! shows `core`'s state to `underlay`.
//!
//! | room | owns | must not know |
//! |---|---|---|
//! | `owner`, `prefixes`, `object_change`, `history` | objects and routes with their owners; changes and their authors | tables, ports, how they are stored |
//! | `store` | the log, checkpoints, past states | what objects mean |
//! | `compile`, `leases`, `bindings`, `speaking`, `underlay`, `windows`, `rdma`, `sockets` | from objects, links and learned routes to wanted tables, services, announcements, files; differences | threads, files, the executor |
//! | `ports` | specifications of ports, the trait that opens them | who opens them |
//! | `core` | revisions, transactions, the queue, resync, confirmed changes; the one writer of the executor, the store and the ports; the hand-over (`core/carry`, `core/hand_over`) | gRPC, words for operators |
//! | `service`, `packet_text`, `metrics`, `clients`, `answers`, `server` | gRPC, metrics, limits of clients, words | how a change is made |
#![deny(unsafe_code)]

mod answers;
mod bindings;
mod clients;
mod compile;
mod core;
mod error;
mod history;
mod host_side;
mod kernel;
mod leases;
mod matching;
mod metrics;
mod object_change;
mod owner;
mod packet_text;
mod ports;
mod prefixes;
mod process;
mod rdma;
mod run_dir_lock;
mod scrapes;
mod server;
mod service;
mod sockets;
mod speaking;
mod store;
mod underlay;
mod windows;

pub use compile::BridgeChange;
pub use core::{ConfigFile, Core, FORMAT, Foreseen, Learned, SharedPort};
pub use error::Error;
pub use host_side::HostSide;
pub use kernel::forwarding;
pub use owner::Owner;
pub use ports::{Device, PortError, PortSpec, Ports, socket_directories};
pub use process::Process;
pub use rdma::{RDMA_DIR, RdmaSpec, RdmaStatus};
pub use server::{Listeners, RunDir, ServeError, serve};
pub use service::{Missing, Sandbox};
pub use sockets::{SOCKETS_DIR, SocketsSpec};
pub use speaking::{NoWay, Outside, Speech, SpokenNetwork};
pub use store::{Store, StoreError};
pub use underlay::{RemoteStatus, TunnelTraffic, Underlay, UnderlayWire, Watched};
pub use windows::{WINDOW_DIR, WindowOf, WindowSpec, WindowStatus, WindowUser};
