//! A port as the carrier uses it: it takes incoming frames, and represents the port towards the engine.

use crate::stats::VifCells;
use card::buffers::Buffers;
use mem::{BURST, Burst, Csum, NoRoom, Offload, RxQueue, Segment, TxQueue, gather, scatter};
use model::{DropReason, VifId};
use ringport::{Downlink, RingPort, Uplink};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most frames that wait for the engine in a port's ring.
pub const SLOTS: u32 = 256;
/// The parameters of a port's ring. Frames may be large sends of the host itself.
pub const RING: RingPort = RingPort { mtu: u16::MAX, slots: SLOTS };
/// Most bytes to take from a queue at a time.
const BYTES_PER_BURST: usize = 64 << 10;
/// How often to try a queue again while a worker holds it.
const TRIES: u32 = 100;
/// Longest frame for the card, bytes.
pub const LONGEST: usize = 9600;

/// A frame that was taken from a port.
#[derive(Debug)]
pub struct Taken {
    pub bytes: Vec<u8>,
    /// Checksum and segmentation that the sender left unfinished.
    pub offload: Offload,
}

impl Taken {
    /// Wraps a frame from the card, in which nothing is unfinished.
    pub fn finished(bytes: Vec<u8>) -> Self {
        Self { bytes, offload: Offload::default() }
    }

    /// Returns whether the card can't take the frame: offloads are unfinished, or it is empty or too long.
    pub fn is_beyond_card(&self) -> bool {
        let unfinished = matches!(self.offload.csum, Csum::Partial { .. }) || self.offload.gso.is_some();
        unfinished || self.bytes.is_empty() || self.bytes.len() > LONGEST
    }
}

pub struct Line {
    /// The port's own queues.
    pub rx: Vec<Box<dyn RxQueue>>,
    pub tx: Vec<Arc<dyn TxQueue>>,
    /// Carries the port's frames to the engine.
    pub uplink: Uplink,
    /// Carries the frames that the engine sends by the port.
    pub downlink: Downlink,
    /// Whether the port is a wire; otherwise it is a guest's.
    pub wire: bool,
    /// Frames for which the ring to the engine has no room.
    waiting: VecDeque<Taken>,
    /// Number of frames given to the engine, including those that wait for room.
    pub handed: u64,
    /// Whether the last frames bypassed the card. While they do, no frame enters the card before the engine has
    /// finished them.
    pub past: bool,
}

impl Line {
    /// Makes a port of its queues, and of our ends of its rings to the engine.
    pub fn new(
        rx: Vec<Box<dyn RxQueue>>,
        tx: Vec<Arc<dyn TxQueue>>,
        (uplink, downlink): (Uplink, Downlink),
        wire: bool,
    ) -> Self {
        Self { rx, tx, uplink, downlink, wire, waiting: VecDeque::new(), handed: 0, past: false }
    }

    /// Returns whether frames may be taken from the port: the engine keeps up, and none would overtake an earlier one.
    pub fn is_open(&mut self) -> bool {
        self.past &= !self.is_settled();
        self.waiting.is_empty() && !self.past
    }

    /// Returns the card's input for the port, on a card with this many pipes per direction. The output that leads to
    /// the port has the same number.
    pub fn place(&self, vif: VifId, pipes: usize) -> usize {
        usize::from(vif.0) % pipes + if self.wire { pipes } else { 0 }
    }

    /// Returns whether the engine has finished all frames that it was given.
    pub fn is_settled(&self) -> bool {
        self.done() == self.handed
    }

    /// Returns how many of the port's frames the engine has finished.
    pub fn done(&self) -> u64 {
        let inside = SLOTS as usize - self.uplink.room();
        self.handed - (self.waiting.len() + inside) as u64
    }

    /// Takes the next frame that the engine sent by the port.
    pub fn sent(&mut self, buffers: &mut Buffers) -> Option<Vec<u8>> {
        let mut bytes = None;
        self.downlink.receive(|frame| bytes.insert(buffers.take()).extend_from_slice(frame));
        bytes
    }

    /// Takes a burst from each queue.
    pub fn take(&mut self, burst: &mut Burst, buffers: &mut Buffers, taken: &mut Vec<Taken>) {
        for queue in &mut self.rx {
            if queue.poll(burst, BYTES_PER_BURST) == 0 {
                continue;
            }
            for packet in burst.packets() {
                let mut bytes = buffers.take();
                bytes.resize(packet.len as usize, 0);
                let len = gather(burst.segments(packet), 0, &mut bytes);
                bytes.truncate(len);
                taken.push(Taken { bytes, offload: packet.offload });
            }
            queue.release(burst);
        }
        debug_assert!(taken.len() <= BURST * self.rx.len(), "a burst is bounded");
    }

    /// Passes a frame to the engine. If there is no room, the frame waits.
    pub fn hand(&mut self, taken: Taken, buffers: &mut Buffers) {
        self.handed += 1;
        self.waiting.push_back(taken);
        self.push(buffers);
    }

    /// Passes waiting frames to the engine, as long as there is room. Returns whether some still wait.
    pub fn push(&mut self, buffers: &mut Buffers) -> bool {
        let mut sent = false;
        while self.uplink.room() > 0
            && let Some(Taken { bytes, offload }) = self.waiting.pop_front()
        {
            // A frame too long for the ring is counted as refused; no port has longer ones.
            sent |= self.uplink.send_unfinished(bytes.len(), &offload, |to| to.copy_from_slice(&bytes));
            buffers.give_back(bytes);
        }
        if sent {
            self.uplink.ring();
        }
        !self.waiting.is_empty()
    }

    /// Sends a frame that the card forwarded to this port. If a worker holds the queue, gives it time to release it.
    pub fn send(&self, frame: &[u8], cells: Option<&VifCells>) -> Result<(), DropReason> {
        let mut sent = send(&self.tx, frame);
        for _ in 0..TRIES {
            if sent != Err(DropReason::TxBusy) {
                break;
            }
            std::thread::yield_now();
            sent = send(&self.tx, frame);
        }
        if let Some(cells) = cells {
            match sent {
                Ok(()) => cells.sent.packet(frame.len()),
                Err(_) => cells.send_drops.add(1),
            }
        }
        sent
    }
}

/// Sends a frame through the first queue that can be leased.
fn send(queues: &[Arc<dyn TxQueue>], frame: &[u8]) -> Result<(), DropReason> {
    let mut reason = DropReason::TxDown;
    for queue in queues {
        let mut done = None;
        let leased = queue.burst(&mut |room| {
            let reserved = room.reserve(frame.len(), &Offload::default());
            let mut sent = reserved.map(|to: &[Segment]| {
                scatter(frame, to, 0);
            });
            room.settle(&mut |refusal| sent = Err(refusal.why));
            done = Some(sent);
        });
        match done {
            Some(Ok(())) => return Ok(()),
            Some(Err(NoRoom::Full | NoRoom::Waiting)) => return Err(DropReason::TxFull),
            Some(Err(NoRoom::TooLong)) => return Err(DropReason::TxTooLong),
            Some(Err(NoRoom::Down)) => {}
            None if !leased => reason = DropReason::TxBusy,
            None => {}
        }
    }
    Err(reason)
}
