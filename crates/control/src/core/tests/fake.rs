//! Fakes: an executor that only has tables, and ports that only log.

use crate::ports::{Device, PortError, PortSpec, Ports};
use crate::rdma::RdmaStatus;
use executor::{
    BadRecord, CaptureFilter, Captured, Counters, DroppedPacket, Entered, Executor, ExecutorStatus, FlowInfo,
    FlowUse, LearnedMac, NeighbourInfo, Past, RECORD, VifCounters, WorkerCounters,
};
use hca::{ClientDescription, QpDescription};
use ipnet::IpNet;
use mem::{Opened, Port, PortStatus};
use model::{
    ApplyError, Change, Decision, Effects, Explanation, Learn, NeighbourFound, NexthopId, PacketView, RuleId,
    Seconds, Tables, Verdict, VifId,
};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex};
use uverbs::{QpState, QpType};

/// The rule of a connection that was entered early, and that of one that was removed again.
pub const EARLY: RuleId = RuleId(7);
pub const GONE: RuleId = RuleId(8);

const GONE_AWAY: &str = "somebody removed it";

#[derive(Default)]
pub struct FakeExecutor {
    tables: Mutex<Tables>,
    refuse: AtomicBool,
    applied: AtomicUsize,
    forbidden: Mutex<Option<IpNet>>,
    counted: AtomicUsize,
    nexthops: Mutex<HashMap<NexthopId, Counters>>,
    stalled: Vec<usize>,
    entered: Mutex<Vec<FlowInfo>>,
    learned: Mutex<Vec<(Learn, Seconds)>>,
}

impl FakeExecutor {
    pub fn with_stalled(worker: usize) -> Self {
        Self { stalled: vec![worker], ..Self::default() }
    }

    pub fn tables(&self) -> Tables {
        self.tables.lock().unwrap().clone()
    }

    pub fn refuse(&self, refuse: bool) {
        self.refuse.store(refuse, Ordering::Relaxed);
    }

    /// Refuses routes of this prefix.
    pub fn forbid(&self, prefix: IpNet) {
        *self.forbidden.lock().unwrap() = Some(prefix);
    }

    /// Sets every counter of every interface.
    pub fn count(&self, packets: usize) {
        self.counted.store(packets, Ordering::Relaxed);
    }

    pub fn learned_before(&self) -> Vec<(Learn, Seconds)> {
        self.learned.lock().unwrap().clone()
    }

    pub fn forget(&self) {
        self.entered.lock().unwrap().clear();
    }

    pub fn applied(&self) -> usize {
        self.applied.load(Ordering::Relaxed)
    }
}

impl Executor for FakeExecutor {
    fn status(&self) -> ExecutorStatus {
        ExecutorStatus { name: "fake".to_owned(), stalled: self.stalled.clone(), ..ExecutorStatus::default() }
    }

    fn apply(&self, changes: &[Change]) -> Result<(), ApplyError> {
        let forbidden = *self.forbidden.lock().unwrap();
        let is_forbidden =
            |change: &Change| matches!(change, Change::PutRoute { prefix, .. } if Some(*prefix) == forbidden);
        if self.refuse.load(Ordering::Relaxed) || changes.iter().any(is_forbidden) {
            return Err(ApplyError::Limit { what: "interfaces", limit: 1 });
        }
        self.applied.fetch_add(1, Ordering::Relaxed);
        let mut nexthops = self.nexthops.lock().unwrap();
        for change in changes {
            if let Change::DelNexthop(id) = change {
                nexthops.remove(id);
            }
        }
        self.tables.lock().unwrap().apply(changes)
    }

    fn enter_counts(&self, past: Past) {
        self.nexthops.lock().unwrap().extend(past.nexthops);
    }

    fn workers(&self) -> Vec<WorkerCounters> {
        Vec::new()
    }

    fn vif_counters(&self, _: VifId) -> VifCounters {
        let received = Counters { packets: self.counted.load(Ordering::Relaxed) as u64, bytes: 0 };
        VifCounters { received, ..VifCounters::default() }
    }

    fn drops_at(&self, _: VifId) -> Vec<u64> {
        vec![self.counted.load(Ordering::Relaxed) as u64; model::DropReason::ALL.len()]
    }

    fn rule_counters(&self, _: RuleId) -> Counters {
        Counters::default()
    }

    fn nexthop_counters(&self, nexthop: NexthopId) -> Counters {
        self.nexthops.lock().unwrap().get(&nexthop).copied().unwrap_or_default()
    }

    fn counted_nexthops(&self) -> HashMap<NexthopId, Counters> {
        self.nexthops.lock().unwrap().clone()
    }

    fn flows(&self, each: &mut dyn FnMut(FlowInfo) -> bool) {
        let entered = self.entered.lock().unwrap().clone();
        let _ = entered.into_iter().all(each);
    }

    fn enter_flows(&self, flows: &[FlowInfo]) -> usize {
        self.entered.lock().unwrap().extend_from_slice(flows);
        flows.len()
    }

    fn enter_learned(&self, macs: &[(Learn, Seconds)]) -> usize {
        self.learned.lock().unwrap().extend_from_slice(macs);
        macs.len()
    }

    fn remembered(&self, record: &[u64; RECORD]) -> Result<Option<FlowInfo>, BadRecord> {
        tables::remembered(record, u32::MAX)
    }

    fn enter_early(&self, flow: &FlowInfo, record: &[u64; RECORD]) -> Option<Entered> {
        let flow = FlowInfo { rule: Some(EARLY), ..flow.clone() };
        let mut entered = self.entered.lock().unwrap();
        entered.push(flow);
        Some(Entered { flow: entered.len() as u64 - 1, seq: record[0] })
    }

    fn catch_up(&self, entered: Entered, record: &[u64; RECORD]) -> Result<bool, BadRecord> {
        let here = &mut self.entered.lock().unwrap()[entered.flow as usize];
        if record[0] == entered.seq {
            here.forward.packets = record[10];
            return Ok(true);
        }
        // Other connections keep their places.
        here.rule = Some(GONE);
        Ok(false)
    }

    fn flush_flows(&self, _: &mut dyn FnMut(&FlowInfo) -> bool) -> usize {
        0
    }

    fn flows_created(&self) -> u64 {
        0
    }

    fn flow_count(&self) -> usize {
        0
    }

    fn settle(&self) {}

    fn flow_use(&self, _vif: VifId) -> FlowUse {
        FlowUse::default()
    }

    fn learned(&self) -> Vec<LearnedMac> {
        Vec::new()
    }

    fn found_neighbours(&self) -> Vec<(NeighbourFound, VifId)> {
        Vec::new()
    }

    fn enter_neighbours(&self, _: &[(NeighbourFound, VifId)]) {}

    fn neighbours(&self) -> Vec<NeighbourInfo> {
        Vec::new()
    }

    fn explain(&self, ingress: VifId, frame: &[u8], gso_size: Option<u16>) -> Explanation {
        match PacketView::parse(frame, frame.len() as u32, gso_size) {
            Ok(view) => model::explain(&self.tables(), &view, ingress, 0),
            Err(error) => Explanation {
                steps: Vec::new(),
                decision: Decision { verdict: Verdict::Drop(error.into()), effects: Effects::default() },
            },
        }
    }

    fn dropped(&self, _: usize) -> Vec<DroppedPacket> {
        Vec::new()
    }

    fn capture(&self, _: CaptureFilter, _: SyncSender<Captured>) {}
}

/// A log of what happens to ports, and the knobs of the fakes: the devices' MAC and link, and which devices
/// fail or hang.
#[derive(Clone, Default)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    mac: Arc<Mutex<Option<[u8; 6]>>>,
    refused: Arc<Mutex<String>>,
    hangs: Arc<(Mutex<String>, Condvar)>,
    down: Arc<AtomicBool>,
    elsewhere: Arc<Mutex<BTreeSet<String>>>,
    /// The windows that shall exist.
    pub windows: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Log {
    pub fn take(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub fn set_mac(&self, mac: [u8; 6]) {
        *self.mac.lock().unwrap() = Some(mac);
    }

    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Has these taps, and no others, be in another network namespace.
    pub fn set_elsewhere(&self, devices: &[&str]) {
        *self.elsewhere.lock().unwrap() = devices.iter().map(|&device| device.to_owned()).collect();
    }

    /// Refuses to open the device of this name, and no other.
    pub fn refuse(&self, device: &str) {
        device.clone_into(&mut self.refused.lock().unwrap());
    }

    /// Lets opening this device, and no other, hang until a new name is set.
    pub fn hang(&self, device: &str) {
        device.clone_into(&mut self.hangs.0.lock().unwrap());
        self.hangs.1.notify_all();
    }

    fn wait(&self, device: &str) {
        let hangs = self.hangs.0.lock().unwrap();
        drop(self.hangs.1.wait_while(hangs, |hangs| *hangs == device).unwrap());
    }

    fn note(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }
}

pub struct FakePorts {
    log: Log,
    names: Mutex<HashMap<VifId, String>>,
    last: Mutex<Vec<(usize, String)>>,
}

impl FakePorts {
    pub fn new(log: Log) -> Self {
        log.set_mac([2, 0, 0, 0, 9, 1]);
        log.refuse("refused");
        Self { log, names: Mutex::default(), last: Mutex::default() }
    }

    pub fn log(&self) -> Log {
        self.log.clone()
    }
}

struct FakePort(Log, PortSpec);

impl Port for FakePort {
    fn status(&self) -> PortStatus {
        // As `ovs` tells of its sessions: no Open vSwitch has the second port.
        let is_absent = matches!(&self.1.device, Device::Ovs { of } if of == "ovs2");
        let up = !is_absent && !self.0.down.load(Ordering::Relaxed);
        let elsewhere = match &self.1.device {
            Device::Tap { device, .. } => Some(self.0.elsewhere.lock().unwrap().contains(device)),
            _ => None,
        };
        PortStatus { up, mac: *self.0.mac.lock().unwrap(), elsewhere, ..PortStatus::default() }
    }

    fn configure(&self, mtu: u16, mac: Option<[u8; 6]>) -> std::io::Result<()> {
        if matches!(self.1.device, Device::Tap { .. }) {
            let mac = mac.map(|mac| format!(" {}", packet::Mac(mac))).unwrap_or_default();
            self.0.note(format!("configure {} {mtu}{mac}", self.1.name));
        }
        Ok(())
    }
}

impl Ports for FakePorts {
    fn tables_changed(&self) {}

    fn check(&self, spec: &PortSpec) -> Result<(), PortError> {
        let refused = self.log.refused.lock().unwrap();
        match &spec.device {
            Device::Tap { device, .. } | Device::AfPacket { device, .. } if *device == *refused => {
                Err("no such luck".into())
            }
            _ => Ok(()),
        }
    }

    fn is_of_place(&self, why: &PortError) -> bool {
        why.to_string() == GONE_AWAY
    }

    fn open(&self, spec: &PortSpec) -> Result<Opened, PortError> {
        self.check(spec)?;
        if let Device::Tap { device, .. } = &spec.device {
            self.log.wait(device);
            if device == "gone" {
                return Err(GONE_AWAY.into());
            }
        }
        self.log.note(format!("open {}", spec.name));
        let port: Arc<dyn Port> = Arc::new(FakePort(self.log.clone(), spec.clone()));
        self.last.lock().unwrap().push((Arc::as_ptr(&port).cast::<()>() as usize, spec.name.clone()));
        Ok(Opened { port, rx: Vec::new(), tx: Vec::new() })
    }

    fn attach(&self, vif: VifId, port: Opened) {
        let at = Arc::as_ptr(&port.port).cast::<()>() as usize;
        let name = self.last.lock().unwrap().iter().rev().find(|(p, _)| *p == at).unwrap().1.clone();
        self.log.note(format!("attach {name}"));
        self.names.lock().unwrap().insert(vif, name);
    }

    fn detach(&self, vif: VifId) {
        let name = self.names.lock().unwrap().remove(&vif).unwrap();
        self.log.note(format!("detach {name}"));
    }

    fn update(&self, spec: &PortSpec) {
        self.log.note(format!("update {}", spec.name));
    }

    fn keep_windows(&self, wanted: &BTreeSet<PathBuf>) {
        *self.log.windows.lock().unwrap() = wanted.clone();
    }

    fn remove_sockets(&self, left: &BTreeSet<PathBuf>) {
        left.iter().for_each(|socket| self.log.note(format!("remove {}", socket.display())));
    }

    fn window_problems(&self) -> Vec<(String, String)> {
        let is_there = !self.log.windows.lock().unwrap().is_empty();
        is_there.then(|| ("vsock".to_owned(), "no such sockets".to_owned())).into_iter().collect()
    }

    fn rdma(&self) -> Vec<RdmaStatus> {
        let qp = QpDescription {
            qpn: 17,
            kind: QpType::Rc,
            state: QpState::Reset,
            error: None,
            peer: None,
            peer_qpn: 0,
            transport: "copy",
            reason: "",
            sq_psn: 0,
            rq_psn: 0,
            path_mtu: 1024,
            retries: 0,
            direct: (0, 0),
        };
        let mut client = ClientDescription::default();
        client.qps = vec![qp];
        let status = |name: &str, clients: &[&ClientDescription]| RdmaStatus {
            name: name.to_owned(),
            clients: clients.iter().copied().cloned().collect(),
            counters: vec![("out_of_sequence", 5)],
            ..RdmaStatus::default()
        };
        vec![status("other", &[&client]), status("vm3.0", &[&client, &ClientDescription::default()])]
    }

    fn ovs(&self) -> ovs::Status {
        let refused = ovs::RefusedCount { reason: "tunnel", count: 3, last: "sequence numbers".to_owned() };
        let port = |name: &str, session, flows, refused: Vec<ovs::RefusedCount>| ovs::PortStatus {
            name: name.to_owned(),
            session,
            mtu: 1500,
            flows,
            stale: 1,
            malformed: 0,
            qos: Vec::new(),
            refused,
        };
        let session = ovs::SessionStatus {
            id: 1,
            pid: 77,
            uid: 0,
            dpdk: "DPDK 22.11.11".to_owned(),
            age: std::time::Duration::from_secs(5),
        };
        let ports = vec![port("ovs1", Some(1), 2, vec![refused]), port("ovs2", None, 1, Vec::new())];
        ovs::Status { sessions: vec![session], ports }
    }

    fn ovs_flows(&self) -> Vec<ovs::FlowStatus> {
        let names = self.names.lock().unwrap();
        let vif = |name: &str| names.iter().find(|(_, its)| *its == name).map_or(VifId(0), |(vif, _)| *vif);
        let flow = |id: u64, port: &str, state| ovs::FlowStatus {
            flow: Arc::new(model::ovs::Flow {
                id: model::ovs::FlowId(id),
                counter: 0,
                port: vif(port),
                matching: model::ovs::Match::default(),
                actions: vec![model::ovs::Action::Output(vif("ovs2"))],
            }),
            state,
            place: Some(match port {
                "ovs1" => executor::OvsPlace::Card(id - 1),
                _ => executor::OvsPlace::Host("match"),
            }),
            counters: executor::Counters { packets: id, bytes: 60 * id },
        };
        let stale = ovs::FlowState::Stale(std::time::Duration::from_secs(9));
        vec![
            flow(1, "ovs1", ovs::FlowState::Live),
            flow(2, "ovs1", ovs::FlowState::Live),
            flow(3, "ovs2", stale),
        ]
    }
}
