//! Floods of flows: shares of the table, a full one, keys that collide. The card is one of memory.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod host;
mod quota;
mod stash;
mod takeover;
mod usage;
