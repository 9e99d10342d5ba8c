//! Memory windows: requests that bind them, who may use them, and who may not.

use crate::common::{App, Host, Qp, SIGNALED, Two, gid, next, segment, two};
use uverbs::qp::{access, mask};
use uverbs::{QpAttributes, QpType, Reply, Request, WorkRequest};

const WRITE: u8 = 0;
const SEND: u8 = 2;
const READ: u8 = 4;
const LOCAL_INV: u8 = 7;
const BIND: u8 = 8;
const SEND_WITH_INV: u8 = 9;

const OK: u8 = 0;
const PROTECTION: u8 = 4;
const FLUSHED: u8 = 5;
const BIND_ERROR: u8 = 6;
const REMOTE_ACCESS: u8 = 10;

/// `IBV_WC_BIND_MW` and `IBV_WC_LOCAL_INV`.
const BOUND: u8 = 5;
const INVALIDATED: u8 = 6;

const BUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
const RIGHTS: u32 = access::REMOTE_WRITE | access::REMOTE_READ;

fn asked(opcode: u8, id: u64) -> WorkRequest {
    WorkRequest { id, opcode, flags: SIGNALED, ..WorkRequest::default() }
}

fn window(app: &mut App, mw_type: u32) -> (u32, u32) {
    match app.ask(&Request::AllocMw { pd: app.pd, mw_type }).unwrap().0 {
        Reply::Mw { mw, rkey } => (mw, rkey),
        other => panic!("{other:?}"),
    }
}

/// Binds the window with this key to a part of B's memory.
fn bind(key: u32, part: &[u8], to: u32, rights: u32) -> WorkRequest {
    let (address, compare_add) = (part.as_ptr() as u64, part.len() as u64);
    WorkRequest { address, compare_add, swap: rights.into(), rkey: key, immediate: to, ..asked(BIND, 7) }
}

const fn next_key(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

/// Makes B bind a window, and checks the result.
fn bound(t: &mut Two, asked: WorkRequest, status: u8) {
    t.b.post_send(&mut t.qb, asked, &[]);
    let done = next(&mut t.cb);
    assert_eq!((done.id, done.status, done.opcode), (7, status, BOUND));
}

/// Makes A write a byte; returns the result.
fn write(t: &mut Two, address: u64, rkey: u32) -> u8 {
    let asked = WorkRequest { address, rkey, ..asked(WRITE, 1) };
    t.a.post_send(&mut t.qa, asked, &[segment(&t.ma[100..101], t.ka)]);
    next(&mut t.ca).status
}

fn at(part: &[u8]) -> u64 {
    part.as_ptr() as u64
}

#[test]
fn a_window_is_a_part_of_a_region_with_rights_of_its_own() {
    for (kind, mw_type) in [(QpType::Rc, 1), (QpType::Rc, 2), (QpType::Uc, 2)] {
        let mut t = two(kind);
        let (_, key) = window(&mut t.b, mw_type);
        let request = bind(next_key(key), &t.mb[1000..2000], t.kb, access::REMOTE_WRITE);
        bound(&mut t, request, OK);
        let there = at(&t.mb[1999..]);
        assert_eq!(write(&mut t, there, next_key(key)), OK);
        if kind == QpType::Uc {
            continue;
        }
        assert_eq!(t.mb[1999], t.ma[100]);
        let read = WorkRequest { address: there, rkey: next_key(key), ..asked(READ, 2) };
        t.a.post_send(&mut t.qa, read, &[segment(&t.ma[..1], t.ka)]);
        assert_eq!(next(&mut t.ca).status, REMOTE_ACCESS, "no such right");
    }
}

#[test]
fn a_window_ends_where_it_ends() {
    for outside in [999, 2000] {
        let mut t = two(QpType::Rc);
        let (_, key) = window(&mut t.b, 2);
        let request = bind(key, &t.mb[1000..2000], t.kb, RIGHTS);
        bound(&mut t, request, OK);
        let there = at(&t.mb[outside..]);
        assert_eq!(write(&mut t, there, key), REMOTE_ACCESS);
    }
}

#[test]
fn addresses_of_a_window_may_begin_at_zero() {
    let mut t = two(QpType::Rc);
    let (_, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[1000..2000], t.kb, RIGHTS | access::ZERO_BASED);
    bound(&mut t, request, OK);
    assert_eq!(write(&mut t, 5, key), OK);
    assert_eq!(t.mb[1005], t.ma[100]);
    let there = at(&t.mb[1000..]);
    assert_eq!(write(&mut t, there, key), REMOTE_ACCESS);
}

#[test]
fn a_window_is_bound_again_and_unbound() {
    let mut t = two(QpType::Rc);
    let (_, first) = window(&mut t.b, 1);
    let (one, other) = (at(&t.mb[..1000]), at(&t.mb[1000..]));
    let request = bind(next_key(first), &t.mb[..1000], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    assert_eq!(write(&mut t, one, next_key(first)), OK);
    // Bound elsewhere, with the next key: the last one is no longer valid.
    let key = next_key(next_key(first));
    let request = bind(key, &t.mb[1000..2000], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    assert_eq!(write(&mut t, other, key), OK);
    let request = bind(next_key(key), &[], 0, 0);
    bound(&mut t, request, OK);
    assert_eq!(write(&mut t, other, key), REMOTE_ACCESS);
}

#[test]
fn a_request_after_it_sees_it_and_one_before_it_does_not_need_it() {
    let mut t = two(QpType::Rc);
    let (_, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[..1000], t.kb, RIGHTS);
    // B has sends in progress, before and after; the first one waits for a receive.
    t.b.post_send(&mut t.qb, asked(SEND, 1), &[segment(&t.mb[..10], t.kb)]);
    t.b.post_send(&mut t.qb, request, &[]);
    t.b.post_send(&mut t.qb, WorkRequest { immediate: key, ..asked(LOCAL_INV, 8) }, &[]);
    t.b.post_send(&mut t.qb, WorkRequest { id: 9, ..request }, &[]);
    t.b.post_send(&mut t.qb, asked(SEND, 10), &[segment(&t.mb[..10], t.kb)]);
    for id in [1, 10] {
        t.a.post_receive(&mut t.qa, id, &[segment(&t.ma[5000..], t.ka)]);
    }
    let done: Vec<_> = (0..5).map(|_| next(&mut t.cb)).map(|it| (it.id, it.status, it.opcode)).collect();
    assert_eq!(done, [(1, OK, 0), (7, OK, BOUND), (8, OK, INVALIDATED), (9, OK, BOUND), (10, OK, 0)]);
    let there = at(&t.mb);
    assert_eq!(write(&mut t, there, key), OK);
}

#[test]
fn what_may_not_be_bound_is_not_and_ends_the_connection() {
    type Wrong = fn(&mut Two, u32) -> WorkRequest;
    let wrongs: [Wrong; 8] = [
        // Past the end of the region; to no region; with another window's key.
        |t, key| WorkRequest { compare_add: 1 + (1 << 20), ..bind(key, &t.mb, t.kb, 0) },
        |t, key| WorkRequest { address: u64::MAX, ..bind(key, &t.mb[..2], t.kb, 0) },
        |t, key| bind(key, &t.mb, t.kb ^ 0x100, 0),
        |t, key| bind(key ^ 0x100, &t.mb, t.kb, 0),
        // Binds of type 2: of no bytes; with invalid rights; to a window.
        |t, key| bind(key, &[], t.kb, 0),
        |t, key| bind(key, &t.mb, t.kb, 1 << 30),
        |t, key| bind(key, &t.mb, key, 0),
        |t, key| WorkRequest { swap: 1 << 40, ..bind(key, &t.mb, t.kb, 0) },
    ];
    for wrong in wrongs {
        let mut t = two(QpType::Rc);
        let (_, key) = window(&mut t.b, 2);
        let request = wrong(&mut t, key);
        t.b.post_send(&mut t.qb, request, &[]);
        t.b.post_send(&mut t.qb, asked(SEND, 2), &[]);
        let ended = [next(&mut t.cb), next(&mut t.cb)].map(|done| done.status);
        assert_eq!(ended, [BIND_ERROR, FLUSHED]);
    }
    // A region that permits no windows, or no writes by peers; another protection domain.
    for rights in [access::LOCAL_WRITE, access::MW_BIND] {
        let mut t = two(QpType::Rc);
        let region = t.b.register(&t.mb[..1000], rights);
        let (_, key) = window(&mut t.b, 2);
        let request = bind(key, &t.mb[..10], region, access::REMOTE_WRITE);
        bound(&mut t, request, BIND_ERROR);
    }
    let mut t = two(QpType::Rc);
    let other = t.b.handle(&Request::AllocPd);
    let own = std::mem::replace(&mut t.b.pd, other);
    let (_, key) = window(&mut t.b, 2);
    t.b.pd = own;
    let request = bind(key, &t.mb, t.kb, 0);
    bound(&mut t, request, BIND_ERROR);
}

#[test]
fn one_of_type_2_is_bound_once_until_it_is_invalidated() {
    let mut t = two(QpType::Rc);
    let (_, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    let request = bind(next_key(key), &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, BIND_ERROR);
}

#[test]
fn a_window_of_type_2_is_for_the_peer_of_its_queue_pair() {
    let mut t = two(QpType::Rc);
    let (qa, qb) = (t.a.qp(QpType::Rc, &t.ca, None), t.b.qp(QpType::Rc, &t.cb, None));
    t.a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
    t.b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
    let others = |t: &mut Two, qa: Qp| std::mem::replace(&mut t.qa, qa);
    let (_, one) = window(&mut t.b, 1);
    let (_, two) = window(&mut t.b, 2);
    for key in [one, two] {
        let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
        bound(&mut t, request, OK);
    }
    let there = at(&t.mb);
    let first = others(&mut t, qa);
    assert_eq!(write(&mut t, there, one), OK, "one of type 1 is for all of the protection domain");
    assert_eq!(write(&mut t, there, two), REMOTE_ACCESS);
    others(&mut t, first);
    assert_eq!(write(&mut t, there, two), OK);
}

#[test]
fn a_peer_takes_a_key_back_with_a_message() {
    let mut t = two(QpType::Rc);
    let (_, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    t.b.post_receive(&mut t.qb, 1, &[]);
    t.a.post_send(&mut t.qa, WorkRequest { immediate: key, ..asked(SEND_WITH_INV, 1) }, &[]);
    assert_eq!(next(&mut t.ca).status, OK);
    let received = next(&mut t.cb);
    assert_eq!((received.immediate, received.flags), (key, 8), "with what it invalidated");
    // It may be bound again.
    let request = bind(next_key(key), &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    let there = at(&t.mb);
    assert_eq!(write(&mut t, there, next_key(key)), OK);
    assert_eq!(write(&mut t, there, key), REMOTE_ACCESS);
}

/// A region, a window of type 1, one that is not bound, one of another queue pair.
#[test]
fn what_no_work_request_made_for_it_no_peer_takes_back() {
    for which in 0..4 {
        let mut t = two(QpType::Rc);
        let (_, one) = window(&mut t.b, 1);
        let (_, unbound) = window(&mut t.b, 2);
        let (_, others) = window(&mut t.b, 2);
        let request = bind(one, &t.mb[..10], t.kb, RIGHTS);
        bound(&mut t, request, OK);
        let (qa, mut qb) = (t.a.qp(QpType::Rc, &t.ca, None), t.b.qp(QpType::Rc, &t.cb, None));
        t.a.connect(&qa, QpType::Rc, gid(2), qb.qpn);
        t.b.connect(&qb, QpType::Rc, gid(1), qa.qpn);
        t.b.post_send(&mut qb, bind(others, &t.mb[..10], t.kb, RIGHTS), &[]);
        assert_eq!(next(&mut t.cb).status, OK);
        let key = [t.kb, one, unbound, others][which];
        t.b.post_receive(&mut t.qb, 1, &[]);
        t.a.post_send(&mut t.qa, WorkRequest { immediate: key, ..asked(SEND_WITH_INV, 1) }, &[]);
        assert_eq!((next(&mut t.ca).status, next(&mut t.cb).status), (REMOTE_ACCESS, PROTECTION), "{which}");
        if which == 0 {
            t.qa = qa;
            let there = at(&t.mb);
            assert_eq!(write(&mut t, there, key), OK, "the region is as it was");
        }
    }
}

#[test]
fn a_program_invalidates_windows_of_type_2_only() {
    for mw_type in [0, 1, 2] {
        let mut t = two(QpType::Rc);
        let key = match mw_type {
            0 => t.kb,
            _ => {
                let (_, key) = window(&mut t.b, mw_type);
                let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
                bound(&mut t, request, OK);
                key
            }
        };
        t.b.post_send(&mut t.qb, WorkRequest { immediate: key, ..asked(LOCAL_INV, 3) }, &[]);
        let done = next(&mut t.cb);
        let expected = if mw_type == 2 { OK } else { BIND_ERROR };
        assert_eq!((done.id, done.status, done.opcode), (3, expected, INVALIDATED));
        if mw_type == 2 {
            let there = at(&t.mb);
            assert_eq!(write(&mut t, there, key), REMOTE_ACCESS);
        }
    }
}

#[test]
fn a_window_is_no_key_for_its_owner() {
    let mut t = two(QpType::Rc);
    let (_, key) = window(&mut t.b, 1);
    let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    t.b.post_send(&mut t.qb, asked(SEND, 1), &[segment(&t.mb[..10], key)]);
    assert_eq!(next(&mut t.cb).status, PROTECTION);
}

#[test]
fn a_region_stays_while_windows_are_bound_to_it() {
    let mut t = two(QpType::Rc);
    let (mw, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    let dereg = Request::DeregMr { mr: t.kb };
    let rereg = Request::ReregMr { mr: t.kb, pd: None, range: None, access: Some(1) };
    for request in [&dereg, &rereg, &Request::DeallocPd { pd: t.b.pd }] {
        assert_eq!(t.b.ask(request).unwrap_err().errno, BUSY);
    }
    assert!(t.b.ask(&Request::DeregMr { mr: key }).is_err(), "a window is no region");
    t.b.ask(&Request::DeallocMw { mw }).unwrap();
    assert!(t.b.ask(&Request::DeallocMw { mw }).is_err());
    let there = at(&t.mb);
    assert_eq!(write(&mut t, there, key), REMOTE_ACCESS);
    t.b.ask(&dereg).unwrap();
}

#[test]
fn a_queue_pair_takes_its_bindings_along() {
    let mut t = two(QpType::Rc);
    let (_, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    t.b.ask(&Request::DestroyQp { qpn: t.qb.qpn }).unwrap();
    t.b.ask(&Request::DeregMr { mr: t.kb }).unwrap();
}

#[test]
fn a_reset_queue_pair_has_no_bindings() {
    let mut t = two(QpType::Rc);
    let (_, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
    bound(&mut t, request, OK);
    let (qa, qb) = (t.qa.qpn, t.qb.qpn);
    for (app, qp, peer, qpn) in [(&mut t.b, &mut t.qb, 1, qa), (&mut t.a, &mut t.qa, 2, qb)] {
        app.modify(qp.qpn, mask::STATE, QpAttributes::default()).unwrap();
        qp.sends.reset();
        app.connect(qp, QpType::Rc, gid(peer), qpn);
    }
    let there = at(&t.mb);
    assert_eq!(write(&mut t, there, key), REMOTE_ACCESS);
    t.b.ask(&Request::DeregMr { mr: t.kb }).unwrap();
}

#[test]
fn windows_count_as_regions() {
    let host = Host::new();
    let device = host.device(1);
    let mut app = App::attach(&host.socket(1));
    let limit = app.info.max_mw;
    assert_eq!(limit, app.info.max_mr);
    let (first, _) = window(&mut app, 1);
    for _ in 1..limit {
        window(&mut app, 2);
    }
    let more = Request::AllocMw { pd: app.pd, mw_type: 1 };
    assert_eq!(app.ask(&more).unwrap_err().errno, rustix::io::Errno::NOMEM.raw_os_error());
    app.ask(&Request::DeallocMw { mw: first }).unwrap();
    app.ask(&more).unwrap();
    for mw_type in [0, 3] {
        let wrong = Request::AllocMw { pd: app.pd, mw_type };
        assert_eq!(app.ask(&wrong).unwrap_err().errno, rustix::io::Errno::INVAL.raw_os_error());
    }
    drop(device);
}

#[test]
fn datagrams_have_no_windows() {
    let mut t = two(QpType::Ud);
    let (_, key) = window(&mut t.b, 2);
    let request = bind(key, &t.mb[..10], t.kb, RIGHTS);
    t.b.post_send(&mut t.qb, request, &[]);
    assert_ne!(next(&mut t.cb).status, OK);
}
