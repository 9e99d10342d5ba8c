//! The interface between the verbs library in an application and the RDMA device in the daemon.
//!
//! Owns: the control messages on a guest's socket ([`Request`], [`Reply`]), those of the connection manager ([`cm`]),
//! and the layout of the memory that both map: work queues ([`WorkQueue`], [`SendSource`], [`WorkSource`]), completion
//! queues ([`CompletionSink`], [`CompletionQueue`]) and the page of doorbells ([`Doorbells`]). The device makes the
//! memory and seals it, so that nobody can take it away; what the application writes there is read once, and checked.
//!
//! Between processes of one kernel, memory and sockets travel as descriptors. Between a virtual machine and its host,
//! memory is a part of a [`window`] instead, and a socket is a new stream, opened with a ticket ([`Opening`]); a
//! [`Connection`] carries both forms.
//!
//! Must not know: the C interface of `libibverbs`, how the device does what it is asked for.

mod address;
pub mod cm;
pub mod completion;
mod connection;
mod copying;
mod direct;
mod doorbell;
mod endpoint;
#[cfg(all(test, loom))]
mod interleavings;
mod memory;
mod message;
mod message_ring;
#[cfg(loom)]
mod model;
mod opening;
mod part;
mod peer;
pub mod point;
pub mod qp;
mod regions;
mod request;
mod send_source;
mod shared_pages;
mod shared_source;
mod slots;
mod stream;
mod suspect;
mod sync;
mod thread;
mod unfinished;
pub mod window;
pub mod work;

pub use address::AddressVector;
pub use completion::{Arm, Completion, CompletionQueue, CompletionSink, Hold, Overrun, Place, Placement};
pub use connection::Connection;
pub use copying::{CopyJob, CopyReport, CopyWork};
pub use direct::DirectSession;
pub use doorbell::{Doorbells, Rung};
pub use endpoint::agent::{AgentWindow, Caller};
pub use endpoint::{Dial, Endpoint, JoinError, Joined, Windows, dial};
pub use memory::{Memory, MemoryError};
pub use message::{
    AsyncEvent, Backing, Capacity, CreateQp, DeviceInfo, DirectPeer, Extent, PortInfo, QpInfo, Refusal,
    Reply, Request, TOKEN, VERSION,
};
pub use message_ring::MessageRing;
pub use opening::{Claim, Nonce, Opening, OpeningError, Welcome, open_program, open_sockets, open_ticket};
pub use part::{Given, Lent, PAGE, Part, Ticket, WindowKind};
pub use peer::{Peer, is_privileged, machine, peer};
pub use point::{Point, point};
pub use qp::{QpAttributes, QpState, QpType};
pub use regions::{FIRST_KEY, Kind, Region, RegionTable};
pub use send_source::SendSource;
pub use seqpacket::SocketError;
pub use shared_pages::SharedPages;
pub use shared_source::{DEVICE, SharedSource, TAKERS};
pub use stream::Stream;
pub use suspect::{Suspect, started};
pub use sync::fence;
pub use thread::start_thread;
pub use unfinished::{Unfinished, unfinished};
pub use window::{Uuid, WindowHeader};
pub use work::{Corrupt, Segment, Shape, WorkQueue, WorkRequest, WorkSource};
