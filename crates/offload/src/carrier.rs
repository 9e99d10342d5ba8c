//! The carrier: one thread that takes packets from ports, moves them through the card, and gives the engine what the
//! card leaves to the host. It sleeps when there is nothing to do; a simulated card stands still then.

use crate::candidates::Candidate;
use crate::carry::{Carry, Incoming, Outgoing};
use crate::flows::Flows;
use crate::mailbox::{Mailbox, Message};
use crate::moving::{Batch, is_mark};
use crate::ports::{LONGEST, Line, Taken, place};
use crate::stats::Stats;
use card::CardError;
use card::compile::Attachment;
use card::driver::Driver;
use card::registers::PuntMeta;
use engine::Engine;
use mem::{Burst, Offload};
use model::{BridgeTarget, Change, DropReason, Executor, NeighbourScope, VifId, Vrf};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Clocks between looks at ports and messages.
const SLICE: u32 = 256;
/// Frames that wait for an input of the card at most, but for a burst.
const QUEUE: usize = 64;
/// Frames that wait for an input of the card, where the engine's are no longer taken.
const AGAIN: usize = 4 * QUEUE;
/// Frames of those that the card is given ahead.
const AHEAD: usize = 2;
/// Clocks without a packet coming out after which the card is asked whether any is still inside: it drops some.
const QUIET: u32 = 512;
/// Clocks without a packet coming out after which none is left between where a barrier waits for it and the output:
/// outputs are always taken from, and the longest packet has fewer beats.
const EXIT: u32 = 256;
/// Clocks without a packet moving after which the card hangs.
const HANG: u32 = 50_000;
/// How long the engine may take to be done with what it was given.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// How often flows are looked after.
pub const EVERY: Duration = Duration::from_secs(1);
/// The counters of packets the card dropped, by reason ([`card::registers::counters::SELECT`]).
const DROPS: u8 = 5;
/// Why the card drops a packet.
const REASONS: [DropReason; 4] =
    [DropReason::RuleDrop, DropReason::DefaultDrop, DropReason::DiscardRoute, DropReason::PuntBudget];

/// Why the card can't be used any more.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The driver's.
    #[error(transparent)]
    Driver(#[from] CardError),
    /// Packets went in, and nothing comes out.
    #[error("the card hangs: {0} packets are inside, and none came out in {HANG} clocks")]
    Silent(u64),
}

/// The carrier.
pub struct Carrier<C> {
    pub engine: Arc<Engine>,
    pub driver: Driver<C>,
    pub lines: BTreeMap<VifId, Line>,
    /// Interfaces that are the engine's alone.
    pub beside: BTreeSet<VifId>,
    /// What waits for the card, by input.
    pub queued: Vec<VecDeque<Incoming>>,
    /// Packets in the card, those it dropped included, until it was asked.
    pub inside: u64,
    /// Clocks since a packet went in or came out.
    quiet: u32,
    pub candidates: Vec<Candidate>,
    /// Those whose flows are put onto the card just now; empty in between.
    pub ready: Vec<Candidate>,
    /// Flows on their way onto the card.
    pub batch: Option<Batch>,
    pub flows: Flows,
    pub stats: Arc<Stats>,
    pub mailbox: Arc<Mailbox>,
    pub epoll: OwnedFd,
    burst: Burst,
    /// What was just taken from a port; empty in between.
    taken: Vec<Taken>,
    /// What the card knows of what packets taught, and the epoch of that.
    epoch: u64,
    macs: HashMap<(Vrf, Mac), BridgeTarget>,
    neighbours: HashMap<(NeighbourScope, IpAddr), Mac>,
    paths: BTreeMap<IpAddr, u16>,
    /// The card forwards nothing, while the engine captures.
    captured: bool,
    /// Drops by reason as the card counts them.
    drops: [u64; REASONS.len()],
    /// Those for want of room while flows moved.
    hold_full: u32,
    /// When flows are looked after next.
    pub next: Instant,
    pub failed: bool,
}

impl<C: Carry> Carrier<C> {
    /// A carrier without ports.
    pub fn new(
        engine: Arc<Engine>,
        mut driver: Driver<C>,
        stats: Arc<Stats>,
        mailbox: Arc<Mailbox>,
        epoll: OwnedFd,
    ) -> Self {
        let commands = driver.commands();
        stats.clock.set(commands.identity().clock.into());
        let inputs = 2 * commands.card().pipes();
        let drops = REASONS.map(|reason| commands.counter(DROPS, reason as u32));
        Self {
            engine,
            driver,
            lines: BTreeMap::new(),
            beside: BTreeSet::new(),
            queued: (0..inputs).map(|_| VecDeque::new()).collect(),
            inside: 0,
            quiet: 0,
            candidates: Vec::new(),
            ready: Vec::new(),
            batch: None,
            flows: Flows::default(),
            stats,
            mailbox,
            epoll,
            burst: Burst::new(),
            taken: Vec::new(),
            epoch: 0,
            macs: HashMap::new(),
            neighbours: HashMap::new(),
            paths: BTreeMap::new(),
            captured: false,
            drops,
            hold_full: 0,
            next: Instant::now() + EVERY,
            failed: false,
        }
    }

    /// Carries until told to stop.
    pub fn run(mut self) {
        loop {
            while let Some((message, _done)) = self.mailbox.next() {
                if matches!(message, Message::Stop) {
                    return;
                }
                if let Err(fault) = self.obey(message) {
                    self.fail(&fault);
                }
            }
            if self.failed {
                self.sleep();
                continue;
            }
            match self.round() {
                Ok(true) => {}
                Ok(false) => self.sleep(),
                Err(fault) => self.fail(&fault),
            }
        }
    }

    /// Moves what there is to move. Returns whether there is more.
    fn round(&mut self) -> Result<bool, Fault> {
        // What flows on the card depend on does not change while some move.
        if self.batch.is_none() && Instant::now() >= self.next {
            self.next = Instant::now() + EVERY;
            self.look_after_flows()?;
            self.follow_tables()?;
            self.end_of_capture()?;
        }
        let taken = self.take()?;
        self.take_sent(AGAIN);
        let waits = self.work()?;
        // What is due comes first.
        if self.batch.is_none() && Instant::now() < self.next {
            self.move_flows()?;
        }
        let engine = waits || !self.candidates.is_empty();
        if engine {
            std::thread::yield_now();
        }
        Ok(taken || engine || self.is_busy())
    }

    /// Takes what the engine sent, to be sent by the card as it is, so that nothing overtakes it there; where less
    /// than so many frames wait for an input.
    pub fn take_sent(&mut self, most: usize) {
        let pipes = self.card().pipes();
        for (vif, line) in &mut self.lines {
            let output = place(*vif, line.wire, pipes);
            while self.queued[output].len() < most
                && let Some(bytes) = line.sent(self.driver.commands().card().buffers())
            {
                let (port, egress, len) = (vif.0, output as u8, bytes.len());
                if len > LONGEST {
                    self.stats.drops[DropReason::TxTooLong as usize].add(1);
                    self.driver.commands().card().buffers().give_back(bytes);
                    continue;
                }
                self.stats.again.packet(len);
                self.stats.vif(*vif).into_iter().for_each(|cells| cells.again.packet(len));
                let meta = PuntMeta { port, size: len as u16, egress, ..PuntMeta::default() };
                self.queued[output].push_back(Incoming { port, direct: Some(meta), bytes });
            }
        }
    }

    /// Moves what is here. Returns whether something waits for the engine.
    pub fn work(&mut self) -> Result<bool, Fault> {
        self.run_card()?;
        let buffers = self.driver.commands().card().buffers();
        let waits = self.lines.values_mut().fold(false, |waits, line| line.push(buffers) | waits);
        if self.batch.is_some() {
            self.take_sent(AGAIN);
            self.move_flows()?;
        }
        Ok(waits)
    }

    /// Whether packets are in the card or wait for it.
    fn is_busy(&self) -> bool {
        self.inside > 0 || self.batch.is_some() || self.queued.iter().any(|queue| !queue.is_empty())
    }

    /// Takes what came in by the ports, but where the card or the engine does not keep up.
    fn take(&mut self) -> Result<bool, Fault> {
        let mut any = false;
        let mut next = self.lines.keys().next().copied();
        while let Some(vif) = next {
            next = self.lines.range((Excluded(vif), Unbounded)).next().map(|(vif, _)| *vif);
            any |= self.take_from(vif)?;
        }
        Ok(any)
    }

    /// The same of one port.
    fn take_from(&mut self, vif: VifId) -> Result<bool, Fault> {
        let pipes = self.card().pipes();
        let Some(line) = self.lines.get(&vif) else { return Ok(false) };
        let input = place(vif, line.wire, pipes);
        if line.past && line.is_settled() {
            // What went past the card left the engine; now it leaves.
            self.take_sent(usize::MAX);
            self.empty_card()?;
        }
        let room = self.has_room(vif, input);
        let Some(line) = self.lines.get_mut(&vif) else { return Ok(false) };
        if !line.is_open() {
            // The engine is about to be done with it.
            return Ok(true);
        }
        if !room {
            return Ok(false);
        }
        let mut taken = std::mem::take(&mut self.taken);
        line.take(&mut self.burst, self.driver.commands().card().buffers(), &mut taken);
        let any = !taken.is_empty();
        taken.drain(..).try_for_each(|taken| self.enter(vif, input, taken))?;
        self.taken = taken;
        Ok(any)
    }

    /// Whether few enough frames wait for an input. Those that wait for flows to move leave room for other ports'.
    fn has_room(&self, vif: VifId, input: usize) -> bool {
        let queue = &self.queued[input];
        let ready = queue.iter().filter(|packet| self.may_enter(packet)).count();
        let own = queue.iter().filter(|packet| packet.port == vif.0).count();
        ready < QUEUE && own < QUEUE
    }

    /// A frame came in. One that the card can't take goes past it, when all before it have come out; and so do those
    /// behind.
    fn enter(&mut self, vif: VifId, input: usize, taken: Taken) -> Result<(), Fault> {
        let past = self.lines.get(&vif).is_some_and(|line| line.past);
        if !past && !taken.is_beyond_card() {
            if let Some(cells) = self.stats.vif(vif) {
                cells.received.packet(taken.bytes.len());
            }
            self.stats.received.packet(taken.bytes.len());
            self.queued[input].push_back(Incoming { port: vif.0, direct: None, bytes: taken.bytes });
            return Ok(());
        }
        if !past {
            self.empty_card()?;
        }
        self.lines.get_mut(&vif).into_iter().for_each(|line| line.past = true);
        self.hand(vif, taken);
        Ok(())
    }

    /// A slice of clocks, unless there is nothing for them.
    fn run_card(&mut self) -> Result<(), Fault> {
        for _ in 0..SLICE {
            self.feed();
            let still = self.quiet >= QUIET && self.batch.is_some() && !self.is_marking();
            if self.inside == 0 && !self.is_marking() || still {
                break;
            }
            self.card().tick();
            self.stats.busy.add(1);
            self.quiet += 1;
            self.collect();
            if self.quiet % QUIET == QUIET - 1 && self.batch.is_none() {
                self.reckon()?;
            }
            if self.quiet > HANG {
                return Err(Fault::Silent(self.inside));
            }
        }
        let clocks = self.card().clocks();
        self.stats.clocks.set(clocks);
        Ok(())
    }

    /// Gives the card what it has room for.
    fn feed(&mut self) {
        for input in 0..self.queued.len() {
            while self.card().backlog(input) < AHEAD
                && let Some(at) = self.queued[input].iter().position(|packet| self.may_enter(packet))
                && let Some(packet) = self.queued[input].remove(at)
            {
                self.enters(&packet);
                self.inside += u64::from(!packet.bytes.is_empty());
                self.card().send(input, packet);
                self.quiet = 0;
            }
        }
    }

    /// Takes what came out: of the wires first, so that what the engine is given overtakes nothing.
    pub fn collect(&mut self) {
        for output in (0..self.queued.len()).rev() {
            while let Some(packet) = self.card().receive(output) {
                self.quiet = 0;
                if is_mark(&packet) {
                    self.marked();
                    self.card().buffers().give_back(packet.bytes);
                    continue;
                }
                self.inside = self.inside.saturating_sub(1);
                let waits = packet.punt.is_some();
                if let Some(packet) = if waits { self.hold_back(packet) } else { Some(packet) } {
                    self.deliver(packet);
                }
            }
        }
    }

    /// Gives a packet that came out to the engine, or to its port.
    pub fn deliver(&mut self, packet: Outgoing) {
        let Outgoing { port, punt, bytes } = packet;
        let vif = VifId(port);
        match punt {
            Some(meta) => {
                let cells = self.stats.vif(vif);
                cells.into_iter().for_each(|cells| cells.punted.packet(bytes.len()));
                self.stats.punted.packet(bytes.len());
                if let Some(count) = self.stats.punts.get(usize::from(meta.reason)) {
                    count.add(1);
                }
                self.hand(vif, Taken { bytes, offload: Offload::default() });
            }
            None => {
                let sent = match self.lines.get(&vif) {
                    Some(line) => line.send(&bytes, self.stats.vif(vif)),
                    None => Err(DropReason::TxDown),
                };
                match sent {
                    Ok(()) => self.stats.sent.packet(bytes.len()),
                    Err(reason) => self.stats.drops[reason as usize].add(1),
                }
                self.card().buffers().give_back(bytes);
            }
        }
    }

    /// Finds out how many packets the card dropped, where none is still inside.
    fn reckon(&mut self) -> Result<(), Fault> {
        let inputs = 0..self.queued.len();
        if inputs.into_iter().any(|input| self.card().backlog(input) > 0) {
            return Ok(());
        }
        self.driver.commands().barrier()?;
        self.let_out();
        self.stats.dropped.add(self.inside);
        self.inside = 0;
        let (_, full) = self.driver.commands().held();
        let more = full.wrapping_sub(std::mem::replace(&mut self.hold_full, full));
        self.stats.drops[DropReason::HoldFull as usize].add(more.into());
        for (seen, reason) in self.drops.iter_mut().zip(REASONS) {
            let count = self.driver.commands().counter(DROPS, reason as u32);
            self.stats.drops[reason as usize].add(count.saturating_sub(*seen));
            *seen = count;
        }
        Ok(())
    }

    /// Lets what has left the pipes come out, after a barrier.
    fn let_out(&mut self) {
        self.collect();
        self.quiet = 0;
        while self.inside > 0 && self.quiet < EXIT {
            self.card().tick();
            self.quiet += 1;
            self.collect();
        }
    }

    /// Lets everything come out of the card that is in it or waits for it.
    fn empty_card(&mut self) -> Result<(), Fault> {
        while self.is_busy() {
            self.work()?;
        }
        Ok(())
    }

    /// Lets all that is under way arrive, in the card and in the engine. False where the engine takes too long.
    pub fn settle(&mut self) -> Result<bool, Fault> {
        self.empty_card()?;
        let settled = self.settle_engine();
        self.take_sent(usize::MAX);
        self.empty_card()?;
        Ok(settled)
    }

    /// Lets the engine be done with what it was given; false where it takes too long.
    pub fn settle_engine(&mut self) -> bool {
        let since = Instant::now();
        loop {
            let buffers = self.driver.commands().card().buffers();
            if self.lines.values_mut().all(|line| !line.push(buffers) && line.is_settled()) {
                return true;
            }
            self.take_sent(usize::MAX);
            if since.elapsed() > PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Tells the card what packets taught the engine.
    pub fn follow_tables(&mut self) -> Result<(), Fault> {
        let epoch = self.engine.view(|view| view.snapshot().epoch());
        if epoch == self.epoch {
            return Ok(());
        }
        let macs = self.engine.learned().into_iter().map(|mac| ((mac.vrf, mac.mac), mac.target)).collect();
        for (vrf, mac) in differences(&self.macs, &macs) {
            self.engine.view(|view| self.driver.learned(view, vrf, mac))?;
        }
        self.macs = macs;
        let known = self.engine.neighbours().into_iter();
        let known = known.filter_map(|known| Some(((known.scope, known.addr), known.mac?))).collect();
        let scopes: BTreeSet<_> =
            differences(&self.neighbours, &known).into_iter().map(|(scope, _)| scope).collect();
        for scope in scopes {
            self.engine.view(|view| self.driver.neighbour(view, scope))?;
        }
        self.neighbours = known;
        let paths: BTreeMap<_, _> = self.engine.view(|view| view.snapshot().paths().collect());
        if paths != self.paths {
            let underlay = NeighbourScope::Wire(VifId(0)); // any
            self.engine.view(|view| self.driver.neighbour(view, underlay))?;
            self.paths = paths;
        }
        self.epoch = epoch;
        Ok(())
    }

    /// Does what a message says, when no flows move: what is on the card changes for none of them on its way.
    fn obey(&mut self, message: Message) -> Result<(), Fault> {
        if let Err(fault) = self.finish_moving() {
            self.fail(&fault);
        }
        match message {
            Message::Attach(vif, line) => self.attach(vif, line),
            Message::Detach(vif) => self.detach(vif),
            Message::Beside(vif, true) => {
                self.beside.insert(vif);
                Ok(())
            }
            Message::Beside(vif, false) => {
                self.beside.remove(&vif);
                Ok(())
            }
            _ if self.failed => Ok(()),
            Message::Apply(changes) => self.apply(&changes),
            Message::Flushed => self.forget_flows(),
            Message::Capture => self.capture(),
            Message::Stop => Ok(()),
        }
    }

    /// What the card forwards after this is by the new tables; what it forwarded before has left.
    fn apply(&mut self, changes: &[Change]) -> Result<(), Fault> {
        self.engine.view(|view| self.driver.apply(view, changes))?;
        self.let_out();
        self.follow_tables()?;
        for change in changes {
            match change {
                Change::DelRule { id, .. } => self.stats.forget_rule(*id),
                Change::DelNexthop(id) => self.stats.forget_nexthop(*id),
                _ => {}
            }
        }
        Ok(())
    }

    fn attach(&mut self, vif: VifId, mut line: Line) -> Result<(), Fault> {
        if self.failed {
            self.engine.send(vif, line.tx);
            self.engine.receive(vif, line.rx);
            return Ok(());
        }
        let egress = place(vif, line.wire, self.card().pipes()) as u8;
        self.watch(vif, &mut line);
        self.lines.insert(vif, line);
        let at = Attachment { port: vif.0, egress };
        Ok(self.engine.view(|view| self.driver.attach(view, vif, Some(at)))?)
    }

    fn detach(&mut self, vif: VifId) -> Result<(), Fault> {
        // What was on its way there arrives.
        self.take_sent(usize::MAX);
        let emptied = self.empty_card();
        let Some(line) = self.lines.remove(&vif) else { return emptied };
        self.forget(&line);
        drop(line);
        if self.failed {
            return Ok(());
        }
        emptied?;
        self.engine.view(|view| self.driver.attach(view, vif, None))?;
        self.empty_card()
    }

    /// Leaves all packets to the engine, from when this returns.
    fn capture(&mut self) -> Result<(), Fault> {
        self.captured = true;
        self.driver.commands().enable(false);
        self.driver.commands().barrier()?;
        self.empty_card()
    }

    /// Lets the card forward again when nobody captures any more.
    fn end_of_capture(&mut self) -> Result<(), Fault> {
        if self.captured && !self.engine.is_capturing() && self.settle()? {
            self.captured = false;
            self.driver.commands().enable(true);
        }
        Ok(())
    }

    /// The card.
    pub fn card(&mut self) -> &mut C {
        self.driver.commands().card()
    }
}

/// The keys that have another value now, or one in one of them alone.
fn differences<K: Copy + Eq + std::hash::Hash, V: PartialEq>(
    before: &HashMap<K, V>,
    now: &HashMap<K, V>,
) -> Vec<K> {
    let changed = now.iter().filter(|(key, value)| before.get(key) != Some(value)).map(|(key, _)| *key);
    changed.chain(before.keys().filter(|key| !now.contains_key(key)).copied()).collect()
}
