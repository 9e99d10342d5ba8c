//! UPDATE messages (RFC 4271, 4.3; RFC 4760).

pub(crate) mod nlri;
mod piece;
pub(crate) mod read;
pub(crate) mod write;
