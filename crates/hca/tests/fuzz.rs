//! A hostile program at the device's socket: whatever it requests, in whatever order, and whatever it does to what it
//! shares, the device serves others, and recovers everything once the program is gone.

use crate::common;
use crate::common::{App, Host, TRUSTING, gid, open, own_memory, spec, until, vector};
use hca::Device;
use rustix::fs::FallocateFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use uverbs::cm::{CmOption, CmParameters, CmRequest};
use uverbs::qp::mask;
use uverbs::work::opcode;
use uverbs::{
    Backing, Capacity, Connection, CreateQp, Extent, Lent, Memory, QpAttributes, QpState, QpType, Refusal,
    Reply, Request, Segment, Shape, Uuid, VERSION, WorkQueue, WorkRequest,
};

/// The next step of a program: its kind, its object, and numbers.
type Step = (u8, u8, u32, u32, u64);

/// Memory that it may register, so that the test's own memory is out of its reach.
const ROOM: usize = 1 << 16;

/// Number of our threads that panicked.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// The device, which survives all programs, and a well-behaved program that runs meanwhile.
struct World {
    host: Host,
    device: Device,
    modest: App,
    memory: &'static mut [u8],
}

fn world() -> &'static Mutex<World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    WORLD.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            eprintln!("panicked: {info}");
            before(info);
        }));
        let host = Host::new();
        let device = host.device(TRUSTING);
        let modest = App::attach(&host.socket(TRUSTING));
        Mutex::new(World { host, device, modest, memory: vec![0; ROOM].leak() })
    })
}

/// A queue pair, with its queues if the program fills them as the library does.
struct Qp {
    qpn: u32,
    doorbell: u32,
    sends: WorkQueue,
    receives: Option<WorkQueue>,
}

struct Program<'a> {
    world: &'a mut World,
    app: App,
    manager: Option<Connection>,
    handles: Vec<u32>,
    keys: Vec<u32>,
    qps: Vec<Qp>,
    files: Vec<OwnedFd>,
}

/// Returns a multicast group.
fn group() -> std::net::Ipv6Addr {
    std::net::Ipv4Addr::new(239, 1, 2, 3).to_ipv6_mapped()
}

impl Program<'_> {
    /// Picks one of the numbers that the device gave out, or any other.
    fn pick(numbers: &[u32], wanted: u32) -> u32 {
        let known = numbers.get(wanted as usize / 2 % numbers.len().max(1));
        if wanted.is_multiple_of(2) { known.copied().unwrap_or(wanted) } else { wanted }
    }

    fn handle(&self, wanted: u32) -> u32 {
        Self::pick(&self.handles, wanted)
    }

    fn qpn(&self, wanted: u32) -> u32 {
        Self::pick(&self.qps.iter().map(|qp| qp.qpn).collect::<Vec<_>>(), wanted)
    }

    /// Picks an address in the program's memory, or one where nothing is.
    fn place(&self, number: u64) -> u64 {
        let start = self.world.memory.as_ptr() as u64;
        if number.is_multiple_of(8) { number % 4096 } else { start + number % ROOM as u64 }
    }

    /// Makes a request, and a descriptor to go with it.
    fn request(&self, (_, which, a, b, c): Step) -> (Request, Option<OwnedFd>) {
        let of = |pick: u8| which % 21 == pick;
        let pd = if b % 5 == 0 { self.handle(b) } else { self.app.pd };
        let (address, length) = (self.place(c), u64::from(b) % (ROOM as u64 / 2));
        let request = match which % 21 {
            0 => Request::AllocPd,
            1 => Request::DeallocPd { pd },
            2 | 3 => {
                let (start, len) = (address & !4095, 4096 * (c % 4));
                let file = Extent { address: start, len, backing: Backing::File };
                let pages = if of(3) { vec![file] } else { vec![] };
                let inside = address + length <= self.world.memory.as_ptr_range().end as u64;
                let length = if inside { length } else { 1 };
                Request::RegMr { pd, address, length, iova: c, access: a & 15, pages }
            }
            4 => Request::ReregMr {
                mr: Self::pick(&self.keys, a),
                pd: Some(pd),
                range: None,
                access: Some(b & 31),
            },
            5 => Request::DeregMr { mr: Self::pick(&self.keys, a) },
            6 => Request::CreateChannel,
            7 => Request::DestroyChannel { channel: self.handle(a) },
            8 => Request::CreateCq {
                entries: 1 << (a % 24) >> 1,
                channel: (b % 2 == 0).then(|| self.handle(b)),
                timestamps: b % 3 == 0,
            },
            9 => Request::ResizeCq { cq: self.handle(a), entries: b % 300 },
            10 => Request::TellChannel { cq: self.handle(a) },
            11 => Request::DestroyCq { cq: self.handle(a) },
            12 => Request::CreateSrq { pd, max_wr: a % 20_000, max_sge: b % 40 },
            13 => Request::ArmSrq { srq: self.handle(a), limit: b },
            14 => Request::DestroySrq { srq: self.handle(a) },
            15 => Request::CreateQp(CreateQp {
                pd,
                qp_type: [QpType::Rc, QpType::Uc, QpType::Ud][a as usize % 3],
                send_cq: self.handle(b),
                recv_cq: self.handle(b),
                srq: (c % 4 == 0).then(|| self.handle(a)),
                capacity: Capacity {
                    max_send_wr: a % 64,
                    max_recv_wr: b % 64,
                    max_send_sge: (c % 34) as u32,
                    max_recv_sge: (c % 5) as u32,
                    max_inline_data: b % 1026,
                },
                sq_sig_all: c % 2 == 0,
            }),
            16 => {
                let attributes = QpAttributes {
                    qp_state: a % 8,
                    dest_qp_num: self.qpn(b),
                    ah: vector(gid(TRUSTING)),
                    port_num: 1,
                    path_mtu: 1 + (c % 6) as u32,
                    qp_access_flags: b & 15,
                    qkey: b,
                    rq_psn: a,
                    sq_psn: a,
                    ..QpAttributes::default()
                };
                Request::ModifyQp { qpn: self.qpn(a), mask: c as u32, attributes }
            }
            17 => Request::DestroyQp { qpn: self.qpn(a) },
            18 => {
                let to = [gid(a as u8), group(), gid(TRUSTING), gid(TRUSTING)][a as usize % 4];
                Request::CreateAh { pd, vector: vector(to) }
            }
            19 => match a % 3 {
                0 => Request::Direct { qpn: self.qpn(b) },
                1 => Request::Pages { qpn: self.qpn(b), rkey: Self::pick(&self.keys, a) },
                _ => Request::Memory { qpn: self.qpn(b) },
            },
            _ => match a % 6 {
                4 => Request::AttachMcast { qpn: self.qpn(b), gid: group() },
                5 => Request::DetachMcast { qpn: self.qpn(b), gid: group() },
                0 => Request::TellPeer { qpn: self.qpn(b) },
                1 => Request::PeerIsLow { qpn: self.qpn(b) },
                2 => Request::QueryQp { qpn: self.qpn(b) },
                _ => Request::Hello { version: b, token: c, program: Uuid([b as u8; 16]) },
            },
        };
        let file = match c % 5 {
            0 => Some(own_memory()),
            1 => Memory::create("pages", 4096 * (1 + c as usize % 4)).ok().map(|(_, file)| file),
            _ => None,
        };
        (request, file)
    }

    fn ask(&mut self, step: Step) -> bool {
        let (request, file) = self.request(step);
        let along: Vec<_> = file.iter().map(|file| Lent::from(file.as_fd())).collect();
        let said = self.app.connection.send(&request, &along);
        let Ok((reply, given)) = said.and_then(|()| self.app.connection.receive::<Result<Reply, Refusal>>())
        else {
            return false;
        };
        let files = common::descriptors(given);
        match reply {
            Ok(Reply::Handle(handle)) => self.handles.push(handle),
            Ok(Reply::Cq { cq, .. }) => self.handles.push(cq),
            Ok(Reply::Srq { srq, .. }) => self.handles.push(srq),
            Ok(Reply::Mr { mr, .. }) => self.keys.push(mr),
            Ok(Reply::Qp { qpn, send, receive, memory, doorbell, .. }) => {
                let memory = Arc::new(Memory::open(&files[0], memory as usize).unwrap());
                let end = |shape: Shape| WorkQueue::new(memory.clone(), shape, 64).unwrap();
                self.qps.push(Qp { qpn, doorbell, sends: end(send), receives: receive.map(end) });
            }
            _ => {}
        }
        self.files.extend(files);
        true
    }

    /// Connects a queue pair to another of its own, step by step.
    fn connect(&mut self, a: u32, b: u32) -> bool {
        let (qpn, peer) = (self.qpn(a & !1), self.qpn(b & !1));
        let to = |state: QpState| QpAttributes {
            qp_state: state as u32,
            port_num: 1,
            qp_access_flags: 15,
            path_mtu: 3,
            dest_qp_num: peer,
            ah: vector(gid(TRUSTING)),
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            timeout: 8,
            retry_cnt: 1,
            ..QpAttributes::default()
        };
        let identity = mask::STATE | mask::PKEY_INDEX | mask::PORT;
        let aim = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        let retries = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        let reliable = mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
        let steps = [
            (QpState::Init, identity | mask::ACCESS_FLAGS),
            (QpState::Init, identity | mask::QKEY),
            (QpState::ReadyToReceive, aim | reliable),
            (QpState::ReadyToReceive, aim),
            (QpState::ReadyToReceive, mask::STATE),
            (QpState::ReadyToSend, mask::STATE | mask::SQ_PSN | retries),
            (QpState::ReadyToSend, mask::STATE | mask::SQ_PSN),
        ];
        // Each kind takes its own attributes.
        steps.into_iter().all(|(state, mask)| {
            let request = Request::ModifyQp { qpn, mask, attributes: to(state) };
            let said = self.app.connection.send(&request, &[]);
            said.and_then(|()| self.app.connection.receive::<Result<Reply, Refusal>>()).is_ok()
        })
    }

    /// Posts a request, as the library does, and rings the doorbell.
    fn post(&mut self, (_, which, a, b, c): Step) {
        let place = self.place(c);
        let (lkey, rkey) = (Self::pick(&self.keys, a & !1), Self::pick(&self.keys, b));
        let to_group = c % 3 == 0;
        let (ah, remote_qpn) = (self.handle(a), if to_group { 0xff_ffff } else { self.qpn(b & !1) });
        let at = a as usize % self.qps.len().max(1);
        let Some(qp) = self.qps.get_mut(at) else { return };
        let basic = WorkRequest {
            id: c,
            opcode: (b % 12) as u8,
            flags: which,
            segments: 1,
            compare_add: c,
            immediate: rkey,
            ..WorkRequest::default()
        };
        let request = match basic.opcode {
            opcode::SEND | opcode::SEND_WITH_IMM => WorkRequest { ah, remote_qpn, ..basic },
            _ => WorkRequest { address: place, rkey, ..basic },
        };
        let list = [Segment { address: place, len: b % 5000, lkey }];
        let queue = if which % 3 == 0 { qp.receives.as_mut() } else { Some(&mut qp.sends) };
        if let Some(queue) = queue {
            let _ = queue.fill(&request, &list);
            queue.publish();
        }
        let _ = self.app.bells.ring(qp.doorbell);
        let _ = rustix::io::write(&self.app.wake, &1_u64.to_ne_bytes());
    }

    /// Overwrites a file that the device shares, or punches a hole in it.
    fn spoil(&mut self, (_, which, a, b, c): Step) {
        let at = which as usize % self.files.len().max(1);
        let Some(file) = self.files.get(at) else { return };
        let len = rustix::fs::fstat(file).map_or(0, |stat| stat.st_size as u64).max(1);
        if a % 7 == 0 {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(file, hole, 0, len);
        } else {
            // Most of what matters is at the beginning.
            let at = u64::from(b) % if a % 2 == 0 { 512 } else { len };
            let _ = rustix::io::pwrite(file, &c.to_ne_bytes(), (at & !3).min(len - 1));
        }
    }

    /// Sends a request to the connection manager.
    fn manage(&mut self, (_, which, a, b, c): Step) {
        let at = [[10, 1, 1, TRUSTING], [10, 1, 1, TRUSTING], [127, 0, 0, 1], [239, 1, 2, 3]][b as usize % 4];
        let address = std::net::SocketAddr::from((at, a as u16));
        let (id, channel) = (a % 8, b % 4);
        let parameters =
            CmParameters { qp_num: b, private: vec![0; c as usize % 300], ..CmParameters::default() };
        let request = match which % 17 {
            0 => CmRequest::CreateChannel { tag: a },
            1 => CmRequest::DestroyChannel { channel },
            2 | 3 => {
                let qp_type = if c % 8 < 4 { QpType::Rc } else { QpType::Ud };
                let port_space = [0x106, 0x111, 0x13f, b][c as usize % 4];
                CmRequest::CreateId { channel, port_space, qp_type }
            }
            4 => CmRequest::DestroyId { id },
            5 => CmRequest::BindAddr { id, address },
            6 => CmRequest::ResolveAddr { id, source: None, destination: address },
            7 => CmRequest::ResolveRoute { id },
            8 => CmRequest::Listen { id, backlog: b },
            9 => CmRequest::Connect { id, parameters },
            10 => CmRequest::Accept { id, parameters },
            11 => CmRequest::Reject { id, reason: 0, private: parameters.private },
            12 => CmRequest::Disconnect { id },
            13 => CmRequest::MigrateId { id, channel },
            15 => CmRequest::JoinMulticast { id, address, join: a },
            14 => CmRequest::SetOption { id, option: CmOption::AckTimeout(b as u8) },
            _ => CmRequest::InitQpAttr { id, state: b % 8 },
        };
        let path = self.world.host.socket(TRUSTING);
        let manager = self.manager.get_or_insert_with(|| {
            let mut manager = open(&path);
            manager.send(&Request::Cm(CmRequest::Hello { version: VERSION }), &[]).unwrap();
            let _ = manager.receive::<Result<Reply, Refusal>>();
            manager
        });
        let kind = rustix::net::SocketType::SEQPACKET;
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            kind,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let sent = manager.send(&Request::Cm(request), &[theirs.as_fd().into()]);
        if sent.and_then(|()| manager.receive::<Result<Reply, Refusal>>()).is_err() {
            self.manager = None;
        }
        self.files.push(ours);
    }

    /// Returns whether it is still connected.
    fn step(&mut self, step: Step) -> bool {
        let (kind, which, a, b, c) = step;
        match kind % 16 {
            0..=6 => return self.ask(step),
            7 | 8 => return self.connect(a, b),
            9 | 10 => self.post(step),
            11 | 12 => self.spoil(step),
            13 => self.manage(step),
            14 if which % 4 == 0 => {
                let bytes: Vec<u8> = c.to_ne_bytes().into_iter().cycle().take(a as usize % 70_000).collect();
                let _ = rustix::net::send(&self.app.connection, &bytes, rustix::net::SendFlags::NOSIGNAL);
            }
            14 => {
                let _ = self.app.bells.ring(b % self.app.info.doorbells);
            }
            _ => {
                let mtu = if a % 2 == 0 { 1500 } else { 4200 };
                self.world.device.update(hca::DeviceSpec { mtu, ..spec(TRUSTING, 1) });
            }
        }
        true
    }
}

#[test]
fn hostile_programs() {
    bolero::check!().with_type::<Vec<Step>>().for_each(|steps| {
        let mut world = world().lock().unwrap_or_else(PoisonError::into_inner);
        let app = App::attach(&world.host.socket(TRUSTING));
        let handles = vec![app.pd];
        let (manager, keys, qps, files) = Default::default();
        let mut program = Program { world: &mut world, app, manager, handles, keys, qps, files };
        // One of each object that most others need.
        program.ask((0, 8, 7, 1, 2));
        for step in steps {
            if !program.step(*step) {
                break;
            }
        }
        let files = program.files;
        drop((program.app, program.manager));
        // It is gone, except for what it keeps.
        until(|| world.device.describe().len() == 1 && world.device.describe_connections().is_empty());
        world.modest.ask(&Request::QueryPort).unwrap();
        // The other program's connection; and the process, which may have been given memory, and still exists.
        let idle = [(19, 8), (20, 8)];
        until(|| idle.contains(&world.host.fabric.taken()));
        drop(files);
        assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    });
}
