//! Receiving by AF_XDP: frames belong to the burst until they return to the fill ring.

use super::Queue;
use super::socket::{CHUNK, RxRings};
use crate::state::State;
use arrayvec::ArrayVec;
use mem::{BURST, Burst, Offload, RxQueue, Segment};
use rustix::net::{RecvFlags, recv};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Most frames of a packet: the first, and the kernel's MAX_SKB_FRAGS.
pub(super) const PARTS: usize = 18;

pub(super) struct XdpRx {
    queues: Arc<[Queue]>,
    index: usize,
    state: Arc<State>,
    rings: RxRings,
    /// Offsets of the frames in the burst.
    held: ArrayVec<u64, { BURST * PARTS }>,
}

type Parts = ArrayVec<Segment, PARTS>;

impl XdpRx {
    pub(super) fn new(queues: Arc<[Queue]>, index: usize, state: Arc<State>, rings: RxRings) -> Self {
        Self { queues, index, state, rings, held: ArrayVec::new() }
    }

    /// Examines the packet that starts `ahead` entries after the next one. Returns its frames, and how many entries it
    /// takes; `None` if it is not complete yet.
    fn packet(&self, ahead: u32, available: u32) -> Option<(Option<Parts>, u32)> {
        let mut parts = Some(Parts::new());
        for i in ahead..available {
            let entry = self.rings.rx.peek(i);
            let part = self.rings.xsk.frames.segment(entry.addr as usize, entry.len as usize);
            parts = parts.filter(|parts| !parts.is_full());
            if let Some(parts) = &mut parts {
                parts.push(part);
            }
            if entry.options & libc::XDP_PKT_CONTD == 0 {
                return Some((parts, i - ahead + 1));
            }
        }
        None
    }

    /// Gives frames back to the kernel for receiving.
    fn refill(&mut self) {
        for frame in self.held.drain(..) {
            // There is room: the ring has as many entries as there are frames.
            self.rings.fill.push(frame);
        }
        self.rings.fill.publish();
        if self.rings.fill.needs_wakeup() {
            // Receives nothing, but wakes a driver that ran out of frames.
            let _ = recv(&self.rings.xsk.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }
}

impl RxQueue for XdpRx {
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        if let Some(rings) = self.queues[self.index].rx.take() {
            self.rings = rings;
            // These frames are in memory that was dropped with the old rings.
            self.held.clear();
        }
        let available = self.rings.rx.available();
        let (mut taken, mut bytes) = (0, 0);
        while taken < available && bytes < byte_budget && !burst.is_full(PARTS) {
            let Some((parts, entries)) = self.packet(taken, available) else { break };
            if self.held.remaining_capacity() < entries as usize {
                break;
            }
            for i in taken..taken + entries {
                // The kernel returns addresses inside a frame; frames are identified by their start.
                self.held.push(self.rings.rx.peek(i).addr & !(CHUNK as u64 - 1));
            }
            taken += entries;
            match parts {
                Some(parts) => {
                    let len: usize = parts.iter().map(Segment::len).sum();
                    // There is room, as checked above.
                    burst.push(&parts, len as u32, Offload::default());
                    bytes += len;
                }
                None => self.state.malformed.add(1),
            }
        }
        if taken > 0 {
            self.rings.rx.advance(taken);
        }
        if burst.is_empty() && !self.held.is_empty() {
            self.refill();
        }
        burst.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        self.refill();
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.queues[self.index].events.as_fd()
    }

    fn arm(&mut self) -> bool {
        // The socket polls readable as long as the ring holds frames.
        false
    }

    fn disarm(&mut self) {}
}
