//! A worker's access to destinations: the sending queues of every interface.

use crate::counters::MAX_VIFS;
use crate::frame::{Delivered, Refused};
use crate::lanes::LANES;
use arrayvec::ArrayVec;
use mem::{Accepts, NoRoom, Refusal, Room, TxQueue};
use model::{DropReason, VifId};
use std::sync::Arc;

/// End of a list of lanes.
const NONE: u8 = u8::MAX;

/// How long a queue is not tried again after a failed lease, nanoseconds. An attempt takes some tens of microseconds.
/// A worker that holds a queue for that long copies large packets, waits for a CPU, or never returns it. The interval
/// grows, so that attempts cost a percent or two of a worker's time, and a guest whose only queue others fill still
/// gets packets from this worker.
const LEFT_ALONE_NS: std::ops::RangeInclusive<u64> = 50_000..=5_000_000;

/// Most queues that are tried in vain in one delivery.
const ATTEMPTS: usize = 2;

/// When a queue that could not be leased is tried again.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Time by the engine's clock; 0: at once.
    until_ns: u64,
    wait_ns: u64,
}

impl Held {
    /// Records that the lease failed again, and lengthens the interval.
    fn fails(&mut self, now_ns: u64) {
        let (least, most) = LEFT_ALONE_NS.into_inner();
        self.wait_ns = (self.wait_ns * 2).clamp(least, most);
        self.until_ns = now_ns + self.wait_ns;
    }
}

/// The queues of one interface, and the lanes of this burst for it.
struct Sender {
    queues: Arc<[Arc<dyn TxQueue>]>,
    /// State of each queue.
    held: Box<[Held]>,
    first: u8,
    last: u8,
}

pub(crate) struct Ports {
    senders: Vec<Option<Sender>>,
    /// Interfaces with lanes waiting.
    active: ArrayVec<VifId, LANES>,
    /// Next lane for the same interface.
    next: [u8; LANES],
    /// Determines which queue of a port this worker tries first.
    worker: usize,
    /// The OVS sides of ports, one bit each.
    ovs_sides: [u64; MAX_VIFS / 64],
}

/// Lanes, in their order.
pub(crate) type Order = ArrayVec<u8, LANES>;

/// Writes the frame with this number, for a receiver that accepts these offloads.
pub(crate) type Write<'a> = dyn FnMut(u8, &mut dyn Room, Accepts) -> Result<Delivered, Refused> + 'a;

/// Written packets by their place in a burst's order, with the number of frames that each took: those of one frame
/// are left out.
type Cut = ArrayVec<(usize, usize), LANES>;

#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub sent: Delivered,
    /// The frames that were not delivered, and why.
    pub drops: ArrayVec<(u8, DropReason), LANES>,
}

impl Ports {
    pub fn new(worker: usize) -> Self {
        Self {
            senders: (0..MAX_VIFS).map(|_| None).collect(),
            active: ArrayVec::new(),
            next: [NONE; LANES],
            worker,
            ovs_sides: [0; MAX_VIFS / 64],
        }
    }

    /// Remembers whether an interface is the OVS side of a port.
    pub fn set_ovs_side(&mut self, vif: VifId, is: bool) {
        if let Some(word) = self.ovs_sides.get_mut(usize::from(vif.0 / 64)) {
            let bit = 1 << (vif.0 % 64);
            *word = if is { *word | bit } else { *word & !bit };
        }
    }

    pub fn is_ovs_side(&self, vif: VifId) -> bool {
        let word = self.ovs_sides.get(usize::from(vif.0 / 64)).copied().unwrap_or(0);
        word >> (vif.0 % 64) & 1 != 0
    }

    /// Returns whether an interface has room for more than a burst, as far as its queues tell.
    pub fn has_room(&self, vif: VifId) -> bool {
        let Some(Some(sender)) = self.senders.get(usize::from(vif.0)) else { return true };
        sender.queues.iter().any(|queue| queue.has_room())
    }

    /// Tells all queues that the worker waited.
    #[cold]
    pub fn suspect(&self) {
        let queues = self.senders.iter().flatten().flat_map(|sender| &*sender.queues);
        queues.for_each(|queue| queue.suspect());
    }

    /// Returns the reason for which packets to an unconnected interface are dropped.
    #[cold]
    pub fn absent(&self, vif: VifId) -> DropReason {
        if self.is_ovs_side(vif) { DropReason::OvsAbsent } else { DropReason::TxDown }
    }

    /// Sends to `vif` through these queues from now on.
    pub fn attach(&mut self, vif: VifId, queues: Arc<[Arc<dyn TxQueue>]>) {
        if let Some(place) = self.senders.get_mut(usize::from(vif.0)) {
            let held = vec![Held::default(); queues.len()].into();
            *place = Some(Sender { queues, held, first: NONE, last: NONE });
        }
    }

    /// Forgets the queues of `vif`. No lane may be queued for it.
    pub fn detach(&mut self, vif: VifId) {
        if let Some(place) = self.senders.get_mut(usize::from(vif.0)) {
            *place = None;
        }
    }

    /// Queues a lane for `vif`; false if `vif` is not attached.
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

    /// Takes an interface with queued lanes, and these lanes.
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

    /// Delivers `frames` to `vif`, each written by `write`, through the first queue that can be leased at `now_ns`.
    #[inline]
    pub fn deliver(&mut self, vif: VifId, frames: &[u8], now_ns: u64, write: &mut Write<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let Some(Some(sender)) = self.senders.get_mut(usize::from(vif.0)) else {
            let reason = self.absent(vif);
            delivery.drops.extend(frames.iter().map(|&frame| (frame, reason)));
            return delivery;
        };
        let queues = &sender.queues;
        let (mut done, mut failed) = (0, 0);
        let mut reason = DropReason::TxDown;
        for attempt in 0..queues.len() {
            let number = (self.worker + attempt) % queues.len();
            let (queue, held) = (&queues[number], &mut sender.held[number]);
            if now_ns < held.until_ns {
                reason = DropReason::TxBusy;
                continue;
            }
            let accepts = queue.accepts();
            let leased = queue.burst(&mut |room| {
                // The first frame of each written packet that took more than one, or none.
                let (first, mut cut) = (done, Cut::new());
                while let Some(&frame) = frames.get(done) {
                    match write(frame, room, accepts) {
                        Ok(sent) => {
                            delivery.sent.packets += sent.packets;
                            delivery.sent.bytes += sent.bytes;
                            if sent.packets != 1 {
                                cut.push((done, sent.packets as usize));
                            }
                        }
                        Err(Refused::NoRoom(NoRoom::Down)) => break,
                        Err(refused) => {
                            delivery.drops.push((frame, why(refused)));
                            cut.push((done, 0));
                        }
                    }
                    done += 1;
                }
                room.settle(&mut |refusal| delivery.refuse(&frames[first..done], &cut, first, refusal));
            });
            if !leased {
                held.fails(now_ns);
                (reason, failed) = (DropReason::TxBusy, failed + 1);
            } else if held.wait_ns > 0 {
                *held = Held::default();
            }
            if done == frames.len() {
                return delivery;
            }
            if failed == ATTEMPTS {
                break;
            }
        }
        if reason == DropReason::TxDown && done < frames.len() {
            reason = self.absent(vif);
        }
        delivery.drops.extend(frames[done..].iter().map(|&frame| (frame, reason)));
        delivery
    }
}

impl Delivery {
    /// Counts packets as dropped that the port refused after they were written. `packets` were written in this burst,
    /// the first of them as number `first`; `cut` has those that did not take one frame each. A packet of several
    /// frames is dropped once.
    #[cold]
    fn refuse(&mut self, packets: &[u8], cut: &Cut, first: usize, refusal: Refusal) {
        let Refusal { frames, bytes, why: no_room } = refusal;
        self.sent.packets = self.sent.packets.saturating_sub(frames.len() as u64);
        self.sent.bytes = self.sent.bytes.saturating_sub(bytes as u64);
        let [from, to] = [frames.start, frames.end - 1].map(|frame| packet_of(frame, cut, first));
        for &packet in packets.iter().take(to + 1).skip(from) {
            if !self.drops.iter().any(|(dropped, _)| *dropped == packet) {
                self.drops.push((packet, why(no_room.into())));
            }
        }
    }
}

/// Returns which packet of a burst the frame with this number belongs to.
fn packet_of(frame: usize, cut: &Cut, first: usize) -> usize {
    let (mut packet, mut frames) = (0, 0);
    for (at, count) in cut.iter().map(|(number, count)| (number - first, *count)) {
        let single = at - packet;
        if frame < frames + single {
            break;
        }
        (packet, frames) = (at, frames + single);
        if frame < frames + count {
            return packet;
        }
        (packet, frames) = (at + 1, frames + count);
    }
    packet + (frame - frames)
}

pub(crate) fn why(refused: Refused) -> DropReason {
    match refused {
        Refused::NoRoom(no_room) => match no_room {
            NoRoom::Full => DropReason::TxFull,
            NoRoom::Waiting => DropReason::Shaped,
            NoRoom::TooLong => DropReason::TxTooLong,
            NoRoom::Down => DropReason::TxDown,
        },
        Refused::Segment => DropReason::SegmentFailed,
        Refused::Header => DropReason::HeaderTooLong,
        Refused::Turn => DropReason::TurnBudget,
    }
}
