//! The packets that a port hands to a worker at once.

use crate::{Offload, Segment};
use arrayvec::ArrayVec;

pub const BURST: usize = 64;

/// Most segments in a burst. A port ends a burst early rather than exceed it.
const SEGMENTS: usize = 2048;

/// One received packet: a run of the burst's segments.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket {
    first: u16,
    count: u16,
    /// Length of the frame in bytes, from the Ethernet header, without any vnet header.
    pub len: u32,
    /// Checksum and segmentation state, as claimed by the sender.
    pub offload: Offload,
}

/// Up to [`BURST`] packets and their segments. The memory belongs to the port until the packets are released to it.
#[derive(Debug, Default)]
pub struct Burst {
    packets: ArrayVec<RxPacket, BURST>,
    segments: Vec<Segment>,
}

impl Burst {
    /// Creates an empty burst, and allocates all the memory that the burst will ever need.
    #[must_use]
    pub fn new() -> Self {
        Self { packets: ArrayVec::new(), segments: Vec::with_capacity(SEGMENTS) }
    }

    /// Appends a packet in `segments`. False, with nothing done, if the burst has no room for it.
    #[inline]
    pub fn push(&mut self, segments: &[Segment], len: u32, offload: Offload) -> bool {
        if self.packets.is_full() || self.segments.len() + segments.len() > SEGMENTS {
            return false;
        }
        let first = self.segments.len() as u16;
        match segments {
            &[only] => self.segments.push(only),
            _ => self.segments.extend_from_slice(segments),
        }
        self.packets.push(RxPacket { first, count: segments.len() as u16, len, offload });
        true
    }

    /// Appends a packet that fills one segment. False, with nothing done, if the burst has no room for it.
    #[inline(always)]
    pub fn push_one(&mut self, segment: Segment, offload: Offload) -> bool {
        let fits = self.segments.len() < SEGMENTS;
        let packet =
            RxPacket { first: self.segments.len() as u16, count: 1, len: segment.len() as u32, offload };
        let pushed = fits && self.packets.try_push(packet).is_ok();
        if pushed {
            self.segments.push(segment);
        }
        pushed
    }

    /// Returns the packets, oldest first.
    #[must_use]
    #[inline]
    pub fn packets(&self) -> &[RxPacket] {
        &self.packets
    }

    #[must_use]
    #[inline]
    pub fn segments(&self, packet: &RxPacket) -> &[Segment] {
        &self.segments[usize::from(packet.first)..usize::from(packet.first) + usize::from(packet.count)]
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns whether a packet of `segments` segments no longer fits.
    #[must_use]
    pub fn is_full(&self, segments: usize) -> bool {
        self.packets.is_full() || self.segments.len() + segments > SEGMENTS
    }

    /// Removes all packets. The port calls it when it has taken them back.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.segments.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(len: u32) -> Segment {
        // SAFETY: no other thread touches this memory.
        unsafe { Segment::new(std::ptr::dangling_mut(), len) }
    }

    #[test]
    fn packets_keep_their_segments() {
        let mut burst = Burst::new();
        assert!(burst.is_empty() && burst.packets().is_empty());
        let valid = Offload { csum: crate::Csum::Valid, gso: None };
        assert!(burst.push(&[segment(1), segment(2)], 3, valid));
        assert!(burst.push_one(segment(4), Offload::default()));
        assert!(burst.push(&[segment(5)], 5, Offload::default()));
        let lens = |burst: &Burst| -> Vec<(u32, Vec<usize>)> {
            let of = |p: &RxPacket| (p.len, burst.segments(p).iter().map(Segment::len).collect());
            burst.packets().iter().map(of).collect()
        };
        assert_eq!(lens(&burst), [(3, vec![1, 2]), (4, vec![4]), (5, vec![5])]);
        assert_eq!((burst.len(), burst.is_empty(), burst.packets()[0].offload), (3, false, valid));
        burst.clear();
        assert!(burst.is_empty());
        assert!(burst.push_one(segment(6), valid));
        assert_eq!(lens(&burst), [(6, vec![6])]);
    }

    #[test]
    fn a_burst_has_so_many_packets() {
        for one in [false, true] {
            let mut burst = Burst::new();
            let push = |burst: &mut Burst| match one {
                true => burst.push_one(segment(1), Offload::default()),
                false => burst.push(&[segment(1)], 1, Offload::default()),
            };
            for _ in 0..BURST {
                assert!(!burst.is_full(1) && push(&mut burst));
            }
            assert!(burst.is_full(0) && !push(&mut burst));
            assert_eq!((burst.len(), burst.segments.len()), (BURST, BURST));
        }
    }

    #[test]
    fn a_burst_has_so_many_segments_and_never_grows() {
        let mut burst = Burst::new();
        let capacity = burst.segments.capacity();
        assert!(burst.push(&[segment(1); SEGMENTS - 1], 1, Offload::default()));
        assert!(!burst.is_full(1) && burst.is_full(2));
        assert!(!burst.push(&[segment(1); 2], 1, Offload::default()));
        assert!(burst.push(&[segment(1)], 1, Offload::default()));
        assert!(burst.is_full(1) && !burst.is_full(0));
        assert!(!burst.push_one(segment(1), Offload::default()));
        assert!(!burst.push(&[segment(1)], 1, Offload::default()));
        assert_eq!((burst.len(), burst.segments.len(), burst.segments.capacity()), (2, SEGMENTS, capacity));
    }
}
