//! Programs in virtual machines with several connections: pages of a window are the program's. It may get them with one
//! connection and register them with another.

use crate::common::guests::{Buffer, Guest, TestWindow, part_of};
use crate::common::{App, Host, SIGNALED, TRUSTING, gid, next, until};
use rustix::io::Errno;
use uverbs::qp::access;
use uverbs::{
    Backing, DirectSession, Endpoint, Extent, Part, QpType, Refusal, Reply, Request, WindowKind, WorkRequest,
    work::opcode,
};

const AT: u64 = 0x10_0000_0000;

fn used(guest: &Guest) -> u64 {
    guest.own.window.describe().used
}

fn register(app: &mut App, part: Part) -> Result<u32, Errno> {
    let extent = Extent { address: AT, len: part.len, backing: Backing::Window(part) };
    app.register_at((AT, part.len), &[extent], access::ALL).map_err(errno)
}

fn free(app: &mut App, part: Part) -> Result<(), Errno> {
    app.ask(&Request::FreePages { part }).map(|_| ()).map_err(errno)
}

fn errno(refusal: Refusal) -> Errno {
    Errno::from_raw_os_error(refusal.errno)
}

fn pages(app: &mut App, len: u64) -> Part {
    part_of(&app.pages(len).unwrap()[0])
}

#[test]
fn connections_of_one_program_have_the_same_pages() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let join = |program| App::join_as(&guest.endpoint, program).unwrap();
    let (mut a, mut b) = (join(7), join(7));
    assert!(a.info.program != 0 && a.info.program == b.info.program);
    let part = pages(&mut a, 4096);
    let [one, other] = [&mut a, &mut b].map(|app| register(app, part).unwrap());
    assert_ne!(one, other);
    // Regions end in any order, and keep what is given back with any connection.
    a.ask(&Request::DeregMr { mr: one }).unwrap();
    free(&mut b, part).unwrap();
    assert_eq!((free(&mut b, part), free(&mut a, part)), (Err(Errno::INVAL), Err(Errno::INVAL)));
    assert_eq!(register(&mut a, part), Err(Errno::INVAL));
    let before = used(&guest);
    b.ask(&Request::DeregMr { mr: other }).unwrap();
    assert_eq!(used(&guest), before - 4096);
    // Pages of one connection stay when it ends, until the last connection ends.
    let part = pages(&mut a, 8192);
    drop(a);
    until(|| guest.device.describe().len() == 1);
    register(&mut b, part).unwrap();
    drop(b);
    until(|| used(&guest) == 0);
}

/// Whoever does not know the program's secret, or does not have the window.
#[test]
fn pages_of_a_program_are_nobody_elses() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let mut a = App::join_as(&guest.endpoint, 7).unwrap();
    let part = pages(&mut a, 4096);
    // Another machine, which somehow knows it; a process of the host at the same device.
    let other = host.guest(2, None);
    let local = Endpoint::Socket(host.socket(1));
    let knowing = [&other.endpoint, &local].map(|endpoint| App::join_as(endpoint, 7).unwrap());
    let unknowing = [8, 0, 0].map(|program| App::join_as(&guest.endpoint, program).unwrap());
    for mut app in knowing.into_iter().chain(unknowing) {
        for window in [WindowKind::Own, WindowKind::Common] {
            let part = Part { window, ..part };
            assert!(register(&mut app, part).is_err() && free(&mut app, part).is_err());
        }
    }
    // One that says nothing of itself shares with no other such one.
    let [mut one, mut another] = [0, 0].map(|program| App::join_as(&guest.endpoint, program).unwrap());
    assert_ne!(one.info.program, another.info.program);
    let its = pages(&mut one, 4096);
    assert_eq!(register(&mut another, its), Err(Errno::INVAL));
    register(&mut a, part).unwrap();
    free(&mut a, part).unwrap();
}

#[test]
fn devices_with_a_window_in_common_have_the_same_pages_there() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let guests = [TRUSTING, TRUSTING + 1].map(|number| host.guest(number, Some(&common)));
    let [mut a, mut b] = guests.each_ref().map(|guest| App::join_as(&guest.endpoint, 7).unwrap());
    let part = pages(&mut a, 4096);
    assert_eq!(part.window, WindowKind::Common);
    let [one, _] = [&mut a, &mut b].map(|app| register(app, part).unwrap());
    // The device that goes takes only its connections along.
    let [first, second] = guests;
    drop(first);
    until(|| a.connection.send(&Request::DeregMr { mr: one }, &[]).is_err());
    let key = register(&mut b, part).unwrap();
    b.ask(&Request::DeregMr { mr: key }).unwrap();
    free(&mut b, part).unwrap();
    drop((b, second));
}

/// By a message to a region of one connection, in pages of another that has ended.
#[test]
fn messages_come_to_pages_of_a_connection_that_ended() {
    let host = Host::new();
    let guests = [host.guest(1, None), host.guest(2, None)];
    let mut a = App::join(&guests[0].endpoint).unwrap();
    let [mut ended, mut b] = [(); 2].map(|()| App::join_as(&guests[1].endpoint, 7).unwrap());
    let Buffer { memory, extents, address, .. } = ended.buffer(4096, access::ALL);
    drop(ended);
    until(|| guests[1].device.describe().len() == 1);
    let rkey = b.register_at((address, 4096), &extents, access::ALL).unwrap();
    let (mut ca, cb) = (a.cq(64, None), b.cq(64, None));
    let (mut qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    let from = a.buffer(4096, access::ALL);
    from.write(0, b"to a page of both");
    let write = WorkRequest {
        id: 1,
        opcode: opcode::RDMA_WRITE,
        flags: SIGNALED,
        address,
        rkey,
        ..WorkRequest::default()
    };
    a.post_send(&mut qa, write, &[from.segment(0, 17)]);
    assert_eq!(next(&mut ca).status, 0);
    let mut seen = [0; 17];
    assert!(memory.read(0, &mut seen));
    assert_eq!(&seen, b"to a page of both");
}

/// A peer works in a region of a connection that ends, in pages that another connection of its program got and frees.
#[test]
fn nobody_gets_pages_of_another_connection_in_which_a_peer_is_at_work() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let guests = [TRUSTING, TRUSTING + 1].map(|number| host.guest(number, Some(&common)));
    let mut a = App::join(&guests[0].endpoint).unwrap();
    let [mut b, mut other] = [(); 2].map(|()| App::join_as(&guests[1].endpoint, 7).unwrap());
    let (ca, cb) = (a.cq(64, None), b.cq(64, None));
    let (qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
    let buffer = other.buffer(4096, access::ALL);
    let Backing::Window(part) = buffer.extents[0].backing else { panic!() };
    b.register_at((buffer.address, 4096), &buffer.extents, access::ALL).unwrap();
    let (reply, given) = a.send_all(&Request::Direct { qpn: qa.qpn }).unwrap();
    assert!(matches!(reply, Reply::Direct(_)));
    let session =
        DirectSession::new(a.windows.map(given.into_iter().next().unwrap(), DirectSession::BYTES).unwrap());
    assert!(session.enter());
    drop(b);
    until(|| session.is_closed());
    free(&mut other, part).unwrap();
    drop(other);
    buffer.write(0, b"late");
    until(|| guests[1].device.describe().is_empty());
    assert_eq!(buffer.read(0, 4), b"late");
    assert!(common.window.describe().orphaned >= 4096);
}

/// Opens two connections of a program, each to a guest's device. Also returns what the first one has of the common
/// window.
fn two_connections(guests: &[Guest; 2], common: &TestWindow) -> ([App; 2], u64) {
    let a = App::join_as(&guests[0].endpoint, 7).unwrap();
    let used = common.window.describe().used;
    ([a, App::join_as(&guests[1].endpoint, 7).unwrap()], used)
}

#[test]
fn pages_of_a_device_that_went_are_free_when_they_are_given_back() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let guests = [TRUSTING, TRUSTING + 1].map(|number| host.guest(number, Some(&common)));
    let ([mut a, mut b], own) = two_connections(&guests, &common);
    let part = pages(&mut a, 4096);
    let [first, _second] = guests;
    drop(first);
    until(|| common.window.describe().orphaned == own);
    free(&mut b, part).unwrap();
    assert_eq!(common.window.describe().orphaned, own);
}

#[test]
fn what_a_program_gets_after_a_device_went_is_free_when_it_ends() {
    let host = Host::new();
    let common = TestWindow::new(WindowKind::Common, 99);
    let guests = [TRUSTING, TRUSTING + 1].map(|number| host.guest(number, Some(&common)));
    let ([_a, mut b], own) = two_connections(&guests, &common);
    let [first, second] = guests;
    drop(first);
    until(|| common.window.describe().orphaned == own);
    pages(&mut b, 8192);
    drop(b);
    until(|| second.device.describe().is_empty());
    until(|| common.window.describe().used <= own);
    assert_eq!(common.window.describe().orphaned, own);
}
