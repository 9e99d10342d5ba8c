//! Flows on their way onto the card: nothing of a flow overtakes, and nothing else waits.
//!
//! The card is told of the flows, and keeps their packets from then on. A mark by each pipe comes out behind all of
//! theirs that were the host's. Once the engine is done with what it had been given by then, the flows are released
//! at the card's outputs. Until that is so everywhere, what comes out for the host waits here: it may be of such a
//! flow, whose packets before it leave by another output.

use crate::candidates::Candidate;
use crate::carrier::{Carrier, Fault, PATIENCE};
use crate::carry::{Carry, Incoming, Outgoing};
use card::frame::Key;
use card::hold::{Hold, RING};
use card::registers::PuntMeta;
use model::VifId;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

/// Flows that move at a time, at most: writing them takes the card's time.
const FLOWS: usize = 64;
/// Beats that the ports of such flows may send until these are released: the rest of a ring is for what is in the pipe.
const ROOM: usize = RING / 2;
/// Beats that the card may put in front of a packet.
const FRONT: usize = 2;

/// Flows that move.
pub struct Batch {
    hold: Hold,
    keys: Vec<Key>,
    /// Where their packets come in.
    ports: BTreeSet<VifId>,
    /// Beats that may come in there.
    room: usize,
    stage: Stage,
    /// What came out for the host meanwhile.
    pub behind: Vec<Outgoing>,
}

enum Stage {
    /// So many marks are under way.
    Marked(usize),
    /// The engine has to be done with so many frames of each port.
    Engine(BTreeMap<VifId, u64>, Instant),
    /// The releases are under way.
    Released,
}

/// Whether a packet of the host's queue is a mark.
pub const fn is_mark(packet: &Outgoing) -> bool {
    matches!(packet.punt, Some(PuntMeta { reason: 0, .. })) && packet.bytes.is_empty()
}

const fn beats(packet: &Incoming) -> usize {
    packet.bytes.len().div_ceil(64) + FRONT
}

impl<C: Carry> Carrier<C> {
    /// Does the next thing for the flows that move; where there are none, others begin to.
    pub fn move_flows(&mut self) -> Result<(), Fault> {
        if self.batch.is_none() { self.begin() } else { self.advance() }
    }

    /// Lets the flows that move arrive.
    pub fn finish_moving(&mut self) -> Result<(), Fault> {
        while self.batch.is_some() {
            self.work()?;
        }
        Ok(())
    }

    /// Whether the card has to do something for flows that move, apart from packets.
    pub fn is_marking(&self) -> bool {
        let stage = self.batch.as_ref().map(|batch| &batch.stage);
        matches!(stage, Some(Stage::Marked(_) | Stage::Released))
    }

    /// Whether the card may be given a packet: there is room where it may have to wait.
    pub fn may_enter(&self, packet: &Incoming) -> bool {
        let waits = |batch: &Batch| batch.ports.contains(&VifId(packet.port)) && batch.room < beats(packet);
        packet.direct.is_some() || !self.batch.as_ref().is_some_and(waits)
    }

    /// The card is given a packet.
    pub fn enters(&mut self, packet: &Incoming) {
        if let Some(batch) = &mut self.batch
            && batch.ports.contains(&VifId(packet.port))
        {
            batch.room = batch.room.saturating_sub(beats(packet));
        }
    }

    /// Holds back what came out for the host while flows are released.
    pub fn hold_back(&mut self, packet: Outgoing) -> Option<Outgoing> {
        match &mut self.batch {
            Some(Batch { stage: Stage::Released, behind, .. }) => {
                behind.push(packet);
                None
            }
            _ => Some(packet),
        }
    }

    /// Tells the card of the flows of packets that the engine is done with.
    fn begin(&mut self) -> Result<(), Fault> {
        let lines = &self.lines;
        let is_done = |candidate: &mut Candidate| {
            lines.get(&candidate.ingress).is_none_or(|line| line.done() >= candidate.number)
        };
        self.ready.extend(self.candidates.extract_if(.., is_done).take(FLOWS));
        if self.ready.is_empty() {
            return Ok(());
        }
        self.follow_tables()?;
        let Some(hold) = self.driver.begin_hold() else {
            self.ready.clear();
            return Ok(());
        };
        let mut candidates = std::mem::take(&mut self.ready);
        let (mut keys, mut ports, mut done) = (Vec::new(), BTreeSet::new(), HashSet::new());
        for candidate in candidates.drain(..) {
            if let Some(key) = self.install(&candidate, hold, &mut done)? {
                keys.push(key);
                ports.insert(candidate.ingress);
            }
        }
        self.ready = candidates;
        self.stats.flows.set(self.driver.flows() as u64);
        let refused = self.driver.refused();
        self.stats.flows_refused.set(refused.quota + refused.full);
        if keys.is_empty() {
            self.driver.cancel_hold(hold);
            return Ok(());
        }
        self.driver.commands().barrier()?;
        let pipes = self.card().pipes();
        for input in 0..2 * pipes {
            self.tell(input, PuntMeta { egress: (input % pipes) as u8, ..PuntMeta::default() });
        }
        let stage = Stage::Marked(2 * pipes);
        self.batch = Some(Batch { hold, keys, ports, room: ROOM, stage, behind: Vec::new() });
        Ok(())
    }

    /// A mark came out.
    pub fn marked(&mut self) {
        let handed = self.lines.iter().map(|(vif, line)| (*vif, line.handed)).collect();
        let Some(Batch { stage, .. }) = &mut self.batch else { return };
        if let Stage::Marked(left) = stage {
            *left -= 1;
            if *left == 0 {
                *stage = Stage::Engine(handed, Instant::now());
            }
        }
    }

    fn advance(&mut self) -> Result<(), Fault> {
        let Some(batch) = &self.batch else { return Ok(()) };
        let hold = batch.hold;
        match &batch.stage {
            Stage::Marked(_) => {}
            Stage::Engine(handed, since) => {
                let is_done = |(vif, number): (&VifId, &u64)| {
                    self.lines.get(vif).is_none_or(|line| line.done() >= *number)
                };
                let done = handed.iter().all(is_done);
                if !done && since.elapsed() < PATIENCE {
                    std::thread::yield_now();
                    return Ok(());
                }
                if !done {
                    tracing::warn!("the engine does not keep up; packets that it still has may come late");
                }
                // All of it.
                self.take_sent(usize::MAX);
                self.release(hold);
            }
            Stage::Released if self.driver.is_released(hold) => self.end()?,
            Stage::Released => {}
        }
        Ok(())
    }

    fn release(&mut self, hold: Hold) {
        let streams = 2 * self.card().pipes();
        for input in 0..streams {
            for output in 0..streams {
                self.tell(input, hold.release(output as u8));
            }
        }
        if let Some(batch) = &mut self.batch {
            batch.stage = Stage::Released;
        }
    }

    /// The flows are the card's from here on.
    fn end(&mut self) -> Result<(), Fault> {
        // What was released is in front of what came out behind it.
        self.collect();
        let Some(batch) = self.batch.take() else { return Ok(()) };
        for packet in batch.behind {
            self.deliver(packet);
        }
        Ok(self.driver.end_hold(batch.hold, &batch.keys)?)
    }

    /// Sends the card a packet that is no frame.
    fn tell(&mut self, input: usize, meta: PuntMeta) {
        self.queued[input].push_back(Incoming { port: meta.port, direct: Some(meta), bytes: Vec::new() });
    }
}
