//! `libibverbs.so.1`, with Viaduct's RDMA device for its hardware.
//!
//! Programs built against `libibverbs` run unmodified with this library in its place: structures, symbols and their
//! versions are the same. It asks the daemon for what is rare over a guest's socket ([`link`]), and hands work to the
//! device through shared memory ([`uverbs`]).
//!
//! Owns: the C interface. Must not know: how the device does what it is asked for, networks, packets.
//!
//! Functions with C names do what their man pages say; where one is not done the way they say, it is told at the
//! function.

#![allow(missing_docs, clippy::missing_safety_doc)] // exported functions have man pages, which specify the pointers

pub mod address;
pub mod advise;
pub mod channel;
pub mod completion;
pub mod completion_ex;
pub mod context;
mod control;
pub mod device;
mod direct;
mod environment;
mod errno;
pub mod events;
mod far;
mod feed;
pub mod gid;
mod kernel;
pub mod link;
mod lock;
mod lost;
mod mapping;
pub mod memory;
pub mod memory_window;
pub mod modify;
mod moved_pages;
mod multicast;
mod names;
mod objects;
pub mod post;
mod post_ex;
mod private;
mod publish;
pub mod query;
pub mod queue_pair;
mod rate;
mod refused;
mod send_queue;
pub mod shared_receive;
mod sysfs;
mod windows;

pub use verbs_abi as abi;
