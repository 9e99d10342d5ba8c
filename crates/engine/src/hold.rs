//! Packets that wait for a neighbour: copied, limited, and decided again when the neighbour answers or fails.

use mem::Offload;
use model::{NeighbourScope, VifId};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Most packets of one holder for one neighbour.
const PER_NEIGHBOUR: usize = 16;
/// Most packets held by a worker.
const TOTAL: usize = 1024;
/// Most bytes held by a worker.
const BYTES: usize = 4 << 20;
/// Most packets and bytes of one holder: a part of the whole, which leaves the rest to others.
const PER_INTERFACE: Share = Share { packets: TOTAL / 8, bytes: BYTES / 8 };
/// Buffers longer than this are not kept for later packets.
const SPARE: usize = 4096;
/// How long a packet waits, nanoseconds: three solicitations (RFC 4861, 10).
pub(crate) const PATIENCE_NS: u64 = 3_000_000_000;

/// A neighbour: where it is looked for, and its address.
pub(crate) type Neighbour = (NeighbourScope, IpAddr);

/// The party whose packets wait and share a limit: a guest, or one network behind a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    /// The interface at which they came in.
    pub ingress: VifId,
    /// Behind a wire: the scope in which the packets' neighbours are looked for.
    pub scope: Option<NeighbourScope>,
}

#[derive(Debug)]
pub(crate) struct Held {
    pub neighbour: Neighbour,
    pub holder: Holder,
    /// The offloads with which it came in.
    pub offload: Offload,
    /// When it came, by the engine's clock.
    pub since_ns: u64,
    pub frame: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct NoRoom;

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    packets: usize,
    bytes: usize,
}

impl Share {
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

/// Packets of one holder that wait for one neighbour.
type Line = (Neighbour, Holder);

/// A worker's held packets, in lines, each with the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    lines: HashMap<Line, VecDeque<Held>>,
    /// The lines, in the order in which they are looked at.
    order: VecDeque<Line>,
    all: Share,
    by_holder: HashMap<Holder, Share>,
    spare: Vec<Vec<u8>>,
}

impl Hold {
    pub fn is_empty(&self) -> bool {
        self.all.packets == 0
    }

    pub fn len(&self) -> usize {
        self.all.packets
    }

    /// Holds a copy of `frame`; false if there is no room. If its line is full, the oldest packet of that line is
    /// replaced (RFC 4861, 7.2.2; RFC 1122, 2.3.2.2) and returned.
    pub fn push(
        &mut self,
        neighbour: Neighbour,
        holder: Holder,
        offload: Offload,
        since_ns: u64,
        frame: &[u8],
    ) -> Result<Option<Held>, NoRoom> {
        let is_full = self.lines.get(&(neighbour, holder)).is_some_and(|line| line.len() >= PER_NEIGHBOUR);
        let oldest = if is_full { self.take_from((neighbour, holder)) } else { None };
        let share = self.by_holder.get(&holder).copied().unwrap_or_default();
        let has_room = self.all.has_room(Share { packets: TOTAL, bytes: BYTES }, frame.len())
            && share.has_room(PER_INTERFACE, frame.len());
        if !has_room {
            oldest.into_iter().for_each(|oldest| self.put_back(oldest));
            return Err(NoRoom);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        self.count(holder, copy.len());
        self.line((neighbour, holder)).push_back(Held { neighbour, holder, offload, since_ns, frame: copy });
        Ok(oldest)
    }

    /// Takes the oldest packet of the next line.
    pub fn pop(&mut self) -> Option<Held> {
        self.take_from(*self.order.front()?)
    }

    /// Puts a packet back that must go on waiting. Its line is looked at again after all others.
    pub fn put_back(&mut self, held: Held) {
        let line = (held.neighbour, held.holder);
        self.count(held.holder, held.frame.len());
        self.line(line).push_front(held);
        if self.order.front() == Some(&line) {
            self.order.rotate_left(1);
        }
    }

    fn line(&mut self, line: Line) -> &mut VecDeque<Held> {
        self.lines.entry(line).or_insert_with(|| {
            self.order.push_back(line);
            VecDeque::new()
        })
    }

    fn count(&mut self, holder: Holder, len: usize) {
        self.all.add(len);
        self.by_holder.entry(holder).or_default().add(len);
    }

    fn take_from(&mut self, line: Line) -> Option<Held> {
        let packets = self.lines.get_mut(&line)?;
        let held = packets.pop_front()?;
        if packets.is_empty() {
            self.lines.remove(&line);
            if self.order.front() == Some(&line) {
                self.order.pop_front();
            } else {
                self.order.retain(|other| *other != line);
            }
        }
        let len = held.frame.len();
        self.all.take(len);
        if let Some(share) = self.by_holder.get_mut(&held.holder) {
            share.take(len);
            if share.packets == 0 {
                self.by_holder.remove(&held.holder);
            }
        }
        Some(held)
    }

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

    fn guest(id: u16) -> Holder {
        Holder { ingress: VifId(id), scope: None }
    }

    /// Pushes packets of a holder, each for a different neighbour, until there is no room; returns how many
    /// were held.
    fn fill(hold: &mut Hold, holder: Holder, len: usize) -> usize {
        let frame = vec![0; len];
        let held = |n| hold.push(neighbour(n), holder, Offload::default(), 0, &frame).is_ok();
        (0..2000).map(held).take_while(|held| *held).count()
    }

    #[test]
    fn an_interface_has_its_share_and_leaves_the_rest() {
        let mut hold = Hold::default();
        let shares: Vec<_> = (0..9).map(|id| fill(&mut hold, guest(id), 60)).collect();
        assert_eq!(shares, [vec![128; 8], vec![0]].concat());
        while hold.pop().is_some() {}
        let shares: Vec<_> = (0..9).map(|id| fill(&mut hold, guest(id), 64 << 10)).collect();
        assert_eq!(shares, [vec![8; 8], vec![0]].concat(), "of the bytes, too");
        while let Some(held) = hold.pop() {
            hold.recycle(held);
        }
        assert!(hold.spare.is_empty(), "long buffers are not kept");
        assert!(hold.by_holder.is_empty() && hold.lines.is_empty() && hold.order.is_empty());
        assert_eq!(fill(&mut hold, guest(3), 60), 128, "what is gone makes room");
    }

    #[test]
    fn networks_behind_a_wire_have_their_own() {
        let mut hold = Hold::default();
        let of = |vrf| Holder { ingress: VifId(9), scope: Some(NeighbourScope::Network(model::Vrf(vrf))) };
        assert_eq!(fill(&mut hold, of(1), 60), 128);
        assert_eq!(fill(&mut hold, of(1), 60), 0);
        assert_eq!(fill(&mut hold, of(2), 60), 128, "another network behind the same wire");
    }

    #[test]
    fn a_neighbour_has_the_latest_packets_of_each_interface() {
        let mut hold = Hold::default();
        let mut push = |id, n: u8| hold.push(neighbour(1), guest(id), Offload::default(), 0, &[n; 60]);
        let displaced: Vec<_> =
            (0..20).filter_map(|n| push(1, n).unwrap()).map(|held| held.frame[0]).collect();
        assert_eq!(displaced, [0, 1, 2, 3], "the oldest");
        assert!(push(2, 0).unwrap().is_none(), "another's packet still has room");
        let left: Vec<_> = std::iter::from_fn(|| hold.pop()).map(|held| held.frame[0]).collect();
        assert_eq!(left, [(4..20).collect(), vec![0]].concat());
    }

    #[test]
    fn who_waits_on_keeps_its_place_before_those_that_came_later() {
        let mut hold = Hold::default();
        for (n, mark) in [(1, 1), (1, 2), (2, 3)] {
            hold.push(neighbour(n), guest(1), Offload::default(), 0, &[mark; 60]).unwrap();
        }
        let mut looked_at = Vec::new();
        for _ in 0..4 {
            let held = hold.pop().unwrap();
            looked_at.push(held.frame[0]);
            hold.put_back(held);
        }
        assert_eq!(looked_at, [1, 3, 1, 3], "line by line");
        let order: Vec<_> = std::iter::from_fn(|| hold.pop()).map(|held| held.frame[0]).collect();
        assert_eq!(order, [1, 2, 3]);
        assert_eq!(hold.len(), 0);
    }
}
