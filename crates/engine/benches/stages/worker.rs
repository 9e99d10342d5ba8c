//! A worker whose clock stands still, driven burst by burst.

use super::callgrind;
use super::cycles::{self, Stage};
use crate::asked::Questions;
use crate::bfd::Bfd;
use crate::capture::DropLog;
use crate::clock::{Clock, Now};
use crate::common::ports::{Sink, Source};
use crate::core::{Core, Ingress, Limits};
use crate::counters::WorkerCells;
use crate::mailbox::Mailbox;
use crate::pinned::Tables;
use crate::shape::{BYTES, FRAMES, Inlet, Outlet, Shaper, Waker};
use crate::storms::Storms;
use mem::{BURST, Burst, RxQueue, TxQueue, backlog};
use model::{Change, NeighbourFound, Shape, VifId, ovs};
use std::sync::Arc;
use std::time::Instant;
use tables::{FlowLimits, Reader, Shared, Snapshot};

/// Number of packets that every benchmark counts.
pub const PACKETS: usize = 10_240;

const CACHE_ENTRIES: usize = 1 << 21;
const ERRORS_PER_SECOND: u32 = 100;

/// Bits a second of a shaper that never holds up a packet.
const FAST: u64 = 100_000_000_000;

/// The worker, its source of table versions, and its receiving queue.
pub struct Worker {
    shared: Arc<Shared>,
    reader: Reader<Snapshot>,
    pub core: Core,
    source: Source,
    from: Ingress,
    pub burst: Burst,
    /// The end of the queue of an interface with a shaper, and when its packets came.
    outlet: Option<(Outlet, Clock)>,
}

impl Worker {
    /// Creates a worker of a host with these tables; it receives `frames` from an interface.
    pub fn new(changes: &[Change], neighbour: &NeighbourFound, from: Ingress, frames: Vec<Vec<u8>>) -> Self {
        let limits = FlowLimits { new_per_second: u32::MAX, per_guest: 1 << 20, connections: 1 << 20 };
        let shared = Arc::new(Shared::new(limits));
        shared.apply(changes).expect("the tables");
        let now = Now::at(100_000_000_000, 0);
        shared.neighbour(&shared.snapshot(), neighbour, from.vif, now.seconds);
        let (cells, log) = (Arc::new(WorkerCells::new()), Arc::new(DropLog::new()));
        let limits = Limits {
            cache_entries: CACHE_ENTRIES,
            errors_per_second: ERRORS_PER_SECOND,
            storms: Arc::new(Storms::new(u32::MAX)),
            questions: Questions::new().0,
            bfd: Bfd::over(Questions::new().0),
        };
        let mut core = Core::new(0, cells, log, now, &limits);
        for change in changes {
            if let Change::PutVif(vif) = change {
                core.ports.attach(vif.id, [Arc::new(Sink::leaked()) as _].into());
            }
        }
        let reader = shared.reader();
        Self { shared, reader, core, source: Source::new(frames), from, burst: Burst::new(), outlet: None }
    }

    /// Forwards `packets` packets and counts one of their stages, if one is given.
    pub fn forward(&mut self, packets: usize, stage: Option<Stage>) {
        for _ in 0..packets / BURST {
            self.poll();
            let pinned = self.reader.pin();
            let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
            let (core, burst, from) = (&mut self.core, &self.burst, self.from);
            cycles::counted(stage, BURST as u64, || core.burst(tables, burst, from));
        }
    }

    /// Has packets to an interface wait for its rate.
    pub fn shape(&mut self, vif: VifId) {
        let shaper = Arc::new(Shaper::default());
        shaper.set(Shape { inward: Some(FAST), outward: None });
        let (filler, taker) = backlog(FRAMES, BYTES);
        let waker = Waker::new(Arc::new(Mailbox::new().expect("a mailbox")));
        let sink: Arc<dyn TxQueue> = Arc::new(Sink::leaked());
        // `Clock::start` faults under callgrind: rustix looks for the vDSO, which valgrind hides.
        let clock = Clock::since(Instant::now(), 0);
        let outlet = Outlet::new(vif, taker, waker.clone(), [sink.clone()].into(), shaper);
        self.core.ports.attach(vif, [Arc::new(Inlet::new(filler, waker, clock, sink)) as _].into());
        self.outlet = Some((outlet, clock));
    }

    /// Forwards a burst to an interface with a shaper, and counts a stage of that, or how its packets leave the queue.
    pub fn through_shaper(&mut self, stage: Option<Stage>, counts_leaving: bool) {
        // By this time none of them has waited.
        let now_ns = self.outlet.as_ref().map_or(0, |(_, clock)| clock.now().ns);
        self.forward(BURST, stage);
        let Some((outlet, _)) = &mut self.outlet else { return };
        let mut leave = || assert!(outlet.serve(now_ns, &mut |reason, _, _| panic!("lost: {reason:?}")));
        if counts_leaving {
            callgrind::counted(leave);
        } else {
            leave();
        }
        assert!(outlet.is_empty());
    }

    /// Receives different frames, from this interface, from now on.
    pub fn receives(&mut self, from: Ingress, frames: Vec<Vec<u8>>) {
        self.source.release(&mut self.burst);
        (self.from, self.source) = (from, Source::new(frames));
    }

    /// Programs the interface from which the worker receives with these flows of Open vSwitch.
    pub fn program(&mut self, flows: impl Iterator<Item = ovs::Flow>) {
        let changes: Vec<_> = flows.map(|flow| ovs::Change::Add(Arc::new(flow))).collect();
        self.core.cells.ovs.make_room(changes.len() as u32);
        self.shared.apply_ovs(&changes);
        self.from = self.from.in_tables(&self.shared.snapshot());
    }

    pub fn poll(&mut self) {
        self.source.release(&mut self.burst);
        self.source.poll(&mut self.burst, usize::MAX);
    }

    /// Returns the number of packets sent so far.
    pub fn sent(&self) -> usize {
        self.core.cells.snapshot(0, None).sent.packets as usize
    }
}

pub fn ingress(vif: VifId, wire: bool) -> Ingress {
    Ingress { wire, ..Ingress::new(vif) }
}
