//! Memory windows, through the C interface: with peers that share memory, and with others.

use crate::program::two::*;
use crate::program::*;
use verbs::abi::*;
use verbs::{memory, memory_window, queue_pair};

const OK: u32 = 0;
const REMOTE_ACCESS: u32 = 10;
/// `IBV_WC_BIND_MW` and `IBV_WC_LOCAL_INV`.
const BOUND: u32 = 5;
const INVALIDATED: u32 = 6;
const RIGHTS: u32 = 0b1110;
const MW_BIND: i32 = 1 << 4;

const fn next_key(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

/// Registers memory of b to which windows may be bound; its peers have no key for it.
fn bindable(two: &Two) -> Buffer {
    Buffer::with(two.b.pd, &[0; 4096], 1 | MW_BIND)
}

fn window(two: &Two, mw_type: u32) -> *mut ibv_mw {
    // SAFETY: the domain is the test's.
    let mw = unsafe { memory_window::alloc_mw(two.b.pd, mw_type) };
    assert!(!mw.is_null());
    mw
}

fn key_of(mw: *const ibv_mw) -> u32 {
    // SAFETY: the window is the test's.
    unsafe { (*mw).rkey }
}

/// Returns a part of this memory, from offset 100 on.
fn part(of: &Buffer, length: u64) -> ibv_mw_bind_info {
    ibv_mw_bind_info { mr: of.mr, addr: of.bytes.as_ptr() as u64 + 100, length, mw_access_flags: RIGHTS }
}

/// Returns a request that needs no peer.
fn local(opcode: u32) -> ibv_send_wr {
    let mut wr = send(9, &mut []);
    // A request that sends no message has no list of segments.
    (wr.opcode, wr.num_sge) = (opcode, 77);
    wr
}

fn bind(two: &Two, mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info) {
    let mut wr = local(IBV_WR_BIND_MW);
    wr.bind_mw = BindMw { mw, rkey, bind_info };
    assert_eq!(post_send(two.b.qp, &mut wr).0, 0);
    let done = two.b.sent();
    assert_eq!((done.wr_id, done.status, done.opcode), (9, OK, BOUND));
}

fn write(two: &Two, from: &mut Buffer, at: u64, rkey: u32) -> u32 {
    let mut list = [ibv_sge { length: 8, ..from.sge() }];
    let mut wr = send(1, &mut list);
    (wr.opcode, wr.wr.rdma) = (IBV_WR_RDMA_WRITE, Rdma { remote_addr: at, rkey });
    assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
    two.a.sent().status
}

fn free(mw: *mut ibv_mw) {
    // SAFETY: the window is the test's, which does not use it any more.
    assert_eq!(unsafe { memory_window::dealloc_mw(mw) }, 0);
}

fn both(test: impl Fn(&Two, &mut Buffer, &mut Buffer)) {
    for way in Way::ALL {
        let two = Two::on(way);
        let (mut from, mut to) = (Buffer::new(two.a.pd, &[7; 64]), bindable(&two));
        test(&two, &mut from, &mut to);
        forget([&mut from, &mut to]);
        two.close();
    }
}

#[test]
fn one_of_type_2_is_bound_used_and_invalidated() {
    both(|two, from, to| {
        let mw = window(two, IBV_MW_TYPE_2);
        let mut key = key_of(mw);
        let there = to.bytes.as_ptr() as u64 + 100;
        for round in 0..3 {
            key = next_key(key);
            bind(two, mw, key, part(to, 1000));
            from.bytes.fill(round + 1);
            for _ in 0..3 {
                assert_eq!(write(two, from, there, key), OK);
            }
            assert_eq!(to.bytes[96..112], [[0; 4], [round + 1; 4], [round + 1; 4], [0; 4]].concat());
            let mut wr = local(IBV_WR_LOCAL_INV);
            wr.imm_data = key;
            assert_eq!(post_send(two.b.qp, &mut wr).0, 0);
            assert_eq!(two.b.sent().opcode, INVALIDATED);
        }
        assert!(two.a.index >= FROM_MACHINE || (two.a.direct() >= 6) == two.shares, "{}", two.a.direct());
        assert_eq!(write(two, from, there, key), REMOTE_ACCESS);
        free(mw);
    });
}

#[test]
fn one_of_type_1_is_bound_by_its_own_verb_and_takes_another_key() {
    both(|two, from, to| {
        let mw = window(two, IBV_MW_TYPE_1);
        let there = to.bytes.as_ptr() as u64 + 100;
        let mut before = key_of(mw);
        for _ in 0..300 {
            let mut wish = ibv_mw_bind { wr_id: 5, send_flags: IBV_SEND_SIGNALED, bind_info: part(to, 1000) };
            // SAFETY: queue pair and window are the test's.
            assert_eq!(unsafe { memory_window::bind_mw(two.b.qp, mw, &mut wish) }, 0);
            let done = two.b.sent();
            assert_eq!((done.wr_id, done.status, done.opcode), (5, OK, BOUND));
            assert_eq!(key_of(mw), next_key(before));
            before = key_of(mw);
        }
        assert_eq!(write(two, from, there, before), OK);
        // SAFETY: the region is registered; it may not go yet.
        assert_eq!(unsafe { memory::ibv_dereg_mr(to.mr) }, libc::EBUSY);
        free(mw);
        assert_eq!(write(two, from, there, before), REMOTE_ACCESS);
    });
}

#[test]
fn a_peer_takes_a_key_back_with_a_message() {
    both(|two, from, to| {
        let mw = window(two, IBV_MW_TYPE_2);
        let (key, there) = (next_key(key_of(mw)), to.bytes.as_ptr() as u64 + 100);
        bind(two, mw, key, part(to, 8));
        assert_eq!(write(two, from, there, key), OK);
        assert_eq!(post_receive(two.b.qp, &mut receive(2, &mut [])).0, 0);
        let mut wr = send(3, &mut []);
        (wr.opcode, wr.imm_data) = (IBV_WR_SEND_WITH_INV, key);
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        let (sent, received) = (two.a.sent(), two.b.received());
        assert_eq!((sent.status, received.imm_data, received.wc_flags), (OK, key, 8));
        assert_eq!(write(two, from, there, key), REMOTE_ACCESS);
        free(mw);
    });
}

#[test]
fn what_can_not_be_is_refused_at_once() {
    both(|two, _, to| {
        let [one, other] = [IBV_MW_TYPE_1, IBV_MW_TYPE_2].map(|mw_type| window(two, mw_type));
        let refused = |mw: *mut ibv_mw, rkey, bind_info| {
            let mut wr = local(IBV_WR_BIND_MW);
            wr.bind_mw = BindMw { mw, rkey, bind_info };
            assert_eq!(post_send(two.b.qp, &mut wr).0, libc::EINVAL);
        };
        let info = part(to, 8);
        refused(one, next_key(key_of(one)), info);
        refused(other, key_of(one), info);
        refused(std::ptr::null_mut(), key_of(other), info);
        refused(other, key_of(other), ibv_mw_bind_info { mr: std::ptr::null_mut(), ..info });
        let mut wish = ibv_mw_bind { wr_id: 5, send_flags: 0, bind_info: info };
        // SAFETY: queue pair and window are the test's.
        assert_eq!(unsafe { memory_window::bind_mw(two.b.qp, other, &mut wish) }, libc::EINVAL);
        // SAFETY: the domain is the test's.
        assert!(unsafe { memory_window::alloc_mw(two.b.pd, 3) }.is_null());
        assert_eq!(errno(), libc::EINVAL);
        [one, other].into_iter().for_each(free);
    });
}

#[test]
fn the_extended_interface_has_them_too() {
    both(|two, from, to| {
        let mw = window(two, IBV_MW_TYPE_2);
        let (key, there) = (next_key(key_of(mw)), to.bytes.as_ptr() as u64 + 100);
        // SAFETY: queue pair and window are the test's; the operations are there.
        unsafe {
            let qp = queue_pair::ibv_qp_to_qp_ex(two.b.qp);
            let begin = || {
                (*qp).wr_start.unwrap()(qp);
                ((*qp).wr_id, (*qp).wr_flags) = (4, IBV_SEND_SIGNALED);
            };
            begin();
            (*qp).wr_bind_mw.unwrap()(qp, mw, key, &part(to, 8));
            assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
            assert_eq!((two.b.sent().opcode, write(two, from, there, key)), (BOUND, OK));
            begin();
            (*qp).wr_local_inv.unwrap()(qp, key);
            assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
            assert_eq!((two.b.sent().opcode, write(two, from, there, key)), (INVALIDATED, REMOTE_ACCESS));
            begin();
            (*qp).wr_bind_mw.unwrap()(qp, mw, key ^ 0x100, &part(to, 8));
            assert_eq!((*qp).wr_complete.unwrap()(qp), libc::EINVAL);
        }
        free(mw);
    });
}
