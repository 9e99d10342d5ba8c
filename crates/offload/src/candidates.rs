//! Packets passed to the engine whose flows may go onto the card.

use crate::line::Taken;
use crate::ports::Ports;
use model::{PacketView, VifId};
use std::vec::Drain;

/// Bytes kept of a packet: the card examines fewer.
const HEAD: usize = 192;
/// Most packets that are remembered. The flow of a packet beyond that goes onto the card with a later packet.
const MOST: usize = 1024;
/// Most flows that move at a time: writing them takes the card's time.
const FLOWS: usize = 64;

/// A packet that was passed to the engine and whose flow may go onto the card.
#[derive(Debug)]
pub struct Candidate {
    pub ingress: VifId,
    /// Counts the interface's frames that were passed to the engine, up to this one.
    number: u64,
    head: [u8; HEAD],
    len: u32,
    gso_size: Option<u16>,
}

impl Candidate {
    fn new(ingress: VifId, number: u64, taken: &Taken) -> Self {
        let bytes = &taken.bytes;
        let mut head = [0; HEAD];
        let len = bytes.len().min(HEAD);
        head[..len].copy_from_slice(&bytes[..len]);
        Self {
            ingress,
            number,
            head,
            len: bytes.len() as u32,
            gso_size: taken.offload.gso.map(|gso| gso.size),
        }
    }

    /// Parses the packet; `None` if that fails.
    pub fn packet(&self) -> Option<PacketView<'_>> {
        let mut packet =
            PacketView::parse(&self.head[..HEAD.min(self.len as usize)], self.len, self.gso_size).ok()?;
        packet.checked = true;
        Some(packet)
    }
}

/// The packets that the engine has yet to finish, up to a limit.
#[derive(Debug, Default)]
pub struct Candidates {
    waiting: Vec<Candidate>,
    /// The candidates whose flows are being put onto the card; otherwise empty.
    chosen: Vec<Candidate>,
}

impl Candidates {
    /// Remembers a frame that is passed to the engine as the interface's frame `number`.
    pub fn remember(&mut self, ingress: VifId, number: u64, taken: &Taken) {
        if self.waiting.len() < MOST {
            self.waiting.push(Candidate::new(ingress, number, taken));
        }
    }

    /// Returns whether no packet waits for the engine.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Chooses packets that the engine has finished. Returns whether there are any.
    pub fn choose(&mut self, ports: &Ports) -> bool {
        let is_done = |candidate: &mut Candidate| ports.is_done(candidate.ingress, candidate.number);
        self.chosen.extend(self.waiting.extract_if(.., is_done).take(FLOWS));
        !self.chosen.is_empty()
    }

    pub fn chosen(&mut self) -> Drain<'_, Candidate> {
        self.chosen.drain(..)
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
        self.chosen.clear();
    }
}
