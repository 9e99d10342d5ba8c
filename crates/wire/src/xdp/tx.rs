//! Sending by AF_XDP: frames are filled in place, then put into the transmit ring.

use super::Queue;
use super::rx::PARTS;
use super::socket::{CHUNK, TxRings};
use crate::state::{Refusals, State, TAG};
use arrayvec::ArrayVec;
use mem::{Accepts, Lease, NoRoom, Offload, Refusal, Room, Segment, TxQueue};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::sync::Arc;

/// Most calls to the kernel after a burst. If the kernel copies, it takes 32 packets per call.
const KICKS: usize = 8;

pub(super) struct XdpTx {
    pub queues: Arc<[Queue]>,
    pub index: usize,
    pub sender: Lease<Sender>,
}

impl XdpTx {
    /// Switches to new rings, if there are some, and takes back the frames that were sent.
    fn follow(&self, sender: &mut Sender) {
        if let Some(rings) = self.queues[self.index].tx.take() {
            sender.rings = rings;
        }
        sender.rings.reclaim();
    }

    /// Returns the numbers of the frames that are not in flight; `None` if somebody is sending.
    pub(super) fn free(&self) -> Option<Vec<u32>> {
        self.sender.with(|sender| {
            self.follow(sender);
            sender.rings.free.iter().map(|frame| (*frame / CHUNK as u64) as u32).collect()
        })
    }
}

impl TxQueue for XdpTx {
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        let run = |sender: &mut Sender| {
            self.follow(sender);
            (sender.done, sender.refusals, sender.is_unsent) = (0, Refusals::default(), true);
            fill(sender);
            sender.send();
        };
        self.sender.with(run).is_some()
    }
}

/// The rings, and the packet that was reserved last.
pub(super) struct Sender {
    state: Arc<State>,
    rings: TxRings,
    parts: ArrayVec<Segment, PARTS>,
    /// Number of packets of this burst, and those that the kernel dropped while it sent them.
    done: usize,
    refusals: Refusals,
    /// Whether the kernel was not told of this burst yet.
    is_unsent: bool,
}

impl Sender {
    pub(super) fn new(state: Arc<State>, rings: TxRings) -> Self {
        let refusals = Refusals::default();
        Self { state, rings, parts: ArrayVec::new_const(), done: 0, refusals, is_unsent: false }
    }

    /// Publishes the reserved packets, and notifies the kernel if necessary.
    fn send(&mut self) {
        let Self { state, rings: TxRings { xsk, tx, .. }, done, refusals, is_unsent, .. } = self;
        if !std::mem::take(is_unsent) {
            return;
        }
        tx.publish();
        for _ in 0..KICKS {
            if tx.is_drained() || !tx.needs_wakeup() {
                return;
            }
            match send(&xsk.socket, &[], SendFlags::DONTWAIT) {
                // EAGAIN: the ring has more packets than one call takes.
                Ok(_) | Err(Errno::AGAIN) => {}
                // The device's queue dropped a packet, most likely of this burst; the kernel does not say which.
                Err(Errno::BUSY) => {
                    state.refused.add(1);
                    if *done > 0 {
                        refusals.add(Refusal { frames: *done - 1..*done, bytes: 0, why: NoRoom::Full });
                    }
                }
                // The device is down or gone. The packets in the ring are sent with the next burst, or not at all.
                Err(_) => return,
            }
        }
    }
}

impl Room for Sender {
    fn reserve(&mut self, len: usize, _offload: &Offload) -> Result<&[Segment], NoRoom> {
        if !self.state.up() {
            return Err(NoRoom::Down);
        }
        // The kernel does not look at the device's MTU here.
        if len > self.rings.longest.min(self.state.longest() + TAG) {
            return Err(NoRoom::TooLong);
        }
        let TxRings { xsk, tx, free, .. } = &mut self.rings;
        if free.len() < len.div_ceil(CHUNK) {
            return Err(NoRoom::Full);
        }
        self.parts.clear();
        let mut left = len;
        while left > 0 {
            let Some(frame) = free.pop() else { break };
            let part = left.min(CHUNK);
            left -= part;
            let options = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            // There is room: the ring has as many entries as there are frames.
            tx.push(libc::xdp_desc { addr: frame, len: part as u32, options });
            self.parts.push(xsk.frames.segment(frame as usize, part));
        }
        self.done += 1;
        Ok(&self.parts)
    }

    fn settle(&mut self, refused: &mut dyn FnMut(Refusal)) {
        self.send();
        self.refusals.take(refused);
    }
}
