//! The RDMA device: connections and datagrams over RoCEv2 (IBTA 1.5, chapter 9), without I/O.
//!
//! Owns: the state of queue pairs, both of its halves: the requester, which makes packets of work requests and takes
//! what answers them, and the responder, which does what requests of the peer ask for; and the connection manager
//! ([`cm`]).
//!
//! Must not know: how packets travel, how memory of guests is reached and who may (it asks a [`Verbs`]), or what time
//! it is (it is told).
//!
//! A message's way: `QueuePair::post_send` queues a work request, `poll` makes packets of it (`requester`), the
//! peer's `receive` does what they ask for and queues its answers (`responder`), `poll` there sends them, and
//! `receive` here takes them and completes the request. Between queue pairs of one host, a short message may go without
//! packets: by `pass` and the peer's `serve` ([`Brief`]).
#![deny(unsafe_code)]

mod brief;
pub mod cm;
mod counts;
mod datagram;
mod psn;
mod queue_pair;
mod requester;
mod responder;
mod work;

pub use brief::{Brief, Nearby};
pub use counts::Counts;
pub use datagram::{DatagramAttributes, DatagramPair, Destination, LeftOut, NETWORK_HEADER};
pub use psn::Psn;
pub use queue_pair::{Attributes, Mtu, QueuePair, State};
pub use work::{
    Access, Arrival, AtomicOperation, Completion, Fault, Payload, Received, SendOperation, SendRequest,
    Status, Verbs, With,
};
