//! Applications in this process that behave like the verbs library.
#![allow(dead_code)] // not every test needs all of it

pub mod guests;

use hca::{ClientDescription, Device, DeviceSpec, Fabric, Limits};
use mem::{Burst, Offload, Opened};
use packet::roce;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uverbs::qp::{access, mask};
use uverbs::{
    AddressVector, AsyncEvent, Capacity, Completion, CompletionQueue, Connection, CreateQp, DeviceInfo, Dial,
    Doorbells, Endpoint, Given, JoinError, Joined, Memory, QpAttributes, QpState, QpType, Refusal, Reply,
    Request, Rung, Segment, Shape, Uuid, VERSION, Windows, WorkQueue, WorkRequest, completion,
};

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const SIGNALED: u8 = 2;
pub const SOLICITED: u8 = 4;

/// Pairs of ports that may not talk.
#[derive(Clone, Default)]
pub struct Forbidden(pub Arc<std::sync::Mutex<Vec<(u16, u16)>>>);

impl hca::Rules for Forbidden {
    fn lets(&self, from: u16, flow: &hca::RoceFlow, to: u16) -> bool {
        assert_eq!(flow.source.is_ipv4(), flow.destination.is_ipv4());
        !self.0.lock().unwrap().contains(&(from, to))
    }
}

/// Guests of one host, in one network.
pub struct Host {
    pub fabric: Arc<Fabric>,
    pub dir: tempfile::TempDir,
}

/// Devices trust each other from this number on.
pub const TRUSTING: u8 = 8;

pub fn spec(number: u8, vrf: u32) -> DeviceSpec {
    DeviceSpec {
        guest: format!("vm{number}"),
        vrf,
        mac: [2, 0, 0, 0, 0, number],
        addresses: vec![IpAddr::from([10, 1, 1, number]), format!("fd00:1::{number}").parse().unwrap()],
        mtu: 1500,
        limits: Limits { qps: 64, mrs: 64, registered: 1 << 30, ..Limits::default() },
        trust: (number >= TRUSTING).then(|| "these".into()),
        is_watched: false,
        rate: None,
    }
}

pub fn gid(number: u8) -> Ipv6Addr {
    std::net::Ipv4Addr::new(10, 1, 1, number).to_ipv6_mapped()
}

impl Host {
    pub fn new() -> Self {
        Self::with(Forbidden::default())
    }

    pub fn with(rules: Forbidden) -> Self {
        Self { fabric: Arc::new(Fabric::new(Box::new(rules))), dir: tempfile::tempdir().unwrap() }
    }

    /// Creates a host whose devices may use this many descriptors and mappings.
    pub fn limited(descriptors: u64, mappings: u64) -> Self {
        let rules = Box::new(Forbidden::default());
        let fabric = Arc::new(Fabric::limited(rules, descriptors, mappings));
        Self { fabric, dir: tempfile::tempdir().unwrap() }
    }

    pub fn socket(&self, number: u8) -> PathBuf {
        self.dir.path().join(format!("vm{number}"))
    }

    pub fn device(&self, number: u8) -> Device {
        self.device_in(number, 1)
    }

    pub fn device_in(&self, number: u8, vrf: u32) -> Device {
        self.device_with_port(number, vrf).0
    }

    /// Creates a device, and the port through which its packets leave.
    pub fn device_with_port(&self, number: u8, vrf: u32) -> (Device, Opened) {
        self.device_of(number, spec(number, vrf))
    }

    pub fn device_of(&self, number: u8, spec: DeviceSpec) -> (Device, Opened) {
        let socket = sockets::Place { path: self.socket(number), owner: None, mode: 0o600 };
        let port = ringport::RingPort { mtu: 1500, slots: 256 };
        let (opened, uplink, downlink) = ringport::open(&port).unwrap();
        let device = Device::open(spec, &socket, &sockets::Here, &self.fabric, uplink, downlink).unwrap();
        device.set_port(number.into());
        (device, opened)
    }
}

pub struct App {
    pub connection: Connection,
    pub windows: Windows,
    pub dial: Dial,
    pub info: DeviceInfo,
    pub bells: Doorbells,
    pub wake: OwnedFd,
    pub events: OwnedFd,
    pub pd: u32,
    /// How long its queue pairs wait for answers (exponent; 0: forever).
    pub timeout: u32,
}

pub struct Cq {
    pub handle: u32,
    pub queue: CompletionQueue,
}

pub struct Qp {
    pub qpn: u32,
    pub sends: WorkQueue,
    pub receives: Option<WorkQueue>,
    bell: u32,
}

pub struct Srq {
    pub handle: u32,
    pub queue: WorkQueue,
}

pub fn open(path: &Path) -> Connection {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    Connection::new(socket)
}

pub fn own_memory() -> OwnedFd {
    std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap().into()
}

/// Returns the descriptors that come with an answer between processes of one kernel.
pub fn descriptors(given: Vec<Given>) -> Vec<OwnedFd> {
    Given::descriptors(given).collect()
}

impl App {
    pub fn attach(path: &Path) -> Self {
        Self::join(&Endpoint::Socket(path.into())).unwrap()
    }

    /// Connects as a program of a virtual machine does, if the endpoint is one.
    pub fn join(endpoint: &Endpoint) -> Result<Self, JoinError> {
        Self::join_as(endpoint, 0)
    }

    /// Joins as a connection of the program whose secret has these bytes; 0 stands for a program without other
    /// connections.
    pub fn join_as(endpoint: &Endpoint, program: u8) -> Result<Self, JoinError> {
        let Joined { mut connection, windows, dial } = endpoint.connect()?;
        let memory = own_memory();
        let along = [memory.as_fd().into()];
        let along = if matches!(connection, Connection::Local(_)) { &along[..] } else { &[] };
        let hello = Request::Hello { version: VERSION, token: 0, program: Uuid([program; 16]) };
        connection.send(&hello, along).unwrap();
        let (reply, given) = connection.receive::<Result<Reply, Refusal>>().unwrap();
        let Ok(Reply::Device(info)) = reply else { panic!("{reply:?}") };
        let [bells, wake, events] = <[Given; 3]>::try_from(given).unwrap();
        let bells = windows.map(bells, Doorbells::bytes(info.doorbells)).unwrap();
        let bells = Doorbells::new(bells, info.doorbells);
        let (wake, events) = (dial.socket(wake).unwrap(), dial.socket(events).unwrap());
        let mut app = Self { connection, windows, dial, info, bells, wake, events, pd: 0, timeout: 15 };
        app.pd = app.handle(&Request::AllocPd);
        Ok(app)
    }

    pub fn ask(&mut self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        self.send_all(request).map(|(reply, given)| (reply, descriptors(given)))
    }

    /// Sends a request, and returns the answer with all that comes along.
    pub fn send_all(&mut self, request: &Request) -> Result<(Reply, Vec<Given>), Refusal> {
        self.connection.send(request, &[]).unwrap();
        let (reply, given) = self.connection.receive::<Result<Reply, Refusal>>().unwrap();
        reply.map(|reply| (reply, given))
    }

    /// Maps the only memory that came along.
    fn map(&self, given: Vec<Given>, len: usize) -> Memory {
        let [given] = <[Given; 1]>::try_from(given).unwrap();
        self.windows.map(given, len).unwrap()
    }

    pub fn handle(&mut self, request: &Request) -> u32 {
        match self.ask(request).unwrap().0 {
            Reply::Handle(handle) => handle,
            other => panic!("{other:?}"),
        }
    }

    pub fn register(&mut self, memory: &[u8], access: u32) -> u32 {
        let address = memory.as_ptr() as u64;
        let length = memory.len() as u64;
        match self
            .ask(&Request::RegMr { pd: self.pd, address, length, iova: address, access, pages: vec![] })
            .unwrap()
            .0
        {
            Reply::Mr { mr, lkey, rkey } => {
                assert_eq!((mr, lkey), (rkey, rkey));
                mr
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn cq(&mut self, entries: u32, channel: Option<u32>) -> Cq {
        let (reply, given) =
            self.send_all(&Request::CreateCq { entries, channel, timestamps: true }).unwrap();
        let Reply::Cq { cq, entries } = reply else { panic!("{reply:?}") };
        let memory = self.map(given, completion::bytes(entries));
        Cq { handle: cq, queue: CompletionQueue::new(memory, entries) }
    }

    pub fn srq(&mut self) -> Srq {
        let (reply, given) =
            self.send_all(&Request::CreateSrq { pd: self.pd, max_wr: 16, max_sge: 2 }).unwrap();
        let Reply::Srq { srq, queue, max_wr, .. } = reply else { panic!("{reply:?}") };
        let memory = Arc::new(self.map(given, queue.end()));
        Srq { handle: srq, queue: WorkQueue::new(memory, queue, max_wr).unwrap() }
    }

    pub fn qp(&mut self, kind: QpType, cq: &Cq, srq: Option<u32>) -> Qp {
        let capacity = Capacity {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let asked = CreateQp {
            pd: self.pd,
            qp_type: kind,
            send_cq: cq.handle,
            recv_cq: cq.handle,
            srq,
            capacity,
            sq_sig_all: false,
        };
        let (reply, given) = self.send_all(&Request::CreateQp(asked)).unwrap();
        let Reply::Qp { qpn, send, receive, memory, doorbell, .. } = reply else { panic!("{reply:?}") };
        let memory = Arc::new(self.map(given, memory as usize));
        let end = |shape: Shape| WorkQueue::new(memory.clone(), shape, 64).unwrap();
        Qp { qpn, sends: end(send), receives: receive.map(end), bell: doorbell }
    }

    pub fn modify(&mut self, qpn: u32, mask: u32, attributes: QpAttributes) -> Result<(), Refusal> {
        self.ask(&Request::ModifyQp { qpn, mask, attributes }).map(|_| ())
    }

    /// Connects a queue pair: takes it to the state in which it sends.
    pub fn connect(&mut self, qp: &Qp, kind: QpType, peer: Ipv6Addr, peer_qpn: u32) {
        let mut attributes = QpAttributes {
            qp_state: QpState::Init as u32,
            port_num: 1,
            qkey: 0x1234,
            qp_access_flags: access::ALL,
            ..QpAttributes::default()
        };
        let identity = if kind == QpType::Ud { mask::QKEY } else { mask::ACCESS_FLAGS };
        self.modify(qp.qpn, mask::STATE | mask::PKEY_INDEX | mask::PORT | identity, attributes).unwrap();
        attributes.qp_state = QpState::ReadyToReceive as u32;
        attributes.path_mtu = 3;
        attributes.dest_qp_num = peer_qpn;
        attributes.max_dest_rd_atomic = 4;
        attributes.min_rnr_timer = 1;
        attributes.ah = vector(peer);
        let rtr = match kind {
            QpType::Ud => mask::STATE,
            QpType::Uc => mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN,
            QpType::Rc => {
                let uc = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
                uc | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER
            }
        };
        self.modify(qp.qpn, rtr, attributes).unwrap();
        attributes.qp_state = QpState::ReadyToSend as u32;
        (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry) = (self.timeout, 7, 7);
        attributes.max_rd_atomic = 4;
        let reliable = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        let rts = mask::STATE | mask::SQ_PSN | if kind == QpType::Rc { reliable } else { 0 };
        self.modify(qp.qpn, rts, attributes).unwrap();
    }

    fn ring(&self, bell: u32) {
        if self.bells.ring(bell) == Rung::Asleep {
            rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).unwrap();
        }
    }

    pub fn post_send(&self, qp: &mut Qp, request: WorkRequest, segments: &[Segment]) {
        let request = WorkRequest { segments: segments.len() as u16, ..request };
        assert!(qp.sends.fill(&request, segments));
        qp.sends.publish();
        if !qp.sends.is_spared_doorbell() {
            self.ring(qp.bell);
        }
    }

    pub fn post_receive(&self, qp: &mut Qp, id: u64, segments: &[Segment]) {
        let request = WorkRequest { id, segments: segments.len() as u16, ..WorkRequest::default() };
        let queue = qp.receives.as_mut().unwrap();
        assert!(queue.fill(&request, segments));
        queue.publish();
        if queue.is_awaited() {
            self.ring(qp.bell);
        }
    }

    /// Reads the next asynchronous event.
    pub fn event(&self) -> AsyncEvent {
        let mut bytes = [0; 8];
        wait_readable(&self.events);
        assert_eq!(rustix::io::read(&self.events, &mut bytes).unwrap(), 8);
        AsyncEvent::from_bytes(bytes)
    }
}

pub fn wait_readable(descriptor: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut wanted = [PollFd::new(descriptor, PollFlags::IN)];
    assert_eq!(poll(&mut wanted, Some(&limit)), Ok(1), "nothing came");
}

pub fn vector(dgid: Ipv6Addr) -> AddressVector {
    AddressVector { dgid, sgid_index: 1, port_num: 1, is_global: true, ..AddressVector::default() }
}

/// Waits for the next completion.
pub fn next(cq: &mut Cq) -> Completion {
    let mut completion = None;
    until(|| {
        completion = cq.queue.poll();
        completion.is_some()
    });
    completion.unwrap()
}

/// Waits for something that must happen.
pub fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
}

/// Returns the descriptions of a device's applications. `Device::describe` does not wait for threads that a busy
/// machine gives no CPU for a while; this does.
pub fn described(device: &Device) -> Vec<ClientDescription> {
    let described = device.ask().wait(Instant::now() + PATIENCE);
    assert!(described.iter().all(|client| !client.is_stuck), "one does not answer");
    described
}

pub fn segment(memory: &[u8], lkey: u32) -> Segment {
    Segment { address: memory.as_ptr() as u64, len: memory.len() as u32, lkey }
}

/// Two connected applications with a buffer each.
pub struct Two {
    pub host: Host,
    pub devices: [Device; 2],
    pub a: App,
    pub b: App,
    pub qa: Qp,
    pub qb: Qp,
    pub ca: Cq,
    pub cb: Cq,
    pub ma: Box<[u8]>,
    pub mb: Box<[u8]>,
    pub ka: u32,
    pub kb: u32,
}

pub const SIZE: usize = 1 << 20;

pub fn two(kind: QpType) -> Two {
    let host = Host::new();
    let devices = [host.device(1), host.device(2)];
    let (one, other) = (host.socket(1), host.socket(2));
    between(kind, host, devices, &one, &other)
}

/// Connects applications of two devices.
pub fn between(kind: QpType, host: Host, devices: [Device; 2], one: &Path, other: &Path) -> Two {
    let mut a = App::attach(one);
    let mut b = App::attach(other);
    let (ca, cb) = (a.cq(128, None), b.cq(128, None));
    let (qa, qb) = (a.qp(kind, &ca, None), b.qp(kind, &cb, None));
    a.connect(&qa, kind, gid(2), qb.qpn);
    b.connect(&qb, kind, gid(1), qa.qpn);
    let ma: Box<[u8]> = (0..SIZE).map(|i| (i * 7 / 3) as u8).collect();
    let mb: Box<[u8]> = vec![0; SIZE].into();
    let (ka, kb) = (a.register(&ma, access::ALL), b.register(&mb, access::ALL));
    Two { host, devices, a, b, qa, qb, ca, cb, ma, mb, ka, kb }
}

/// Offset of the IP header in a frame.
pub const IP: usize = 14;

/// Returns the frames that a device has sent.
pub fn frames(port: &mut Opened) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    port.rx[0].poll(&mut burst, usize::MAX);
    let copied = burst.packets().iter().map(|packet| {
        let mut bytes = vec![0; packet.len as usize];
        mem::gather(burst.segments(packet), 0, &mut bytes);
        bytes
    });
    let copied = copied.collect();
    port.rx[0].release(&mut burst);
    copied
}

/// Waits for the next frame that a device sends, and checks that it is alone.
pub fn frame(port: &mut Opened) -> Vec<u8> {
    let mut all = Vec::new();
    until(|| {
        all.extend(frames(port));
        !all.is_empty()
    });
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Gives a frame to a device.
pub fn put(port: &mut Opened, frame: &[u8]) {
    port.tx[0].burst(&mut |room| room.put(frame, &[], 0, 0, &Offload::default()).unwrap());
}

/// Changes a frame, and returns it with the checksums that belong to the change.
pub fn sealed(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut frame);
    frame[IP + 10..IP + 12].fill(0);
    let sum = packet::checksum::sum(&frame[IP..IP + 20]).finish();
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    let end = frame.len() - 4;
    let icrc = roce::icrc(&frame[IP..end]).unwrap();
    frame[end..].copy_from_slice(&icrc);
    frame
}
