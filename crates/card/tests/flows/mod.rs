//! Floods of flows: per-guest quotas, a full table, and keys that collide. The card is a model in memory.

mod host;
mod quota;
mod stash;
mod takeover;
mod usage;
