//! The control plane: turns the objects that users configure into the tables by which the executor forwards.
//!
//! Owns: the objects of a host with their owners, their storage, their compilation to the tables of `model`, the
//! gRPC server, metrics. It drives the executor through [`executor::Executor`], and opens ports through [`Ports`].
//!
//! Must not know: the kind of executor, how ports are opened.
#![deny(unsafe_code)]

mod answers;
mod bindings;
mod clients;
mod compile;
mod core;
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
pub use core::{ConfigFile, Core, Error, FORMAT, Foreseen, Learned, SharedPort};
pub use host_side::HostSide;
pub use kernel::forwarding;
pub use owner::Owner;
pub use ports::{Device, PortError, PortSpec, Ports, socket_directories};
pub use process::Process;
pub use rdma::{RDMA_DIR, RdmaSpec, RdmaStatus};
pub use server::{Listeners, Missing, RunDir, Sandbox, ServeError, serve};
pub use sockets::{SOCKETS_DIR, SocketsSpec};
pub use speaking::{NoWay, Outside, Speech, SpokenNetwork};
pub use store::{Store, StoreError};
pub use underlay::{RemoteStatus, TunnelTraffic, Underlay, UnderlayWire, Watched};
pub use windows::{WINDOW_DIR, WindowOf, WindowSpec, WindowStatus, WindowUser};
