//! The entrance of the card: what waits for its inputs, and how much is inside.

use crate::carry::{Carry, Incoming};
use card::registers::PuntMeta;
use model::VifId;
use std::collections::{BTreeSet, VecDeque};

/// Most frames that wait for an input of the card, besides one burst.
pub const QUEUE: usize = 64;
/// How many of these frames the card gets in advance.
const AHEAD: usize = 2;
/// Most beats that the card adds before a packet.
const FRONT: usize = 2;

/// The packets that wait for the card, and the number of those in it.
pub struct Passage {
    /// The waiting packets, by input.
    queued: Vec<VecDeque<Incoming>>,
    /// Number of packets in the card. Includes packets that the card dropped, until the card is asked.
    inside: u64,
    /// Clocks since a packet last went in or came out.
    quiet: u32,
    limit: Option<Limit>,
}

/// The number of beats that packets of these ports may still have.
struct Limit {
    ports: BTreeSet<VifId>,
    beats: usize,
}

const fn beats(packet: &Incoming) -> usize {
    packet.bytes.len().div_ceil(64) + FRONT
}

impl Passage {
    /// Makes the entrance of an empty card with this many inputs.
    pub fn new(inputs: usize) -> Self {
        let queued = (0..inputs).map(|_| VecDeque::new()).collect();
        Self { queued, inside: 0, quiet: 0, limit: None }
    }

    /// Returns the number of inputs, which is also the number of outputs.
    pub fn inputs(&self) -> usize {
        self.queued.len()
    }

    pub fn inside(&self) -> u64 {
        self.inside
    }

    pub fn quiet(&self) -> u32 {
        self.quiet
    }

    /// Returns whether packets are in the card or wait for it.
    pub fn is_busy(&self) -> bool {
        self.inside > 0 || self.queued.iter().any(|queue| !queue.is_empty())
    }

    pub fn len(&self, input: usize) -> usize {
        self.queued[input].len()
    }

    pub fn push(&mut self, input: usize, packet: Incoming) {
        self.queued[input].push_back(packet);
    }

    /// Queues a mark or a release, which has no frame, for an input.
    pub fn tell(&mut self, input: usize, meta: PuntMeta) {
        self.push(input, Incoming { port: meta.port, direct: Some(meta), bytes: Vec::new() });
    }

    /// Returns whether an interface may queue more packets for an input. Packets that must wait because flows move
    /// leave room for other ports.
    pub fn has_room(&self, vif: VifId, input: usize) -> bool {
        let queue = &self.queued[input];
        let ready = queue.iter().filter(|packet| self.may_enter(packet)).count();
        let own = queue.iter().filter(|packet| packet.port == vif.0).count();
        ready < QUEUE && own < QUEUE
    }

    /// Limits the packets of `ports` to this many beats in total, until [`Self::free`]: the card has no more room for
    /// packets that it may have to hold.
    pub fn limit(&mut self, ports: BTreeSet<VifId>, beats: usize) {
        self.limit = Some(Limit { ports, beats });
    }

    /// Ends the limit.
    pub fn free(&mut self) {
        self.limit = None;
    }

    fn may_enter(&self, packet: &Incoming) -> bool {
        let waits = |limit: &Limit| limit.ports.contains(&VifId(packet.port)) && limit.beats < beats(packet);
        packet.direct.is_some() || !self.limit.as_ref().is_some_and(waits)
    }

    /// Passes as many packets to the card as it has room for.
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

    pub fn tick(&mut self, card: &mut impl Carry) {
        card.tick();
        self.quiet += 1;
    }

    pub fn stir(&mut self) {
        self.quiet = 0;
    }

    /// Notes that a frame came out.
    pub fn leave(&mut self) {
        self.inside = self.inside.saturating_sub(1);
    }

    /// Gives up the packets that are inside and do not come out. Returns their number.
    pub fn write_off(&mut self) -> u64 {
        std::mem::take(&mut self.inside)
    }

    /// Takes back the packets that wait for the card.
    pub fn take_back(&mut self) -> Vec<Incoming> {
        self.queued.iter_mut().flat_map(std::mem::take).collect()
    }
}
