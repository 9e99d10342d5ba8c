//! A worker's view of where packets can go: the sending queues of every interface.

use crate::counters::MAX_VIFS;
use crate::frame::{Delivered, Refused};
use arrayvec::ArrayVec;
use mem::{Accepts, BURST, NoRoom, Room, TxQueue};
use model::{DropReason, VifId};
use std::sync::Arc;

/// End of a list of lanes.
const NONE: u8 = u8::MAX;

/// The queues of one interface, and the lanes of this burst that go there.
struct Sender {
    queues: Arc<[Arc<dyn TxQueue>]>,
    first: u8,
    last: u8,
}

/// All interfaces this worker can send to.
pub(crate) struct Ports {
    senders: Vec<Option<Sender>>,
    /// Interfaces with lanes waiting.
    active: ArrayVec<VifId, BURST>,
    /// Next lane to the same interface.
    next: [u8; BURST],
    /// Which queue of a port this worker tries first.
    worker: usize,
}

/// Lanes, in their order.
pub(crate) type Order = ArrayVec<u8, BURST>;

/// Writes the frame of this number, for a receiver that accepts this.
pub(crate) type Write<'a> = dyn FnMut(u8, &mut dyn Room, Accepts) -> Result<Delivered, Refused> + 'a;

/// What became of a delivery.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    /// What was delivered.
    pub sent: Delivered,
    /// Which frames were not, and why.
    pub drops: ArrayVec<(u8, DropReason), BURST>,
}

impl Ports {
    /// None yet.
    pub fn new(worker: usize) -> Self {
        Self {
            senders: (0..MAX_VIFS).map(|_| None).collect(),
            active: ArrayVec::new(),
            next: [NONE; BURST],
            worker,
        }
    }

    /// Sends to `vif` by these queues from now on.
    pub fn attach(&mut self, vif: VifId, queues: Arc<[Arc<dyn TxQueue>]>) {
        if let Some(place) = self.senders.get_mut(usize::from(vif.0)) {
            *place = Some(Sender { queues, first: NONE, last: NONE });
        }
    }

    /// Forgets the queues of `vif`. No lane may wait.
    pub fn detach(&mut self, vif: VifId) {
        if let Some(place) = self.senders.get_mut(usize::from(vif.0)) {
            *place = None;
        }
    }

    /// Puts a lane in line for `vif`; false where that is not attached.
    #[inline(always)]
    pub fn enqueue(&mut self, vif: VifId, lane: u8) -> bool {
        let Some(Some(sender)) = self.senders.get_mut(usize::from(vif.0)) else { return false };
        self.next[usize::from(lane)] = NONE;
        if sender.first == NONE {
            sender.first = lane;
            self.active.push(vif);
        } else {
            self.next[usize::from(sender.last)] = lane;
        }
        sender.last = lane;
        true
    }

    /// Takes an interface with lanes in line, and those.
    #[inline(always)]
    pub fn dequeue(&mut self) -> Option<(VifId, Order)> {
        let vif = self.active.pop()?;
        let mut order = Order::new();
        if let Some(Some(sender)) = self.senders.get_mut(usize::from(vif.0)) {
            let mut lane = sender.first;
            while lane != NONE {
                order.push(lane);
                lane = self.next[usize::from(lane)];
            }
            (sender.first, sender.last) = (NONE, NONE);
        }
        Some((vif, order))
    }

    /// Delivers `frames` to `vif`, each by `write`, by the first queue that can be had.
    #[inline]
    pub fn deliver(&self, vif: VifId, frames: &[u8], write: &mut Write<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let Some(Some(sender)) = self.senders.get(usize::from(vif.0)) else {
            delivery.drops.extend(frames.iter().map(|&frame| (frame, DropReason::TxDown)));
            return delivery;
        };
        let queues = &sender.queues;
        let mut done = 0;
        let mut reason = DropReason::TxDown;
        for attempt in 0..queues.len() {
            let queue = &queues[(self.worker + attempt) % queues.len()];
            let accepts = queue.accepts();
            let leased = queue.burst(&mut |room| {
                while let Some(&frame) = frames.get(done) {
                    match write(frame, room, accepts) {
                        Ok(sent) => {
                            delivery.sent.packets += sent.packets;
                            delivery.sent.bytes += sent.bytes;
                        }
                        Err(Refused::NoRoom(NoRoom::Down)) => return,
                        Err(refused) => delivery.drops.push((frame, why(refused))),
                    }
                    done += 1;
                }
            });
            if done == frames.len() {
                return delivery;
            }
            if !leased {
                reason = DropReason::TxBusy;
            }
        }
        delivery.drops.extend(frames[done..].iter().map(|&frame| (frame, reason)));
        delivery
    }
}

fn why(refused: Refused) -> DropReason {
    match refused {
        Refused::NoRoom(NoRoom::Full) => DropReason::TxFull,
        Refused::NoRoom(NoRoom::TooLong) => DropReason::TxTooLong,
        Refused::NoRoom(NoRoom::Down) => DropReason::TxDown,
        Refused::Segment => DropReason::SegmentFailed,
    }
}
