//! Packets that wait for a neighbour: copied out, bounded, decided again when there is news.

use mem::Offload;
use model::{NeighbourScope, VifId};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Packets held for one neighbour at most.
const PER_NEIGHBOUR: usize = 16;
/// Packets held by a worker at most.
const TOTAL: usize = 1024;
/// Bytes held by a worker at most.
const BYTES: usize = 4 << 20;
/// How long a packet waits, nanoseconds: three solicitations (RFC 4861, 10).
pub(crate) const PATIENCE_NS: u64 = 3_000_000_000;

/// A packet that waits.
#[derive(Debug)]
pub(crate) struct Held {
    /// Where the neighbour is sought, and its address.
    pub neighbour: (NeighbourScope, IpAddr),
    /// Where the packet came in.
    pub ingress: VifId,
    /// As it came in.
    pub offload: Offload,
    /// When, by the engine's clock.
    pub since_ns: u64,
    /// The whole frame.
    pub frame: Vec<u8>,
}

/// A worker's held packets, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    queue: VecDeque<Held>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl Hold {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Packets held.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Packets held for a neighbour.
    pub fn waiting_for(&self, scope: NeighbourScope, addr: IpAddr) -> usize {
        self.queue.iter().filter(|held| held.neighbour == (scope, addr)).count()
    }

    /// Holds a copy of `frame`; false where there is no room.
    pub fn push(
        &mut self,
        neighbour: (NeighbourScope, IpAddr),
        ingress: VifId,
        offload: Offload,
        since_ns: u64,
        frame: &[u8],
    ) -> bool {
        let full = self.queue.len() >= TOTAL
            || self.bytes + frame.len() > BYTES
            || self.waiting_for(neighbour.0, neighbour.1) >= PER_NEIGHBOUR;
        if full {
            return false;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        self.bytes += frame.len();
        self.queue.push_back(Held { neighbour, ingress, offload, since_ns, frame: copy });
        true
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Held> {
        let held = self.queue.pop_front()?;
        self.bytes -= held.frame.len();
        Some(held)
    }

    /// Puts one back that has to wait on, keeping when it came.
    pub fn put_back(&mut self, held: Held) {
        self.bytes += held.frame.len();
        self.queue.push_back(held);
    }

    /// Gives a buffer back for use by a later packet.
    pub fn recycle(&mut self, held: Held) {
        self.spare.push(held.frame);
    }
}
