//! An application's peer dies or stops while it works with the memory that both share.

use crate::common::{App, Cq, Host, Qp, SIGNALED, TRUSTING, gid, next, until, wait_readable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use uverbs::completion::{bytes, opcode};
use uverbs::qp::{access, mask};
use uverbs::{
    Arm, Completion, CompletionSink, DirectSession, Hold, Memory, QpAttributes, QpState, QpType, Refusal,
    Reply, Request, WorkRequest, WorkSource,
};

const FLUSHED: u8 = 5;
const LOCAL_INV: u8 = 7;
const BIND: u8 = 8;

/// A sender that behaves like the library, up to the point where the test ends it.
struct Sender {
    app: App,
    session: DirectSession,
    sink: CompletionSink,
    source: WorkSource,
    /// The memory of the receiver's completion queue.
    cq: OwnedFd,
}

struct Receiver {
    app: App,
    cq: Cq,
    channel: OwnedFd,
    qps: Vec<Qp>,
    senders: Vec<Sender>,
    device: hca::Device,
    _sending: hca::Device,
    _host: Host,
}

fn sender(host: &Host, b: &mut App, cb: &Cq, first: u64) -> (Sender, Qp) {
    let mut a = App::attach(&host.socket(TRUSTING));
    let ca = a.cq(8, None);
    let (qa, mut qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, cb, None));
    a.connect(&qa, QpType::Rc, gid(TRUSTING + 1), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(TRUSTING), qa.qpn);
    (first..first + 3).for_each(|id| b.post_receive(&mut qb, id, &[]));
    let (reply, mut files) = a.ask(&Request::Direct { qpn: qa.qpn }).unwrap();
    let Reply::Direct(peer) = reply else { panic!("{reply:?}") };
    let session = DirectSession::new(Memory::open(&files[0], DirectSession::BYTES).unwrap());
    let memory = Arc::new(Memory::open(&files[1], peer.memory as usize).unwrap());
    let source = WorkSource::new(memory, peer.receive).unwrap();
    let cq = files.remove(2);
    let sink = CompletionSink::new(Memory::open(&cq, bytes(peer.entries)).unwrap(), peer.entries);
    (Sender { app: a, session, sink, source, cq }, qb)
}

/// Creates a receiver that posted three receives for each sender, numbered from 10 and from 20.
fn receiver() -> Receiver {
    let host = Host::new();
    let [sending, device] = [host.device(TRUSTING), host.device(TRUSTING + 1)];
    let mut app = App::attach(&host.socket(TRUSTING + 1));
    let (reply, mut channel) = app.ask(&Request::CreateChannel).unwrap();
    let Reply::Handle(handle) = reply else { panic!("{reply:?}") };
    let cq = app.cq(8, Some(handle));
    let (senders, qps) = [10, 20].map(|first| sender(&host, &mut app, &cq, first)).into_iter().unzip();
    let channel = channel.remove(0);
    Receiver { app, cq, channel, qps, senders, device, _sending: sending, _host: host }
}

impl Sender {
    /// Takes a receive.
    fn take(&mut self) -> u64 {
        let note = |number, id| self.session.hold(number, id);
        self.source.take_known(&mut Vec::new(), note).unwrap().unwrap().1.id
    }

    /// Reserves a place in the receiver's completion queue, and stores nothing there.
    fn reserve(&self, place: u32) {
        self.session.note_place(Hold::Tries(place));
        rustix::io::pwrite(&self.cq, &(place + 1).to_ne_bytes(), 128).unwrap();
    }

    fn arrived(&self, receiver: &Qp) -> Completion {
        Completion { opcode: opcode::RECV, qpn: receiver.qpn, ..Completion::default() }
    }

    /// Ends the sender's process.
    fn die(self) {
        drop(self.app);
    }
}

impl Receiver {
    /// Waits for the next completion; returns its identifier, status and queue pair.
    fn next(&mut self) -> (u64, u8, u32) {
        let done = next(&mut self.cq);
        (done.id, done.status, done.qpn)
    }

    /// Returns whether the device answers soon.
    fn is_answered(&self) -> bool {
        let mut wanted = [PollFd::from_borrowed_fd(self.app.connection.as_fd(), PollFlags::IN)];
        poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 300_000_000 })) == Ok(1)
    }

    /// Binds a window to memory, on one of its queue pairs; returns its key.
    fn bind(&mut self, memory: &[u8], mw_type: u32, on: usize) -> u32 {
        let region = self.app.register(memory, access::ALL);
        let (reply, _) = self.app.ask(&Request::AllocMw { pd: self.app.pd, mw_type }).unwrap();
        let Reply::Mw { rkey, .. } = reply else { panic!("{reply:?}") };
        let (address, compare_add) = (memory.as_ptr() as u64, memory.len() as u64);
        let rights = access::REMOTE_WRITE.into();
        let part = WorkRequest { address, compare_add, swap: rights, rkey, immediate: region, ..asked(BIND) };
        self.app.post_send(&mut self.qps[on], part, &[]);
        assert_eq!(self.next(), (BIND.into(), 0, self.qps[on].qpn));
        rkey
    }

    /// Invalidates the key of a window by a request of one of its queue pairs.
    fn invalidate(&mut self, key: u32, on: usize) {
        let asked = WorkRequest { immediate: key, ..asked(LOCAL_INV) };
        self.app.post_send(&mut self.qps[on], asked, &[]);
    }

    fn answer(&mut self) {
        self.app.connection.receive::<Result<Reply, Refusal>>().unwrap().0.unwrap();
    }
}

fn asked(opcode: u8) -> WorkRequest {
    WorkRequest { id: opcode.into(), opcode, flags: SIGNALED, ..WorkRequest::default() }
}

#[test]
fn a_place_that_a_killed_sender_reserved_is_filled() {
    let mut b = receiver();
    let (mut a, c) = (b.senders.remove(0), b.senders.remove(0));
    b.cq.queue.arm(Arm::Any);
    assert!(a.session.enter());
    assert_eq!(a.take(), 10);
    a.reserve(0);
    // It holds back what comes after it; once it is announced, that is not announced again.
    assert!(c.sink.push(&Completion { id: 7, ..c.arrived(&b.qps[1]) }, false).unwrap());
    assert!(b.cq.queue.poll().is_none());
    b.cq.queue.arm(Arm::Any);
    a.die();
    wait_readable(&b.channel);
    assert_eq!([b.next(), b.next()], [(10, FLUSHED, b.qps[0].qpn), (7, 0, b.qps[1].qpn)]);
    assert!(b.cq.queue.poll().is_none());
}

#[test]
fn a_place_without_a_receive_is_seen_by_nobody() {
    let mut b = receiver();
    let (a, c) = (b.senders.remove(0), b.senders.remove(0));
    assert!(a.session.enter());
    a.reserve(0);
    let _ = c.sink.push(&Completion { id: 7, ..c.arrived(&b.qps[1]) }, false);
    a.die();
    assert_eq!(b.next(), (7, 0, b.qps[1].qpn));
}

#[test]
fn a_place_that_another_may_have_is_left_to_it() {
    let mut b = receiver();
    let (mut a, mut c) = (b.senders.remove(0), b.senders.remove(0));
    let (qa, qc) = (b.qps[0].qpn, b.qps[1].qpn);
    // Both try to get it; the other one has it.
    assert!(a.session.enter() && c.session.enter());
    assert_eq!((a.take(), c.take()), (10, 20));
    a.session.note_place(Hold::Tries(0));
    c.reserve(0);
    a.die();
    // The device knows by now, and fills nothing.
    until(|| b.device.describe()[0].qps.iter().any(|qp| qp.qpn == qa && qp.direct.0 == 0));
    assert!(b.cq.queue.poll().is_none());
    let _ = c.sink.fill(0, &Completion { id: 20, ..c.arrived(&b.qps[1]) }, false);
    c.session.leave();
    assert_eq!([b.next(), b.next()], [(20, 0, qc), (10, FLUSHED, qa)]);
}

#[test]
fn what_a_killed_sender_did_all_of_is_done_once() {
    let mut b = receiver();
    let mut a = b.senders.remove(0);
    b.cq.queue.arm(Arm::Any);
    assert!(a.session.enter());
    let id = a.take();
    let arrived = Completion { id, ..a.arrived(&b.qps[0]) };
    // It should have announced it.
    assert_eq!(a.sink.push_noting(&arrived, false, |place| a.session.note_place(place)), Ok(true));
    a.die();
    wait_readable(&b.channel);
    assert_eq!(b.next(), (10, 0, b.qps[0].qpn));
    // The receives after it are flushed, but it is not.
    let attributes = QpAttributes { qp_state: QpState::Error as u32, ..QpAttributes::default() };
    b.app.modify(b.qps[0].qpn, mask::STATE, attributes).unwrap();
    assert_eq!([b.next().0, b.next().0], [11, 12]);
}

#[test]
fn a_receive_that_a_killed_sender_took_is_flushed() {
    let mut b = receiver();
    let mut a = b.senders.remove(0);
    assert!(a.session.enter());
    assert_eq!(a.take(), 10);
    a.die();
    assert_eq!(b.next(), (10, FLUSHED, b.qps[0].qpn));
    let attributes = QpAttributes { qp_state: QpState::Error as u32, ..QpAttributes::default() };
    b.app.modify(b.qps[0].qpn, mask::STATE, attributes).unwrap();
    assert_eq!([b.next().0, b.next().0], [11, 12]);
}

#[test]
fn memory_is_taken_away_once_nobody_is_at_work_with_it() {
    let mut b = receiver();
    let memory = vec![0; 4096];
    let [first, second] = [(); 2].map(|()| b.app.register(&memory, 15));
    let (a, c) = (b.senders.remove(0), b.senders.remove(0));
    assert!(a.session.enter() && c.session.enter());
    b.app.connection.send(&Request::DeregMr { mr: first }, &[]).unwrap();
    a.session.leave();
    assert!(!b.is_answered());
    // It continues with something else, and sees that the session is closed.
    c.session.leave();
    assert!(c.session.enter());
    b.answer();
    b.app.connection.send(&Request::DeregMr { mr: second }, &[]).unwrap();
    assert!(!b.is_answered());
    c.die();
    b.answer();
}

#[test]
fn a_queue_pair_is_reset_once_nobody_is_at_work_with_it() {
    let mut b = receiver();
    let mut a = b.senders.remove(0);
    assert!(a.session.enter());
    let id = a.take();
    let attributes = QpAttributes { qp_state: QpState::Error as u32, ..QpAttributes::default() };
    let qpn = b.qps[0].qpn;
    b.app.connection.send(&Request::ModifyQp { qpn, mask: mask::STATE, attributes }, &[]).unwrap();
    assert!(!b.is_answered() && a.session.is_closed() && b.cq.queue.poll().is_none());
    // The message that it had begun completes before the flushed ones.
    let arrived = Completion { id, ..a.arrived(&b.qps[0]) };
    a.sink.push_noting(&arrived, false, |place| a.session.note_place(place)).unwrap();
    a.session.leave();
    b.answer();
    assert_eq!([b.next(), b.next()], [(10, 0, qpn), (11, FLUSHED, qpn)]);
}

#[test]
fn a_key_is_taken_away_once_those_who_could_use_it_are_done() {
    let mut b = receiver();
    let memory = vec![0; 4096];
    let (a, c) = (b.senders.remove(0), b.senders.remove(0));
    let key = b.bind(&memory, 2, 0);
    // The peer of the other queue pair can't use the key, and stops.
    assert!(c.session.enter());
    b.invalidate(key, 0);
    assert_eq!(b.next(), (LOCAL_INV.into(), 0, b.qps[0].qpn));
    // Nor can it use keys of another protection domain.
    let own = b.app.pd;
    b.app.pd = b.app.handle(&Request::AllocPd);
    let region = b.app.register(&memory, 0);
    b.app.ask(&Request::DeregMr { mr: region }).unwrap();
    b.app.pd = own;
    // The device waits for the peer of this queue pair.
    let key = b.bind(&memory, 2, 0);
    assert!(a.session.enter());
    b.invalidate(key, 0);
    b.app.ask(&Request::QueryPort).unwrap();
    assert!(b.cq.queue.poll().is_none());
    a.session.leave();
    assert_eq!(b.next(), (LOCAL_INV.into(), 0, b.qps[0].qpn));
}

#[test]
fn a_key_that_others_are_at_work_with_is_not_taken_away_by_an_error() {
    let mut b = receiver();
    let memory = vec![0; 4096];
    let a = b.senders.remove(0);
    let key = b.bind(&memory, 2, 0);
    assert!(a.session.enter());
    b.invalidate(key, 1);
    let (qpn, attributes) =
        (b.qps[1].qpn, QpAttributes { qp_state: QpState::Error as u32, ..QpAttributes::default() });
    b.app.modify(qpn, mask::STATE, attributes).unwrap();
    b.app.post_send(&mut b.qps[1], asked(BIND), &[]);
    let receives = [b.next(), b.next(), b.next()];
    assert_eq!(receives, [20, 21, 22].map(|id| (id, FLUSHED, qpn)));
    b.app.ask(&Request::QueryPort).unwrap();
    assert!(b.cq.queue.poll().is_none());
    a.session.leave();
    let done = [b.next(), b.next()];
    assert_eq!(done, [(LOCAL_INV.into(), 0, qpn), (BIND.into(), FLUSHED, qpn)]);
}
