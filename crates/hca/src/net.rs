//! Owns the devices of the host and the ways between them: addresses, paths, multicast groups, frames of the guest's
//! port. May import `streams` and what stands below it.

pub(crate) mod adapter;
pub(crate) mod fabric;
pub(crate) mod frame;
pub(crate) mod groups;
pub(crate) mod icmp;
pub(crate) mod path;
pub(crate) mod wire;
pub(crate) mod wire_errors;
