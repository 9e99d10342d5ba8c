//! The entrance of the card: what waits for its inputs, and how much is inside.

use crate::carry::{Carry, Incoming};
use card::registers::PuntMeta;
use model::VifId;
use std::collections::{BTreeSet, VecDeque};

/// Most frames that wait for an input of the card, besides one burst.
pub const QUEUE: usize = 64;
/// Number of those frames that the card gets in advance.
const AHEAD: usize = 2;
/// Beats that the card may add before a packet.
const FRONT: usize = 2;

/// What waits for the card, and what is in it.
pub struct Passage {
    /// What waits, by input.
    queued: Vec<VecDeque<Incoming>>,
    /// Packets in the card. It includes packets that the card dropped, until it is asked.
    inside: u64,
    /// Clocks since a packet went in or came out.
    quiet: u32,
    /// The limit for ports whose flows move.
    limit: Option<Limit>,
}

/// A limit of beats for these inputs.
struct Limit {
    ports: BTreeSet<VifId>,
    beats: usize,
}

const fn beats(packet: &Incoming) -> usize {
    packet.bytes.len().div_ceil(64) + FRONT
}

impl Passage {
    /// For an empty card with this many inputs.
    pub fn new(inputs: usize) -> Self {
        let queued = (0..inputs).map(|_| VecDeque::new()).collect();
        Self { queued, inside: 0, quiet: 0, limit: None }
    }

    /// Number of inputs, and of outputs.
    pub fn inputs(&self) -> usize {
        self.queued.len()
    }

    /// Packets in the card.
    pub fn inside(&self) -> u64 {
        self.inside
    }

    /// Clocks since a packet went in or came out.
    pub fn quiet(&self) -> u32 {
        self.quiet
    }

    /// Whether packets are in the card or wait for it.
    pub fn is_busy(&self) -> bool {
        self.inside > 0 || self.queued.iter().any(|queue| !queue.is_empty())
    }

    /// How many packets wait for an input.
    pub fn len(&self, input: usize) -> usize {
        self.queued[input].len()
    }

    /// Queues a packet for an input.
    pub fn push(&mut self, input: usize, packet: Incoming) {
        self.queued[input].push_back(packet);
    }

    /// Queues a mark or a release, which has no frame, for an input.
    pub fn tell(&mut self, input: usize, meta: PuntMeta) {
        self.push(input, Incoming { port: meta.port, direct: Some(meta), bytes: Vec::new() });
    }

    /// Whether few enough frames wait for an input. Those that wait for flows to move leave room for other ports.
    pub fn has_room(&self, vif: VifId, input: usize) -> bool {
        let queue = &self.queued[input];
        let ready = queue.iter().filter(|packet| self.may_enter(packet)).count();
        let own = queue.iter().filter(|packet| packet.port == vif.0).count();
        ready < QUEUE && own < QUEUE
    }

    /// Limits ports to this many beats until [`Self::free`]: where their packets may have to wait, there is no more
    /// room.
    pub fn limit(&mut self, ports: BTreeSet<VifId>, beats: usize) {
        self.limit = Some(Limit { ports, beats });
    }

    /// They may again.
    pub fn free(&mut self) {
        self.limit = None;
    }

    fn may_enter(&self, packet: &Incoming) -> bool {
        let waits = |limit: &Limit| limit.ports.contains(&VifId(packet.port)) && limit.beats < beats(packet);
        packet.direct.is_some() || !self.limit.as_ref().is_some_and(waits)
    }

    /// Passes as much to the card as it has room for.
    pub fn feed(&mut self, card: &mut impl Carry) {
        for input in 0..self.queued.len() {
            while card.backlog(input) < AHEAD
                && let Some(at) = self.queued[input].iter().position(|packet| self.may_enter(packet))
                && let Some(packet) = self.queued[input].remove(at)
            {
                if let Some(limit) = &mut self.limit
                    && limit.ports.contains(&VifId(packet.port))
                {
                    limit.beats = limit.beats.saturating_sub(beats(&packet));
                }
                self.inside += u64::from(!packet.bytes.is_empty());
                card.send(input, packet);
                self.quiet = 0;
            }
        }
    }

    /// One clock.
    pub fn tick(&mut self, card: &mut impl Carry) {
        card.tick();
        self.quiet += 1;
    }

    /// Restarts the count of clocks.
    pub fn stir(&mut self) {
        self.quiet = 0;
    }

    /// A frame came out.
    pub fn leave(&mut self) {
        self.inside = self.inside.saturating_sub(1);
    }

    /// Gives up what is inside and does not come out; returns how much that is.
    pub fn write_off(&mut self) -> u64 {
        std::mem::take(&mut self.inside)
    }

    /// Takes back what waits for the card.
    pub fn take_back(&mut self) -> Vec<Incoming> {
        self.queued.iter_mut().flat_map(std::mem::take).collect()
    }
}
