//! An application that works with another's queues ends or lies.

use crate::common::{App, Cq, Host, Qp, Srq, TRUSTING, described, gid, next};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;
use uverbs::qp::mask;
use uverbs::{
    Backing, DirectPeer, DirectSession, Extent, Lent, Memory, QpAttributes, QpState, QpType, Refusal, Reply,
    Request, SharedSource, WorkRequest,
};

const FLUSHED: u8 = 5;
const LIMIT_REACHED: u32 = 15;
const LAST_WQE_REACHED: u32 = 16;

/// A receiver with a shared queue, and what a sender was given of it.
struct Shared {
    b: App,
    cb: Cq,
    srq: Srq,
    qb: Qp,
    a: App,
    qa: Qp,
    session: DirectSession,
    peer: DirectPeer,
    source: SharedSource,
    _devices: [hca::Device; 2],
    _host: Host,
}

fn shared() -> Shared {
    let host = Host::new();
    let devices = [host.device(TRUSTING), host.device(TRUSTING + 1)];
    let [mut a, mut b] = [TRUSTING, TRUSTING + 1].map(|number| App::attach(&host.socket(number)));
    let (ca, cb, mut srq) = (a.cq(8, None), b.cq(8, None), b.srq());
    for id in 5..9 {
        assert!(srq.queue.fill(&WorkRequest { id, ..WorkRequest::default() }, &[]));
    }
    srq.queue.publish();
    let qa = a.qp(QpType::Rc, &ca, None);
    let qb = b.qp(QpType::Rc, &cb, Some(srq.handle));
    a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
    let (reply, files) = a.ask(&Request::Direct { qpn: qa.qpn }).unwrap();
    let Reply::Direct(peer) = reply else { panic!("{reply:?}") };
    assert!(peer.takes_shared && !peer.has_channel);
    let session = DirectSession::new(Memory::open(&files[0], DirectSession::BYTES).unwrap());
    let memory = Memory::open(files.last().unwrap(), peer.receive.end()).unwrap();
    let source = SharedSource::new(Arc::new(memory), peer.receive, peer.taker).unwrap();
    Shared { b, cb, srq, qb, a, qa, session, peer, source, _devices: devices, _host: host }
}

#[test]
fn a_receive_that_a_killed_sender_claimed_is_flushed() {
    let mut shared = shared();
    assert!(shared.session.enter());
    let (number, id) = shared.source.peek(&mut Vec::new()).unwrap().unwrap();
    assert!(shared.source.claim(number));
    shared.session.hold(number, id);
    drop(shared.a);
    let attributes = QpAttributes { qp_state: QpState::Error as u32, ..QpAttributes::default() };
    shared.b.modify(shared.qb.qpn, mask::STATE, attributes).unwrap();
    let flushed = next(&mut shared.cb);
    assert_eq!((flushed.id, flushed.status, flushed.qpn), (5, FLUSHED, shared.qb.qpn));
    assert_eq!(shared.b.event().kind, LAST_WQE_REACHED);
    assert!(shared.session.is_gone());
    assert!(shared.cb.queue.poll().is_none());
    // The others are still there.
    assert_eq!(shared.source.take(&mut Vec::new()), Ok(Some(6)));
}

#[test]
fn who_says_that_few_receives_are_left_is_not_believed() {
    let mut shared = shared();
    shared.b.ask(&Request::ArmSrq { srq: shared.srq.handle, limit: 3 }).unwrap();
    let low = Request::PeerIsLow { qpn: shared.qa.qpn };
    shared.a.ask(&low).unwrap();
    let limit = Request::QuerySrq { srq: shared.srq.handle };
    assert_eq!(shared.b.ask(&limit).unwrap().0, Reply::SrqLimit(3));
    for is_low in [false, true] {
        assert!(shared.source.take(&mut Vec::new()).unwrap().is_some());
        assert_eq!(shared.source.is_low(), is_low);
    }
    shared.a.ask(&low).unwrap();
    let event = shared.b.event();
    assert_eq!((event.kind, event.handle), (LIMIT_REACHED, shared.srq.handle));
    assert_eq!(shared.b.ask(&limit).unwrap().0, Reply::SrqLimit(0));
    assert!(!shared.source.is_low());
    assert_eq!(shared.peer.qpn, shared.qb.qpn);
}

/// Registers a region of one page, which is claimed to be in a file.
fn register(app: &mut App, page: &[u8], len: u64, along: &[Lent<'_>]) -> Result<u32, Refusal> {
    let address = page.as_ptr() as u64;
    let pages = vec![Extent { address, len, backing: Backing::File }];
    let asked = Request::RegMr { pd: app.pd, address, length: 8, iova: address, access: 15, pages };
    app.connection.send(&asked, along).unwrap();
    match app.connection.receive::<Result<Reply, Refusal>>().unwrap().0? {
        Reply::Mr { rkey, .. } => Ok(rkey),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_could_be_taken_away_is_refused() {
    let host = Host::new();
    let device = host.device(1);
    let mut app = App::attach(&host.socket(1));
    let page = vec![7; 4096];
    let (_, sealed) = Memory::create("pages", 4096).unwrap();
    let open = memfd_create("pages", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&open, 4096).unwrap();
    let errno = |refused: Result<u32, Refusal>| Errno::from_raw_os_error(refused.unwrap_err().errno);
    assert_eq!(errno(register(&mut app, &page, 4096, &[open.as_fd().into()])), Errno::INVAL);
    assert_eq!(errno(register(&mut app, &page, 8192, &[sealed.as_fd().into()])), Errno::INVAL);
    assert_eq!(errno(register(&mut app, &page, 0, &[sealed.as_fd().into()])), Errno::INVAL);
    assert_eq!(errno(register(&mut app, &page, 4096, &[])), Errno::BADF);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(errno(register(&mut app, &page, 4096, &[event.as_fd().into()])), Errno::INVAL);
    // It continues, and nothing is left of them. More than a guest may register is not mapped.
    let key = register(&mut app, &page, 4096, &[sealed.as_fd().into()]).unwrap();
    let huge = register(&mut app, &page, u64::MAX, &[sealed.as_fd().into()]).unwrap();
    app.ask(&Request::DeregMr { mr: huge }).unwrap();
    let large = register(&mut app, &page, 1 << 30, &[sealed.as_fd().into()]).unwrap();
    app.ask(&Request::DeregMr { mr: large }).unwrap();
    assert_eq!(
        described(&device)[0].mrs.iter().map(|mr| (mr.key, mr.is_shared)).collect::<Vec<_>>(),
        [(key, true)]
    );
}

#[test]
fn only_the_peer_gets_the_file_of_a_region() {
    let mut shared = shared();
    let page = vec![7; 4096];
    let (_, file) = Memory::create("pages", 4096).unwrap();
    let rkey = register(&mut shared.b, &page, 4096, &[file.as_fd().into()]).unwrap();
    let asked = Request::Pages { qpn: shared.qa.qpn, rkey };
    let (reply, files) = shared.a.ask(&asked).unwrap();
    let (address, inode) = (page.as_ptr() as u64, rustix::fs::fstat(&file).unwrap().st_ino);
    assert_eq!((reply, files.len()), (Reply::Pages { address, len: 4096, file: inode }, 1));
    let wrong = [
        (Request::Pages { qpn: shared.qa.qpn, rkey: rkey ^ 1 }, Errno::AGAIN),
        (Request::Pages { qpn: shared.qa.qpn + 1, rkey }, Errno::INVAL),
    ];
    for (asked, errno) in wrong {
        assert_eq!(shared.a.ask(&asked).unwrap_err().errno, errno.raw_os_error());
    }
    // A device that is not trusted, whichever peer it claims to have.
    let host = &shared._host;
    let _stranger = host.device(1);
    let mut c = App::attach(&host.socket(1));
    let cq = c.cq(8, None);
    let qc = c.qp(QpType::Rc, &cq, None);
    c.connect(&qc, QpType::Rc, gid(TRUSTING + 1), shared.qb.qpn);
    assert_eq!(c.ask(&Request::Pages { qpn: qc.qpn, rkey }).unwrap_err().errno, Errno::PERM.raw_os_error());
    // A trusted one, which is not its peer.
    let mut d = App::attach(&host.socket(TRUSTING));
    let cq = d.cq(8, None);
    let qd = d.qp(QpType::Rc, &cq, None);
    d.connect(&qd, QpType::Rc, gid(TRUSTING + 1), shared.qb.qpn);
    assert_eq!(d.ask(&Request::Pages { qpn: qd.qpn, rkey }).unwrap_err().errno, Errno::AGAIN.raw_os_error());
    let attributes = QpAttributes { qp_state: QpState::Error as u32, ..QpAttributes::default() };
    shared.b.modify(shared.qb.qpn, mask::STATE, attributes).unwrap();
    assert_eq!(shared.a.ask(&asked).unwrap_err().errno, Errno::AGAIN.raw_os_error());
}
