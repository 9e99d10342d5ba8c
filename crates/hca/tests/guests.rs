//! Programs in virtual machines: windows instead of files, streams instead of sockets.

use crate::common;
use crate::common::guests::{Guest, TestWindow, dial, listener, part_of, stranger};
use crate::common::{
    App, Host, SIGNALED, SOLICITED, TRUSTING, described, gid, next, open, until, wait_readable,
};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::time::Duration;
use uverbs::completion::Arm;
use uverbs::qp::access;
use uverbs::{
    Backing, Claim, DirectPeer, DirectSession, Endpoint, Extent, Given, Opening, QpType, Refusal, Reply,
    Request, Uuid, VERSION, Welcome, WindowKind, WorkRequest, work::opcode,
};

fn asked(opcode: u8, id: u64) -> WorkRequest {
    WorkRequest { id, opcode, flags: SIGNALED, ..WorkRequest::default() }
}

fn errno<T: std::fmt::Debug>(refused: Result<T, Refusal>) -> Errno {
    Errno::from_raw_os_error(refused.unwrap_err().errno)
}

/// Returns how much of a guest's own window is in use.
fn used(guest: &Guest) -> u64 {
    guest.own.window.describe().used
}

#[test]
fn machines_with_windows_of_their_own_exchange_messages_through_the_daemon() {
    let host = Host::new();
    let guests = [host.guest(1, None), host.guest(2, None)];
    let [mut a, mut b] = guests.each_ref().map(|guest| App::join(&guest.endpoint).unwrap());
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (mut ca, mut cb) = (a.cq(64, None), b.cq(64, None));
        let (mut qa, mut qb) = (a.qp(kind, &ca, None), b.qp(kind, &cb, None));
        a.connect(&qa, kind, gid(2), qb.qpn);
        b.connect(&qb, kind, gid(1), qa.qpn);
        // Buffers of several parts, so that a message crosses their bounds.
        let (ba, bb) =
            (a.buffer_of(&[8192, 4096], access::ALL), b.buffer_of(&[4096, 4096, 4096], access::ALL));
        let message: Vec<u8> = (0..1000_u32).map(|at| (at * 7 / 3) as u8).collect();
        ba.write(7900, &message);
        b.post_receive(&mut qb, 1, &[bb.segment(3500, 2000)]);
        let mut send = asked(opcode::SEND, 2);
        if kind == QpType::Ud {
            let ah = a.handle(&Request::CreateAh { pd: a.pd, vector: common::vector(gid(2)) });
            send = WorkRequest { ah, remote_qpn: qb.qpn, remote_qkey: 0x1234, ..send };
        }
        a.post_send(&mut qa, send, &[ba.segment(7900, 1000)]);
        let (sent, received) = (next(&mut ca), next(&mut cb));
        assert_eq!((sent.id, sent.status, received.id, received.status), (2, 0, 1, 0), "{kind:?}");
        assert!(sent.timestamp > 0 && received.timestamp > 0, "the queues have timestamps");
        let header = if kind == QpType::Ud { 40 } else { 0 };
        assert_eq!(bb.read(3500 + header, 1000), message);
        if kind == QpType::Rc {
            let write =
                WorkRequest { address: bb.address + 4000, rkey: bb.key, ..asked(opcode::RDMA_WRITE, 3) };
            a.post_send(&mut qa, write, &[ba.segment(7900, 1000)]);
            assert_eq!(next(&mut ca).status, 0);
            assert_eq!(bb.read(4000, 1000), message);
            let read = WorkRequest { opcode: opcode::RDMA_READ, ..write };
            a.post_send(&mut qa, read, &[ba.segment(100, 1000)]);
            assert_eq!(next(&mut ca).status, 0);
            assert_eq!(ba.read(100, 1000), message);
            bb.write(8192, &41_u64.to_ne_bytes());
            let add = WorkRequest {
                address: bb.address + 8192,
                rkey: bb.key,
                compare_add: 1,
                ..asked(opcode::ATOMIC_FETCH_AND_ADD, 4)
            };
            a.post_send(&mut qa, add, &[ba.segment(16, 8)]);
            assert_eq!(next(&mut ca).status, 0);
            assert_eq!(
                (ba.read(16, 8), bb.read(8192, 8)),
                (41_u64.to_ne_bytes().into(), 42_u64.to_ne_bytes().into())
            );
            let client = &described(&guests[0].device)[0];
            assert_eq!((client.qps[0].transport, &*client.program.clone().unwrap()), ("copy", &*comm()));
        }
    }
    drop((a, b));
    until(|| guests.iter().all(|guest| used(guest) == 0 && guest.device.describe().is_empty()));
    until(|| host.fabric.taken() == (0, 0));
}

fn comm() -> String {
    std::fs::read_to_string("/proc/self/comm").unwrap().trim_end().into()
}

/// While a machine stands still, or is copied, its programs have no device, and keep what they had in the window.
#[test]
fn a_machine_that_is_halted_has_no_programs() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let mut app = App::join(&guest.endpoint).unwrap();
    let buffer = app.buffer(8192, access::ALL);
    let Backing::Window(part) = buffer.extents[0].backing else { panic!() };
    buffer.write(0, b"my heap");
    let held = used(&guest);
    assert_eq!((guest.device.halt(), guest.device.halt()), (Ok(1), Ok(0)));
    let of = guest.own.window.describe();
    assert_eq!((of.used, of.orphaned, guest.device.describe().len()), (0, held, 0));
    let _ = app.connection.send(&Request::AllocPages { len: 4096 }, &[]);
    assert!(app.connection.receive::<Result<Reply, Refusal>>().is_err());
    let refused = |claim| {
        let (window, mut stream) = (Uuid([1; 16]), stranger(&host.streams(1)));
        stream.send(&Opening::Program { version: VERSION, window, claim }, &[]).unwrap();
        stream.receive::<Result<Welcome, Refusal>>().unwrap().0.unwrap_err()
    };
    let said = refused(Claim::default());
    assert!(
        said.errno == Errno::AGAIN.raw_os_error() && said.message.contains("try again once it goes on"),
        "{said}"
    );
    // A program that waits for it gets it.
    let endpoint = guest.endpoint.clone();
    let joins = std::thread::spawn(move || App::join(&endpoint).unwrap());
    guest.device.resume();
    let mut app = joins.join().unwrap();
    assert_eq!(buffer.read(0, 7), b"my heap");
    assert!(app.ask(&Request::FreePages { part }).is_ok());
    assert_eq!(errno(app.ask(&Request::FreePages { part })), Errno::INVAL);
    // The contents of a virtio device would not move with the machine.
    guest.device.let_migrate();
    guest.device.resume();
    let said = refused(Claim { is_virtio: true, ..Claim::default() });
    assert!(said.errno == Errno::OPNOTSUPP.raw_os_error() && said.message.contains("as an NVDIMM"), "{said}");
    assert!(App::join(&guest.endpoint).is_ok());
}

#[test]
fn machines_and_containers_reach_each_other() {
    let host = Host::new();
    let (guest, _device) = (host.guest(1, None), host.device(2));
    let (mut a, mut b) = (App::join(&guest.endpoint).unwrap(), App::attach(&host.socket(2)));
    let (mut ca, mut cb) = (a.cq(64, None), b.cq(64, None));
    let (mut qa, mut qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    let (ba, bb) = (a.buffer(4096, access::ALL), vec![7; 4096]);
    let kb = b.register(&bb, access::ALL);
    for (id, ours) in [(1, true), (2, false)] {
        if ours {
            b.post_receive(&mut qb, id, &[common::segment(&bb[..8], kb)]);
            ba.write(0, b"by a VM!");
            a.post_send(&mut qa, asked(opcode::SEND, id), &[ba.segment(0, 8)]);
        } else {
            a.post_receive(&mut qa, id, &[ba.segment(100, 8)]);
            b.post_send(&mut qb, asked(opcode::SEND, id), &[common::segment(&bb[..8], kb)]);
        }
        assert_eq!((next(&mut ca).status, next(&mut cb).status), (0, 0));
    }
    assert_eq!((&bb[..8], &ba.read(100, 8)[..]), (&b"by a VM!"[..], &b"by a VM!"[..]));
}

#[test]
fn programs_sleep_until_an_event_comes_by_their_stream() {
    let host = Host::new();
    let guests = [host.guest(1, None), host.guest(2, None)];
    let [mut a, mut b] = guests.each_ref().map(|guest| App::join(&guest.endpoint).unwrap());
    let (reply, given) = b.send_all(&Request::CreateChannel).unwrap();
    let (Reply::Handle(channel), [Given::Stream(_)]) = (reply, &given[..]) else { panic!("{given:?}") };
    let events = b.dial.socket(given.into_iter().next().unwrap()).unwrap();
    let (mut ca, mut cb) = (a.cq(64, None), b.cq(64, Some(channel)));
    let (mut qa, mut qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    for id in 0..20 {
        cb.queue.arm(if id % 2 == 0 { Arm::Any } else { Arm::Solicited });
        b.post_receive(&mut qb, id, &[]);
        let flags = SIGNALED | SOLICITED;
        a.post_send(&mut qa, WorkRequest { flags, ..asked(opcode::SEND, id) }, &[]);
        wait_readable(&events);
        let mut event = [0; 4];
        assert_eq!(rustix::io::read(&events, &mut event), Ok(4));
        assert_eq!(u32::from_ne_bytes(event), cb.handle);
        assert_eq!((next(&mut cb).id, next(&mut ca).status), (id, 0));
    }
    // Asynchronous events come, too: a device that closes ends them.
    let [one, two] = guests;
    drop(two.device);
    until(|| rustix::io::read(&b.events, &mut [0; 8]) == Ok(0));
    drop(one);
}

/// Requests a direct peer; returns the answer with all that comes along.
fn direct(app: &mut App, qpn: u32) -> (DirectPeer, Vec<Given>) {
    let (reply, given) = app.send_all(&Request::Direct { qpn }).unwrap();
    let Reply::Direct(peer) = reply else { panic!("{reply:?}") };
    (peer, given)
}

#[test]
fn who_has_a_window_in_common_shares_memory_whatever_it_is() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let guests = [TRUSTING, TRUSTING + 1].map(|number| host.guest(number, Some(&common)));
    let container = host.device(TRUSTING + 2);
    container.set_windows(None, Some(common.window.clone())).unwrap();
    let a = App::join(&guests[0].endpoint).unwrap();
    let b = App::join(&guests[1].endpoint).unwrap();
    let c = App::attach(&host.socket(TRUSTING + 2));
    let mut apps = [a, b, c];
    for (from, to) in [(0, 1), (0, 2), (2, 0), (2, 2)] {
        let [gid_of, gid_to] = [from, to].map(|at| gid(TRUSTING + at as u8));
        let (reply, _) = apps[to].send_all(&Request::CreateChannel).unwrap();
        let Reply::Handle(channel) = reply else { panic!("{reply:?}") };
        let cqs = [apps[from].cq(64, None), apps[to].cq(64, Some(channel))];
        let qps = [apps[from].qp(QpType::Rc, &cqs[0], None), apps[to].qp(QpType::Rc, &cqs[1], None)];
        apps[from].connect(&qps[0], QpType::Rc, gid_to, qps[1].qpn);
        apps[to].connect(&qps[1], QpType::Rc, gid_of, qps[0].qpn);
        let (peer, given) = direct(&mut apps[from], qps[0].qpn);
        let is_local = from == 2 && to == 2;
        assert_eq!((peer.has_channel, peer.has_socket), (true, is_local));
        assert_eq!(given.len(), 6 + usize::from(is_local));
        for (at, given) in given.iter().enumerate() {
            match given {
                Given::Part(part) => assert!(from < 2 && part.window == WindowKind::Common),
                Given::Window(_, part) => assert!(from == 2 && part.window == WindowKind::Common),
                Given::Descriptor(_) => assert!(is_local && (at == 0 || at == 6)),
                Given::Stream(_) => panic!("{given:?}"),
            }
        }
        // The session works from this end, and the peer's region is found.
        let mut given = given.into_iter();
        let session =
            DirectSession::new(apps[from].windows.map(given.next().unwrap(), DirectSession::BYTES).unwrap());
        assert!(session.enter());
        session.leave();
        let buffer = apps[to].buffer_of(&[4096, 8192], access::ALL);
        buffer.write(4090, b"across the bound");
        let (reply, given) =
            apps[from].send_all(&Request::Pages { qpn: qps[0].qpn, rkey: buffer.key }).unwrap();
        let Reply::Pages { address, len, file } = reply else { panic!("{reply:?}") };
        assert_eq!((address, len, file >> 63), (buffer.address, 12288, 1));
        let memory = apps[from].windows.map_all(given, len as usize).unwrap();
        let mut seen = [0; 16];
        assert!(memory.read(4090, &mut seen));
        assert_eq!(&seen, b"across the bound");
        let all = apps[from].ask(&Request::Memory { qpn: qps[0].qpn });
        assert_eq!(all.is_ok(), is_local, "no descriptor gets out of a virtual machine or into it");
    }
    let described = common.window.describe();
    assert_eq!((described.kind, &*described.name, described.programs.len()), (WindowKind::Common, "vm99", 3));
    let mut users: Vec<_> =
        described.programs.into_iter().map(|it| (it.guest, it.program.is_some())).collect();
    users.sort();
    assert_eq!(users, [("vm10".to_owned(), false), ("vm8".to_owned(), true), ("vm9".to_owned(), true)]);
    drop(apps);
    until(|| common.window.describe().used == 0 && guests.iter().all(|guest| used(guest) == 0));
}

#[test]
fn nobody_gets_memory_in_which_a_peer_is_still_at_work() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let guests = [TRUSTING, TRUSTING + 1].map(|number| host.guest(number, Some(&common)));
    for ends in ["the peer leaves", "the peer dies", "the peer stays"] {
        let [mut a, mut b] = guests.each_ref().map(|guest| App::join(&guest.endpoint).unwrap());
        let (ca, cb) = (a.cq(64, None), b.cq(64, None));
        let (qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
        a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
        b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
        let buffer = b.buffer(4096, access::ALL);
        let given = direct(&mut a, qa.qpn).1;
        let session = DirectSession::new(
            a.windows.map(given.into_iter().next().unwrap(), DirectSession::BYTES).unwrap(),
        );
        // The peer keeps the page of the session, in which it looks.
        let is_kept = || {
            let guest = format!("vm{}", TRUSTING + 1);
            common.window.describe().programs.iter().any(|it| it.guest == guest && it.bytes > 4096)
        };
        assert!(session.enter());
        drop(b);
        until(|| session.is_closed());
        buffer.write(0, b"late");
        assert_eq!((buffer.read(0, 4), is_kept()), (b"late".into(), true));
        match ends {
            "the peer leaves" => session.leave(),
            "the peer dies" => drop(a),
            _ => {
                // The program's thread ends nevertheless, and nobody gets the pages.
                until(|| !is_kept());
                assert_eq!(buffer.read(0, 4), b"late");
                assert!(common.window.describe().orphaned >= 4096);
                continue;
            }
        }
        until(|| !is_kept());
        assert_eq!(buffer.read(0, 4), [0; 4]);
    }
}

/// One connection of a program gives pages back, while the end of a region there, by another one, waits for a peer.
#[test]
fn pages_are_not_free_while_the_end_of_their_region_waits() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let guests = [TRUSTING, TRUSTING + 1].map(|number| host.guest(number, Some(&common)));
    let mut a = App::join(&guests[0].endpoint).unwrap();
    let [mut b, mut other] = [(); 2].map(|()| App::join_as(&guests[1].endpoint, 5).unwrap());
    let (ca, cb) = (a.cq(64, None), b.cq(64, None));
    let (qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
    let buffer = b.buffer(4096, access::ALL);
    let Backing::Window(part) = buffer.extents[0].backing else { panic!() };
    let given = direct(&mut a, qa.qpn).1;
    let session =
        DirectSession::new(a.windows.map(given.into_iter().next().unwrap(), DirectSession::BYTES).unwrap());
    assert!(session.enter());
    b.connection.send(&Request::DeregMr { mr: buffer.key }, &[]).unwrap();
    until(|| guests[1].device.describe().iter().all(|client| client.mrs.is_empty()));
    other.ask(&Request::FreePages { part }).unwrap();
    buffer.write(0, b"late");
    let rest: Vec<_> = std::iter::from_fn(|| other.pages(4096).ok()).flatten().collect();
    assert!(!rest.is_empty() && rest.iter().all(|given| part_of(given) != part));
    assert_eq!(buffer.read(0, 4), b"late");
    session.leave();
    b.connection.receive::<Result<Reply, Refusal>>().unwrap().0.unwrap();
    until(|| buffer.read(0, 4) == [0; 4]);
}

#[test]
fn who_has_no_window_in_common_shares_nothing() {
    let host = Host::new();
    let guest = host.guest(TRUSTING, None);
    let _device = host.device(TRUSTING + 1);
    let (mut a, mut b) = (App::join(&guest.endpoint).unwrap(), App::attach(&host.socket(TRUSTING + 1)));
    assert!(!a.info.is_trusting && b.info.is_trusting);
    let (ca, cb) = (a.cq(64, None), b.cq(64, None));
    let (qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
    for (app, qpn) in [(&mut a, qa.qpn), (&mut b, qb.qpn)] {
        assert_eq!(errno(app.ask(&Request::Direct { qpn })), Errno::AGAIN);
    }
}

#[test]
fn only_what_a_program_has_is_a_region_of_it() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let [mut a, mut b] = [(); 2].map(|()| App::join(&guest.endpoint).unwrap());
    let (mine, theirs) = (part_of(&a.pages(3 * 4096).unwrap()[0]), part_of(&b.pages(3 * 4096).unwrap()[0]));
    let at = 0x10_0000_0000;
    let extent =
        |address, part: uverbs::Part| Extent { address, len: part.len, backing: Backing::Window(part) };
    let piece =
        |part: uverbs::Part, from: u64, len: u64| uverbs::Part { offset: part.offset + from, len, ..part };
    let page = 4096;
    let (first, second) = (piece(mine, 0, page), piece(mine, page, page));
    let wrong: [(u64, u64, Vec<Extent>); 12] = [
        // Extents of another program, partly of another, out of the window, of no window.
        (at, 8, vec![extent(at, theirs)]),
        (at, 8, vec![extent(at, piece(mine, page, 3 * page))]),
        (at, 8, vec![extent(at, piece(mine, 1 << 40, page))]),
        (at, 8, vec![extent(at, piece(mine, 0, u64::MAX - page + 1))]),
        (at, 8, vec![extent(at, uverbs::Part { window: WindowKind::Common, ..mine })]),
        // No whole pages.
        (at + 8, 8, vec![extent(at + 8, mine)]),
        (at, 8, vec![extent(at, piece(mine, 0, 100))]),
        (at, 8, vec![Extent { len: page, ..extent(at, mine) }]),
        // Not one after the other; a file that did not come.
        (at, 8, vec![extent(at, first), extent(at, second)]),
        (at, 8, vec![extent(at + page, second), extent(at, first)]),
        (u64::MAX - page + 1, 8, vec![extent(u64::MAX - page + 1, first), extent(0, second)]),
        (at, 8, vec![Extent { address: at, len: page, backing: Backing::File }]),
    ];
    for (address, len, extents) in &wrong {
        let refused = errno(a.register_at((*address, *len), extents, 0));
        assert!(matches!(refused, Errno::INVAL | Errno::BADF), "{extents:?}: {refused}");
    }
    // Not all of the region; nothing of it.
    for (address, len, extents) in [
        (at, page + 1, vec![extent(at, first)]),
        (at - 1, 8, vec![extent(at, first)]),
        (at, 8, vec![]),
        (at + page, 1, vec![extent(at, first)]),
    ] {
        assert_eq!(errno(a.register_at((address, len), &extents, 0)), Errno::OPNOTSUPP);
    }
    let many: Vec<_> = (0..513).map(|at_page| extent(at + at_page * page, first)).collect();
    assert_eq!(errno(a.register_at((at, 8), &many, 0)), Errno::NOMEM);
    let key = a.register_at((at + 5, page), &[extent(at, first), extent(at + page, second)], 0).unwrap();
    // It keeps what is given back, until it is gone.
    let before = used(&guest);
    assert_eq!(errno(b.ask(&Request::FreePages { part: mine })), Errno::INVAL);
    assert_eq!(errno(a.ask(&Request::FreePages { part: first })), Errno::INVAL);
    a.ask(&Request::FreePages { part: mine }).unwrap();
    assert_eq!(errno(a.ask(&Request::FreePages { part: mine })), Errno::INVAL);
    assert_eq!(used(&guest), before);
    let moves = Request::ReregMr { mr: key, pd: None, range: Some((at, 8)), access: None };
    assert_eq!(errno(a.ask(&moves)), Errno::OPNOTSUPP);
    a.ask(&Request::DeregMr { mr: key }).unwrap();
    assert_eq!(used(&guest), before - 3 * page);
    // An implicit region would be all memory.
    let everything = access::ON_DEMAND;
    assert_eq!(errno(a.register_at((0, u64::MAX), &[], everything)), Errno::OPNOTSUPP);
}

#[test]
fn an_exhausted_window_is_no_memory_and_everything_comes_back() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let mut a = App::join(&guest.endpoint).unwrap();
    let base = used(&guest);
    let mut taken = 0;
    while let Ok(given) = a.pages(1 << 20) {
        taken += given.iter().map(|given| part_of(given).len).sum::<u64>();
    }
    assert_eq!(used(&guest) - base, taken);
    assert_eq!(errno(a.pages(1 << 20)), Errno::NOMEM);
    assert_eq!(errno(a.pages(u64::MAX)), Errno::NOMEM);
    assert_eq!(
        errno(a.ask(&Request::CreateCq { entries: 1 << 20, channel: None, timestamps: false })),
        Errno::NOMEM
    );
    drop(a);
    until(|| used(&guest) == 0);
    // A program of the host gets no pages where there are none.
    let mut local = App::attach(&host.socket(1));
    assert_eq!(errno(local.pages(4096)), Errno::OPNOTSUPP);
}

#[test]
fn a_closing_device_leaves_pages_to_programs_until_they_give_them_back() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let own = guest.own.clone();
    let mut a = App::join(&guest.endpoint).unwrap();
    let buffer = a.buffer(8192, access::ALL);
    buffer.write(0, b"my heap");
    drop(guest);
    until(|| own.window.describe().used == 0);
    assert_eq!(buffer.read(0, 7), b"my heap");
    let left = own.window.describe().orphaned;
    assert!(left > 8192);
    // It connects to the next device.
    let guest = host.guest_with(1, own.clone(), None);
    let mut again = App::join(&guest.endpoint).unwrap();
    let Extent { backing: Backing::Window(part), .. } = buffer.extents[0] else { panic!() };
    again.ask(&Request::FreePages { part }).unwrap();
    assert_eq!((buffer.read(0, 7), own.window.describe().orphaned), (vec![0; 7], left - 8192));
    drop(a);
}

#[test]
fn a_window_that_goes_takes_its_programs_along_and_nobody_else() {
    let host = Host::new();
    let guests = [host.guest(1, None), host.guest(2, None)];
    let [mut a, mut b] = guests.each_ref().map(|guest| App::join(&guest.endpoint).unwrap());
    let other = a.cq(64, None);
    let size = rustix::fs::fstat(&*guests[0].own.file).unwrap().st_size as u64;
    rustix::fs::ftruncate(&*guests[0].own.file, 0).unwrap();
    // The program's thread finds that out when it touches the window.
    until(|| a.connection.send(&Request::QueryPort, &[]).is_err());
    assert_eq!(rustix::io::read(&a.events, &mut [0; 8]), Ok(0));
    // It has its size again, for programs that come later.
    until(|| rustix::fs::fstat(&*guests[0].own.file).unwrap().st_size as u64 == size);
    b.ask(&Request::QueryPort).unwrap();
    std::mem::forget(other);
    std::mem::forget(a);
    // One that is exchanged ends its programs, too.
    let new = TestWindow::new(WindowKind::Own, 2);
    guests[1].device.set_windows(Some(new.window.clone()), None).unwrap();
    until(|| rustix::io::read(&b.events, &mut [0; 8]) == Ok(0));
    until(|| guests[1].own.window.describe().orphaned > 0);
}

/// A container gets a descriptor of the common window's file, by which the kernel lets it cut the file.
#[test]
fn a_container_that_cuts_the_common_window_harms_its_trust_alone() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let [trusted, other] = [host.guest(TRUSTING, Some(&common)), host.guest(1, None)];
    let device = host.device(TRUSTING + 1);
    device.set_windows(None, Some(common.window.clone())).unwrap();
    let [mut a, mut b] = [&trusted, &other].map(|guest| App::join(&guest.endpoint).unwrap());
    let mut c = App::attach(&host.socket(TRUSTING + 1));
    let cqs = (a.cq(64, None), c.cq(64, None));
    let given = c.pages(4096).unwrap();
    let [Given::Window(file, _)] = &given[..] else { panic!("{given:?}") };
    let size = rustix::fs::fstat(file).unwrap().st_size;
    rustix::fs::ftruncate(file, 0).unwrap();
    for app in [&mut a, &mut c] {
        until(|| app.connection.send(&Request::QueryPort, &[]).is_err());
    }
    b.ask(&Request::QueryPort).unwrap();
    until(|| rustix::fs::fstat(file).unwrap().st_size == size);
    App::attach(&host.socket(TRUSTING + 1)).cq(64, None);
    App::join(&trusted.endpoint).unwrap().cq(64, None);
    // Their ends of what was cut.
    std::mem::forget((a, c, cqs));
}

#[test]
fn a_machine_that_makes_its_window_longer_finds_it_cut() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let has = || rustix::fs::fstat(&guest.own.file).unwrap().st_size as u64;
    let before = has();
    // Nobody asks the device for anything meanwhile.
    for more in [1, 1 << 20] {
        rustix::fs::ftruncate(&guest.own.file, before + more).unwrap();
        until(|| has() == before);
    }
}

/// Another process has the same sockets, and may go on with them.
#[test]
fn programs_wait_at_all_sockets_until_they_are_to_be_accepted() {
    let host = Host::new();
    host.fabric.hold();
    let (guest, path) = (host.guest(1, None), host.dir.path().join("all"));
    let streams = listener(&path);
    host.fabric.listen_streams(streams.try_clone().unwrap()).unwrap();
    let _programs = (dial(&path), open(&host.socket(1)));
    // Time for the threads that would accept them.
    std::thread::sleep(Duration::from_millis(300));
    for socket in [streams, guest.device.listener().unwrap()] {
        accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
    }
    host.fabric.accept();
    App::join(&Endpoint::Files { own: guest.own.path(), common: None, socket: path }).unwrap();
    App::attach(&host.socket(1));
}

/// Answers come in the order in which they were given, however long they are: otherwise it seems that some were lost.
#[test]
fn short_answers_do_not_overtake_long_ones() {
    let host = Host::new();
    let guests = [host.guest(1, None), host.guest(2, None)];
    let [mut a, mut b] = guests.each_ref().map(|guest| App::join(&guest.endpoint).unwrap());
    let (mut ca, mut cb) = (a.cq(256, None), b.cq(256, None));
    let (mut qa, mut qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    let (ba, bb) = (a.buffer_of(&[8192], access::ALL), b.buffer_of(&[8192], access::ALL));
    for round in 0..50 {
        b.post_receive(&mut qb, round, &[bb.segment(0, 64)]);
        // A message of several packets, the last of which is short; then one that is only acknowledged.
        let read = WorkRequest { address: bb.address, rkey: bb.key, ..asked(opcode::RDMA_READ, 1) };
        a.post_send(&mut qa, read, &[ba.segment(0, 1024 + 100)]);
        a.post_send(&mut qa, asked(opcode::SEND, 2), &[ba.segment(4096, 64)]);
        assert_eq!((next(&mut ca).status, next(&mut ca).status, next(&mut cb).status), (0, 0, 0));
    }
    let device = &guests[0].device;
    let counters = device.counters(&described(device));
    assert!(counters.contains(&("implied_nak_seq_err", 0)), "{counters:?}");
}
