//! Packets that wait for a neighbour: copied out, bounded, decided again when there is news.

use mem::Offload;
use model::{NeighbourScope, VifId};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Packets of one interface held for one neighbour at most.
const PER_NEIGHBOUR: usize = 16;
/// Packets held by a worker at most.
const TOTAL: usize = 1024;
/// Bytes held by a worker at most.
const BYTES: usize = 4 << 20;
/// One interface holds this part of both at most, so that a guest leaves room for others.
const PER_INTERFACE: Share = Share { packets: TOTAL / 8, bytes: BYTES / 8 };
/// Buffers longer than this are not kept for later packets.
const SPARE: usize = 4096;
/// How long a packet waits, nanoseconds: three solicitations (RFC 4861, 10).
pub(crate) const PATIENCE_NS: u64 = 3_000_000_000;

/// A neighbour: where it is sought, and its address.
pub(crate) type Neighbour = (NeighbourScope, IpAddr);

/// A packet that waits.
#[derive(Debug)]
pub(crate) struct Held {
    /// The neighbour that it waits for.
    pub neighbour: Neighbour,
    /// Where the packet came in.
    pub ingress: VifId,
    /// As it came in.
    pub offload: Offload,
    /// When, by the engine's clock.
    pub since_ns: u64,
    /// The whole frame.
    pub frame: Vec<u8>,
}

/// Packets and bytes held.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    packets: usize,
    bytes: usize,
}

impl Share {
    /// Whether a packet of `len` bytes fits.
    const fn has_room(self, most: Self, len: usize) -> bool {
        self.packets < most.packets && self.bytes + len <= most.bytes
    }

    const fn add(&mut self, len: usize) {
        self.packets += 1;
        self.bytes += len;
    }

    const fn take(&mut self, len: usize) {
        self.packets -= 1;
        self.bytes -= len;
    }
}

/// A worker's held packets, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    queue: VecDeque<Held>,
    all: Share,
    by_interface: HashMap<VifId, Share>,
    by_neighbour: HashMap<(Neighbour, VifId), usize>,
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

    /// Holds a copy of `frame`; false where there is no room.
    pub fn push(
        &mut self,
        neighbour: Neighbour,
        ingress: VifId,
        offload: Offload,
        since_ns: u64,
        frame: &[u8],
    ) -> bool {
        let share = self.by_interface.get(&ingress).copied().unwrap_or_default();
        let waiting = self.by_neighbour.get(&(neighbour, ingress)).copied().unwrap_or(0);
        let has_room = self.all.has_room(Share { packets: TOTAL, bytes: BYTES }, frame.len())
            && share.has_room(PER_INTERFACE, frame.len())
            && waiting < PER_NEIGHBOUR;
        if !has_room {
            return false;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        self.put_back(Held { neighbour, ingress, offload, since_ns, frame: copy });
        true
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Held> {
        let held = self.queue.pop_front()?;
        let len = held.frame.len();
        self.all.take(len);
        if let Some(share) = self.by_interface.get_mut(&held.ingress) {
            share.take(len);
            if share.packets == 0 {
                self.by_interface.remove(&held.ingress);
            }
        }
        let key = (held.neighbour, held.ingress);
        if let Some(waiting) = self.by_neighbour.get_mut(&key) {
            *waiting -= 1;
            if *waiting == 0 {
                self.by_neighbour.remove(&key);
            }
        }
        Some(held)
    }

    /// Puts one back that has to wait on, keeping when it came.
    pub fn put_back(&mut self, held: Held) {
        let len = held.frame.len();
        self.all.add(len);
        self.by_interface.entry(held.ingress).or_default().add(len);
        *self.by_neighbour.entry((held.neighbour, held.ingress)).or_default() += 1;
        self.queue.push_back(held);
    }

    /// Gives a buffer back for use by a later packet.
    pub fn recycle(&mut self, held: Held) {
        if held.frame.capacity() <= SPARE {
            self.spare.push(held.frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(n: u32) -> Neighbour {
        (NeighbourScope::Wire(VifId(9)), std::net::Ipv4Addr::from(n).into())
    }

    /// Pushes packets of an interface, each for another neighbour, until one finds no room; returns how many there
    /// were.
    fn fill(hold: &mut Hold, ingress: u16, len: usize) -> usize {
        let frame = vec![0; len];
        let held = |n| hold.push(neighbour(n), VifId(ingress), Offload::default(), 0, &frame);
        (0..2000).map(held).take_while(|held| *held).count()
    }

    #[test]
    fn an_interface_has_its_share_and_leaves_the_rest() {
        let mut hold = Hold::default();
        let shares: Vec<_> = (0..9).map(|ingress| fill(&mut hold, ingress, 60)).collect();
        assert_eq!(shares, [vec![128; 8], vec![0]].concat());
        while hold.pop().is_some() {}
        let shares: Vec<_> = (0..9).map(|ingress| fill(&mut hold, ingress, 64 << 10)).collect();
        assert_eq!(shares, [vec![8; 8], vec![0]].concat(), "of the bytes, too");
        while let Some(held) = hold.pop() {
            hold.recycle(held);
        }
        assert!(hold.spare.is_empty(), "long buffers are not kept");
        assert!(hold.by_interface.is_empty() && hold.by_neighbour.is_empty());
        assert_eq!(fill(&mut hold, 3, 60), 128, "what is gone makes room");
    }

    #[test]
    fn a_neighbour_has_some_packets_of_each_interface() {
        let mut hold = Hold::default();
        let mut push = |ingress| hold.push(neighbour(1), VifId(ingress), Offload::default(), 0, &[0; 60]);
        assert_eq!((0..100).filter(|_| push(1)).count(), PER_NEIGHBOUR);
        assert!(push(2), "another's packet still has room");
    }
}
