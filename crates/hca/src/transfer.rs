//! Owns what is done for a queue pair without its transport: copies, packets to the peer, local requests, shared
//! memory. May import `context` and what stands below it.

pub(crate) mod carry;
pub(crate) mod grant;
pub(crate) mod local;
pub(crate) mod unshare;
