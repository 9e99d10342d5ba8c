//! Packets on their way between ports, card and engine.

mod failover;

use crate::candidates::Candidates;
use crate::carry::{Carry, Incoming, Outgoing};
use crate::dropped::Dropped;
use crate::fault::Fault;
use crate::line::{LONGEST, Line, Taken};
use crate::moving::{Batch, Due, PATIENCE, is_mark};
use crate::passage::{Passage, QUEUE};
use crate::ports::Ports;
use crate::stats::Stats;
use card::buffers::Buffers;
use card::driver::Driver;
use card::frame::Key;
use card::hold::Hold;
use card::registers::PuntMeta;
use model::{DropReason, VifId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Clocks between checks of ports and messages.
const SLICE: u32 = 256;
/// Number of frames waiting for an input from which on no more frames are taken from the engine for it.
const AGAIN: usize = 4 * QUEUE;
/// Clocks without an outgoing packet after which the carrier asks the card whether any is still inside: the card drops
/// some.
const QUIET: u32 = 512;
/// Clocks after a barrier without an outgoing packet, after which none is left on the way to the output. A barrier
/// waits only until packets have left the pipes. Outputs are always emptied, and the longest packet has fewer beats.
const EXIT: u32 = 256;
/// Clocks without any packet going in or out after which the card counts as hung.
const HANG: u32 = 50_000;

/// The ports, the card, and the packets between them.
pub struct Traffic<C> {
    pub driver: Driver<C>,
    pub ports: Ports,
    passage: Passage,
    pub candidates: Candidates,
    /// Flows that are being moved onto the card.
    batch: Option<Batch>,
    dropped: Dropped,
    stats: Arc<Stats>,
}

impl<C: Carry> Traffic<C> {
    pub fn new(mut driver: Driver<C>, stats: Arc<Stats>) -> Self {
        let commands = driver.commands();
        stats.clock.set(commands.identity().clock.into());
        let passage = Passage::new(2 * commands.card().pipes());
        let dropped = Dropped::new(commands);
        let (ports, candidates) = (Ports::new(), Candidates::default());
        Self { driver, ports, passage, candidates, batch: None, dropped, stats }
    }

    pub fn card(&mut self) -> &mut C {
        self.driver.commands().card()
    }

    fn buffers(&mut self) -> &mut Buffers {
        self.card().buffers()
    }

    /// Returns whether packets are in the card or wait for it, or flows move.
    pub fn is_busy(&self) -> bool {
        self.batch.is_some() || self.passage.is_busy()
    }

    pub fn is_moving(&self) -> bool {
        self.batch.is_some()
    }

    /// Takes the frames that came in by the ports and those that the engine sent, and moves them. Returns whether
    /// frames came in, and whether frames wait for the engine.
    pub fn round(&mut self) -> Result<(bool, bool), Fault> {
        let taken = self.take()?;
        self.take_sent(AGAIN);
        Ok((taken, self.work()?))
    }

    /// Takes frames that the engine sent, while fewer than `most` frames wait for an input. They go through the card,
    /// so that no packet overtakes them there; it sends them unchanged.
    pub fn take_sent(&mut self, most: usize) {
        let pipes = self.card().pipes();
        let Self { driver, ports, passage, stats, .. } = self;
        let buffers = driver.commands().card().buffers();
        for (vif, line) in ports.iter_mut() {
            let output = line.place(vif, pipes);
            while passage.len(output) < most
                && let Some(bytes) = line.sent(buffers)
            {
                let (port, egress, len) = (vif.0, output as u8, bytes.len());
                if len > LONGEST {
                    stats.drops[DropReason::TxTooLong as usize].add(1);
                    buffers.give_back(bytes);
                    continue;
                }
                stats.again.packet(len);
                stats.vif(vif).into_iter().for_each(|cells| cells.again.packet(len));
                let meta = PuntMeta { port, size: len as u16, egress, ..PuntMeta::default() };
                passage.push(output, Incoming { port, direct: Some(meta), bytes });
            }
        }
    }

    /// Runs the card for a slice of clocks, and passes frames to the engine. Returns whether frames still wait for it.
    fn work(&mut self) -> Result<bool, Fault> {
        self.run_card()?;
        let waits = self.ports.push(self.driver.commands().card().buffers());
        if self.is_moving() {
            self.take_sent(AGAIN);
            self.advance()?;
        }
        Ok(waits)
    }

    /// Takes frames that came in by the ports, except where the card or the engine does not keep up. Returns whether
    /// there may be more.
    fn take(&mut self) -> Result<bool, Fault> {
        let mut any = false;
        let mut next = self.ports.after(None);
        while let Some(vif) = next {
            next = self.ports.after(Some(vif));
            any |= self.take_from(vif)?;
        }
        Ok(any)
    }

    /// Takes frames from one port, like [`Self::take`].
    fn take_from(&mut self, vif: VifId) -> Result<bool, Fault> {
        let pipes = self.card().pipes();
        let Some(line) = self.ports.get(vif) else { return Ok(false) };
        let input = line.place(vif, pipes);
        if line.past && line.is_settled() {
            // Frames that bypassed the card have left the engine; now they are sent.
            self.take_sent(usize::MAX);
            self.empty_card()?;
        }
        let room = self.passage.has_room(vif, input);
        if !self.ports.get_mut(vif).is_some_and(Line::is_open) {
            // The engine is about to finish the port's frames.
            return Ok(true);
        }
        if !room {
            return Ok(false);
        }
        let mut taken = self.ports.take(vif, self.driver.commands().card().buffers());
        let any = !taken.is_empty();
        taken.drain(..).try_for_each(|taken| self.enter(vif, input, taken))?;
        self.ports.give_back(taken);
        Ok(any)
    }

    /// Passes a frame that came in to the card. A frame that the card can't take bypasses it once all earlier ones have
    /// come out. Frames after it bypass the card, too, until the engine has finished them all.
    fn enter(&mut self, vif: VifId, input: usize, taken: Taken) -> Result<(), Fault> {
        let past = self.ports.get(vif).is_some_and(|line| line.past);
        if !past && !taken.is_beyond_card() {
            if let Some(cells) = self.stats.vif(vif) {
                cells.received.packet(taken.bytes.len());
            }
            self.stats.received.packet(taken.bytes.len());
            self.passage.push(input, Incoming { port: vif.0, direct: None, bytes: taken.bytes });
            return Ok(());
        }
        if !past {
            self.empty_card()?;
        }
        self.ports.get_mut(vif).into_iter().for_each(|line| line.past = true);
        self.hand(vif, taken);
        Ok(())
    }

    /// Runs the card for a slice of clocks, or until there is nothing to do.
    fn run_card(&mut self) -> Result<(), Fault> {
        for _ in 0..SLICE {
            self.passage.feed(self.driver.commands().card());
            let marking = self.batch.as_ref().is_some_and(Batch::is_marking);
            let still = self.passage.quiet() >= QUIET && self.is_moving() && !marking;
            if self.passage.inside() == 0 && !marking || still {
                break;
            }
            self.passage.tick(self.driver.commands().card());
            self.stats.busy.add(1);
            self.collect();
            if self.passage.quiet() % QUIET == QUIET - 1 && !self.is_moving() {
                self.reckon()?;
            }
            if self.passage.quiet() > HANG {
                return Err(Fault::Silent { inside: self.passage.inside(), clocks: HANG });
            }
        }
        let clocks = self.card().clocks();
        self.stats.clocks.set(clocks);
        Ok(())
    }

    /// Takes the packets that came out. Starts with outputs to wires, so that packets to the engine overtake none.
    pub fn collect(&mut self) {
        for output in (0..self.passage.inputs()).rev() {
            while let Some(packet) = self.card().receive(output) {
                self.passage.stir();
                if is_mark(&packet) {
                    self.batch.as_mut().into_iter().for_each(|batch| batch.marked(&self.ports));
                    self.buffers().give_back(packet.bytes);
                    continue;
                }
                self.passage.leave();
                let packet = match &mut self.batch {
                    Some(batch) if packet.punt.is_some() => batch.hold_back(packet),
                    _ => Some(packet),
                };
                packet.into_iter().for_each(|packet| self.deliver(packet));
            }
        }
    }

    /// Passes a packet that came out to the engine, or to its port.
    fn deliver(&mut self, packet: Outgoing) {
        let Outgoing { port, punt, bytes } = packet;
        let vif = VifId(port);
        match punt {
            Some(meta) => {
                self.stats.count_punt(vif, bytes.len());
                if let Some(count) = self.stats.punts.get(usize::from(meta.reason)) {
                    count.add(1);
                }
                self.hand(vif, Taken::finished(bytes));
            }
            None => {
                let sent = match self.ports.get(vif) {
                    Some(line) => line.send(&bytes, self.stats.vif(vif)),
                    None => Err(DropReason::TxDown),
                };
                match sent {
                    Ok(()) => self.stats.sent.packet(bytes.len()),
                    Err(reason) => self.stats.drops[reason as usize].add(1),
                }
                self.buffers().give_back(bytes);
            }
        }
    }

    /// Passes a frame to the engine, and remembers it as a candidate.
    fn hand(&mut self, vif: VifId, taken: Taken) {
        let Some(line) = self.ports.get_mut(vif) else { return };
        self.candidates.remember(vif, line.handed + 1, &taken);
        line.hand(taken, self.driver.commands().card().buffers());
    }

    /// Finds out how many packets the card dropped, once none is inside.
    fn reckon(&mut self) -> Result<(), Fault> {
        if (0..self.passage.inputs()).any(|input| self.card().backlog(input) > 0) {
            return Ok(());
        }
        self.driver.commands().barrier()?;
        self.let_out();
        self.stats.dropped.add(self.passage.write_off());
        self.dropped.count(self.driver.commands(), &self.stats);
        Ok(())
    }

    /// Lets packets come out that have left the pipes, after a barrier.
    pub fn let_out(&mut self) {
        self.collect();
        self.passage.stir();
        while self.passage.inside() > 0 && self.passage.quiet() < EXIT {
            self.passage.tick(self.driver.commands().card());
            self.collect();
        }
    }

    /// Lets all packets come out that are in the card or wait for it, and completes the move of flows.
    pub fn empty_card(&mut self) -> Result<(), Fault> {
        while self.is_busy() {
            self.work()?;
        }
        Ok(())
    }

    /// Lets all packets under way in the card and in the engine arrive. Returns false if the engine takes too long.
    pub fn settle(&mut self) -> Result<bool, Fault> {
        self.empty_card()?;
        let settled = self.settle_engine();
        self.take_sent(usize::MAX);
        self.empty_card()?;
        Ok(settled)
    }

    /// Lets the engine finish the frames that it was given. Returns false if it takes too long.
    fn settle_engine(&mut self) -> bool {
        let since = Instant::now();
        loop {
            if self.ports.settle(self.driver.commands().card().buffers()) {
                return true;
            }
            self.take_sent(usize::MAX);
            if since.elapsed() > PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Starts to move flows that were written to the card and come in by these ports.
    pub fn move_flows(&mut self, hold: Hold, keys: Vec<Key>, ports: BTreeSet<VifId>) {
        self.batch = Some(Batch::new(hold, keys, ports, &mut self.passage));
    }

    pub fn finish_moving(&mut self) -> Result<(), Fault> {
        while self.is_moving() {
            self.work()?;
        }
        Ok(())
    }

    /// Takes the next step of moving flows.
    fn advance(&mut self) -> Result<(), Fault> {
        let Some(batch) = &self.batch else { return Ok(()) };
        match batch.due(&self.ports, &mut self.driver) {
            Due::Nothing => {}
            Due::Release => {
                // Everything that the engine sent comes before the releases.
                self.take_sent(usize::MAX);
                self.batch.as_mut().into_iter().for_each(|batch| batch.release(&mut self.passage));
            }
            Due::End => {
                // Released packets come before those that came out after them.
                self.collect();
                if let Some((hold, keys)) = self.end_moving() {
                    self.driver.end_hold(hold, &keys)?;
                }
            }
        }
        Ok(())
    }

    fn end_moving(&mut self) -> Option<(Hold, Vec<Key>)> {
        let (hold, keys, behind) = self.batch.take()?.end(&mut self.passage);
        behind.into_iter().for_each(|packet| self.deliver(packet));
        Some((hold, keys))
    }
}
