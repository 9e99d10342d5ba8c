//! What the verbs library in an application and the RDMA device in the daemon share: the interface between them.
//!
//! Owns: the control messages on a guest's socket ([`Request`], [`Reply`]), those of the connection manager ([`cm`]),
//! and the layout of the memory that both map: work queues ([`WorkQueue`], [`WorkSource`]), completion queues
//! ([`CompletionSink`], [`CompletionQueue`]) and the page of doorbells ([`Doorbells`]). Memory is made by the device
//! and sealed, so that it can't be taken away under it; what the application writes there is read once, and checked.
//!
//! Must not know: the C interface of `libibverbs`, how the device does what it is asked for.

mod address;
mod aftermath;
pub mod cm;
pub mod completion;
mod direct;
mod doorbell;
#[cfg(all(test, loom))]
mod interleavings;
mod memory;
mod message;
#[cfg(loom)]
mod model;
mod parcels;
mod peer;
pub mod point;
pub mod qp;
mod regions;
mod request;
mod shared_pages;
mod shared_source;
mod sync;
pub mod work;

pub use address::AddressVector;
pub use aftermath::{Left, left};
pub use completion::{Arm, Completion, CompletionQueue, CompletionSink, Hold, Overrun, Place, Placement};
pub use direct::Bond;
pub use doorbell::{Doorbells, Rung};
pub use memory::{Memory, MemoryError};
pub use message::{
    AsyncEvent, Capacity, CreateQp, DeviceInfo, DirectPeer, PortInfo, QpInfo, Refusal, Reply, Request, TOKEN,
    VERSION,
};
pub use parcels::Parcels;
pub use peer::{Peer, peer};
pub use point::{Point, point};
pub use qp::{QpAttributes, QpState, QpType};
pub use regions::{FIRST_KEY, Kind, Region, RegionTable};
pub use seqpacket::{Connection, SocketError};
pub use shared_pages::SharedPages;
pub use shared_source::{DEVICE, SharedSource, TAKERS};
pub use work::{Corrupt, Segment, Shape, WorkQueue, WorkRequest, WorkSource};
