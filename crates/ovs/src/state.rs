//! Sessions, ports and flows, and the effects of requests on them. Knows no sockets.

mod counts;
mod left;

pub(crate) use self::counts::counts_of;
use crate::counters::Page;
use crate::flows::{Flows, Held, Owner, sends_to, without};
use crate::heritage::Heritage;
use crate::kinds::qos;
use crate::port::Shared;
use crate::protocol::{AHEAD, Answer, LEVEL, Request, TOGETHER, VERSION};
use crate::ring::{Numbers, Rings, SLOTS};
use crate::status::{FlowState, FlowStatus, PortStatus, RefusedCount, SessionStatus, Status};
use executor::{Counters, OvsPlace, VifCounters};
use mem::Port;
use model::VifId;
use model::ovs::{Change, Flow, MAX_COUNTERS};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Smallest and largest MTU that a driver may set, bytes; the largest is that of Open vSwitch.
const MTUS: std::ops::RangeInclusive<u32> = 68..=9710;

/// The service's access to the executor and its tables.
pub trait Tables: Send + Sync {
    /// Changes flows. If `waits`, returns only once removals have taken effect for all packets.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    fn apply(&self, changes: &[Change], waits: bool) -> Result<(), String>;
    /// Returns counters of flows, by index; `None` once the daemon ends.
    fn counts(&self, counters: &[u32]) -> Option<Vec<Counters>>;
    /// Has workers pass on what they counted.
    fn settle(&self);
    /// Tells for each flow where its packets are forwarded; `None` without a card, or once the daemon ends.
    fn places(&self, _: &[Arc<Flow>]) -> Option<Vec<OvsPlace>> {
        None
    }
    /// Returns the guest or wire to which this OVS side belongs.
    fn port_of(&self, side: VifId) -> Option<VifId>;
    /// Returns the counters of an interface; `None` once the daemon ends.
    fn vif_counters(&self, vif: VifId) -> Option<VifCounters>;
}

/// How long flows live without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// After a session opened their port and did not make them again.
    pub sweep: Duration,
    /// After a session opened its last port, if it has some of their ports, and not all, and did not say that
    /// it has no more. An Open vSwitch on a busy machine takes seconds for a port.
    pub settle: Duration,
    /// Without a session that opens their port.
    pub stale: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            sweep: Duration::from_secs(20),
            settle: Duration::from_secs(10),
            stale: Duration::from_secs(300),
        }
    }
}

/// Pause between warnings in the log about drivers.
const WARNS: Duration = Duration::from_secs(5);

pub(crate) struct Entry {
    shared: Arc<Shared>,
    /// The guest or wire, and its OVS side, once the executor has that.
    pub(crate) vif: Option<VifId>,
    side: Option<VifId>,
    /// Counters of both at that time, which belong to earlier interfaces with the same numbers.
    base: [u64; 6],
    session: Option<u64>,
    /// Name in DPDK under which it was open last; empty if no driver said it. A port of OVS has a device, and
    /// the device has this guest or wire.
    device: String,
    /// Things that OVS does to its packets ([`qos`]).
    qos: u32,
    /// Time at which flows are removed that no session has made again.
    sweep: Option<Instant>,
}

struct Session {
    status: SessionStatus,
    since: Instant,
    has_said_hello: bool,
    /// Most answers in a message to the driver.
    answers: u32,
    /// Names of its ports, by the driver's numbers.
    ports: BTreeMap<u32, String>,
    /// Time at which it has opened all its ports, as far as anybody can tell.
    settled: Option<Instant>,
}

pub struct Reply {
    pub answer: Answer,
    pub files: Vec<OwnedFd>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, files: Vec::new() }
    }
}

/// All sessions, ports and flows.
pub struct State {
    pub(crate) tables: Arc<dyn Tables>,
    times: Times,
    page: Page,
    pub(crate) ports: BTreeMap<String, Entry>,
    /// The ports of all interfaces, for their links.
    devices: HashMap<VifId, Weak<dyn Port>>,
    sessions: BTreeMap<u64, Session>,
    pub(crate) flows: Flows,
    pub(crate) heritage: Heritage,
    /// Time before which counters are not brought up to date again.
    next_count: Option<Instant>,
    /// Sessions that must end because a port of theirs is gone. Their drivers then open all ports again.
    ended: Vec<u64>,
    pub(crate) refused: BTreeMap<(String, &'static str), (u64, String)>,
    /// Time of the last warning about a driver.
    warned: Option<Instant>,
}

/// Logs a warning about a driver, which may cause it without end, so the log is written only once in a while.
fn warn_of(last: &mut Option<Instant>, session: u64, text: &str, now: Instant) {
    if last.is_none_or(|last| now.saturating_duration_since(last) >= WARNS) {
        tracing::warn!(session, "{text}");
        *last = Some(now);
    }
}

/// Logs why a driver does not get a port, because OVS shows the reason only in its own log.
fn warn_of_port(last: &mut Option<Instant>, session: u64, text: &str, now: Instant) {
    warn_of(last, session, &format!("Open vSwitch does not get a port: {text}"), now);
}

impl State {
    /// Starts without sessions, ports and flows.
    ///
    /// # Errors
    /// There is no memory for counters.
    pub fn new(tables: Arc<dyn Tables>, times: Times) -> Result<Self, uverbs::MemoryError> {
        Ok(Self {
            tables,
            times,
            page: Page::new()?,
            ports: BTreeMap::new(),
            devices: HashMap::new(),
            sessions: BTreeMap::new(),
            flows: Flows::default(),
            heritage: Heritage::default(),
            next_count: None,
            ended: Vec::new(),
            refused: BTreeMap::new(),
            warned: None,
        })
    }

    /// Adds a port that drivers can open, and removes an earlier one of the same name.
    pub fn add_port(&mut self, shared: Arc<Shared>, now: Instant) {
        let name = shared.spec.name.clone();
        if let Some(old) = self.ports.get(&name).map(|entry| entry.shared.clone()) {
            self.remove_port(&old, now);
        }
        let entry = Entry {
            shared,
            vif: None,
            side: None,
            base: [0; 6],
            session: None,
            device: String::new(),
            qos: 0,
            sweep: None,
        };
        self.ports.insert(name, entry);
    }

    /// Notes that the executor has the port of this interface.
    pub fn attached(&mut self, vif: VifId, port: &Arc<dyn Port>, side_of: Option<&Arc<Shared>>) {
        self.devices.retain(|_, device| device.strong_count() > 0);
        self.devices.insert(vif, Arc::downgrade(port));
        let Some(shared) = side_of else { return };
        let (port, side) = (self.tables.port_of(vif), Some(vif));
        let base = port.and_then(|port| self.numbers(port, vif));
        if let Some(entry) = self.ports.get_mut(&shared.spec.name)
            && (entry.vif, entry.side) != (port, side)
        {
            (entry.vif, entry.side, entry.base) = (port, side, base.unwrap_or_default());
        }
    }

    /// Removes a port with its flows and those that send to it, and ends the session that had it.
    pub fn remove_port(&mut self, shared: &Arc<Shared>, now: Instant) {
        let name = &shared.spec.name;
        if !self.ports.get(name).is_some_and(|entry| Arc::ptr_eq(&entry.shared, shared)) {
            return;
        }
        let Some(entry) = self.ports.remove(name) else { return };
        if let Some(vif) = entry.vif {
            let all = self.flows.find(|held| held.flow.port == vif || sends_to(&held.flow, vif));
            self.remove(&all, now);
        }
        self.ended.extend(entry.session);
    }

    /// Takes the sessions that must end; [`Self::end`] must follow for each.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// Begins the session of a driver that connected.
    pub fn begin(&mut self, id: u64, peer: uverbs::Peer, now: Instant) {
        let status =
            SessionStatus { id, pid: peer.pid, uid: peer.uid, dpdk: String::new(), age: Duration::ZERO };
        let session = Session {
            status,
            since: now,
            has_said_hello: false,
            answers: 1,
            ports: BTreeMap::new(),
            settled: None,
        };
        self.sessions.insert(id, session);
    }

    /// Ends the session of a driver that is gone. Its flows go on without it.
    pub fn end(&mut self, id: u64, now: Instant) {
        let Some(session) = self.sessions.remove(&id) else { return };
        // OVS forwarded the packets of these, and nobody does now.
        let own = |held: &Held| held.owner == Owner::Session(id) && self.is_left_to_ovs(&held.flow, held.cut);
        for flow in self.flows.find(own) {
            self.forget(flow, now);
        }
        for name in session.ports.values() {
            self.close(name, id);
        }
        self.flows.leave(id, now);
    }

    fn close(&mut self, name: &str, session: u64) {
        if let Some(entry) = self.ports.get_mut(name).filter(|entry| entry.session == Some(session)) {
            (entry.session, entry.sweep, entry.qos) = (None, None, 0);
            entry.shared.take_away();
        }
    }

    /// Is true if a session may send other requests than a hello.
    pub(crate) fn has_said_hello(&self, id: u64) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.has_said_hello)
    }

    /// Returns the user of a session's driver.
    pub(crate) fn user(&self, id: u64) -> u32 {
        self.sessions.get(&id).map_or(0, |session| session.status.uid)
    }

    pub fn answers(&self, id: u64) -> usize {
        self.sessions.get(&id).map_or(1, |session| session.answers as usize)
    }

    /// Carries out any request that does not make or destroy a flow.
    pub(crate) fn handle_other(&mut self, id: u64, request: Request<'_>, now: Instant) -> Reply {
        let Some(session) = self.sessions.get_mut(&id) else { return gone().into() };
        if let Request::Hello { version, answers, dpdk, .. } = request {
            if version != VERSION {
                let text = format!("viaductd speaks version {VERSION} of the protocol, the driver {version}");
                return Answer::refuse(Errno::PROTO, text).into();
            }
            (session.has_said_hello, session.status.dpdk) = (true, dpdk);
            session.answers = answers.clamp(1, AHEAD);
            return match self.page.file().try_clone_to_owned() {
                Ok(file) => {
                    let answer = Answer {
                        counters: MAX_COUNTERS,
                        together: TOGETHER,
                        level: LEVEL,
                        ..Answer::default()
                    };
                    Reply { answer, files: vec![file] }
                }
                Err(e) => Answer::refuse(Errno::MFILE, e).into(),
            };
        }
        if !session.has_said_hello {
            return Answer::refuse(Errno::PROTO, "the first message is a hello").into();
        }
        match request {
            Request::PortOpen { port, name, down, device } => self.open(id, port, name, down, device, now),
            Request::PortClose { port } => self.close_port(id, port, now).into(),
            Request::PortMtu { port, mtu } => self.set_mtu(id, port, mtu).into(),
            Request::PortLink { port, down } => self.set_link(id, port, down).into(),
            Request::PortQos { port, qos } => self.set_qos(id, port, qos, now).into(),
            Request::Count => self.count(now).into(),
            Request::Settled => self.settle(id, now).into(),
            Request::FlowFlush { port } => self.flush(id, port, now).into(),
            Request::Hello { .. } | Request::FlowCreate(_) | Request::FlowDestroy { .. } => gone().into(),
        }
    }

    fn open(
        &mut self,
        id: u64,
        number: u32,
        name: String,
        down: bool,
        device: String,
        now: Instant,
    ) -> Reply {
        let Some(session) = self.sessions.get_mut(&id) else { return gone().into() };
        if session.ports.contains_key(&number) {
            return Answer::refuse(Errno::EXIST, format!("port {number} is open")).into();
        }
        let Some(entry) = self.ports.get_mut(&name) else {
            let text = format!("there is no guest or wire {name:?} with mode = \"ovs\"");
            warn_of_port(&mut self.warned, id, &text, now);
            return Answer::refuse(Errno::NODEV, text).into();
        };
        if let Some(other) = entry.session {
            let text = format!("\"{name}\" is open already, in session {other}");
            warn_of_port(&mut self.warned, id, &text, now);
            return Answer::refuse(Errno::BUSY, text).into();
        }
        let made =
            Rings::create().and_then(|(rings, file)| Ok((file, entry.shared.give_to(Arc::new(rings))?)));
        let (file, bell) = match made {
            Ok(made) => made,
            Err(e) => return Answer::refuse(Errno::NOMEM, e).into(),
        };
        let answer = Answer {
            mtu: entry.shared.spec.mtu.into(),
            slots: SLOTS,
            mac: address(&entry.shared),
            ..Answer::default()
        };
        (entry.session, entry.sweep) = (Some(id), Some(now + self.times.sweep));
        session.ports.insert(number, name.clone());
        session.settled = Some(now + self.times.settle);
        self.set_device(&name, device, now);
        self.set_down(&name, down);
        self.tell(&name);
        Reply { answer, files: vec![file, bell] }
    }

    pub(crate) fn name(&self, id: u64, number: u32) -> Option<&String> {
        self.sessions.get(&id)?.ports.get(&number)
    }

    /// Returns the interface behind a session's number of a port.
    pub(crate) fn vif(&self, id: u64, number: u32) -> Option<VifId> {
        self.ports.get(self.name(id, number)?)?.vif
    }

    /// Closes a port with its flows, and those that send to it: OVS may have a different guest or wire at that
    /// port now, and forwards their packets itself.
    fn close_port(&mut self, id: u64, number: u32, now: Instant) -> Answer {
        if let Some(vif) = self.vif(id, number) {
            self.leave_to_ovs(vif, now);
        }
        let answer = self.flush(id, number, now);
        let session = self.sessions.get_mut(&id);
        if let Some(name) = session.and_then(|session| session.ports.remove(&number)) {
            self.close(&name, id);
        }
        answer
    }

    fn set_mtu(&self, id: u64, number: u32, mtu: u32) -> Answer {
        let Some(entry) = self.name(id, number).and_then(|name| self.ports.get(name)) else { return gone() };
        if !MTUS.contains(&mtu) {
            let text = format!("an MTU is {} to {}", MTUS.start(), MTUS.end());
            return Answer::refuse(Errno::INVAL, text);
        }
        entry.shared.set_mtu(mtu);
        Answer::default()
    }

    fn set_link(&mut self, id: u64, number: u32, down: bool) -> Answer {
        let Some(name) = self.name(id, number).cloned() else { return gone() };
        self.set_down(&name, down);
        Answer::default()
    }

    /// Sets a port down or up, as OVS has it. Flows from it and to it change, and keep their numbers and
    /// counters.
    fn set_down(&mut self, name: &str, down: bool) {
        let Some(entry) = self.ports.get(name).filter(|entry| entry.shared.is_down() != down) else { return };
        entry.shared.set_down(down);
        let Some(vif) = entry.vif else { return };
        self.apply_all(&self.changes_of(vif));
    }

    pub(crate) fn down(&self) -> Vec<VifId> {
        self.ports.values().filter(|entry| entry.shared.is_down()).filter_map(|entry| entry.vif).collect()
    }

    fn flush(&mut self, id: u64, number: u32, now: Instant) -> Answer {
        let Some(vif) = self.vif(id, number) else { return gone() };
        let all = self.flows.find(|held| held.flow.port == vif);
        self.remove(&all, now);
        Answer::default()
    }

    fn remove(&mut self, flows: &[u64], now: Instant) {
        let changes: Vec<_> = flows.iter().filter_map(|id| self.flows.removal(*id)).collect();
        if changes.is_empty() {
            return;
        }
        if let Err(e) = self.tables.apply(&changes, true) {
            tracing::error!("flows of Open vSwitch are not removed: {e}");
        }
        flows.iter().for_each(|id| self.forget(*id, now));
    }

    /// Forgets a flow that the tables do not have any more.
    pub(crate) fn forget(&mut self, flow: u64, now: Instant) {
        if let Some(flow) = self.flows.remove(flow, now) {
            self.heritage.leave(&flow, None, now, &counts_of(&*self.tables));
        }
    }

    /// Publishes counters and links, and removes flows that nobody has made again in time.
    pub fn tick(&mut self, now: Instant) {
        let names: Vec<_> = self.ports.keys().cloned().collect();
        names.iter().for_each(|name| self.tell(name));
        self.heritage.settle(None, now, &counts_of(&*self.tables));
        if !self.sessions.is_empty() {
            self.publish_all();
        }
        self.sweep(now);
    }

    /// Is true if [`Self::tick`] has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.flows.iter().next().is_none()
    }

    /// Tells a driver a port's link and counters.
    fn tell(&self, name: &str) {
        let Some(entry) = self.ports.get(name) else { return };
        let (Some(vif), Some(side)) = (entry.vif, entry.side) else { return };
        let up = self.devices.get(&vif).and_then(Weak::upgrade).is_some_and(|port| port.is_up());
        let Some(mut all) = self.numbers(vif, side) else { return };
        all.iter_mut().zip(entry.base).for_each(|(number, base)| *number = number.wrapping_sub(base));
        entry.shared.tell(up, &Numbers { all });
    }

    /// Returns packets, bytes and drops of what a port received, then of what was sent by it.
    fn numbers(&self, vif: VifId, side: VifId) -> Option<[u64; 6]> {
        let VifCounters { received, sent, send_drops, .. } = self.tables.vif_counters(vif)?;
        // A packet that a flow drops is not lost; one that found no room on its way to OVS is.
        let missed = self.tables.vif_counters(side)?.send_drops;
        Some([received.packets, received.bytes, missed, sent.packets, sent.bytes, send_drops])
    }

    pub fn status(&self, now: Instant) -> Status {
        let age = |session: &Session| SessionStatus {
            age: now.saturating_duration_since(session.since),
            ..session.status.clone()
        };
        let sessions = self.sessions.values().filter(|session| session.has_said_hello).map(age).collect();
        let port = |(name, entry): (&String, &Entry)| {
            let vif = entry.vif;
            let own =
                |held: &&Held| Some(held.flow.port) == vif && !self.is_left_to_ovs(&held.flow, held.cut);
            let own: Vec<_> = self.flows.iter().filter(own).collect();
            let stale = own.iter().filter(|held| matches!(held.owner, Owner::Stale(_))).count();
            let refused = self.refused.iter().filter(|((of, _), _)| of == name);
            PortStatus {
                name: name.clone(),
                session: entry.session,
                mtu: entry.shared.mtu(),
                flows: own.len(),
                stale,
                malformed: entry.shared.malformed(),
                qos: qos::names(entry.qos),
                refused: refused
                    .map(|((_, reason), (count, last))| RefusedCount {
                        reason,
                        count: *count,
                        last: last.clone(),
                    })
                    .collect(),
            }
        };
        Status { sessions, ports: self.ports.iter().map(port).collect() }
    }

    /// Returns the flows that are carried out here, the oldest first.
    pub fn flows(&self, now: Instant) -> Vec<FlowStatus> {
        let here = |held: &&Held| !self.is_left_to_ovs(&held.flow, held.cut);
        let all: Vec<_> = self.flows.iter().filter(here).collect();
        let indexes: Vec<_> = all.iter().map(|held| held.flow.counter).collect();
        let counts = self.tables.counts(&indexes).unwrap_or_default();
        let down = self.down();
        let flows: Vec<_> = all.iter().map(|held| without(&held.flow, &down)).collect();
        let places = self.tables.places(&flows).unwrap_or_default();
        let places = places.into_iter().map(Some).chain(std::iter::repeat(None));
        let state = |owner| match owner {
            Owner::Session(_) => FlowState::Live,
            Owner::Stale(since) => FlowState::Stale(now.saturating_duration_since(since)),
        };
        let with = |((held, counters), place): ((&Held, Counters), _)| FlowStatus {
            place,
            flow: held.flow.clone(),
            state: state(held.owner),
            counters: Counters {
                packets: counters.packets.wrapping_sub(held.base.packets),
                bytes: counters.bytes.wrapping_sub(held.base.bytes),
            },
        };
        all.into_iter().zip(counts).zip(places).map(with).collect()
    }
}

/// Makes the answer that there is no such port or session.
fn gone() -> Answer {
    Answer::refuse(Errno::NODEV, "the port is not open")
}

/// Makes a port's MAC in OVS. It is no guest's, and the same each time. It begins with fe, like those of
/// libvirt's taps.
fn address(shared: &Shared) -> [u8; 6] {
    // FNV-1a of the name.
    let hash =
        shared.spec.name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    [0xfe, a, b, c, d, e]
}
