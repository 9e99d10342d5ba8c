//! `libibverbs.so.1` for Viaduct's RDMA device.
//!
//! Programs built against `libibverbs` run unmodified with this library in its place: structures, symbols and their
//! versions are the same. It sends rare requests to the daemon over a guest's socket ([`link`]), and hands work to the
//! device through shared memory ([`uverbs`]).
//!
//! Owns: the C interface. Must not know: how the device does what it is asked for, networks, packets.
//!
//! Functions with C names do what their man pages say; a function's comment tells where it differs.

#![allow(clippy::missing_safety_doc)] // exported functions have man pages, which specify the pointers

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
