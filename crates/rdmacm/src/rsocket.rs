//! rsockets: sockets whose streams are RDMA WRITEs, compatible with those of rdma-core. Unmodified programs use them
//! through rdma-core's `librspreload.so`.
//!
//! [`wire`] is the format of messages between peers, [`flow`] decides what may be sent when. A `stream` joins both
//! with the queue pair and the memory (`pair`); the connection manager (`identifier`) turns a `socket` into a
//! stream.
//!
//! We trust a peer with nothing: it can write only to the ring and the table that we told it of; its messages are
//! checked, and a peer that breaks the rules loses the connection (`ECONNRESET`).

mod area;
mod calls;
pub mod flow;
mod identifier;
mod options;
mod pair;
mod parts;
mod polling;
mod socket;
mod stream;
mod table;
mod waiting;
pub mod wire;

pub use calls::*;
