//! The executor as the control plane sees it.

use crate::carrier::{Carrier, Shared};
use crate::carry::Carry;
use crate::line::{Line, RING};
use crate::orders::{Message, Orders};
use crate::sleep::Sleep;
use crate::stats::{PORTS, Stats, less};
use card::driver::Driver;
use card::{Budgets, CardError, Commands};
use engine::{AttachError, Engine};
use executor::{
    BadRecord, CaptureFilter, Captured, Counters, DroppedPacket, Entered, Executor, ExecutorStatus, FlowInfo,
    FlowUse, LearnedMac, NeighbourInfo, OvsPlace, Past, RECORD, Shaping, VifCounters, WorkerCounters,
};
use mem::Opened;
use model::ovs::{self, FlowId};
use model::{
    ApplyError, Change, Explanation, Learn, NeighbourFound, NexthopId, RuleId, Seconds, VifId, VifKind,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use tables::View;

/// How often to poll a simulated card until it has finished a command. Each poll takes about ten clocks.
const POLLS: u32 = 10_000;

/// The reason why the executor can't start.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    #[error(transparent)]
    Card(#[from] CardError),
    /// The system has no more threads or descriptors.
    #[error("can't start the card's carrier: {0}")]
    Io(#[from] io::Error),
}

/// The reason why a port can't be attached.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error(transparent)]
    Engine(#[from] AttachError),
    /// No event descriptors are left.
    #[error("interface {vif}: can't make a ring to the engine: {error}")]
    Ring { vif: VifId, error: io::Error },
}

/// An executor that forwards with the card, and with the engine what the card does not forward.
pub struct CardExecutor {
    name: &'static str,
    engine: Arc<Engine>,
    stats: Arc<Stats>,
    orders: Arc<Orders>,
    carrier: Option<JoinHandle<()>>,
    /// Ensures that the card gets changes in the same order as the engine. Holds the highest number of all flows of an
    /// Open vSwitch so far.
    applying: Mutex<FlowId>,
}

impl CardExecutor {
    /// Starts an executor with the card that `open` returns, and an engine that has neither ports nor tables yet. The
    /// card must be just after reset, with zeroed memory. The status shows it as `name`.
    ///
    /// # Errors
    /// If the card can't be used, or the system has no more threads or descriptors.
    pub fn start<C: Carry + 'static>(
        name: &'static str,
        engine: Arc<Engine>,
        open: impl FnOnce() -> C + Send + 'static,
    ) -> Result<Arc<Self>, OffloadError> {
        let (stats, orders) = (Arc::new(Stats::new()), Arc::new(Orders::new().map_err(io::Error::from)?));
        let sleep = Sleep::new(&orders.mailbox).map_err(io::Error::from)?;
        let secret = secret()?;
        let (opened, said) = sync_channel(1);
        let shared = Shared { engine: engine.clone(), stats: stats.clone(), orders: orders.clone() };
        let carrier = Builder::new().name("card".into()).spawn(move || {
            let commands =
                Commands::open(open()).map(|commands| commands.with_polls(POLLS).with_blank_memory());
            let driver = commands.and_then(|commands| Driver::new(commands, secret)).map(|mut driver| {
                driver.commands().set_budgets(Budgets::SIMULATED);
                driver
            });
            let (driver, error) = match driver {
                Ok(driver) => (Some(driver), None),
                Err(error) => (None, Some(error)),
            };
            // The thread that started it waits for this.
            let _ = opened.send(error);
            if let Some(driver) = driver {
                Carrier::new(shared, driver, sleep).run();
            }
        })?;
        let error = said.recv().map_err(|_| io::Error::other("its thread ended"))?;
        let executor =
            Self { name, engine, stats, orders, carrier: Some(carrier), applying: Mutex::default() };
        error.map_or_else(|| Ok(Arc::new(executor)), |error| Err(error.into()))
    }

    /// Starts to move packets through this port. They go through the card if it serves interfaces of this kind.
    ///
    /// # Errors
    /// If the engine can't attach the port, or the system has no more event descriptors.
    pub fn attach(&self, vif: VifId, port: Opened) -> Result<(), LineError> {
        use model::Lookup;
        let kind = self.engine.view(|view| view.vif(vif).map(|vif| vif.kind));
        let served = matches!(kind, Some(VifKind::Vhost | VifKind::Tap | VifKind::Wire));
        if !served || usize::from(vif.0) >= PORTS {
            self.orders.tell(Message::Beside(vif, true));
            return Ok(self.engine.attach(vif, port)?);
        }
        let (ring, uplink, downlink) =
            ringport::open(&RING).map_err(|error| LineError::Ring { vif, error })?;
        let Opened { port, rx, tx } = port;
        self.engine.attach(vif, Opened { port, rx: ring.rx, tx: ring.tx })?;
        let line = Line::new(rx, tx, (uplink, downlink), kind == Some(VifKind::Wire));
        self.orders.tell(Message::Attach(vif, line));
        Ok(())
    }

    /// Drops the port of an interface. Returns false if there is none.
    pub fn detach(&self, vif: VifId) -> bool {
        self.orders.tell(Message::Detach(vif));
        let had = self.engine.detach(vif);
        self.orders.tell(Message::Beside(vif, false));
        had
    }
}

impl Executor for CardExecutor {
    fn status(&self) -> ExecutorStatus {
        let name = match self.stats.failed() {
            None => self.name.to_owned(),
            Some(why) => format!("{} (failed: {why}; on cpu)", self.name),
        };
        let ExecutorStatus { mut stalled, connections_lack, .. } = Executor::status(&*self.engine);
        if self.orders.is_stalled() {
            // The carrier's number is that of a worker after the engine's.
            stalled.push(self.engine.workers().len());
        }
        ExecutorStatus { name, card: Some(self.stats.card()), stalled, connections_lack }
    }

    /// Applies changes to the engine, which decides whether they are valid, then to the card. When this returns, the
    /// card follows them, or has failed and is out of use.
    fn apply(&self, changes: &[Change]) -> Result<(), ApplyError> {
        let _applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        self.engine.apply(changes)?;
        self.orders.tell(Message::Apply(changes.to_vec()));
        Ok(())
    }

    /// Applies changes of an Open vSwitch's flows, like [`Self::apply`]. New flows with higher numbers than all before
    /// change nothing on the card.
    fn ovs_apply(&self, changes: &[ovs::Change], waits: bool) -> Result<(), ApplyError> {
        let mut last = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        self.engine.ovs_apply(changes, waits)?;
        let mut all_new = true;
        for change in changes {
            match change {
                ovs::Change::Add(flow) if flow.id > *last => *last = flow.id,
                _ => all_new = false,
            }
        }
        if !all_new {
            self.orders.tell(Message::Ovs(changes.to_vec()));
        }
        Ok(())
    }

    fn ovs_counts(&self, counters: &[u32]) -> Vec<Counters> {
        let card = self.stats.ovs.counts(counters);
        self.engine.ovs_counts(counters).into_iter().zip(card).map(|(a, b)| sum(a, b)).collect()
    }

    fn ovs_places(&self, flows: &[Arc<ovs::Flow>]) -> Option<Vec<OvsPlace>> {
        if self.stats.failed().is_some() {
            return None;
        }
        let place = |view: &View<'_>, flow: &ovs::Flow| match card::ovs::stays(view, flow) {
            Some(stays) => OvsPlace::Host(stays.name()),
            None => OvsPlace::Card(self.stats.ovs.entries(flow.port, flow.id)),
        };
        Some(self.engine.view(|view| flows.iter().map(|flow| place(view, flow)).collect()))
    }

    fn enter_counts(&self, past: Past) {
        self.engine.enter_counts(past);
    }

    fn workers(&self) -> Vec<WorkerCounters> {
        let mut workers = self.engine.workers();
        workers.push(self.stats.worker(workers.len()));
        workers
    }

    fn vif_counters(&self, vif: VifId) -> VifCounters {
        let (a, b) = (self.engine.vif_counters(vif), self.stats.vif_counters(vif));
        let again = self.stats.again(vif);
        VifCounters {
            received: sum(a.received, b.received),
            // Packets that the engine sent left through the card, so both counted them.
            sent: less(sum(a.sent, b.sent), again),
            receive_drops: a.receive_drops + b.receive_drops,
            send_drops: a.send_drops + b.send_drops,
        }
    }

    fn drops_at(&self, vif: VifId) -> Vec<u64> {
        self.engine.drops_at(vif)
    }

    fn shaping(&self, vif: VifId) -> Shaping {
        self.engine.shaping(vif)
    }

    fn rule_counters(&self, rule: RuleId) -> Counters {
        sum(self.engine.rule_counters(rule), self.stats.rule(rule))
    }

    fn nexthop_counters(&self, nexthop: NexthopId) -> Counters {
        sum(self.engine.nexthop_counters(nexthop), self.stats.nexthop(nexthop))
    }

    fn counted_nexthops(&self) -> HashMap<NexthopId, Counters> {
        let mut counted = self.engine.counted_nexthops();
        self.stats.add_nexthops(&mut counted);
        counted
    }

    /// Lists the engine's flows: the counters of their connections include the card's packets.
    fn flows(&self, each: &mut dyn FnMut(FlowInfo) -> bool) {
        self.engine.flows(each);
    }

    fn enter_flows(&self, flows: &[FlowInfo]) -> usize {
        self.engine.enter_flows(flows)
    }

    fn remembered(&self, record: &[u64; RECORD]) -> Result<Option<FlowInfo>, BadRecord> {
        self.engine.remembered(record)
    }

    fn enter_early(&self, flow: &FlowInfo, record: &[u64; RECORD]) -> Option<Entered> {
        self.engine.enter_early(flow, record)
    }

    fn catch_up(&self, entered: Entered, record: &[u64; RECORD]) -> Result<bool, BadRecord> {
        self.engine.catch_up(entered, record)
    }

    fn flush_flows(&self, which: &mut dyn FnMut(&FlowInfo) -> bool) -> usize {
        let flushed = self.engine.flush_flows(which);
        self.orders.tell(Message::Flushed);
        flushed
    }

    fn flows_created(&self) -> u64 {
        self.engine.flows_created()
    }

    fn flow_count(&self) -> usize {
        self.engine.flow_count()
    }

    fn flow_use(&self, vif: VifId) -> FlowUse {
        self.engine.flow_use(vif)
    }

    fn learned(&self) -> Vec<LearnedMac> {
        self.engine.learned()
    }

    fn enter_learned(&self, macs: &[(Learn, Seconds)]) -> usize {
        self.engine.enter_learned(macs)
    }

    fn found_neighbours(&self) -> Vec<(NeighbourFound, VifId)> {
        self.engine.found_neighbours()
    }

    fn enter_neighbours(&self, found: &[(NeighbourFound, VifId)]) {
        self.engine.enter_neighbours(found);
    }

    fn neighbours(&self) -> Vec<NeighbourInfo> {
        self.engine.neighbours()
    }

    fn explain(&self, ingress: VifId, frame: &[u8], gso_size: Option<u16>) -> Explanation {
        self.engine.explain(ingress, frame, gso_size)
    }

    fn settle(&self) {
        self.engine.settle();
    }

    fn dropped(&self, n: usize) -> Vec<DroppedPacket> {
        self.engine.dropped(n)
    }

    /// Starts a capture. While it runs, all packets go to the engine, which shows them to it.
    fn capture(&self, filter: CaptureFilter, to: SyncSender<Captured>) {
        self.engine.capture(filter, to);
        self.orders.tell(Message::Capture);
    }
}

impl Drop for CardExecutor {
    fn drop(&mut self) {
        self.orders.mailbox.post(Message::Stop);
        if let Some(carrier) = self.carrier.take() {
            // A thread that panicked has reported it already.
            let _ = carrier.join();
        }
    }
}

fn sum(a: Counters, b: Counters) -> Counters {
    Counters { packets: a.packets + b.packets, bytes: a.bytes + b.bytes }
}

/// Draws a random secret for the card's hashes.
fn secret() -> io::Result<[u64; 5]> {
    let mut bytes = [0; 40];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let word = |at: usize| bytes[8 * at..][..8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok([0, 1, 2, 3, 4].map(word))
}
