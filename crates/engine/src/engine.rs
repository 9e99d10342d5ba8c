//! The engine as the control plane sees it.

use crate::asked::{Asked, Questions};
use crate::bfd::Bfd;
use crate::capture::Tap;
use crate::clock::Clock;
use crate::common::{Common, Handle};
use crate::core::Limits;
use crate::counters::{MAX_VIFS, sum};
use crate::housekeeping::Housekeeper;
use crate::mailbox::{Pending, Receipt};
use crate::message::Message;
use crate::meters::Meters;
use crate::mutex::lock;
use crate::shaping::Shapers;
use crate::storms::Storms;
use crate::worker::{Parts, Worker};
use executor::{
    BadRecord, CaptureFilter, Captured, Counters, DroppedPacket, Entered, Executor, ExecutorStatus, FlowInfo,
    LearnedMac, NeighbourInfo, Past, RECORD, Shaping, VifCounters, WorkerCounters,
};
use mem::{Opened, PortStatus, RxQueue};
use model::{
    ApplyError, Change, Decision, DropReason, Effects, Explanation, Learn, NeighbourFound, NexthopId,
    PacketView, RuleId, Seconds, Verdict, VifId, VifKind, ovs,
};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tables::{FlowLimits, Flows, Shared};

/// How long workers may take to obey. A worker that takes longer counts as stalled, and nothing waits for it
/// any more. Tests allow more, because a busy machine may have no CPU for a worker.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 1 });

#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Workers, each with the CPU to which it is pinned, if any.
    pub workers: Vec<Option<usize>>,
    /// Limits of the connection table.
    pub flows: FlowLimits,
    /// Entries of each worker's flow cache. It takes memory as it fills.
    pub cache_entries: usize,
    /// Most ICMP errors and TCP resets per second that a worker sends to one address in a network. All addresses of a
    /// guest, or of a network behind wires, together get ten times as many. The limits for "packet too big" errors are
    /// separate and ten times as high.
    pub errors_per_second: u32,
    /// Approximate limit of copies per second that all workers make of one guest's flooded packets; ten times as many
    /// of a wire's.
    pub flooded_per_second: u32,
    /// Whether the engine announces, unasked, new addresses to neighbours and group memberships to switches.
    pub announces: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            workers: vec![None],
            flows: FlowLimits::default(),
            cache_entries: 1 << 21,
            errors_per_second: 100,
            flooded_per_second: 20_000,
            announces: true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The interface has a port already.
    #[error("interface {0} already has a port")]
    Attached(VifId),
    /// The interface's number is too high.
    #[error("interface {0}: at most {MAX_VIFS} are possible")]
    TooMany(VifId),
}

/// A worker does not obey within a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} is stalled")]
pub struct Stalled {
    pub worker: usize,
}

/// State that calls of the control plane change.
#[derive(Default)]
pub(crate) struct Control {
    meters: Meters,
    ovs_sides: BTreeSet<VifId>,
    pub(crate) shapers: Shapers,
    /// The worker that gets the next receiving queue.
    next_worker: usize,
}

/// The CPU executor.
pub struct Engine {
    pub(crate) common: Arc<Common>,
    control: Mutex<Control>,
    threads: Vec<JoinHandle<()>>,
    asked: Mutex<Option<Receiver<Asked>>>,
    bfd: Mutex<Option<Receiver<Asked>>>,
    bfd_numbers: Bfd,
    _housekeeper: Housekeeper,
}

impl Engine {
    /// Starts the workers, without ports and with empty tables.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub fn new(config: &EngineConfig) -> io::Result<Arc<Self>> {
        Self::with_flows(config, Flows::new(config.flows))
    }

    /// Starts the workers with this connection table, otherwise as [`Self::new`] does.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub fn with_flows(config: &EngineConfig, flows: Flows) -> io::Result<Arc<Self>> {
        let shared = Arc::new(Shared::with_flows(flows));
        let clock = Clock::start();
        let ((questions, asked), (heard, bfd_heard)) = (Questions::new(), Questions::of_sessions());
        let bfd_numbers = Bfd::over(heard);
        let limits = Limits {
            questions,
            bfd: bfd_numbers.clone(),
            cache_entries: config.cache_entries,
            errors_per_second: config.errors_per_second,
            storms: Arc::new(Storms::new(config.flooded_per_second)),
        };
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for (number, &cpu) in config.workers.iter().enumerate() {
            let handle = Handle::new(cpu)?;
            let worker = Worker::new(Parts {
                number,
                cpu,
                shared: shared.clone(),
                mailbox: handle.mailbox.clone(),
                cells: handle.cells.clone(),
                log: handle.log.clone(),
                clock,
                limits: limits.clone(),
            })?;
            let name = format!("worker-{number}");
            threads.push(std::thread::Builder::new().name(name).spawn(move || worker.run())?);
            workers.push(handle);
        }
        let (taps, ports, lost) = Default::default();
        let common = Arc::new(Common { shared, clock, workers, taps, ports, lost });
        let housekeeper = Housekeeper::start(common.clone(), config.flows, config.announces)?;
        let (control, [asked, bfd]) =
            (Mutex::default(), [asked, bfd_heard].map(|from| Mutex::new(Some(from))));
        Ok(Arc::new(Self { common, control, threads, asked, bfd, bfd_numbers, _housekeeper: housekeeper }))
    }

    /// Moves packets through this port from now on. The workers share its receiving queues.
    ///
    /// # Errors
    /// If the interface has a port already, or its number is too high.
    pub fn attach(&self, vif: VifId, opened: Opened) -> Result<(), AttachError> {
        if usize::from(vif.0) >= MAX_VIFS {
            return Err(AttachError::TooMany(vif));
        }
        let mut control = self.control();
        if self.is_attached(vif) {
            return Err(AttachError::Attached(vif));
        }
        self.send_by(&mut control, vif, opened.tx.into());
        self.share_out(&mut control, vif, opened.rx);
        let lost = opened.port.status().lost;
        lock(&self.common.lost).entry(vif).or_default().begin(lost);
        lock(&self.common.ports).insert(vif, opened.port);
        Ok(())
    }

    pub(crate) fn is_attached(&self, vif: VifId) -> bool {
        lock(&self.common.ports).contains_key(&vif)
    }

    /// Assigns receiving queues to workers in turn.
    pub(crate) fn share_out(&self, control: &mut Control, vif: VifId, queues: Vec<Box<dyn RxQueue>>) {
        for queue in queues {
            let worker = &self.common.workers[control.next_worker % self.common.workers.len()];
            control.next_worker += 1;
            worker.mailbox.post(Message::Receive { vif, queue, shaper: control.shapers.outward(vif) });
        }
    }

    /// Drops the port of an interface. When it returns, no worker touches the port any more, and it is closed, unless
    /// somebody else holds it or a worker is stalled ([`ExecutorStatus::stalled`]). False if there is none.
    pub fn detach(&self, vif: VifId) -> bool {
        let mut control = self.control();
        let Some(port) = lock(&self.common.ports).remove(&vif) else { return false };
        self.tell_all(|| Message::Detach(vif));
        self.forget_queues(&mut control, vif);
        drop(port);
        true
    }

    /// Has the workers leave all queues alone, until [`Self::resume`]. When it returns, no burst is under
    /// way. Meanwhile the workers obey other requests, except those to count to the last packet and to send.
    ///
    /// # Errors
    /// A worker is stalled; all others go on.
    pub fn pause(&self) -> Result<(), Stalled> {
        let control = self.control();
        self.tell_all(|| Message::Pause);
        // Packets that wait here would be lost to the process that goes on.
        self.flush_shapers(&control);
        match self.common.workers.iter().position(Handle::is_stalled) {
            None => Ok(()),
            Some(worker) => {
                self.tell_all(|| Message::Resume);
                Err(Stalled { worker })
            }
        }
    }

    /// Has the workers go on after [`Self::pause`].
    pub fn resume(&self) {
        self.tell_all(|| Message::Resume);
    }

    #[must_use]
    pub fn status(&self, vif: VifId) -> Option<PortStatus> {
        lock(&self.common.ports).get(&vif).map(|port| port.status())
    }

    /// Enters a neighbour, as if a packet that came in on `by` had announced it.
    #[cfg(feature = "testing")]
    pub fn learn_neighbour(&self, found: &model::NeighbourFound, by: VifId) {
        let now = self.common.clock.now().seconds;
        self.common.shared.neighbour(&self.common.shared.snapshot(), found, by, now);
    }

    #[cfg(test)]
    pub(crate) fn tables(&self) -> &Shared {
        &self.common.shared
    }

    /// Sends a message to all workers, and waits until all but stalled ones have obeyed.
    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        let pending = self.post_all(message);
        self.await_all(pending);
    }

    /// Sends a message to all workers, without waiting.
    fn post_all(&self, message: impl Fn() -> Message) -> Vec<Pending> {
        let post = |worker: &Handle| {
            let (receipt, pending) = Receipt::new();
            worker.mailbox.post_with(message(), receipt);
            pending
        };
        self.common.workers.iter().map(post).collect()
    }

    /// Waits until all workers have obeyed, except those known to be stalled.
    fn await_all(&self, pending: Vec<Pending>) {
        let deadline = Instant::now() + PATIENCE;
        for (number, (worker, pending)) in self.common.workers.iter().zip(pending).enumerate() {
            await_obedience(number, worker, pending, deadline);
        }
    }

    /// Sends a message to one worker, and waits until it has obeyed, unless it is stalled.
    pub(crate) fn tell_one(&self, number: usize, message: Message) {
        let worker = &self.common.workers[number];
        let (receipt, pending) = Receipt::new();
        worker.mailbox.post_with(message, receipt);
        await_obedience(number, worker, pending, Instant::now() + PATIENCE);
    }

    fn police_by(&self, control: &mut Control, meters: Meters) {
        let shared = Arc::new(meters.clone());
        self.tell_all(|| Message::Meters(shared.clone()));
        control.meters = meters;
    }

    /// Tells the workers which interfaces become OVS sides of ports, or cease to be: packets for such a side that is
    /// not connected have a drop reason of their own.
    fn note_ovs_sides(&self, control: &mut Control, changes: &[Change]) {
        let mut sides = control.ovs_sides.clone();
        for change in changes {
            match change {
                Change::PutVif(vif) if vif.kind == VifKind::Ovs => drop(sides.insert(vif.id)),
                Change::PutVif(vif) => drop(sides.remove(&vif.id)),
                Change::DelVif(id) => drop(sides.remove(id)),
                _ => {}
            }
        }
        let changed = sides.symmetric_difference(&control.ovs_sides);
        let changed: Arc<[_]> = changed.map(|vif| (*vif, sides.contains(vif))).collect();
        if !changed.is_empty() {
            self.tell_all(|| Message::OvsSides(changed.clone()));
        }
        control.ovs_sides = sides;
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Returns the guest or wire that has this interface as its OVS side.
    #[must_use]
    pub fn ovs_port(&self, side: VifId) -> Option<VifId> {
        let snapshot = self.common.shared.snapshot();
        snapshot.vif(side).filter(|vif| vif.kind == VifKind::Ovs)?.ovs
    }

    /// Counts bytes of a connection, its own direction's and the replies', that its ends exchanged past this
    /// engine, and keeps the connection from expiring.
    pub fn count_flow(&self, key: &model::FlowKey, bytes: (u64, u64)) {
        let (flows, now) = (self.common.shared.flows(), self.common.clock.now().seconds);
        if let Some((_, reply, flow)) = flows.get(key, now) {
            flows.touch(flow, reply, 0, bytes.0, now);
            flows.touch(flow, !reply, 0, bytes.1, now);
        }
    }

    /// Returns the way by which packets to services come. There is one, for who asks first.
    pub fn questions(&self) -> Option<Receiver<Asked>> {
        lock(&self.asked).take()
    }

    /// Returns the way by which BFD of tunnels' remotes comes. There is one, for who asks first.
    pub fn bfd(&self) -> Option<Receiver<Asked>> {
        lock(&self.bfd).take()
    }

    /// Has the workers know the numbers of all BFD sessions, whose packets are not lost with those of others.
    pub fn know_bfd(&self, sessions: &[u32]) {
        self.bfd_numbers.know(sessions);
    }

    /// Returns the decision about a packet that comes in on `ingress`, according to the live tables, without
    /// effects. The packet may be hypothetical: headers without bytes.
    #[must_use]
    pub fn decide(&self, ingress: VifId, packet: &PacketView<'_>) -> Decision {
        let snapshot = self.common.shared.snapshot();
        let now = self.common.clock.now().seconds;
        model::decide(&snapshot.view(self.common.shared.flows(), now), packet, ingress, now)
    }
}

/// Waits until a worker has obeyed, unless it is known to be stalled.
fn await_obedience(number: usize, worker: &Handle, pending: Pending, deadline: Instant) {
    let known = worker.is_stalled();
    let obeyed = pending.wait(if known { Instant::now() } else { deadline });
    if !obeyed {
        worker.falls_behind(pending);
    }
    if !obeyed && !known {
        tracing::error!(worker = number, "a worker does not take up a change; nothing waits for it any more");
    }
}

impl Executor for Engine {
    fn status(&self) -> ExecutorStatus {
        let workers = self.common.workers.iter().enumerate();
        let stalled = workers.filter(|(_, worker)| worker.is_stalled()).map(|(number, _)| number).collect();
        let connections_lack = self.common.shared.flows().lack().map(|errno| errno.to_string());
        ExecutorStatus { name: "cpu".to_owned(), card: None, stalled, connections_lack }
    }

    fn apply(&self, changes: &[Change]) -> Result<(), ApplyError> {
        for change in changes {
            if let Change::PutVif(vif) = change
                && usize::from(vif.id.0) >= MAX_VIFS
            {
                return Err(ApplyError::Limit { what: "interfaces", limit: MAX_VIFS });
            }
        }
        // A meter exists before the first packet is sent to it, and is removed after the last.
        let mut control = self.control();
        let before = control.meters.clone();
        let (mut with, mut put, mut deleted) = (before.clone(), false, false);
        for change in changes {
            match change {
                Change::PutMeter(id, config) => (put, _) = (true, with.put(*id, *config)),
                Change::DelMeter(_) => deleted = true,
                _ => {}
            }
        }
        if put {
            self.police_by(&mut control, with.clone());
        }
        self.note_ovs_sides(&mut control, changes);
        let applied = self.common.shared.apply(changes);
        if applied.is_ok() {
            self.shape(&mut control, changes);
        }
        if applied.is_err() && put {
            self.police_by(&mut control, before.clone());
        }
        if !applied?.settled {
            tracing::warn!(
                "a worker has been in one burst for a second; it will apply the change after that"
            );
            self.tell_all(|| Message::Answer);
        }
        if deleted {
            let mut after = before;
            for change in changes {
                match change {
                    Change::PutMeter(id, config) => after.put(*id, *config),
                    Change::DelMeter(id) => after.remove(*id),
                    _ => {}
                }
            }
            self.police_by(&mut control, after);
        }
        for worker in &self.common.workers {
            for change in changes {
                match change {
                    Change::DelRule { id, .. } => worker.cells.forget_rule(*id),
                    // A number that was free may have been counted for late, which its new nexthop must not inherit.
                    Change::PutNexthop(id, _) | Change::DelNexthop(id) => worker.cells.forget_nexthop(*id),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn ovs_apply(&self, changes: &[ovs::Change], waits: bool) -> Result<(), ApplyError> {
        for change in changes {
            if let ovs::Change::Add(flow) = change {
                if flow.counter >= ovs::MAX_COUNTERS {
                    let limit = ovs::MAX_COUNTERS as usize;
                    return Err(ApplyError::Limit { what: "flows of Open vSwitch", limit });
                }
                self.common.workers.iter().for_each(|worker| worker.cells.ovs.make_room(flow.counter));
            }
        }
        let shared = &self.common.shared;
        let applied = if waits { shared.apply_ovs(changes) } else { shared.apply_ovs_soon(changes) };
        if !applied.settled {
            tracing::warn!(
                "a worker has been in one burst for a second; it will follow Open vSwitch after that"
            );
            self.tell_all(|| Message::Answer);
        }
        Ok(())
    }

    fn ovs_counts(&self, counters: &[u32]) -> Vec<Counters> {
        let of = |counter: &u32| {
            let workers = self.common.workers.iter();
            workers.map(|worker| worker.cells.ovs.get(*counter)).fold(Counters::default(), sum)
        };
        counters.iter().map(of).collect()
    }

    fn enter_counts(&self, past: Past) {
        let mut workers = past.workers.into_iter();
        let mut own: Vec<_> =
            self.common.workers.iter().map(|_| workers.next().unwrap_or_default()).collect();
        // The earlier engine had more workers.
        own.first_mut().into_iter().for_each(|first| workers.by_ref().for_each(|gone| first.add(&gone)));
        for (worker, past) in self.common.workers.iter().zip(own) {
            let _ = worker.past.set(past);
        }
        if let Some(first) = self.common.workers.first() {
            first.cells.resume(past.rules, past.nexthops);
        }
        self.common.shared.flows().resume_created(past.flows_created);
    }

    fn workers(&self) -> Vec<WorkerCounters> {
        let workers = self.common.workers.iter().enumerate();
        let counted = workers.map(|(number, worker)| {
            let mut counters = worker.cells.snapshot(number, worker.cpu);
            worker.past.get().into_iter().for_each(|past| counters.add(past));
            counters
        });
        let mut counted: Vec<_> = counted.collect();
        if let Some(first) = counted.first_mut() {
            first.drops[DropReason::RxFull as usize] +=
                lock(&self.common.lost).values().map(|lost| lost.total).sum::<u64>();
        }
        counted
    }

    fn vif_counters(&self, vif: VifId) -> VifCounters {
        let workers = self.common.workers.iter();
        let lost = VifCounters { receive_drops: self.common.lost_at(vif), ..VifCounters::default() };
        workers.map(|worker| worker.cells.vif_counters(vif)).fold(lost, |a, b| VifCounters {
            received: sum(a.received, b.received),
            sent: sum(a.sent, b.sent),
            receive_drops: a.receive_drops + b.receive_drops,
            send_drops: a.send_drops + b.send_drops,
        })
    }

    fn drops_at(&self, vif: VifId) -> Vec<u64> {
        let at = |reason: &DropReason| {
            let counted = self.common.workers.iter().map(|worker| worker.cells.drops_at(vif, *reason)).sum();
            if *reason == DropReason::RxFull { self.common.lost_at(vif) } else { counted }
        };
        DropReason::ALL.iter().map(at).collect()
    }

    fn shaping(&self, vif: VifId) -> Shaping {
        self.control().shapers.shaping(vif)
    }

    fn rule_counters(&self, rule: RuleId) -> Counters {
        let workers = self.common.workers.iter();
        workers.map(|worker| worker.cells.rule_counters(rule)).fold(Counters::default(), sum)
    }

    fn nexthop_counters(&self, nexthop: NexthopId) -> Counters {
        let workers = self.common.workers.iter();
        workers.map(|worker| worker.cells.nexthop_counters(nexthop)).fold(Counters::default(), sum)
    }

    fn counted_nexthops(&self) -> HashMap<NexthopId, Counters> {
        let mut counted = HashMap::new();
        self.common.workers.iter().for_each(|worker| worker.cells.add_nexthops(&mut counted));
        counted
    }

    fn settle(&self) {
        // Settling is worth no more than a moment's wait: a worker that is late soon counts its packets by
        // itself.
        let deadline = Instant::now() + PATIENCE;
        let pending = self.post_all(|| Message::Settle);
        for (worker, pending) in self.common.workers.iter().zip(pending) {
            if !worker.is_stalled() {
                let _ = pending.wait(deadline);
            }
        }
    }

    fn flows(&self, each: &mut dyn FnMut(FlowInfo) -> bool) {
        self.common.shared.flows().for_each(self.common.clock.now().seconds, each);
    }

    fn enter_flows(&self, flows: &[FlowInfo]) -> usize {
        let now = self.common.clock.now().seconds;
        flows.iter().filter(|flow| self.common.shared.flows().enter(flow, now)).count()
    }

    fn remembered(&self, record: &[u64; RECORD]) -> Result<Option<FlowInfo>, BadRecord> {
        tables::remembered(record, self.common.clock.now().seconds)
    }

    fn enter_early(&self, flow: &FlowInfo, record: &[u64; RECORD]) -> Option<Entered> {
        self.common.shared.flows().enter_early(flow, record, self.common.clock.now().seconds)
    }

    fn catch_up(&self, entered: Entered, record: &[u64; RECORD]) -> Result<bool, BadRecord> {
        self.common.shared.flows().catch_up(entered, record, self.common.clock.now().seconds)
    }

    fn flush_flows(&self, which: &mut dyn FnMut(&FlowInfo) -> bool) -> usize {
        let flushed = self.common.shared.flows().flush(self.common.clock.now().seconds, which);
        self.tell_all(|| Message::Forget);
        flushed
    }

    fn flows_created(&self) -> u64 {
        self.common.shared.flows().created()
    }

    fn flow_count(&self) -> usize {
        self.common.shared.flows().len()
    }

    fn flow_use(&self, vif: VifId) -> executor::FlowUse {
        self.common.shared.flows().used_by(vif)
    }

    fn learned(&self) -> Vec<LearnedMac> {
        self.common.shared.learned(self.common.clock.now().seconds)
    }

    fn enter_learned(&self, macs: &[(Learn, Seconds)]) -> usize {
        self.common.shared.learn_all(macs, self.common.clock.now().seconds)
    }

    fn found_neighbours(&self) -> Vec<(NeighbourFound, VifId)> {
        self.common.shared.found_neighbours()
    }

    fn enter_neighbours(&self, found: &[(NeighbourFound, VifId)]) {
        self.common.shared.enter_neighbours(found, self.common.clock.now().seconds);
    }

    fn neighbours(&self) -> Vec<NeighbourInfo> {
        let mut neighbours = self.common.shared.neighbours();
        for neighbour in &mut neighbours {
            let key = (neighbour.scope, neighbour.addr);
            neighbour.held = self.common.workers.iter().map(|worker| worker.cells.held(key)).sum();
        }
        neighbours
    }

    fn explain(&self, ingress: VifId, frame: &[u8], gso_size: Option<u16>) -> Explanation {
        let snapshot = self.common.shared.snapshot();
        let now = self.common.clock.now().seconds;
        let unreachable = |scope, addr| self.common.shared.is_unreachable(scope, addr);
        let view = snapshot.view(self.common.shared.flows(), now).without(&unreachable);
        match PacketView::arrived(&view, ingress, frame, frame.len() as u32, gso_size) {
            Ok(packet) => model::explain(&view, &packet, ingress, now),
            Err(error) => Explanation {
                steps: Vec::new(),
                decision: Decision { verdict: Verdict::Drop(error.into()), effects: Effects::default() },
            },
        }
    }

    fn dropped(&self, n: usize) -> Vec<DroppedPacket> {
        let mut all: Vec<_> = self.common.workers.iter().flat_map(|worker| worker.log.read()).collect();
        all.sort_by_key(|dropped| dropped.time_ns);
        all.split_off(all.len().saturating_sub(n))
    }

    fn capture(&self, filter: CaptureFilter, to: SyncSender<Captured>) {
        let mut taps = lock(&self.common.taps);
        taps.push(Arc::new(Tap::new(filter, to)));
        // In the order in which captures were added, without delaying others.
        let pending = self.post_all(|| Message::Taps(taps.clone()));
        drop(taps);
        self.await_all(pending);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tell_all(|| Message::Stop);
        for (worker, thread) in self.common.workers.iter().zip(self.threads.drain(..)) {
            // A worker that panicked has reported it already, and a stalled one ends with the process.
            if !worker.is_stalled() {
                let _ = thread.join();
            }
        }
    }
}
