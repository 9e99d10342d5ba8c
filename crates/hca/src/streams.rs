//! Owns what carries events and streams between the device and programs: notifications, the tickets of streams, and the
//! thread that accepts streams of programs in virtual machines. May import `inbox` and what stands below it.

pub(crate) mod events;
pub(crate) mod reception;
pub(crate) mod sockets_service;
pub(crate) mod tickets;
