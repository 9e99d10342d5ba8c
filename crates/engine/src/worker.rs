//! A worker: one thread that polls the queues it owns, and sleeps when they are empty.

use crate::capture::{DropLog, LogBudget};
use crate::clock::Clock;
use crate::core::{Core, Limits};
use crate::counters::WorkerCells;
use crate::mailbox::{self, Mailbox, Receipt};
use crate::message::Message;
use crate::pinned::Tables;
use crate::receivers::{Receiver, Receivers};
use crate::shape::{Outlet, Pace, Shaper};
use crate::turn::Turn;
use mem::{RxQueue, cycles};
use model::{Seconds, VifId};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tables::{Reader, Shared, Snapshot};

/// Bytes taken from a queue at a time: no guest holds up a worker longer than copying these takes.
const BYTES_PER_BURST: usize = 128 << 10;
/// How long a worker polls in vain before it sleeps. Waking costs a guest tens of microseconds and us system calls: if
/// packets come at least every [`LONGEST_SPIN`], the worker stays awake for the next one.
const SHORTEST_SPIN: Duration = Duration::from_micros(60);
const LONGEST_SPIN: Duration = Duration::from_millis(2);
/// Rounds in vain between readings of the clock.
const ROUNDS_PER_LOOK: u32 = 16;
/// If a yield takes this long, another thread used the CPU.
const CROWDED: Duration = Duration::from_micros(5);
/// If so much time passes between two looks at the clock, another thread had the CPU although we did not yield: the
/// kernel gives each its share. For a while after that, we do not spend ours on polling in vain.
const PREEMPTED: Duration = Duration::from_micros(500);
const CROWDED_FOR: Duration = Duration::from_millis(10);
/// Nanoseconds within which all lines of the cache are visited while there is work, as a power of two: two seconds.
const WALK_NS_BITS: u32 = 31;
/// Most lines visited in a round.
const LINES_PER_ROUND: usize = 256;
/// Held packets looked at in a round.
const HELD_PER_ROUND: usize = 64;
/// How often held packets are looked at when nothing changes, nanoseconds.
const HELD_EVERY_NS: u64 = 20_000_000;
/// How often a worker that sleeps looks whether there is room for those who wait for an Open vSwitch, nanoseconds.
const WAITING_EVERY_NS: i64 = 100_000;

/// If serving the queues takes so many cycles (0.3 to 0.6 ms on x86), the worker may have waited for memory of a guest.
const LONG: u64 = 1 << 20;

/// The parts of a worker that others hold too.
pub(crate) struct Parts {
    pub number: usize,
    pub cpu: Option<usize>,
    pub shared: Arc<Shared>,
    pub mailbox: Arc<Mailbox<Message>>,
    pub cells: Arc<WorkerCells>,
    pub log: Arc<DropLog>,
    pub clock: Clock,
    pub limits: Limits,
}

pub(crate) struct Worker {
    cpu: Option<usize>,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox<Message>>,
    clock: Clock,
    epoll: OwnedFd,
    reader: Reader<Snapshot>,
    receivers: Receivers,
    core: Core,
    /// Whether packets were forwarded that are not all counted yet.
    unsettled: bool,
    /// Receipts of those who wait until all packets are counted, and how many lines of the cache are still to
    /// be visited for that.
    settling: (Vec<Receipt>, usize),
    /// How long it polls in vain before it sleeps.
    spin: Duration,
    /// Whether other threads want its CPU, and until when they do at least.
    is_crowded: bool,
    crowded_until: Instant,
    /// When it looked at the clock last.
    looked: Instant,
    /// When held packets are looked at next, and the epoch of the last time.
    held: (u64, u64),
    /// How many of the packets held then are still to be looked at.
    held_left: usize,
    /// Whether a guest has begun to wait for its Open vSwitch so recently that it is not time to sleep.
    waits_shortly: bool,
    /// The ends of the queues of shaped interfaces from which this worker sends.
    outlets: Vec<Outlet>,
    /// When a shaper lets packets go that waited in the last round, nanoseconds; `u64::MAX`: none did.
    due_ns: u64,
    /// How often it waited, as far as it knows.
    waits: i64,
    /// When the cache was last tidied, in nanoseconds, and the actions, in seconds.
    tidied: (u64, Seconds),
}

impl Worker {
    /// Creates a worker without queues.
    ///
    /// # Errors
    /// If epoll fails.
    pub fn new(parts: Parts) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, parts.mailbox.event(), data, epoll::EventFlags::IN)?;
        let core = Core::new(parts.number, parts.cells, parts.log, parts.clock.now(), &parts.limits);
        Ok(Self {
            cpu: parts.cpu,
            reader: parts.shared.reader(),
            shared: parts.shared,
            mailbox: parts.mailbox,
            clock: parts.clock,
            epoll,
            receivers: Receivers::default(),
            core,
            unsettled: false,
            settling: (Vec::new(), 0),
            spin: SHORTEST_SPIN,
            is_crowded: false,
            crowded_until: Instant::now(),
            looked: Instant::now(),
            held: (0, 0),
            held_left: 0,
            waits_shortly: false,
            outlets: Vec::new(),
            due_ns: u64::MAX,
            waits: 0,
            tidied: (0, 0),
        })
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        self.pin_to_cpu();
        if let Err(error) = mem::prepare_to_signal() {
            tracing::error!(%error, "drivers that wait for packets can't be notified; raise sysctl fs.aio-max-nr");
        }
        let (mut idle_rounds, mut idle_since) = (0, None);
        let mut last = cycles::now();
        loop {
            // One message a round, so that many of them do not hold up packets.
            if let Some((message, receipt)) = self.mailbox.next() {
                if !self.obey(message, receipt) {
                    return;
                }
                last = cycles::now();
            }
            let busy = self.round(last);
            let now = cycles::now();
            if now - last > LONG {
                self.look_for_waits();
            }
            let cycles = &self.core.cells.cycles;
            if busy { &cycles.busy } else { &cycles.idle }.add(now - last);
            last = now;
            if busy || self.waits_shortly {
                (idle_rounds, idle_since) = (0, None);
                continue;
            }
            idle_rounds += 1;
            if self.is_crowded || idle_rounds % ROUNDS_PER_LOOK == 0 {
                self.look(idle_since.is_some());
                let since: Instant = *idle_since.get_or_insert(self.looked);
                let idle = self.looked - since;
                // If other threads want our CPU, they get it: we yield once, and sleep if that brought nothing.
                if idle >= self.spin() || self.is_crowded && idle_rounds > 1 {
                    self.sleep();
                    self.spin = spin_after(since.elapsed());
                    (idle_rounds, idle_since) = (0, None);
                    let woken = cycles::now();
                    self.core.cells.cycles.asleep.add(woken - last);
                    last = woken;
                } else if self.is_crowded || idle >= SHORTEST_SPIN {
                    self.give_way();
                    last = cycles::now();
                }
            }
        }
    }

    /// Returns how long to poll in vain before sleeping. If packets wait for a shaper, it is known when to come back.
    fn spin(&self) -> Duration {
        if self.due_ns == u64::MAX { self.spin } else { SHORTEST_SPIN }
    }

    /// Tells all queues if the worker waited since it last slept or looked.
    #[cold]
    fn look_for_waits(&mut self) {
        let before = std::mem::replace(&mut self.waits, mem::waits());
        if self.waits != before {
            self.receivers.iter_mut().for_each(|receiver| receiver.queue.suspect());
            self.core.ports.suspect();
        }
    }

    /// Looks at the clock; `again`: nothing has come since the last time.
    fn look(&mut self, again: bool) {
        let last = std::mem::replace(&mut self.looked, Instant::now());
        if again && self.looked - last >= PREEMPTED {
            self.crowded_until = self.looked + CROWDED_FOR;
            self.is_crowded = true;
        }
    }

    /// Lets other threads use our CPU: the packets we poll for may have to come from them.
    fn give_way(&mut self) {
        let began = Instant::now();
        rustix::thread::sched_yield();
        self.looked = Instant::now();
        self.is_crowded = self.looked - began >= CROWDED || self.looked < self.crowded_until;
    }

    fn pin_to_cpu(&self) {
        let Some(cpu) = self.cpu else { return };
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::warn!(cpu, %error, "worker can't be pinned to its CPU");
        }
    }

    /// Polls the queues whose turn it is, and forwards their packets. `now` is in cycles. Returns whether there was a
    /// packet.
    fn round(&mut self, now: u64) -> bool {
        let Self { receivers, reader, core, .. } = self;
        let mut waits_shortly = false;
        self.due_ns = u64::MAX;
        let mut busy = receivers.round(now, |receiver| {
            if receiver.patience.waits() {
                let now = self.clock.now().ns;
                if receiver.is_held(&core.ports, now) {
                    waits_shortly |= receiver.patience.waits_shortly(now);
                    return false;
                }
            }
            let mut most = BYTES_PER_BURST;
            if receiver.shaper.is_some() {
                match receiver.pace(self.clock.now().ns) {
                    Pace::Go(bytes) => most = most.min(bytes),
                    Pace::Wait(until) => {
                        self.due_ns = self.due_ns.min(until);
                        return false;
                    }
                }
            }
            if receiver.queue.poll(&mut receiver.burst, most) == 0 {
                return false;
            }
            core.now = self.clock.now();
            receiver.spend(core.now.ns);
            let pinned = reader.pin();
            let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
            receiver.look_up_kind(tables.snapshot);
            core.burst(tables, &receiver.burst, receiver.from);
            receiver.queue.release(&mut receiver.burst);
            receiver.sits_out = core.turn.rounds();
            if core.asked_ovs {
                receiver.asked_ovs(&core.ports, core.now.ns);
            }
            true
        });
        busy |= serve_outlets(&mut self.outlets, core, self.clock, &mut self.due_ns);
        self.waits_shortly = waits_shortly || self.is_due_shortly();
        if busy {
            self.unsettled = true;
            self.in_passing();
        } else {
            self.reader.pin();
        }
        busy |= self.look_at_held();
        busy |= self.settle_some();
        busy
    }

    /// Returns whether a shaper lets packets go so soon that it is not worth to sleep.
    fn is_due_shortly(&self) -> bool {
        self.due_ns != u64::MAX && self.due_ns < self.clock.now().ns + SHORTEST_SPIN.as_nanos() as u64
    }

    /// Tidies a part of the cache, so that all of it is visited in two seconds; and once a second, the actions.
    fn in_passing(&mut self) {
        let elapsed = self.core.now.ns.saturating_sub(self.tidied.0);
        let lines = ((elapsed * self.core.cache.lines() as u64) >> WALK_NS_BITS) as usize;
        if lines > 0 {
            self.tidied.0 = self.core.now.ns;
            let pinned = self.reader.pin();
            let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
            self.core.tidy(tables, lines.min(LINES_PER_ROUND));
            if self.tidied.1 != self.core.now.seconds {
                self.tidied.1 = self.core.now.seconds;
                self.core.actions.settle(tables, &self.core.cells, self.core.now.seconds);
            }
        }
    }

    /// Counts what some lines of the cache hold, where somebody waits for that. Returns whether it did.
    fn settle_some(&mut self) -> bool {
        let (waiting, left) = &mut self.settling;
        if waiting.is_empty() {
            return false;
        }
        self.core.now = self.clock.now();
        let pinned = self.reader.pin();
        let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
        let lines = (*left).min(LINES_PER_ROUND);
        self.core.tidy(tables, lines);
        *left -= lines;
        if *left == 0 || self.core.cache.is_empty() {
            self.core.actions.settle(tables, &self.core.cells, self.core.now.seconds);
            waiting.clear();
        }
        true
    }

    /// Decides held packets again, some in each round, when there may be news. Returns whether there are more to look
    /// at.
    fn look_at_held(&mut self) -> bool {
        if !self.core.holds() {
            return false;
        }
        self.core.now = self.clock.now();
        self.core.give_up_fragments();
        if self.core.hold.is_empty() {
            return false;
        }
        let pinned = self.reader.pin();
        let (next, epoch) = self.held;
        if self.held_left == 0 {
            if epoch == pinned.epoch() && self.core.now.ns < next {
                return false;
            }
            self.held = (self.core.now.ns + HELD_EVERY_NS, pinned.epoch());
            self.held_left = self.core.hold.len();
        }
        let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
        self.core.follow(tables);
        let looked_at = self.core.retry_held(tables, self.held_left.min(HELD_PER_ROUND));
        self.held_left = self.held_left.saturating_sub(looked_at).min(self.core.hold.len());
        self.held_left > 0
    }

    /// Sleeps until there is a packet or a message.
    fn sleep(&mut self) {
        // If a queue waits for an Open vSwitch, the worker looks again soon, whatever is in the queue.
        let waits = self.receivers.iter_mut().any(|receiver| receiver.patience.waits());
        let now_ns = self.clock.now().ns;
        let due = self.rest(now_ns);
        self.receivers.iter_mut().for_each(|receiver| receiver.watch(&self.epoll));
        let began = cycles::now();
        let busy = self.receivers.iter_mut().position(Receiver::arm);
        if cycles::now() - began > LONG {
            self.look_for_waits();
        }
        if let Some(at) = busy {
            return self.disarm(at + 1);
        }
        if self.mailbox.has_mail() || due.is_some_and(|due| due <= now_ns) {
            return self.disarm(usize::MAX);
        }
        self.reader.offline();
        self.core.cells.sleeps.add(1);
        let timeout = if waits {
            Some(Timespec { tv_sec: 0, tv_nsec: WAITING_EVERY_NS })
        } else if self.core.holds() {
            Some(Timespec { tv_sec: 0, tv_nsec: HELD_EVERY_NS as _ })
        } else if self.unsettled {
            Some(Timespec { tv_sec: 1, tv_nsec: 0 })
        } else {
            None
        };
        let timeout = sooner(timeout, due.map(|due| due - now_ns));
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
        let woken = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()).unwrap_or(1);
        self.reader.online();
        self.mailbox.drain();
        self.waits = mem::waits();
        let began = cycles::now();
        self.disarm(usize::MAX);
        if cycles::now() - began > LONG {
            self.look_for_waits();
        }
        if woken == 0 && !waits && due.is_none() && !self.core.holds() {
            self.settle_all();
        }
    }

    /// Has queues rest that wait for their shapers, and the next packet for an idle shaped interface wake the worker.
    /// Returns when the first shaper lets packets go.
    fn rest(&mut self, now_ns: u64) -> Option<u64> {
        let receivers = self.receivers.iter_mut().map(|receiver| receiver.rest(now_ns));
        let outlets = self.outlets.iter().map(|outlet| {
            outlet.arm();
            let due = outlet.due(now_ns);
            due.inspect(|_| outlet.disarm())
        });
        receivers.chain(outlets).flatten().min()
    }

    /// Reverts `arm` for the first `armed` queues.
    fn disarm(&mut self, armed: usize) {
        self.outlets.iter().for_each(|outlet| outlet.disarm());
        self.receivers.iter_mut().take(armed).for_each(|receiver| receiver.queue.disarm());
    }

    /// Passes on all counts after a second without packets, so that the worker may sleep indefinitely.
    fn settle_all(&mut self) {
        self.core.now = self.clock.now();
        let pinned = self.reader.pin();
        let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
        self.core.tidy(tables, self.core.cache.lines());
        self.core.actions.settle(tables, &self.core.cells, self.core.now.seconds);
        self.unsettled = false;
    }

    /// Does what a message says; the receipt is dropped when that is done. False if the worker is to end.
    fn obey(&mut self, message: Message, receipt: Receipt) -> bool {
        match message {
            Message::Receive { vif, queue, shaper } => self.receive(vif, queue, shaper),
            Message::Send { vif, queues } => self.core.ports.attach(vif, queues),
            Message::Shape(vif, shaper) => {
                let of = self.receivers.iter_mut().filter(|receiver| receiver.from.vif == vif);
                of.for_each(|receiver| receiver.shaper.clone_from(&shaper));
            }
            Message::Outlet(outlet) => self.outlets.push(*outlet),
            Message::EndOutlet(vif) => {
                // The oldest: its successor may be there already.
                if let Some(at) = self.outlets.iter().position(|outlet| outlet.vif == vif) {
                    let outlet = self.outlets.remove(at);
                    self.flush(outlet);
                }
            }
            Message::Flush => {
                for outlet in std::mem::take(&mut self.outlets) {
                    let outlet = self.flush(outlet);
                    self.outlets.push(outlet);
                }
            }
            Message::Detach(vif) => self.detach(vif),
            Message::OvsSides(sides) => {
                sides.iter().for_each(|(vif, is)| self.core.ports.set_ovs_side(*vif, *is));
            }
            Message::Meters(meters) => self.core.meters = meters,
            Message::Taps(taps) => self.core.taps = taps,
            Message::Solicit(question) => {
                self.core.now = self.clock.now();
                let pinned = self.reader.pin();
                let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
                self.core.turn = Turn::NEW;
                self.core.solicit(tables, &question, None);
            }
            Message::Tell(unasked, _place) => {
                self.core.now = self.clock.now();
                self.core.turn = Turn::NEW;
                self.core.send_all(&unasked.frame, &unasked.to);
            }
            Message::Settle => {
                self.settling.0.push(receipt);
                self.settling.1 = self.core.cache.lines();
            }
            Message::Forget => {
                let pinned = self.reader.pin();
                self.core.clear(Tables { shared: &self.shared, snapshot: pinned.get() });
            }
            Message::Pause => {
                // The sender of the message now knows that the worker pauses.
                drop(receipt);
                return self.pause();
            }
            Message::Resume | Message::Answer => {}
            Message::Stop => return false,
        }
        true
    }

    /// Touches no queue until it is told to go on, and obeys other messages: those that send wait until then. False if
    /// the worker is to end.
    fn pause(&mut self) -> bool {
        let mut waiting = Vec::new();
        loop {
            match self.mailbox.next() {
                Some((Message::Resume, _)) => {
                    waiting.into_iter().for_each(|message| self.mailbox.post(message));
                    return true;
                }
                Some((Message::Pause, _)) => {}
                // A different daemon may use the queues at this time.
                Some((message @ (Message::Solicit(_) | Message::Tell(..)), _)) => {
                    if waiting.len() < mailbox::FULL {
                        waiting.push(message);
                    }
                }
                Some((message, receipt)) => {
                    if !self.obey(message, receipt) {
                        return false;
                    }
                }
                None => {
                    self.reader.offline();
                    let event = self.mailbox.event();
                    let _ = poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN)], None);
                    self.reader.online();
                    self.mailbox.drain();
                }
            }
        }
    }

    /// Sends all that waits for a shaped interface, whatever its rate.
    fn flush(&mut self, mut outlet: Outlet) -> Outlet {
        self.core.now = self.clock.now();
        self.core.log_budget = LogBudget::new();
        let (now_ns, vif) = (self.core.now.ns, outlet.vif);
        outlet.flush(now_ns, &mut |reason, len, head| self.core.lost_again(vif, reason, len, head));
        outlet
    }

    fn receive(&mut self, vif: VifId, queue: Box<dyn RxQueue>, shaper: Option<Arc<Shaper>>) {
        let mut receiver = Receiver::new(vif, queue);
        receiver.shaper = shaper;
        let event = receiver.event();
        if let Err(error) = epoll::add(&self.epoll, receiver.queue.event_fd(), event, epoll::EventFlags::IN) {
            tracing::error!(%vif, %error, "can't wait for this queue, so it is not polled");
            return;
        }
        receiver.queue.disarm();
        self.receivers.push(receiver);
    }

    fn detach(&mut self, vif: VifId) {
        for receiver in self.receivers.remove(vif) {
            // Deleting can't fail, because the queue was added before; besides, its descriptor is closed with
            // it.
            let _ = epoll::delete(&self.epoll, receiver.queue.event_fd());
        }
        self.core.ports.detach(vif);
    }
}

/// Sends what waits for shaped interfaces, as far as their rates allow. Returns whether anything left, and lowers
/// `due_ns` to when the next packet may leave.
fn serve_outlets(outlets: &mut [Outlet], core: &mut Core, clock: Clock, due_ns: &mut u64) -> bool {
    let mut busy = false;
    for outlet in outlets.iter_mut().filter(|outlet| !outlet.is_empty()) {
        core.now = clock.now();
        core.log_budget = LogBudget::new();
        let (now_ns, vif) = (core.now.ns, outlet.vif);
        busy |= outlet.serve(now_ns, &mut |reason, len, head| core.lost_again(vif, reason, len, head));
        *due_ns = (*due_ns).min(outlet.due(now_ns).unwrap_or(u64::MAX));
    }
    busy
}

/// Returns the earlier one of two times to sleep; the second is in nanoseconds.
fn sooner(timeout: Option<Timespec>, other_ns: Option<u64>) -> Option<Timespec> {
    let Some(ns) = other_ns else { return timeout };
    let other = Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    match timeout {
        Some(timeout) if (timeout.tv_sec, timeout.tv_nsec) < (other.tv_sec, other.tv_nsec) => Some(timeout),
        _ => Some(other),
    }
}

/// Returns how long to poll in vain next time, after `idle` without packets.
fn spin_after(idle: Duration) -> Duration {
    if idle <= LONGEST_SPIN { LONGEST_SPIN } else { SHORTEST_SPIN }
}
