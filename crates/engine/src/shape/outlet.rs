//! The end of a shaped guest's queue from which one worker sends to the guest, as fast as its rate allows.

use super::codel::Codel;
use super::congestion::{self, LOOKED_AT};
use super::inlet::Waker;
use super::pacer::Pace;
use super::{Shaper, shaped_len};
use crate::deliver::why;
use arrayvec::ArrayVec;
use mem::{Accepts, BURST, Csum, Frame, Room, Segment, Taker, TxQueue, gather, scatter};
use model::{DropReason, VifId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most packets and bytes that wait for a guest. Its memory is taken when the shaper begins.
pub(crate) const FRAMES: usize = 2048;
pub(crate) const BYTES: usize = 2 << 20;
/// Most bytes that leave in a turn.
const BYTES_PER_TURN: usize = 128 << 10;
/// Attempts to get the guest's queue from who holds it, before what waits is dropped.
const TRIES: u32 = 100;
/// Bytes of a dropped packet that are shown.
const SHOWN: usize = 192;

/// Takes what is known of a packet that is lost: reason, length, first bytes.
pub(crate) type Lost<'a> = dyn FnMut(DropReason, usize, &[u8]) + 'a;

pub(crate) struct Outlet {
    pub vif: VifId,
    taker: Taker,
    waker: Arc<Waker>,
    queues: Arc<[Arc<dyn TxQueue>]>,
    shaper: Arc<Shaper>,
    codel: Codel,
    /// When packets last had to wait for the rate: those that came before have waited.
    held_ns: u64,
}

impl Outlet {
    pub fn new(
        vif: VifId,
        taker: Taker,
        waker: Arc<Waker>,
        queues: Arc<[Arc<dyn TxQueue>]>,
        shaper: Arc<Shaper>,
    ) -> Self {
        Self { vif, taker, waker, queues, shaper, codel: Codel::default(), held_ns: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.taker.is_empty()
    }

    /// Returns when packets may leave; `None` if none waits.
    pub fn due(&self, now_ns: u64) -> Option<u64> {
        (!self.taker.is_empty()).then(|| self.shaper.inward.wait(now_ns).unwrap_or(now_ns))
    }

    /// Has the next packet wake the worker.
    pub fn arm(&self) {
        self.waker.arm();
    }

    pub fn disarm(&self) {
        self.waker.disarm();
    }

    /// Sends what may leave now, a turn at most. Returns whether anything left the queue.
    pub fn serve(&mut self, now_ns: u64, lost: &mut Lost<'_>) -> bool {
        if self.taker.is_empty() {
            return false;
        }
        match self.shaper.inward.pace(now_ns) {
            Pace::Go(budget) => self.send(now_ns, budget.min(BYTES_PER_TURN), true, lost),
            Pace::Wait(_) => {
                self.held_ns = now_ns;
                self.count();
                false
            }
        }
    }

    /// Sends all that waits, whatever the rate.
    pub fn flush(&mut self, now_ns: u64, lost: &mut Lost<'_>) {
        while !self.taker.is_empty() {
            let sends = (0..TRIES).any(|turn| {
                if turn > 0 {
                    std::thread::yield_now();
                }
                self.send(now_ns, BYTES_PER_TURN, false, lost)
            });
            if !sends {
                // Somebody holds the queue, and does not give it back.
                self.drop_all(lost);
            }
        }
        self.count();
    }

    fn send(&mut self, now_ns: u64, budget: usize, slows: bool, lost: &mut Lost<'_>) -> bool {
        let queues = self.queues.clone();
        let mut turn = Turn { budget: budget as u64, spent: 0, waited: 0, marked: 0, sent: ArrayVec::new() };
        let leased = queues.iter().any(|queue| {
            let accepts = queue.accepts();
            queue.burst(&mut |room| self.fill(&mut turn, room, accepts, (now_ns, slows), lost))
        });
        self.taker.give_back();
        self.shaper.inward.spend(now_ns, turn.spent);
        let counts = &self.shaper.counts;
        counts.in_waited.fetch_add(turn.waited, Ordering::Relaxed);
        counts.in_marked.fetch_add(turn.marked, Ordering::Relaxed);
        self.count();
        leased
    }

    /// Moves packets into the guest's ring.
    fn fill(
        &mut self,
        turn: &mut Turn,
        room: &mut dyn Room,
        accepts: Accepts,
        (now_ns, slows): (u64, bool),
        lost: &mut Lost<'_>,
    ) {
        while turn.spent < turn.budget && !turn.sent.is_full() {
            let Some(frame) = self.taker.take() else { break };
            let (memory, len) = (self.taker.memory(&frame), frame.len as usize);
            let waited = now_ns.saturating_sub(frame.since_ns);
            turn.waited += u64::from(frame.since_ns <= self.held_ns);
            let (_, left) = self.taker.waiting();
            if slows && self.codel.slows(now_ns, waited, len, left) {
                if !mark(&memory) {
                    show(lost, DropReason::Codel, &memory, len);
                    continue;
                }
                turn.marked += 1;
            }
            let put = match takes(accepts, &frame) {
                true => room.put(&[], &memory, 0, len, &frame.offload).map_err(|error| why(error.into())),
                false => Err(DropReason::SegmentFailed),
            };
            self.waker.note_down(put == Err(DropReason::TxDown));
            match put {
                Ok(()) => {
                    turn.spent += shaped_len(frame.len, frame.offload.gso);
                    turn.sent.push(frame);
                }
                Err(reason) => show(lost, reason, &memory, len),
            }
        }
        let taker = &self.taker;
        room.settle(&mut |refusal| {
            for frame in turn.sent.get(refusal.frames.clone()).unwrap_or_default() {
                show(lost, why(refusal.why.into()), &taker.memory(frame), frame.len as usize);
            }
        });
    }

    fn drop_all(&mut self, lost: &mut Lost<'_>) {
        while let Some(frame) = self.taker.take() {
            show(lost, DropReason::TxBusy, &self.taker.memory(&frame), frame.len as usize);
        }
        self.taker.give_back();
    }

    /// Notes how much waits.
    fn count(&self) {
        let (packets, bytes) = self.taker.waiting();
        let set = |count: &AtomicU64, to: usize| count.store(to as u64, Ordering::Relaxed);
        set(&self.shaper.counts.in_packets, packets);
        set(&self.shaper.counts.in_bytes, bytes);
    }
}

/// The packets of a turn.
struct Turn {
    budget: u64,
    spent: u64,
    waited: u64,
    marked: u64,
    sent: ArrayVec<Frame, BURST>,
}

/// Returns whether the guest takes what is unfinished in a frame: its driver may have changed since the frame came.
fn takes(accepts: Accepts, frame: &Frame) -> bool {
    let gso = frame
        .offload
        .gso
        .is_none_or(|gso| (if gso.v6 { accepts.tso6 } else { accepts.tso4 }) && (accepts.ecn || !gso.ecn));
    gso && (accepts.csum || !matches!(frame.offload.csum, Csum::Partial { .. }))
}

fn mark(memory: &[Segment; 2]) -> bool {
    let mut head = [0; LOOKED_AT];
    let len = gather(memory, 0, &mut head);
    congestion::mark(&mut head[..len]) && scatter(&head[..len], memory, 0) == len
}

fn show(lost: &mut Lost<'_>, reason: DropReason, memory: &[Segment; 2], len: usize) {
    let mut head = [0; SHOWN];
    let shown = gather(memory, 0, &mut head);
    lost(reason, len, &head[..shown]);
}
