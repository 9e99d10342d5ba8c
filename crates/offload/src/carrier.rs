//! The carrier: one thread that takes packets from ports, moves them through the card, and passes punted packets to
//! the engine. It sleeps when there is nothing to do; a simulated card then stands still.

use crate::carry::Carry;
use crate::fault::Fault;
use crate::flows::{Datapaths, Flows};
use crate::install::Installing;
use crate::learned::Learned;
use crate::line::Line;
use crate::orders::{Message, Orders};
use crate::sleep::Sleep;
use crate::stats::Stats;
use crate::traffic::Traffic;
use card::CardError;
use card::compile::Attachment;
use card::driver::Driver;
use card::frame::Key;
use engine::Engine;
use model::{Change, VifId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between checks of flows.
const EVERY: Duration = Duration::from_secs(1);

/// State that the carrier shares with the executor.
pub struct Shared {
    pub engine: Arc<Engine>,
    pub stats: Arc<Stats>,
    pub orders: Arc<Orders>,
}

pub struct Carrier<C> {
    shared: Shared,
    traffic: Traffic<C>,
    flows: Flows,
    learned: Learned,
    sleep: Sleep,
    /// Interfaces that only the engine serves.
    beside: BTreeSet<VifId>,
    /// Whether the card forwards nothing, because the engine captures.
    captured: bool,
    /// Time of the next check of flows.
    next: Instant,
    failed: bool,
}

impl<C: Carry> Carrier<C> {
    pub fn new(shared: Shared, driver: Driver<C>, sleep: Sleep) -> Self {
        let traffic = Traffic::new(driver, shared.stats.clone());
        Self {
            shared,
            traffic,
            flows: Flows::default(),
            learned: Learned::default(),
            sleep,
            beside: BTreeSet::new(),
            captured: false,
            next: Instant::now() + EVERY,
            failed: false,
        }
    }

    /// Carries packets until [`Message::Stop`].
    pub fn run(mut self) {
        loop {
            while let Some((message, _done)) = self.shared.orders.mailbox.next() {
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

    /// Sleeps until there is a packet or a message, or flows must be checked.
    fn sleep(&mut self) {
        let Shared { stats, orders, .. } = &self.shared;
        let until = (!self.failed).then_some(self.next);
        self.sleep.sleep(&mut self.traffic.ports, &orders.mailbox, until, &stats.sleeps);
    }

    /// Moves waiting packets. Returns whether there are more.
    fn round(&mut self) -> Result<bool, Fault> {
        // The tables on which the card's flows depend do not change while flows move.
        if !self.traffic.is_moving() && Instant::now() >= self.next {
            self.next = Instant::now() + EVERY;
            let (mut paths, flows) = self.datapaths();
            flows.look_after(&mut paths)?;
            self.count_memory_errors();
            self.follow_tables()?;
            self.end_of_capture()?;
        }
        let (taken, waits) = self.traffic.round()?;
        // Due work comes first.
        if !self.traffic.is_moving() && Instant::now() < self.next {
            self.begin_moving()?;
        }
        let engine = waits || !self.traffic.candidates.is_empty();
        if engine {
            std::thread::yield_now();
        }
        Ok(taken || engine || self.traffic.is_busy())
    }

    /// Counts the errors of the card's memory, and logs new ones with the channels that gave errors so far.
    fn count_memory_errors(&mut self) {
        let errors = self.traffic.driver.commands().memory_errors();
        let before = self.shared.stats.memory_errors.get();
        if u64::from(errors.count) != before {
            let channels: Vec<_> =
                (0..u32::BITS).filter(|channel| errors.channels >> channel & 1 != 0).collect();
            tracing::warn!(
                errors = errors.count,
                ?channels,
                "the card's memory answers with errors; the host forwards the packets that need those lines"
            );
            self.shared.stats.memory_errors.set(errors.count.into());
        }
    }

    /// Returns the records of the flows on the card, and the datapaths with which to look after them.
    fn datapaths(&mut self) -> (Datapaths<'_, C>, &mut Flows) {
        let Shared { engine, stats, .. } = &self.shared;
        (Datapaths { engine, driver: &mut self.traffic.driver, stats }, &mut self.flows)
    }

    /// Tells the card the MAC addresses and neighbours that the engine learned from packets.
    fn follow_tables(&mut self) -> Result<(), Fault> {
        Ok(self.learned.follow(&self.shared.engine, &mut self.traffic.driver)?)
    }

    /// Puts the flows of packets that the engine has finished onto the card, and starts to move them.
    fn begin_moving(&mut self) -> Result<(), Fault> {
        if !self.traffic.candidates.choose(&self.traffic.ports) {
            return Ok(());
        }
        self.follow_tables()?;
        let Traffic { driver, candidates, .. } = &mut self.traffic;
        let chosen = candidates.chosen();
        let Some(hold) = driver.begin_hold() else { return Ok(()) };
        let paths = Datapaths { engine: &self.shared.engine, driver, stats: &self.shared.stats };
        let mut installing = Installing::new(paths, &mut self.flows, hold, self.beside.is_empty());
        for candidate in chosen {
            installing.install(&candidate)?;
        }
        let (keys, ports) = installing.finish();
        if keys.is_empty() {
            self.traffic.driver.cancel_hold(hold);
            return Ok(());
        }
        self.traffic.driver.commands().barrier()?;
        self.traffic.move_flows(hold, keys, ports);
        Ok(())
    }

    /// Obeys a message. Completes the move of flows first, so that nothing on the card changes for a flow that moves.
    fn obey(&mut self, message: Message) -> Result<(), Fault> {
        if let Err(fault) = self.traffic.finish_moving() {
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
            Message::Ovs(changes) => {
                let keys = self.traffic.driver.of_changes(&changes);
                self.end(&keys)
            }
            Message::Flushed => self.forget_flows(),
            Message::Capture => self.capture(),
            Message::Stop => Ok(()),
        }
    }

    /// Takes flows off the card. When this returns, the packets that it forwarded by them have left it.
    fn end(&mut self, keys: &[Key]) -> Result<(), Fault> {
        let (mut paths, flows) = self.datapaths();
        flows.end(keys, &mut paths)?;
        self.traffic.let_out();
        self.shared.stats.flows.set(self.traffic.driver.flows() as u64);
        Ok(())
    }

    /// Takes all flows of ports of an Open vSwitch off the card: they depend on the interfaces.
    fn end_ovs(&mut self) -> Result<(), Fault> {
        let keys = self.traffic.driver.of_ovs();
        self.end(&keys)
    }

    /// Applies changes to the card. When this returns, the card forwards by the new tables, and the packets that it
    /// forwarded before have left it.
    fn apply(&mut self, changes: &[Change]) -> Result<(), Fault> {
        self.shared.engine.view(|view| self.traffic.driver.apply(view, changes))?;
        self.traffic.let_out();
        if changes.iter().any(|change| matches!(change, Change::PutVif(_) | Change::DelVif(_))) {
            self.end_ovs()?;
        }
        self.follow_tables()?;
        for change in changes {
            match change {
                Change::DelRule { id, .. } => self.shared.stats.forget_rule(*id),
                Change::PutNexthop(id, _) | Change::DelNexthop(id) => self.shared.stats.forget_nexthop(*id),
                _ => {}
            }
        }
        Ok(())
    }

    fn attach(&mut self, vif: VifId, mut line: Line) -> Result<(), Fault> {
        let engine = &self.shared.engine;
        if self.failed {
            engine.send(vif, line.tx);
            engine.receive(vif, line.rx);
            return Ok(());
        }
        let egress = line.place(vif, self.traffic.card().pipes()) as u8;
        self.sleep.watch(vif, &mut line);
        self.traffic.ports.insert(vif, line);
        let at = Attachment { port: vif.0, egress };
        engine.view(|view| self.traffic.driver.attach(view, vif, Some(at)))?;
        self.end_ovs()
    }

    fn detach(&mut self, vif: VifId) -> Result<(), Fault> {
        // Let packets arrive that are on their way to the port.
        self.traffic.take_sent(usize::MAX);
        let emptied = self.traffic.empty_card();
        let Some(line) = self.traffic.ports.remove(vif) else { return emptied };
        self.sleep.forget(&line);
        drop(line);
        if self.failed {
            return Ok(());
        }
        emptied?;
        self.shared.engine.view(|view| self.traffic.driver.attach(view, vif, None))?;
        self.end_ovs()?;
        self.traffic.empty_card()
    }

    /// Takes flows off the card whose connections the engine forgot.
    fn forget_flows(&mut self) -> Result<(), Fault> {
        // The connections of candidates may be among the forgotten ones.
        self.traffic.candidates.clear();
        let (mut paths, flows) = self.datapaths();
        flows.end_forgotten(&mut paths)?;
        self.traffic.driver.commands().barrier()?;
        self.traffic.collect();
        self.shared.stats.flows.set(self.traffic.driver.flows() as u64);
        Ok(())
    }

    /// Leaves all packets to the engine. This holds from when the function returns.
    fn capture(&mut self) -> Result<(), Fault> {
        self.captured = true;
        self.traffic.driver.commands().enable(false);
        self.traffic.driver.commands().barrier()?;
        self.traffic.empty_card()
    }

    /// Lets the card forward again once nobody captures any more.
    fn end_of_capture(&mut self) -> Result<(), Fault> {
        if self.captured && !self.shared.engine.is_capturing() && self.traffic.settle()? {
            self.captured = false;
            self.traffic.driver.commands().enable(true);
        }
        Ok(())
    }

    /// Gives up the card. Packets that are inside and do not come out are lost. Packets that waited for the card go to
    /// the engine, which then gets the ports for good.
    fn fail(&mut self, fault: &Fault) {
        if self.failed {
            return;
        }
        self.failed = true;
        if matches!(fault, Fault::Driver(CardError::Unwritten)) {
            self.count_memory_errors();
        }
        let lost = self.traffic.give_up();
        tracing::error!(lost, "{fault}; packets are forwarded without the card from now on");
        self.shared.stats.fail(fault.to_string());
        self.traffic.hand_over(&self.shared.engine);
        for (vif, line) in self.traffic.ports.iter_mut() {
            self.sleep.forget(line);
            self.shared.engine.receive(vif, std::mem::take(&mut line.rx));
        }
    }
}
