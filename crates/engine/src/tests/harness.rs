//! One worker's packet path over live tables, driven packet by packet.

use crate::asked::{Asked, Questions};
use crate::bfd::Bfd;
use crate::capture::DropLog;
use crate::clock::Now;
use crate::core::{Core, Ingress, Limits};
use crate::counters::WorkerCells;
use crate::pinned::Tables;
use crate::storms::Storms;
use crate::testing::{Packet, TestPort, TestRx};
use mem::{Accepts, Burst, RxQueue};
use model::{Change, Decision, DropReason, NeighbourFound, PacketView, VifId, VifKind};
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use tables::{FlowLimits, Reader, Shared, Snapshot};

pub struct Host {
    pub shared: Arc<Shared>,
    pub core: Core,
    pub ports: BTreeMap<VifId, TestPort>,
    reader: Reader<Snapshot>,
    receivers: BTreeMap<VifId, (TestRx, Ingress)>,
    burst: Burst,
    asked: mpsc::Receiver<Asked>,
    /// Packets to services among those of the last run.
    pub served: Vec<Asked>,
}

/// Interfaces in these tests have numbers below this.
const MAX_VIF: u16 = 64;

/// Packets that came out, by port.
pub type Output = BTreeMap<VifId, Vec<Packet>>;

impl Host {
    /// Creates a host with these tables. Packets are in pieces of at most `piece` bytes.
    pub fn new(changes: &[Change], neighbours: &[NeighbourFound], accepts: Accepts, piece: usize) -> Self {
        let limits = FlowLimits { new_per_second: u32::MAX, ..FlowLimits::default() };
        Self::limited(changes, neighbours, accepts, piece, limits)
    }

    /// Creates such a host with limits of the connection table.
    pub fn limited(
        changes: &[Change],
        neighbours: &[NeighbourFound],
        accepts: Accepts,
        piece: usize,
        limits: FlowLimits,
    ) -> Self {
        let shared = Arc::new(Shared::new(limits));
        let cells = Arc::new(WorkerCells::new());
        let log = Arc::new(DropLog::new());
        let now = Now::at(100_000_000_000, 0);
        let (questions, asked) = Questions::new();
        let limits = Limits {
            cache_entries: 1 << 14,
            errors_per_second: u32::MAX,
            storms: Arc::new(Storms::new(u32::MAX)),
            bfd: Bfd::over(questions.clone()),
            questions,
        };
        let mut core = Core::new(0, cells, log, now, &limits);
        let (mut ports, mut receivers) = (BTreeMap::new(), BTreeMap::new());
        for vif in (0..MAX_VIF).map(VifId) {
            let port = TestPort::new(accepts, piece);
            core.ports.attach(vif, [port.sender()].into());
            let from = Ingress::new(vif);
            receivers.insert(vif, (port.receiver(), from));
            ports.insert(vif, port);
        }
        shared.apply(changes).unwrap();
        for change in changes {
            if let Change::PutVif(vif) = change {
                core.ports.set_ovs_side(vif.id, vif.kind == VifKind::Ovs);
            }
        }
        for neighbour in neighbours {
            shared.neighbour(&shared.snapshot(), neighbour, VifId(0), 90);
        }
        let reader = shared.reader();
        Self { shared, core, ports, reader, receivers, burst: Burst::new(), asked, served: Vec::new() }
    }

    pub fn advance(&mut self, seconds: u32) {
        self.core.now = Now::at(self.core.now.ns + u64::from(seconds) * 1_000_000_000, 0);
    }

    /// Returns the result of `decide` for a packet right now.
    pub fn decide(&self, vif: VifId, packet: &PacketView<'_>) -> Decision {
        let snapshot = self.shared.snapshot();
        let now = self.core.now.seconds;
        model::decide(&snapshot.view(self.shared.flows(), now), packet, vif, now)
    }

    /// Parses a frame that arrives right now.
    ///
    /// # Errors
    /// If the frame is malformed.
    pub fn arrived<'a>(&self, vif: VifId, frame: &'a [u8]) -> Result<PacketView<'a>, packet::ParseError> {
        let (snapshot, now) = (self.shared.snapshot(), self.core.now.seconds);
        PacketView::arrived(&snapshot.view(self.shared.flows(), now), vif, frame, frame.len() as u32, None)
    }

    /// Returns the frames that leave because of a decision made right now.
    pub fn emit(&self, decision: &Decision, packet: &PacketView<'_>) -> Vec<(VifId, Vec<u8>)> {
        let (snapshot, now) = (self.shared.snapshot(), self.core.now.seconds);
        model::rewrite::emit(&snapshot.view(self.shared.flows(), now), decision, packet)
    }

    /// Sends packets into `vif`; returns the packets that come out.
    pub fn run(&mut self, vif: VifId, packets: impl IntoIterator<Item = Packet>) -> Output {
        self.served.clear();
        self.ports[&vif].send(packets);
        let (rx, from) = self.receivers.get_mut(&vif).unwrap();
        while rx.poll(&mut self.burst, usize::MAX) > 0 {
            let pinned = self.reader.pin();
            let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
            *from = from.in_tables(tables.snapshot);
            self.core.burst(tables, &self.burst, *from);
            rx.release(&mut self.burst);
        }
        self.reader.offline();
        self.served = self.asked.try_iter().collect();
        self.output()
    }

    /// Takes the identifications off tunnel packets that may be fragmented: they are the engine's own, and the reference
    /// rewrite has none.
    pub fn unnumbered(frame: &mut [u8]) {
        let Some(ip) = frame.get_mut(14..34).filter(|ip| ip[0] == 0x45 && ip[6] & 0x40 == 0) else { return };
        let is_ours = ip[12..14] == [192, 0] && ip[15] == 1 || ip[12..16] == [198, 51, 100, 1];
        if matches!(ip[9], 17 | 47) && is_ours {
            ip[4..6].fill(0);
            ip[10..12].fill(0);
            let sum = packet::checksum::sum(ip).finish();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Passes on all counts.
    pub fn settle(&mut self) {
        let pinned = self.reader.pin();
        let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
        self.core.tidy(tables, self.core.cache.lines());
        self.core.actions.settle(tables, &self.core.cells, self.core.now.seconds);
    }

    /// Decides the held packets again.
    pub fn retry_held(&mut self) -> Output {
        let pinned = self.reader.pin();
        let tables = Tables { shared: &self.shared, snapshot: pinned.get() };
        self.core.retry_held(tables, self.core.hold.len());
        self.output()
    }

    fn output(&self) -> Output {
        let taken = self.ports.iter().map(|(vif, port)| (*vif, port.take()));
        taken.filter(|(_, packets)| !packets.is_empty()).collect()
    }

    pub fn drops(&self) -> BTreeMap<DropReason, u64> {
        let counters = self.core.cells.snapshot(0, None);
        let all = DropReason::ALL.iter().zip(counters.drops);
        all.filter(|(_, n)| *n > 0).map(|(reason, n)| (*reason, n)).collect()
    }

    pub fn hits(&self) -> u64 {
        self.core.cells.hits.get()
    }
}

/// Returns the only frame that came out, and its interface.
pub fn only(output: &Output) -> (VifId, &Packet) {
    let all: Vec<_> = output.iter().flat_map(|(vif, packets)| packets.iter().map(|p| (*vif, p))).collect();
    assert_eq!(all.len(), 1, "one frame expected: {all:?}");
    all[0]
}
