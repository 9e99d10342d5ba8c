//! Programs that behave as badly as they can: what they may take, and whom they may delay.

use crate::common;
use crate::common::{
    App, Host, PATIENCE, SIGNALED, TRUSTING, described, gid, next, open, segment, spec, two, until, vector,
};
use hca::{Device, GrantedMemory};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use sockets::testing::{lingering, send_with};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use uverbs::cm::CmRequest;
use uverbs::qp::{access, mask};
use uverbs::{
    Backing, Extent, QpAttributes, QpState, QpType, Refusal, Reply, Request, Uuid, VERSION, WorkRequest,
};

const WRITE: u8 = 0;

/// Runs something that must not wait for a program.
fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(what()));
    is_done.recv_timeout(PATIENCE).unwrap()
}

fn errno(refusal: Result<(Reply, Vec<OwnedFd>), Refusal>) -> Errno {
    Errno::from_raw_os_error(refusal.unwrap_err().errno)
}

#[test]
fn limits_are_for_all_programs_of_a_device_together() {
    let host = Host::new();
    let _device = host.device(1);
    let mut apps = [(); 3].map(|()| App::attach(&host.socket(1)));
    // The limits belong to 64 queue pairs; each program already has a protection domain.
    let limits = [
        (Request::CreateCq { entries: 1, channel: None, timestamps: false }, 128),
        (Request::CreateChannel, 128),
        (Request::AllocPd, 1024 - 3),
    ];
    for (request, limit) in limits {
        let mut made = 0;
        while apps[made % 3].ask(&request).is_ok() {
            made += 1;
        }
        assert_eq!(made, limit, "{request:?}");
    }
    let mut made = 0;
    loop {
        let app = &mut apps[made % 3];
        let request = Request::CreateSrq { pd: app.pd, max_wr: 1, max_sge: 1 };
        if app.ask(&request).is_err() {
            break;
        }
        made += 1;
    }
    assert_eq!(made, 64);
    let (mut made, mut refused) = (0, false);
    while !refused {
        let app = &mut apps[made % 3];
        refused = app.ask(&Request::CreateAh { pd: app.pd, vector: vector(gid(1)) }).is_err();
        made += usize::from(!refused);
    }
    assert_eq!(made, 16 << 10);
    // Resources of a program that ended are free for others.
    let [first, mut second, _] = apps;
    drop(first);
    until(|| second.ask(&Request::CreateChannel).is_ok());
}

#[test]
fn connections_and_memory_are_as_many_as_the_device_is_told() {
    let host = Host::new();
    let mut spec = spec(1, 1);
    (spec.limits.connections, spec.limits.queues) = (2, 1 << 20);
    let (device, _port) = host.device_of(1, spec.clone());
    let mut apps = [(); 2].map(|()| App::attach(&host.socket(1)));
    // The daemon hangs up before it is greeted.
    assert!(open(&host.socket(1)).receive::<Result<Reply, Refusal>>().is_err());
    let create = Request::CreateCq { entries: 32 << 10, channel: None, timestamps: false };
    assert_eq!(errno(apps[0].ask(&create)), Errno::NOMEM);
    (spec.limits.connections, spec.limits.queues) = (3, 16 << 20);
    device.update(spec);
    apps[1].ask(&create).unwrap();
    assert_eq!(App::attach(&host.socket(1)).info.max_ah, 16 << 10);
}

#[test]
fn memory_of_queues_is_limited_together() {
    let host = Host::new();
    let _device = host.device(1);
    let mut apps = [(); 2].map(|()| App::attach(&host.socket(1)));
    let large = Request::CreateCq { entries: 1 << 20, channel: None, timestamps: false };
    let mut queues = Vec::new();
    let refused = loop {
        match apps[queues.len() % 2].ask(&large) {
            Ok((Reply::Cq { cq, .. }, _)) => queues.push(cq),
            refused => break refused,
        }
    };
    // A little more than 64 MB each: 512 MB have room for seven.
    assert_eq!((queues.len(), errno(refused)), (7, Errno::NOMEM));
    apps[0].ask(&Request::DestroyCq { cq: queues[0] }).unwrap();
    apps[1].ask(&large).unwrap();
}

#[test]
fn a_queue_that_is_gone_has_no_memory_though_its_file_is_kept() {
    let host = Host::new();
    let device = host.device(1);
    let mut app = App::attach(&host.socket(1));
    let blocks = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_blocks;
    let fill = |file: &OwnedFd| {
        let len = rustix::fs::fstat(file).unwrap().st_size;
        rustix::io::pwrite(file, &vec![1; len as usize], 0).unwrap();
        assert!(blocks(file) > 0);
    };
    let (pd, create) = (app.pd, Request::CreateCq { entries: 1024, channel: None, timestamps: false });
    let (Reply::Cq { cq, .. }, files) = app.ask(&create).unwrap() else { panic!() };
    fill(&files[0]);
    let (_, larger) = app.ask(&Request::ResizeCq { cq, entries: 4096 }).unwrap();
    assert_eq!(blocks(&files[0]), 0);
    fill(&larger[0]);
    app.ask(&Request::DestroyCq { cq }).unwrap();
    assert_eq!(blocks(&larger[0]), 0);
    let (_, kept) = app.ask(&create).unwrap();
    let (_, shared) = app.ask(&Request::CreateSrq { pd, max_wr: 100, max_sge: 1 }).unwrap();
    [&kept[0], &shared[0]].into_iter().for_each(fill);
    drop(app);
    until(|| device.describe().is_empty() && blocks(&kept[0]) == 0 && blocks(&shared[0]) == 0);
}

#[test]
fn one_device_leaves_descriptors_to_the_others() {
    let host = Host::limited(1000, 10_000);
    let _devices = [host.device(1), host.device(2)];
    let mut greedy = App::attach(&host.socket(1));
    let mut taken = Vec::new();
    loop {
        match greedy.ask(&Request::CreateChannel) {
            Ok(channel) => taken.push(channel),
            Err(refusal) => break assert_eq!(refusal.errno, Errno::NOMEM.raw_os_error()),
        }
        if taken.len() == 128 {
            break;
        }
    }
    let mut more = Vec::new();
    loop {
        let mut connection = open(&host.socket(1));
        let hello = Request::Hello { version: VERSION, token: 0, program: Uuid::default() };
        // The descriptor is closed if there is no place for it.
        let said = connection.send(&hello, &[common::own_memory().as_fd().into()]);
        if said.and_then(|()| connection.receive::<Result<Reply, Refusal>>()).is_err() {
            break;
        }
        more.push(connection);
    }
    let (descriptors, _) = host.fabric.taken();
    assert!((450..=500).contains(&descriptors), "half of what there is, and not {descriptors}");
    // The other one still has its part.
    let mut modest = App::attach(&host.socket(2));
    let cq = modest.cq(16, None);
    let _qp = modest.qp(QpType::Rc, &cq, None);
    drop((greedy, more, modest));
    until(|| host.fabric.taken() == (0, 0));
}

#[test]
fn nobody_waits_for_an_event_descriptor_that_a_program_shares() {
    let host = Host::new();
    let device = Arc::new(host.device(1));
    let mut app = App::attach(&host.socket(1));
    // The flag belongs to both ends.
    let flags = rustix::fs::fcntl_getfl(&app.wake).unwrap();
    rustix::fs::fcntl_setfl(&app.wake, flags - OFlags::NONBLOCK).unwrap();
    let (mut app, cq) = in_time(move || {
        let cq = app.cq(16, None);
        (0..3).for_each(|_| _ = app.ask(&Request::QueryPort).unwrap());
        (app, cq)
    });
    // Full: a writer waits until somebody reads it.
    rustix::io::write(&app.wake, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let shared = device.clone();
    let clients = in_time(move || {
        shared.review();
        described(&shared)
    });
    assert_eq!(clients[0].cqs.len(), 1);
    // A doorbell that nobody hears is the program's own problem; the thread continues.
    app.ask(&Request::DestroyCq { cq: cq.handle }).unwrap();
    let closed = Arc::into_inner(device).unwrap();
    in_time(move || drop(closed));
    until(|| app.connection.receive::<Result<Reply, Refusal>>().is_err());
}

#[test]
fn who_does_not_read_answers_is_given_up() {
    let host = Host::new();
    let device = host.device(1);
    let mut app = App::attach(&host.socket(1));
    // Until its connection is closed: there is no room for the answers.
    while app.connection.send(&Request::QueryPort, &[]).is_ok() {}
    until(|| device.describe().is_empty());
    assert!(App::attach(&host.socket(1)).ask(&Request::QueryPort).is_ok());
}

/// Rules that delay answers about one device until they are told to give them.
#[derive(Clone, Default)]
struct Slow(Arc<(Mutex<Option<u16>>, Condvar)>);

impl hca::Rules for Slow {
    fn lets(&self, from: u16, _: &hca::RoceFlow, _: u16) -> bool {
        let mut stuck = self.0.0.lock().unwrap();
        while *stuck == Some(from) {
            stuck = self.0.1.wait(stuck).unwrap();
        }
        true
    }
}

impl Slow {
    fn set(&self, stuck: Option<u16>) {
        *self.0.0.lock().unwrap() = stuck;
        self.0.1.notify_all();
    }
}

/// A thread that stops is given up. Here it stops while it finds a path; it could also be in its program's memory.
#[test]
fn a_thread_that_stands_still_keeps_nobody_waiting() {
    let rules = Slow::default();
    let fabric = Arc::new(hca::Fabric::new(Box::new(rules.clone())));
    let host = Host { fabric, dir: tempfile::tempdir().unwrap() };
    let devices = [TRUSTING, TRUSTING + 1].map(|number| Arc::new(host.device(number)));
    let [mut a, mut b] = [TRUSTING, TRUSTING + 1].map(|number| App::attach(&host.socket(number)));
    let (ca, cb) = (a.cq(16, None), b.cq(16, None));
    let (qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
    rules.set(Some((TRUSTING + 1).into()));
    let (pd, vector) = (b.pd, vector(gid(TRUSTING)));
    b.connection.send(&Request::CreateAh { pd, vector }, &[]).unwrap();
    let device = devices[1].clone();
    until(|| device.describe()[0].is_stuck);
    let stuck = in_time(move || {
        device.review();
        device.update(hca::DeviceSpec { mtu: 4000, ..spec(TRUSTING + 1, 1) });
        (device.describe(), device.describe_connections())
    });
    assert_eq!((stuck.0.len(), stuck.0[0].pid), (1, std::process::id() as i32));
    // A peer that asks is told that it is not ready.
    let refused = (0..3).map(|_| errno(a.ask(&Request::Direct { qpn: qa.qpn })));
    assert_eq!(refused.collect::<Vec<_>>(), [Errno::AGAIN; 3]);
    let before = host.fabric.taken();
    let [_, closed] = devices;
    in_time(move || drop(Arc::into_inner(closed).unwrap()));
    assert_eq!(host.fabric.taken(), before, "its place is not given away before it ended");
    rules.set(None);
    drop(a);
    until(|| host.fabric.taken() == (0, 0));
}

fn greet_manager(host: &Host) -> uverbs::Connection {
    let mut connection = open(&host.socket(1));
    connection.send(&Request::Cm(CmRequest::Hello { version: VERSION }), &[]).unwrap();
    assert_eq!(connection.receive::<Result<Reply, Refusal>>().unwrap().0, Ok(Reply::Done));
    connection
}

#[test]
fn channels_of_the_connection_manager_are_sockets_that_keep_nobody_waiting() {
    let host = Host::new();
    let device = host.device(1);
    let mut connection = greet_manager(&host);
    let mut ask = |descriptor: &OwnedFd| {
        let request = Request::Cm(CmRequest::CreateChannel { tag: 1 });
        connection.send(&request, &[descriptor.as_fd().into()]).unwrap();
        connection.receive::<Result<Reply, Refusal>>().unwrap().0
    };
    let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let inet = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for wrong in [&inet, &file, &pair(SocketType::STREAM).0] {
        assert_eq!(ask(wrong).unwrap_err().errno, Errno::INVAL.raw_os_error());
    }
    assert!(matches!(ask(&pair(SocketType::SEQPACKET).0), Ok(Reply::Handle(_))));
    // Nobody can ask such a program about its verbs objects.
    assert!(device.describe().is_empty());
}

/// Sends a descriptor that takes long to close. Returns the end of its connection that nobody reads.
fn send_lingering(socket: impl AsFd) -> TcpStream {
    let (stream, unread) = lingering();
    send_with(socket, b"x", (&stream, 1), SendFlags::empty()).unwrap();
    unread
}

#[test]
fn descriptors_that_take_long_to_close_keep_nobody_waiting() {
    let host = Host::new();
    let device = Arc::new(host.device(1));
    let status = || {
        let device = device.clone();
        in_time(move || (device.describe().len(), device.describe_connections().len()))
    };
    // Behind what ends the connection.
    let wrong = vec![b'['; 60_000];
    let mut unread = Vec::new();
    for _ in 0..8 {
        let connection = open(&host.socket(1));
        let (stream, other) = lingering();
        rustix::net::send(&connection, &wrong, SendFlags::NOSIGNAL).unwrap();
        let _ = send_with(&connection, b"x", (&stream, 1), SendFlags::empty());
        unread.push((stream, connection, other));
    }
    // The device may have closed its own by now, or has the last one.
    std::thread::spawn(move || drop(unread));
    status();
    // In the socket for events of a program that ends.
    let mut manager = greet_manager(&host);
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let _unread = send_lingering(&ours);
    manager.send(&Request::Cm(CmRequest::CreateChannel { tag: 0 }), &[theirs.as_fd().into()]).unwrap();
    manager.receive::<Result<Reply, Refusal>>().unwrap().0.unwrap();
    drop((theirs, manager));
    until(|| rustix::net::send(&ours, b"x", SendFlags::NOSIGNAL) == Err(Errno::PIPE));
    assert_eq!(status(), (0, 0));
    // Sockets by which only the device says something take nothing.
    let mut app = App::attach(&host.socket(1));
    let (_, given) = app.ask(&Request::CreateChannel).unwrap();
    for events in [&given[0], &app.events] {
        assert_eq!(rustix::net::send(events, b"x", SendFlags::NOSIGNAL), Err(Errno::PIPE));
    }
}

#[test]
fn a_file_of_huge_pages_is_refused() {
    // With pages in the pool it could be mapped, and its pages removed by punching holes.
    let pool = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(pool).unwrap();
    let _ = std::fs::write(pool, "4");
    let host = Host::new();
    let _device = host.device(1);
    let mut app = App::attach(&host.socket(1));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = rustix::fs::memfd_create("huge", flags).unwrap();
    rustix::fs::ftruncate(&file, 2 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let page = [0_u8; 8];
    let address = page.as_ptr() as u64;
    let pages = vec![Extent { address, len: 2 << 20, backing: Backing::File }];
    let asked = Request::RegMr { pd: app.pd, address, length: 8, iova: address, access: 15, pages };
    app.connection.send(&asked, &[file.as_fd().into()]).unwrap();
    let refused = app.connection.receive::<Result<Reply, Refusal>>().unwrap().0;
    let _ = std::fs::write(pool, before);
    assert!(refused.unwrap_err().message.contains("hugetlbfs"));
}

#[test]
fn what_a_guest_writes_to_itself_counts_against_its_rate() {
    const WRITES: usize = 40;
    let host = Host::new();
    let slow = hca::Rate { bits_per_second: 1, burst_bytes: 100_000 };
    let limited = hca::DeviceSpec { rate: Some(slow), is_watched: true, ..spec(1, 1) };
    let (device, _port) = host.device_of(1, limited.clone());
    let [mut a, mut b] = [(); 2].map(|()| App::attach(&host.socket(1)));
    // Answers count as well, and wait.
    (a.timeout, b.timeout) = (0, 0);
    let (mut ca, cb) = (a.cq(128, None), b.cq(128, None));
    let (mut qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    let memory = vec![1_u8; 30_000];
    let (ka, kb) = (a.register(&memory, access::ALL), b.register(&memory, access::ALL));
    let address = memory.as_ptr() as u64;
    for id in 0..WRITES as u64 {
        let write =
            WorkRequest { id, opcode: WRITE, flags: SIGNALED, address, rkey: kb, ..WorkRequest::default() };
        a.post_send(&mut qa, write, &[segment(&memory, ka)]);
    }
    // Never more than the burst, however often its thread has a turn.
    let mut done = 0;
    for _ in 0..1000 {
        a.ask(&Request::QueryPort).unwrap();
        if let Some(completion) = ca.queue.poll() {
            assert_eq!(completion.status, 0);
            done += 1;
        }
    }
    assert!(done < 8, "{done}");
    device.update(hca::DeviceSpec { rate: None, ..limited });
    (done..WRITES).for_each(|_| assert_eq!(next(&mut ca).status, 0));
}

fn bonded(host: &Host) -> (App, App, u32, u32) {
    let [mut a, mut b] = [TRUSTING, TRUSTING + 1].map(|number| App::attach(&host.socket(number)));
    let (ca, cb) = (a.cq(16, None), b.cq(16, None));
    let (qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
    assert!(matches!(a.ask(&Request::Direct { qpn: qa.qpn }).unwrap().0, Reply::Direct(_)));
    (a, b, qa.qpn, qb.qpn)
}

fn state(app: &mut App, qpn: u32) -> u32 {
    let Reply::QpInfo(info) = app.ask(&Request::QueryQp { qpn }).unwrap().0 else { panic!() };
    info.attributes.qp_state
}

#[test]
fn trust_that_is_taken_away_ends_what_was_shared() {
    let host = Host::new();
    let devices = [host.device(TRUSTING), host.device(TRUSTING + 1)];
    let (mut a, mut b, qa, qb) = bonded(&host);
    let given = |devices: &[Device; 2]| {
        let holders = devices[1].holders().into_iter();
        holders.map(|it| (it.guest, it.given, it.is_trusted)).collect::<Vec<_>>()
    };
    let guest = format!("vm{TRUSTING}");
    assert_eq!(given(&devices), [(guest.clone(), GrantedMemory::Queues, true)]);
    // All of its memory is given only to those who ask for that.
    let (reply, files) = a.ask(&Request::Memory { qpn: qa }).unwrap();
    let pid = std::process::id() as i32;
    assert_eq!((reply, files.len()), (Reply::Memory { pid, token: 0 }, 1));
    assert_eq!(given(&devices), [(guest.clone(), GrantedMemory::Everything, true)]);
    // A change that does not affect it leaves the connection.
    devices[1].update(hca::DeviceSpec {
        addresses: vec![IpAddr::from([10, 1, 1, TRUSTING + 1])],
        ..spec(TRUSTING + 1, 1)
    });
    devices[0].review();
    // Once a program has answered a question, it has done what was asked before.
    devices.iter().for_each(|device| drop(described(device)));
    assert_eq!([state(&mut a, qa), state(&mut b, qb)], [QpState::ReadyToSend as u32; 2]);
    devices[1].update(hca::DeviceSpec { trust: None, ..spec(TRUSTING + 1, 1) });
    devices[0].review();
    until(|| [state(&mut a, qa), state(&mut b, qb)] == [QpState::Error as u32; 2]);
    let qps: Vec<_> = devices.iter().map(|device| described(device)[0].qps[0].clone()).collect();
    assert!(qps.iter().all(|qp| qp.error.unwrap().contains("trust")), "{qps:?}");
    assert_eq!(errno(a.ask(&Request::Memory { qpn: qa })), Errno::PERM);
    assert_eq!(given(&devices), [(guest, GrantedMemory::Everything, false)], "it has it still");
}

#[test]
fn a_queue_pair_without_trust_stays_where_none_was_needed() {
    let t = two(QpType::Rc);
    t.devices[0].update(hca::DeviceSpec { trust: Some("new".into()), ..spec(1, 1) });
    t.devices[0].update(spec(1, 1));
    t.devices[1].review();
    drop(described(&t.devices[0]));
    let (mut a, qpn) = (t.a, t.qa.qpn);
    assert_eq!(state(&mut a, qpn), QpState::ReadyToSend as u32);
    let attributes = QpAttributes { qp_state: QpState::Reset as u32, ..QpAttributes::default() };
    a.modify(qpn, mask::STATE, attributes).unwrap();
}
