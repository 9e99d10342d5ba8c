//! A program that offers connections.

use crate::offer::Key;
use seqpacket::Connection;
use sockets::Untrusted;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Programs on the host. A guest has at most half of what others leave.
pub const PROGRAMS: usize = 8192;
/// Offers without another end, and ends of pairs, on the host. A guest has at most half of what others leave. Each pair
/// takes a mapping of the daemon, of which it has 65,530 (`vm.max_map_count`).
pub const CONNECTIONS: usize = 32_768;

/// Shares of each user of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs at a time.
    pub programs: usize,
    /// Offers without another end, and pairs, at a time.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { programs: 1024, connections: 16_384 }
    }
}

pub struct Client {
    pub socket: Arc<Untrusted>,
    pub connection: Connection,
    pub guest: String,
    pub user: u32,
    pub pid: i32,
    /// Offers that wait for the other end, by the program's names.
    pub offers: BTreeMap<u64, Key>,
    /// Requests that it may make until the next turn of the clock.
    pub credit: u32,
}
