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
/// The ring of a port. Frames may be the host's own large sends.
pub const RING: RingPort = RingPort { mtu: u16::MAX, slots: SLOTS };
/// Bytes taken from a queue at a time.
const BYTES_PER_BURST: usize = 64 << 10;
/// How often a queue that a worker holds is tried again.
const TRIES: u32 = 100;
/// Longest frame for the card, bytes.
pub const LONGEST: usize = 9600;

/// A frame that came in.
#[derive(Debug)]
pub struct Taken {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its unfinished offloads.
    pub offload: Offload,
}

impl Taken {
    /// For a packet that the card can carry: nothing is unfinished.
    pub fn finished(bytes: Vec<u8>) -> Self {
        Self { bytes, offload: Offload::default() }
    }

    /// Whether the card can't take it, because of its unfinished offloads.
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
    /// Carries the port's frames to the engine.
    pub uplink: Uplink,
    /// Carries frames that the engine sends by the port.
    pub downlink: Downlink,
    /// Whether it is a wire; otherwise a guest.
    pub wire: bool,
    /// Frames for which its ring has no room.
    waiting: VecDeque<Taken>,
    /// Number of frames given to the engine, including those that wait for room.
    pub handed: u64,
    /// The last frames bypassed the card: none enters it before the engine has finished them.
    pub past: bool,
}

impl Line {
    /// A port with these queues and these ends of its rings.
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

    /// The card's input for the port, and the output that reaches it, on a card with this many pipes per direction.
    pub fn place(&self, vif: VifId, pipes: usize) -> usize {
        usize::from(vif.0) % pipes + if self.wire { pipes } else { 0 }
    }

    /// Whether the engine has finished all frames that it was given.
    pub fn is_settled(&self) -> bool {
        self.done() == self.handed
    }

    /// How many of its frames the engine has finished.
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

    /// Passes a frame to the engine; it waits if there is no room.
    pub fn hand(&mut self, taken: Taken, buffers: &mut Buffers) {
        self.handed += 1;
        self.waiting.push_back(taken);
        self.push(buffers);
    }

    /// Passes waiting frames to the engine, as far as there is room. Returns whether some still wait.
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

    /// Sends a frame that the card forwarded here. If a worker holds the queue, it is given time to release it.
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
