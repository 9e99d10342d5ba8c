//! The RDMA device: connections and datagrams over RoCEv2 (IBTA 1.5, chapter 9), without I/O.
//!
//! Owns: the state of queue pairs, both halves of it: the requester, which makes packets of work requests and handles
//! their answers, and the responder, which executes the peer's requests; and the connection manager ([`cm`]).
//!
//! Must not know: how packets travel, how memory of guests is reached and who may (it asks a [`Verbs`]), or what time
//! it is (it is told).
//!
//! A message's way: `QueuePair::post_send` queues a work request, and `poll` makes packets of it (`requester`). The
//! peer's `receive` executes the request and queues the answers (`responder`), and the peer's `poll` sends them. Our
//! `receive` handles the answers and completes the request. Between queue pairs of one host, a short message may go
//! without packets, through `pass` and the peer's `serve` ([`ShortMessage`]).
#![deny(unsafe_code)]

pub mod cm;
mod congestion;
mod counts;
mod datagram;
mod psn;
mod queue_pair;
mod requester;
mod responder;
mod short_message;
mod work;

pub use counts::Counts;
pub use datagram::{DatagramAttributes, DatagramPair, Destination, LeftOut, NETWORK_HEADER};
pub use psn::Psn;
pub use queue_pair::{Attributes, Mtu, QueuePair, State};
pub use short_message::{LocalVerbs, ShortMessage};
pub use work::{
    Access, Arrival, AtomicOperation, Completion, Fault, Payload, Received, SendOperation, SendRequest,
    Status, Verbs, With,
};
