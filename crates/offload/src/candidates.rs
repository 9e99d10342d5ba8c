//! Packets passed to the engine whose flows may go onto the card.

use crate::line::Taken;
use crate::ports::Ports;
use model::{PacketView, VifId};
use std::vec::Drain;

/// Bytes of a packet that are kept: the card examines fewer.
const HEAD: usize = 192;
/// Most packets that are remembered. The flows of others go onto the card with a later packet.
const MOST: usize = 1024;
/// Most flows that move at a time: writing them takes the card's time.
const FLOWS: usize = 64;

/// Such a packet.
#[derive(Debug)]
pub struct Candidate {
    pub ingress: VifId,
    /// Its number among the interface's frames that the engine was given.
    number: u64,
    head: [u8; HEAD],
    len: u32,
    gso_size: Option<u16>,
}

impl Candidate {
    /// For a frame that came in on an interface.
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

    /// The packet, if it can be parsed.
    pub fn packet(&self) -> Option<PacketView<'_>> {
        let mut packet =
            PacketView::parse(&self.head[..HEAD.min(self.len as usize)], self.len, self.gso_size).ok()?;
        packet.checked = true;
        Some(packet)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Candidates {
    waiting: Vec<Candidate>,
    /// Those whose flows are being put onto the card; otherwise empty.
    chosen: Vec<Candidate>,
}

impl Candidates {
    /// Remembers a frame that the engine gets, by its number.
    pub fn remember(&mut self, ingress: VifId, number: u64, taken: &Taken) {
        if self.waiting.len() < MOST {
            self.waiting.push(Candidate::new(ingress, number, taken));
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Chooses packets that the engine has finished. Returns whether there are any.
    pub fn choose(&mut self, ports: &Ports) -> bool {
        let is_done = |candidate: &mut Candidate| ports.is_done(candidate.ingress, candidate.number);
        self.chosen.extend(self.waiting.extract_if(.., is_done).take(FLOWS));
        !self.chosen.is_empty()
    }

    /// Takes the chosen ones.
    pub fn chosen(&mut self) -> Drain<'_, Candidate> {
        self.chosen.drain(..)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.chosen.clear();
    }
}
