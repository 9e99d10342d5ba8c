//! Fakes: tables that remember flows, and a driver without a socket.

use crate::port::{self, OvsPort, Shared};
use crate::protocol::{Create, Item, Request};
use crate::state::{Reply, State, Tables, Times};
use executor::{Counters, VifCounters};
use mem::Opened;
use model::VifId;
use model::ovs::{Change, Flow, FlowId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The flows of the tables, and their counters.
#[derive(Default)]
pub struct Fake {
    pub flows: Mutex<BTreeMap<(VifId, FlowId), Arc<Flow>>>,
    pub counts: Mutex<BTreeMap<u32, Counters>>,
    /// Counters as they are once workers have passed on what they counted, and how often they did.
    pub pending: Mutex<BTreeMap<u32, Counters>>,
    pub settled: AtomicUsize,
    pub vifs: Mutex<BTreeMap<VifId, VifCounters>>,
    /// Whether the daemon ends, so that there are no counters any more.
    pub ends: AtomicBool,
    /// The reason for refusing changes.
    pub refuses: Mutex<Option<String>>,
    /// The last byte of a MAC: changes with a new flow that matches this MAC are refused.
    pub refuses_mac: Mutex<Option<u8>>,
    /// How many times something was changed.
    pub applied: AtomicUsize,
    /// How many of these changes waited for workers.
    pub waited: AtomicUsize,
}

impl Tables for Fake {
    fn apply(&self, changes: &[Change], waits: bool) -> Result<(), String> {
        if let Some(reason) = &*self.refuses.lock().unwrap() {
            return Err(reason.clone());
        }
        let refused = *self.refuses_mac.lock().unwrap();
        let last_byte = |change: &Change| match change {
            Change::Add(flow) => Some(flow.matching.key().eth_dst.0[5]),
            _ => None,
        };
        let is_refused = |change: &Change| refused.is_some() && last_byte(change) == refused;
        if changes.iter().any(is_refused) {
            return Err("not this".into());
        }
        self.applied.fetch_add(1, Ordering::Relaxed);
        self.waited.fetch_add(waits.into(), Ordering::Relaxed);
        let mut flows = self.flows.lock().unwrap();
        for change in changes {
            match change {
                Change::Add(flow) => drop(flows.insert((flow.port, flow.id), flow.clone())),
                Change::Remove { port, id } => drop(flows.remove(&(*port, *id))),
                Change::Flush { port } => flows.retain(|(of, _), _| of != port),
            }
        }
        Ok(())
    }

    fn counts(&self, counters: &[u32]) -> Option<Vec<Counters>> {
        let counts = self.counts.lock().unwrap();
        let all = counters.iter().map(|index| counts.get(index).copied().unwrap_or_default());
        (!self.ends.load(Ordering::Relaxed)).then(|| all.collect())
    }

    fn settle(&self) {
        self.settled.fetch_add(1, Ordering::Relaxed);
        self.counts.lock().unwrap().extend(std::mem::take(&mut *self.pending.lock().unwrap()));
    }

    /// Returns the interface of an OVS side, whose number is 100 higher.
    fn port_of(&self, side: VifId) -> Option<VifId> {
        side.0.checked_sub(100).map(VifId)
    }

    fn vif_counters(&self, vif: VifId) -> Option<VifCounters> {
        let counters = self.vifs.lock().unwrap().get(&vif).cloned().unwrap_or_default();
        (!self.ends.load(Ordering::Relaxed)).then_some(counters)
    }
}

impl State {
    pub fn handle(&mut self, id: u64, request: Request<'_>, now: Instant) -> Reply {
        self.handle_all(id, [request], now).remove(0)
    }
}

/// A state with ports p0, p1, ... of interfaces 0, 1, ....
pub struct World {
    pub tables: Arc<Fake>,
    pub state: State,
    pub ports: Vec<(Arc<Shared>, Opened)>,
    pub now: Instant,
}

impl World {
    pub fn new(ports: u16) -> Self {
        let tables = Arc::new(Fake::default());
        let state = State::new(tables.clone(), Times::default()).unwrap();
        let mut world = Self { tables, state, ports: Vec::new(), now: Instant::now() };
        (0..ports).for_each(|number| world.add_port(number));
        world
    }

    pub fn add_port(&mut self, number: u16) {
        let (shared, opened) = port::open(OvsPort { name: format!("p{number}"), mtu: 1500 }).unwrap();
        self.state.add_port(shared.clone(), self.now);
        self.state.attached(VifId(100 + number), &opened.port, Some(&shared));
        self.ports.push((shared, opened));
    }

    /// Begins a session that has said hello and opened these ports.
    pub fn driver(&mut self, session: u64, ports: &[u32]) {
        self.state.begin(session, uverbs::Peer { pid: 1, uid: 0 }, self.now);
        let hello = Request::Hello { version: 1, pid: 1, answers: 0, dpdk: "DPDK 22.11.11".into() };
        assert_eq!(self.ask(session, hello), 0);
        for port in ports {
            assert_eq!(self.ask(session, open(*port, &format!("p{port}"))), 0);
        }
    }

    /// Sends a request and returns the status of the answer.
    pub fn ask(&mut self, session: u64, request: Request<'_>) -> u32 {
        self.state.handle(session, request, self.now).answer.status
    }

    pub fn create(&mut self, session: u64, create: &Create<'_>) -> Result<u64, String> {
        let answer = self.state.handle(session, Request::FlowCreate(create.clone()), self.now).answer;
        if answer.status == 0 { Ok(answer.flow) } else { Err(answer.text) }
    }

    pub fn flows(&self) -> usize {
        self.tables.flows.lock().unwrap().len()
    }
}

/// Makes a request to open a port that is up.
pub fn open(port: u32, name: &str) -> Request<'static> {
    Request::PortOpen { port, name: name.into(), down: false, device: String::new() }
}

/// Makes a flow of a port for a destination MAC. It sends to `output`, or drops without one.
pub fn to_mac(port: u32, last: u8, output: Option<u32>) -> Create<'static> {
    let mut spec = vec![0; 20];
    spec[5] = last;
    let mut mask = vec![0; 20];
    mask[..6].fill(0xff);
    let item =
        Item { kind: crate::kinds::item::ETH, spec: Some(spec.leak()), mask: Some(mask.leak()), last: None };
    let action = match output {
        Some(output) => (crate::kinds::action::OUTPUT, &*output.to_le_bytes().to_vec().leak()),
        None => (crate::kinds::action::DROP, &[][..]),
    };
    let actions = vec![(crate::kinds::action::COUNT, &[][..]), action];
    Create { port, attributes: crate::kinds::TRANSFER, items: vec![item], actions, ..Create::default() }
}
