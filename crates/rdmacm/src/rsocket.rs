//! rsockets: sockets whose streams are RDMA WRITEs, compatible with those of rdma-core. Unmodified programs use them by
//! rdma-core's `librspreload.so`.
//!
//! [`wire`] is what peers tell each other, [`flow`] what may be sent when. A [`stream`] is both with the queue pair and
//! the memory ([`pair`]); a [`socket`] becomes one by the connection manager ([`identifier`]).
//!
//! A peer is believed nothing: it can write to the ring and the table that it was told of, and nowhere else; what it
//! says in messages is checked, and whoever breaks the rules loses the connection (`ECONNRESET`).

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
