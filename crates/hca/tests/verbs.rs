//! Everything that two applications on one host can do.

use crate::common;
use crate::common::{
    App, Host, SIGNALED, described, gid, next, open, own_memory, segment, two, vector, wait_readable,
};
use std::os::fd::AsFd;
use uverbs::qp::{access, mask};
use uverbs::{Arm, QpAttributes, QpState, QpType, Refusal, Reply, Request, Uuid, VERSION, WorkRequest};

const SEND: u8 = 2;
const SEND_WITH_IMM: u8 = 3;
const WRITE: u8 = 0;
const READ: u8 = 4;
const SWAP: u8 = 5;
const ADD: u8 = 6;

const OK: u8 = 0;
const FLUSHED: u8 = 5;
const PROTECTION: u8 = 4;
const REMOTE_ACCESS: u8 = 10;
const RETRY_EXCEEDED: u8 = 12;

fn asked(opcode: u8, id: u64) -> WorkRequest {
    WorkRequest { id, opcode, flags: SIGNALED, ..WorkRequest::default() }
}

#[test]
fn a_message_arrives() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut t = two(kind);
        for (round, len) in [0, 1, 1000, 32768, 100_001].into_iter().enumerate() {
            let id = round as u64;
            t.b.post_receive(&mut t.qb, 100 + id, &[segment(&t.mb, t.kb)]);
            let send = WorkRequest { immediate: 77, ..asked(SEND_WITH_IMM, id) };
            t.a.post_send(&mut t.qa, send, &[segment(&t.ma[round..round + len], t.ka)]);
            let (sent, received) = (next(&mut t.ca), next(&mut t.cb));
            assert_eq!((sent.id, sent.status, sent.qpn), (id, OK, t.qa.qpn));
            assert_eq!((received.id, received.status, received.byte_len), (100 + id, OK, len as u32));
            assert_eq!((received.immediate, received.opcode, received.flags), (77, 128, 2));
            assert!(t.mb[..len] == t.ma[round..round + len], "{kind:?} {len}");
        }
    }
}

#[test]
fn lists_and_inline_messages() {
    let mut t = two(QpType::Rc);
    let (x, y) = t.mb.split_at(10);
    t.b.post_receive(&mut t.qb, 1, &[segment(x, t.kb), segment(&y[90..], t.kb)]);
    t.b.post_receive(&mut t.qb, 2, &[segment(&t.mb[200..], t.kb)]);
    let list = [segment(&t.ma[..7], t.ka), segment(&t.ma[50..50], t.ka), segment(&t.ma[7..20], t.ka)];
    t.a.post_send(&mut t.qa, asked(SEND, 1), &list);
    let text = *b"inline";
    let inline = WorkRequest { inline_len: 6, ..asked(SEND, 2) };
    // SAFETY: it is `text`.
    assert!(unsafe { t.qa.sends.fill_inline(&inline, &[(text.as_ptr(), 6)]) });
    t.a.post_send(&mut t.qa, asked(SEND, 3), &[]);
    t.b.post_receive(&mut t.qb, 3, &[]);
    for id in 1..=3 {
        assert_eq!((next(&mut t.ca).id, next(&mut t.cb).id), (id, id));
    }
    assert!(t.mb[..10] == t.ma[..10] && t.mb[100..110] == t.ma[10..20] && t.mb[200..206] == text);
}

#[test]
fn one_sided_operations_need_nobody_at_the_target() {
    let mut t = two(QpType::Rc);
    let there = |offset: usize| (t.mb.as_ptr() as u64) + offset as u64;
    let write = WorkRequest { address: there(3), rkey: t.kb, ..asked(WRITE, 1) };
    t.a.post_send(&mut t.qa, write, &[segment(&t.ma[..200_000], t.ka)]);
    assert_eq!(next(&mut t.ca).status, OK);
    assert!(t.mb[3..200_003] == t.ma[..200_000]);
    let read = WorkRequest { address: there(10), rkey: t.kb, ..asked(READ, 2) };
    t.a.post_send(&mut t.qa, read, &[segment(&t.ma[500_000..600_000], t.ka)]);
    assert_eq!(next(&mut t.ca).status, OK);
    assert!(t.ma[500_000..600_000] == t.mb[10..100_010]);
    let at = there(0).next_multiple_of(8);
    let offset = (at - there(0)) as usize;
    let before = u64::from_ne_bytes(t.mb[offset..offset + 8].try_into().unwrap());
    let add = WorkRequest { address: at, rkey: t.kb, compare_add: 5, ..asked(ADD, 3) };
    t.a.post_send(&mut t.qa, add, &[segment(&t.ma[..8], t.ka)]);
    let swap = WorkRequest { compare_add: before + 5, swap: 1, ..WorkRequest { id: 4, opcode: SWAP, ..add } };
    t.a.post_send(&mut t.qa, swap, &[segment(&t.ma[8..16], t.ka)]);
    assert_eq!((next(&mut t.ca).opcode, next(&mut t.ca).opcode), (4, 3));
    assert_eq!(t.ma[..8], before.to_ne_bytes());
    assert_eq!(t.ma[8..16], (before + 5).to_ne_bytes());
    assert_eq!(t.mb[offset..offset + 8], 1_u64.to_ne_bytes());
}

#[test]
fn a_wrong_key_ends_both_sides() {
    let mut t = two(QpType::Rc);
    t.b.post_receive(&mut t.qb, 9, &[segment(&t.mb, t.kb)]);
    let write = WorkRequest { address: t.mb.as_ptr() as u64, rkey: t.kb ^ 1, ..asked(WRITE, 1) };
    t.a.post_send(&mut t.qa, write, &[segment(&t.ma[..10], t.ka)]);
    t.a.post_send(&mut t.qa, asked(SEND, 2), &[]);
    assert_eq!(next(&mut t.ca).status, REMOTE_ACCESS);
    assert_eq!(next(&mut t.ca).status, FLUSHED);
    let flushed = next(&mut t.cb);
    assert_eq!((flushed.id, flushed.status), (9, FLUSHED));
    assert_eq!(t.b.event().kind, 3, "an access error");
    // Later requests are flushed too.
    t.b.post_receive(&mut t.qb, 10, &[]);
    assert_eq!(next(&mut t.cb).status, FLUSHED);
    t.a.post_send(&mut t.qa, asked(SEND, 3), &[]);
    assert_eq!(next(&mut t.ca).status, FLUSHED);
    let Reply::QpInfo(info) = t.a.ask(&Request::QueryQp { qpn: t.qa.qpn }).unwrap().0 else { panic!() };
    assert_eq!(info.attributes.qp_state, QpState::Error as u32);
}

#[test]
fn memory_of_others_is_not_there() {
    let mut t = two(QpType::Rc);
    // B's key is not A's.
    t.a.post_send(&mut t.qa, asked(SEND, 1), &[segment(&t.ma[..10], t.kb)]);
    assert_eq!(next(&mut t.ca).status, PROTECTION);
    let asked = Request::RegMr { pd: t.a.pd, address: 4096, length: 10, iova: 0, access: 0, pages: vec![] };
    assert_eq!(t.a.ask(&asked).unwrap_err().errno, rustix::io::Errno::FAULT.raw_os_error());
}

#[test]
fn a_peer_that_went_away_is_given_up() {
    let mut t = two(QpType::Rc);
    drop(t.b);
    t.a.post_send(&mut t.qa, asked(SEND, 1), &[segment(&t.ma[..10], t.ka)]);
    assert_eq!(next(&mut t.ca).status, RETRY_EXCEEDED);
}

#[test]
fn datagrams_reach_who_has_the_key() {
    let mut t = two(QpType::Ud);
    let ah = t.a.handle(&Request::CreateAh { pd: t.a.pd, vector: vector(gid(2)) });
    t.b.post_receive(&mut t.qb, 1, &[segment(&t.mb, t.kb)]);
    let to = WorkRequest { ah, remote_qpn: t.qb.qpn, remote_qkey: 0x1234, ..asked(SEND, 1) };
    t.a.post_send(&mut t.qa, WorkRequest { remote_qkey: 5, ..to }, &[segment(&t.ma[..20], t.ka)]);
    assert_eq!(next(&mut t.ca).status, OK);
    t.a.post_send(&mut t.qa, to, &[segment(&t.ma[..30], t.ka)]);
    assert_eq!(next(&mut t.ca).status, OK);
    let received = next(&mut t.cb);
    let flags = uverbs::completion::flags::GRH | uverbs::completion::flags::BY_IPV4;
    assert_eq!((received.byte_len, received.source_qpn, received.flags), (70, t.qa.qpn, flags));
    assert!(t.mb[40..70] == t.ma[..30]);
    // The IPv4 header in front of the message: from 10.1.1.1 to 10.1.1.2.
    assert_eq!((t.mb[20], &t.mb[32..40]), (0x45, &[10, 1, 1, 1, 10, 1, 1, 2][..]));
}

#[test]
fn a_shared_receive_queue_serves_many_and_tells_when_it_runs_low() {
    let host = Host::new();
    let _devices = [host.device(1), host.device(2)];
    let (mut a, mut b) = (App::attach(&host.socket(1)), App::attach(&host.socket(2)));
    let (mut ca, mut cb) = (a.cq(64, None), b.cq(64, None));
    let mut srq = b.srq();
    b.ask(&Request::ArmSrq { srq: srq.handle, limit: 3 }).unwrap();
    let memory = vec![0_u8; 100];
    let key = b.register(&memory, access::LOCAL_WRITE);
    for id in 0..4 {
        let at = &memory[id * 10..id * 10 + 10];
        let receive = WorkRequest { id: id as u64, segments: 1, ..WorkRequest::default() };
        assert!(srq.queue.fill(&receive, &[segment(at, key)]));
    }
    srq.queue.publish();
    let text = b"0123456789".to_vec();
    let own = a.register(&text, 0);
    for round in 0..4 {
        let mut qa = a.qp(QpType::Rc, &ca, None);
        let qb = b.qp(QpType::Rc, &cb, Some(srq.handle));
        a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
        b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
        a.post_send(&mut qa, asked(SEND, round), &[segment(&text, own)]);
        assert_eq!(next(&mut ca).status, OK);
        let received = next(&mut cb);
        assert_eq!((received.id, received.qpn), (round, qb.qpn));
    }
    assert!(memory[..40].chunks(10).all(|chunk| chunk == text));
    let event = b.event();
    assert_eq!((event.kind, event.handle), (15, srq.handle));
    assert_eq!(b.ask(&Request::DestroySrq { srq: srq.handle }).unwrap_err().errno, 16, "in use");
}

#[test]
fn a_channel_tells_of_completions() {
    let mut t = two(QpType::Rc);
    let (reply, mut files) = t.b.ask(&Request::CreateChannel).unwrap();
    let Reply::Handle(channel) = reply else { panic!() };
    let mut cq = t.b.cq(16, Some(channel));
    let mut qb = t.b.qp(QpType::Rc, &cq, None);
    let mut qa = t.a.qp(QpType::Rc, &t.ca, None);
    t.a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    t.b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    let events = files.remove(0);
    for flags in [SIGNALED, SIGNALED | common::SOLICITED] {
        t.b.post_receive(&mut qb, 1, &[]);
        cq.queue.arm(if flags == SIGNALED { Arm::Any } else { Arm::Solicited });
        t.a.post_send(&mut qa, WorkRequest { flags, ..asked(SEND, 1) }, &[]);
        wait_readable(&events);
        let mut handle = [0; 4];
        rustix::io::read(&events, &mut handle).unwrap();
        assert_eq!(u32::from_ne_bytes(handle), cq.handle);
        assert_eq!(next(&mut cq).status, OK);
    }
}

#[test]
fn networks_are_apart() {
    let host = Host::new();
    let _devices = [host.device_in(1, 1), host.device_in(2, 2)];
    let (mut a, mut b) = (App::attach(&host.socket(1)), App::attach(&host.socket(2)));
    let (mut ca, cb) = (a.cq(16, None), b.cq(16, None));
    let (mut qa, qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    a.post_send(&mut qa, asked(SEND, 1), &[]);
    assert_eq!(next(&mut ca).status, RETRY_EXCEEDED);
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut t = two(QpType::Rc);
    let qpn = t.qa.qpn;
    let to = |state: QpState| QpAttributes { qp_state: state as u32, ..QpAttributes::default() };
    let einval = rustix::io::Errno::INVAL.raw_os_error();
    for (mask, attributes) in [
        (mask::STATE, to(QpState::Init)),
        (mask::STATE | mask::AV, to(QpState::ReadyToSend)),
        (mask::CAP, to(QpState::Reset)),
        (mask::STATE, QpAttributes { qp_state: 9, ..QpAttributes::default() }),
    ] {
        assert_eq!(t.a.modify(qpn, mask, attributes).unwrap_err().errno, einval, "{mask:#x}");
    }
    let busy = t.a.ask(&Request::DestroyCq { cq: t.ca.handle }).unwrap_err();
    assert_eq!(busy.errno, rustix::io::Errno::BUSY.raw_os_error());
    let limit = Request::RegMr {
        pd: t.a.pd,
        address: t.ma.as_ptr() as u64,
        length: 10,
        iova: 0,
        access: 2,
        pages: vec![],
    };
    assert_eq!(t.a.ask(&limit).unwrap_err().errno, einval, "remote without local writing");
    t.b.post_receive(&mut t.qb, 1, &[]);
    t.a.post_send(&mut t.qa, asked(SEND, 1), &[]);
    assert_eq!(next(&mut t.ca).status, OK, "it still works");
}

#[test]
fn limits_hold() {
    let host = Host::new();
    let _device = host.device(1);
    let mut a = App::attach(&host.socket(1));
    let cq = a.cq(16, None);
    let _qps: Vec<_> = (0..64).map(|_| a.qp(QpType::Rc, &cq, None)).collect();
    let mut other = App::attach(&host.socket(1));
    let cq = other.cq(16, None);
    let asked = uverbs::CreateQp {
        pd: other.pd,
        qp_type: QpType::Rc,
        send_cq: cq.handle,
        recv_cq: cq.handle,
        srq: None,
        capacity: uverbs::Capacity::default(),
        sq_sig_all: false,
    };
    assert_eq!(other.ask(&Request::CreateQp(asked)).unwrap_err().errno, 12);
    let memory = [0_u8; 64];
    let region = Request::RegMr {
        pd: a.pd,
        address: memory.as_ptr() as u64,
        length: 1,
        iova: 0,
        access: 0,
        pages: vec![],
    };
    for _ in 0..64 {
        a.ask(&region).unwrap();
    }
    assert_eq!(a.ask(&region).unwrap_err().errno, 12);
}

#[test]
fn strangers_are_refused_with_a_reason() {
    let host = Host::new();
    let device = host.device(1);
    let greet = |version, descriptor: &dyn AsFd| {
        let mut connection = open(&host.socket(1));
        connection
            .send(
                &Request::Hello { version, token: 0, program: Uuid::default() },
                &[descriptor.as_fd().into()],
            )
            .unwrap();
        connection.receive::<Result<Reply, Refusal>>().unwrap().0
    };
    let text = greet(VERSION + 1, &own_memory()).unwrap_err().message;
    let both = [VERSION + 1, VERSION].map(|version| format!("version {version}"));
    assert!(both.iter().all(|version| text.contains(version)), "{text}");
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    assert!(greet(VERSION, &null).unwrap_err().message.contains("/proc/self/mem"));
    let mut connection = open(&host.socket(1));
    connection.send(&Request::AllocPd, &[]).unwrap();
    assert!(connection.receive::<Result<Reply, Refusal>>().unwrap().0.is_err());
    assert!(greet(VERSION, &own_memory()).is_ok());
    drop(device);
    assert!(!host.socket(1).exists());
}

#[test]
fn people_see_what_there_is() {
    let mut t = two(QpType::Rc);
    let write = WorkRequest { address: 5, rkey: 6, ..asked(WRITE, 1) };
    t.a.post_send(&mut t.qa, write, &[segment(&t.ma[..10], t.ka)]);
    assert_eq!(next(&mut t.ca).status, REMOTE_ACCESS);
    let [client] = <[_; 1]>::try_from(described(&t.devices[1])).unwrap();
    assert_eq!(client.pid, std::process::id() as i32);
    assert_eq!((client.mrs.len(), client.registered), (1, common::SIZE as u64));
    let [qp] = <[_; 1]>::try_from(client.qps).unwrap();
    assert_eq!((qp.qpn, qp.state, qp.peer, qp.peer_qpn), (t.qb.qpn, QpState::Error, Some(gid(1)), t.qa.qpn));
    assert_eq!(qp.error, Some("its peer accessed memory without permission"));
    assert_eq!(client.counters.get("remote_access_errors"), Some(1));
}

#[test]
fn rules_hold_within_the_host_too() {
    let rules = common::Forbidden::default();
    let host = Host::with(rules.clone());
    let devices = [host.device(1), host.device(2)];
    let (one, other) = (host.socket(1), host.socket(2));
    let mut t = common::between(QpType::Rc, host, devices, &one, &other);
    t.b.post_receive(&mut t.qb, 1, &[]);
    t.a.post_send(&mut t.qa, asked(SEND, 1), &[]);
    assert_eq!(next(&mut t.ca).status, OK);
    rules.0.lock().unwrap().push((2, 1));
    t.devices.iter().for_each(hca::Device::review);
    assert_eq!(t.a.event().kind, 1, "fatal");
    t.a.post_send(&mut t.qa, asked(SEND, 2), &[]);
    assert_eq!(next(&mut t.ca).status, FLUSHED);
    // A new connection uses the port, at which nobody listens in this test.
    let (mut qa, qb) = (t.a.qp(QpType::Rc, &t.ca, None), t.b.qp(QpType::Rc, &t.cb, None));
    t.a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    t.b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    let transport = |device: usize, qpn: u32| {
        let clients = described(&t.devices[device]);
        clients[0].qps.iter().find(|qp| qp.qpn == qpn).unwrap().transport
    };
    assert_eq!((transport(0, qa.qpn), transport(1, qb.qpn)), ("roce", "roce"));
    t.a.post_send(&mut qa, asked(SEND, 3), &[]);
    assert_eq!(next(&mut t.ca).status, RETRY_EXCEEDED);
}

#[test]
fn a_datagram_is_no_longer_than_a_packet() {
    let mut t = two(QpType::Ud);
    let ah = t.a.handle(&Request::CreateAh { pd: t.a.pd, vector: vector(gid(2)) });
    let to = WorkRequest { ah, remote_qpn: t.qb.qpn, remote_qkey: 0x1234, ..asked(SEND, 1) };
    t.b.post_receive(&mut t.qb, 1, &[segment(&t.mb, t.kb)]);
    t.a.post_send(&mut t.qa, to, &[segment(&t.ma[..1024], t.ka)]);
    assert_eq!((next(&mut t.ca).status, next(&mut t.cb).byte_len), (OK, 1064));
    t.a.post_send(&mut t.qa, to, &[segment(&t.ma[..1025], t.ka)]);
    assert_eq!(next(&mut t.ca).status, 1, "local length error");
}

#[test]
fn a_send_that_fails_stops_the_send_queue_of_an_unreliable_queue_pair() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut t = two(kind);
        let qpn = t.qa.qpn;
        let ah = t.a.handle(&Request::CreateAh { pd: t.a.pd, vector: vector(gid(2)) });
        let to = |id| WorkRequest { ah, remote_qpn: t.qb.qpn, remote_qkey: 0x1234, ..asked(SEND, id) };
        let sends = [to(1), to(2), to(3), to(4)];
        // B's key is not A's.
        t.a.post_send(&mut t.qa, sends[0], &[segment(&t.ma[..10], t.kb)]);
        t.a.post_send(&mut t.qa, sends[1], &[]);
        let ended = [next(&mut t.ca), next(&mut t.ca)].map(|done| (done.id, done.status));
        assert_eq!(ended, [(1, PROTECTION), (2, FLUSHED)], "{kind:?}");
        t.a.post_receive(&mut t.qa, 9, &[segment(&t.ma, t.ka)]);
        let ah = t.b.handle(&Request::CreateAh { pd: t.b.pd, vector: vector(gid(1)) });
        t.b.post_send(&mut t.qb, WorkRequest { ah, remote_qpn: qpn, ..sends[0] }, &[]);
        assert_eq!((next(&mut t.ca).id, next(&mut t.cb).status), (9, OK), "it receives");
        let mut set = |current: QpState| {
            let (qp_state, cur_qp_state) = (QpState::ReadyToSend as u32, current as u32);
            let attributes = QpAttributes { qp_state, cur_qp_state, ..QpAttributes::default() };
            t.a.modify(qpn, mask::STATE | mask::CUR_STATE, attributes)
        };
        assert!(set(QpState::ReadyToSend).is_err(), "it is in another state than told");
        set(QpState::SendQueueError).unwrap();
        t.b.post_receive(&mut t.qb, 5, &[segment(&t.mb, t.kb)]);
        t.a.post_send(&mut t.qa, sends[3], &[]);
        assert_eq!((next(&mut t.ca).status, next(&mut t.cb).id), (OK, 5));
    }
}

#[test]
fn a_receive_into_foreign_memory_ends_an_unreliable_connection() {
    let mut t = two(QpType::Uc);
    // A's key is not B's; a message that is too long has no effect.
    t.b.post_receive(&mut t.qb, 1, &[segment(&t.mb[..9], t.kb)]);
    t.b.post_receive(&mut t.qb, 2, &[segment(&t.mb[..10], t.ka)]);
    for len in [10, 9, 10] {
        t.a.post_send(&mut t.qa, asked(SEND, 1), &[segment(&t.ma[..len], t.ka)]);
        assert_eq!(next(&mut t.ca).status, OK);
    }
    let ended = [next(&mut t.cb), next(&mut t.cb)].map(|done| (done.id, done.status));
    assert_eq!(ended, [(1, OK), (2, PROTECTION)]);
    let Reply::QpInfo(info) = t.b.ask(&Request::QueryQp { qpn: t.qb.qpn }).unwrap().0 else { panic!() };
    assert_eq!(info.attributes.qp_state, QpState::Error as u32);
}

#[test]
fn send_queues_are_not_too_long_together() {
    let host = Host::new();
    let _device = host.device(1);
    let mut a = App::attach(&host.socket(1));
    let cq = a.cq(16, None);
    let long = uverbs::Capacity {
        max_send_wr: 16 << 10,
        max_send_sge: 32,
        max_inline_data: 1024,
        ..uverbs::Capacity::default()
    };
    let asked = uverbs::CreateQp {
        pd: a.pd,
        qp_type: QpType::Rc,
        send_cq: cq.handle,
        recv_cq: cq.handle,
        srq: None,
        capacity: long,
        sq_sig_all: false,
    };
    // 17 MB of shared memory each, and 26 MB of ours: 512 MB together.
    let made: Vec<_> = (0..13).map(|_| a.ask(&Request::CreateQp(asked.clone()))).collect();
    assert!(made[..12].iter().all(Result::is_ok));
    assert_eq!(made[12].as_ref().unwrap_err().errno, 12);
    let Reply::Qp { qpn, .. } = made[0].as_ref().unwrap().0 else { panic!() };
    a.ask(&Request::DestroyQp { qpn }).unwrap();
    assert!(a.ask(&Request::CreateQp(asked)).is_ok());
}

#[test]
fn a_slot_is_free_once_its_completion_is_there() {
    let mut two = two(QpType::Rc);
    for id in 0..3000 {
        two.b.post_receive(&mut two.qb, id, &[]);
        two.a.post_send(&mut two.qa, asked(SEND, id), &[]);
        // Whoever sees that there is room again may complete the next one itself.
        while !two.qa.sends.is_idle() {
            std::hint::spin_loop();
        }
        assert_eq!(two.ca.queue.poll().map(|done| done.id), Some(id));
        next(&mut two.cb);
        two.qb.receives.as_mut().unwrap().give_back();
    }
}
