//! The RDMA device of each guest (a host channel adapter, in the standard's words), in the daemon.
//!
//! Owns: the sockets on which applications ask for protection domains, memory regions, completion queues and queue
//! pairs; one thread for each application, which runs the transport (`rdma`) of its queue pairs and is the only one
//! that touches its memory; the way of packets from one to another on this host.
//!
//! Must not know: how packets travel between hosts, what rules there are (it is told where they leave it a way).
//!
//! A message's way: the library rings a doorbell, [`Device`]'s thread of that application (`client`) takes the request
//! out of the shared queue (`qp`), the transport makes packets of it, `carry` copies the payload out of the
//! application's memory into them and puts them into the `inbox` of the thread that has the peer, which does the same
//! the other way round.
#![deny(unsafe_code)]

mod atomics;
mod budget;
mod carry;
mod client;
mod cm;
mod control;
mod counters;
mod crew;
mod describe;
mod device;
mod direct;
mod events;
mod fabric;
mod groups;
mod holders;
mod inbox;
mod local;
mod memory;
mod modify;
mod objects;
mod parting;
mod path;
mod qp;
mod questions;
mod random;
mod registered;
mod shaper;
mod terms;
mod transitions;
mod windows;
mod wire;

pub use cm::CmDescription;
pub use counters::Counters;
pub use describe::{ClientDescription, CqDescription, MrDescription, QpDescription};
pub use device::{Answers, Device, DeviceError};
pub use fabric::{DeviceSpec, Fabric, Limits, Rules};
pub use holders::{Given, HolderDescription};
pub use shaper::Rate;
