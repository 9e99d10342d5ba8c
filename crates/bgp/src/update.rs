//! UPDATE messages (RFC 4271, 4.3; RFC 4760).

pub(crate) mod nlri;
mod piece;
pub(crate) mod read;
pub(crate) mod write;

/// The community of routes that are about to end (RFC 8326, 5).
const GRACEFUL_SHUTDOWN: u32 = 0xffff_0000;
