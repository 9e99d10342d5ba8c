//! A port as the carrier has it: it takes what comes in, and stands in for the port towards the engine.

use crate::stats::VifCells;
use card::buffers::Buffers;
use mem::{BURST, Burst, Csum, NoRoom, Offload, RxQueue, Segment, TxQueue, gather, scatter};
use model::{DropReason, VifId};
use ringport::{Downlink, RingPort, Uplink};
use std::collections::VecDeque;
use std::sync::Arc;

/// Frames that wait for the engine in a port's ring.
pub const SLOTS: u32 = 256;
/// The ring of a port. Frames may be large sends of the host's own.
pub const RING: RingPort = RingPort { mtu: u16::MAX, slots: SLOTS };
/// Bytes taken from a queue at a time.
const BYTES_PER_BURST: usize = 64 << 10;
/// Times that a queue held by a worker is tried again.
const TRIES: u32 = 100;
/// Longest frame that the card is given, bytes.
pub const LONGEST: usize = 9600;

/// A frame that came in.
#[derive(Debug)]
pub struct Taken {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What is left to do of it.
    pub offload: Offload,
}

impl Taken {
    /// Of a packet as the card carries it: nothing is left to do.
    pub fn finished(bytes: Vec<u8>) -> Self {
        Self { bytes, offload: Offload::default() }
    }

    /// Whether the card can't take it: what is left to do is not for the card.
    pub fn is_beyond_card(&self) -> bool {
        let unfinished = matches!(self.offload.csum, Csum::Partial { .. }) || self.offload.gso.is_some();
        unfinished || self.bytes.is_empty() || self.bytes.len() > LONGEST
    }
}

/// A port.
pub struct Line {
    /// The port's own queues.
    pub rx: Vec<Box<dyn RxQueue>>,
    pub tx: Vec<Arc<dyn TxQueue>>,
    /// Where the engine receives what came in by the port.
    pub uplink: Uplink,
    /// What the engine sent by the port.
    pub downlink: Downlink,
    /// A wire; else a guest.
    pub wire: bool,
    /// What its ring has no room for.
    waiting: VecDeque<Taken>,
    /// Frames that the engine was given, those that wait for room included.
    pub handed: u64,
    /// The last frames went past the card: none goes there before the engine is done with them.
    pub past: bool,
}

impl Line {
    /// A port with these queues, whose rings end here.
    pub fn new(
        rx: Vec<Box<dyn RxQueue>>,
        tx: Vec<Arc<dyn TxQueue>>,
        (uplink, downlink): (Uplink, Downlink),
        wire: bool,
    ) -> Self {
        Self { rx, tx, uplink, downlink, wire, waiting: VecDeque::new(), handed: 0, past: false }
    }

    /// Whether frames may be taken from it: the engine keeps up, and nothing would overtake.
    pub fn is_open(&mut self) -> bool {
        self.past &= !self.is_settled();
        self.waiting.is_empty() && !self.past
    }

    /// Which of the card's inputs the port is at, and which output reaches it, of a card with so many pipes each way.
    pub fn place(&self, vif: VifId, pipes: usize) -> usize {
        usize::from(vif.0) % pipes + if self.wire { pipes } else { 0 }
    }

    /// Whether the engine is done with all that it was given.
    pub fn is_settled(&self) -> bool {
        self.done() == self.handed
    }

    /// Frames that the engine is done with, of those that it was given.
    pub fn done(&self) -> u64 {
        let inside = SLOTS as usize - self.uplink.room();
        self.handed - (self.waiting.len() + inside) as u64
    }

    /// The next frame that the engine sent.
    pub fn sent(&mut self, buffers: &mut Buffers) -> Option<Vec<u8>> {
        let mut bytes = None;
        self.downlink.receive(|frame| bytes.insert(buffers.take()).extend_from_slice(frame));
        bytes
    }

    /// Takes a burst of each queue.
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

    /// Gives a frame to the engine; it waits where there is no room.
    pub fn hand(&mut self, taken: Taken, buffers: &mut Buffers) {
        self.handed += 1;
        self.waiting.push_back(taken);
        self.push(buffers);
    }

    /// Gives the engine what waits, as far as there is room. Returns whether something still waits.
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

    /// Sends a frame that the card forwarded here. A worker that holds the queue is given time to let it go.
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

/// Sends a frame by the first queue that can be had.
fn send(queues: &[Arc<dyn TxQueue>], frame: &[u8]) -> Result<(), DropReason> {
    let mut reason = DropReason::TxDown;
    for queue in queues {
        let mut done = None;
        let leased = queue.burst(&mut |room| {
            let reserved = room.reserve(frame.len(), &Offload::default());
            done = Some(reserved.map(|to: &[Segment]| {
                scatter(frame, to, 0);
            }));
        });
        match done {
            Some(Ok(())) => return Ok(()),
            Some(Err(NoRoom::Full)) => return Err(DropReason::TxFull),
            Some(Err(NoRoom::TooLong)) => return Err(DropReason::TxTooLong),
            Some(Err(NoRoom::Down)) => {}
            None if !leased => reason = DropReason::TxBusy,
            None => {}
        }
    }
    Err(reason)
}
