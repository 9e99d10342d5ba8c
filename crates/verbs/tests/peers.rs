//! Two applications, each on its own device: the results are the same whether or not they share memory, and whether
//! or not they use their devices as programs in virtual machines do.

use crate::program::two::*;
use crate::program::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use uverbs::qp::mask;
use verbs::abi::*;
use verbs::{completion, events, memory, modify};

const READ: u32 = IBV_WR_RDMA_READ;
const WRITE: u32 = IBV_WR_RDMA_WRITE;
const WRITE_WITH_IMM: u32 = IBV_WR_RDMA_WRITE_WITH_IMM;

const FLUSHED: u32 = 5;
const REMOTE_ACCESS: u32 = 10;
const LOCAL_PROTECTION: u32 = 4;
const NO_ANSWER: u32 = 12;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

/// Returns the fields of a completion that programs may read.
fn seen(wc: &ibv_wc) -> (u64, u32, u32, u32, u32, u32) {
    (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.wc_flags, wc.imm_data)
}

/// Tests messages that fit into a completion and longer ones, in one segment and in two.
fn messages(way: Way) {
    let two = Two::on(way);
    let lengths = [0, 1, 8, 39, 40, 41, 64, 4096, 100_000];
    for (round, len) in lengths.into_iter().enumerate() {
        let message = pattern(len, round);
        let mut from = Buffer::new(two.a.pd, &message);
        let mut to = Buffer::new(two.b.pd, &vec![0; len + 8]);
        let id = 10 * round as u64;
        let mut places = [to.sge(); 2];
        places[0].length = 3;
        (places[1].addr, places[1].length) = (places[0].addr + 3, len as u32 + 5);
        assert_eq!(post_receive(two.b.qp, &mut receive(id, &mut places)).0, 0);
        let mut parts = [from.sge(); 2];
        parts[0].length = len as u32 / 3;
        (parts[1].addr, parts[1].length) =
            (parts[0].addr + u64::from(parts[0].length), len as u32 - parts[0].length);
        let mut wr = send(id + 1, &mut parts);
        (wr.opcode, wr.imm_data) = (IBV_WR_SEND_WITH_IMM, 0x0102_0304);
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        let (sent, received) = (two.a.sent(), two.b.received());
        assert_eq!((sent.wr_id, sent.status, sent.opcode, sent.qp_num), (id + 1, 0, 0, two.a.number()));
        assert_eq!(seen(&received), (id, 0, 128, len as u32, 2, 0x0102_0304));
        assert_eq!((received.qp_num, received.src_qp), (two.b.number(), 0));
        assert_eq!((&to.bytes[..len], &to.bytes[len..]), (&message[..], &[0; 8][..]));
        from.forget();
        to.forget();
    }
    two.was_direct(lengths.len() as u64);
    two.close();
}

/// Tests that inline data is copied when a request is posted, and that more requests than the peer has receives can
/// be posted at once.
fn order(way: Way) {
    let two = Two::on(way);
    let mut room = Buffer::new(two.b.pd, &[0; 4]);
    let sge = room.sge();
    let part = |at: u32| ibv_sge { addr: sge.addr + u64::from(at), length: 1, ..sge };
    for at in 0..2 {
        assert_eq!(post_receive(two.b.qp, &mut receive(u64::from(at), &mut [part(at)])).0, 0);
    }
    let mut letters = *b"abcd";
    let mut lists: Vec<_> =
        (0..4).map(|at| ibv_sge { addr: letters.as_mut_ptr() as u64 + at, length: 1, lkey: 0 }).collect();
    let mut wrs: Vec<_> =
        lists.chunks_mut(1).enumerate().map(|(at, list)| send(10 + at as u64, list)).collect();
    for at in (0..4).rev() {
        wrs[at].send_flags |= IBV_SEND_INLINE;
        wrs[at].next = if at < 3 { &mut wrs[at + 1] } else { null_mut() };
    }
    assert_eq!(post_send(two.a.qp, &mut wrs[0]).0, 0);
    letters = *b"....";
    assert_eq!(letters, *b"....");
    let first: Vec<_> = take(two.b.cqs[1], 2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!((first, take(two.a.cqs[0], 2).len()), (vec![0, 1], 2));
    // Two sends wait for their receives: later requests do not overtake them.
    assert!(poll(two.a.cqs[0]).is_empty() && poll(two.b.cqs[1]).is_empty());
    for at in 2..4 {
        assert_eq!(post_receive(two.b.qp, &mut receive(u64::from(at), &mut [part(at)])).0, 0);
    }
    let sent: Vec<_> = take(two.a.cqs[0], 2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(sent, [(12, 0), (13, 0)]);
    assert_eq!(take(two.b.cqs[1], 2).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(*room.bytes, *b"abcd");
    two.was_direct(2);
    room.forget();
    two.close();
}

/// Tests inline messages from several segments, and from none.
fn inline_in_parts(way: Way) {
    let two = Two::on(way);
    let mut room = Buffer::new(two.b.pd, &[b'.'; 64]);
    let bytes = pattern(64, 3);
    let part = |at: usize, length| ibv_sge { addr: bytes[at..].as_ptr() as u64, length, lkey: 0 };
    let lists: [&mut [ibv_sge]; 3] =
        [&mut [part(7, 3), part(20, 5)], &mut [part(1, 50), part(0, 4)], &mut []];
    let texts = [[&bytes[7..10], &bytes[20..25]].concat(), [&bytes[1..51], &bytes[..4]].concat(), Vec::new()];
    for (list, text) in lists.into_iter().zip(texts) {
        assert_eq!(post_receive(two.b.qp, &mut receive(1, &mut [room.sge()])).0, 0);
        let mut wr = send(2, list);
        wr.send_flags |= IBV_SEND_INLINE;
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        assert_eq!((two.a.sent().status, two.b.received().byte_len as usize), (0, text.len()));
        assert_eq!(room.bytes[..text.len()], text);
    }
    two.was_direct(3);
    room.forget();
    two.close();
}

/// Tests writes and reads of the peer's memory, with and without notifying the peer.
fn remote_memory(way: Way) {
    let two = Two::on(way);
    // The last one is transferred in pieces.
    for len in [1, 8, 9, 5000, (2 << 20) + 5] {
        let message = pattern(len, 1);
        let (mut from, mut to) = (Buffer::new(two.a.pd, &message), Buffer::new(two.b.pd, &pattern(len, 2)));
        let there = to.bytes.to_vec();
        let mut back = Buffer::new(two.a.pd, &vec![0; len]);
        assert_eq!(post_send(two.a.qp, &mut aimed(1, READ, &mut [back.sge()], &to)).0, 0);
        let read = two.a.sent();
        assert_eq!((read.wr_id, read.status, read.opcode, read.byte_len), (1, 0, 2, len as u32));
        assert_eq!(*back.bytes, there);
        let whole = from.sge();
        let first = whole.length / 3;
        let rest = ibv_sge { addr: whole.addr + u64::from(first), length: whole.length - first, ..whole };
        let mut parts = [ibv_sge { length: first, ..whole }, rest];
        assert_eq!(post_send(two.a.qp, &mut aimed(2, WRITE, &mut parts, &to)).0, 0);
        let written = two.a.sent();
        assert_eq!((written.wr_id, written.status, written.opcode), (2, 0, 1));
        assert_eq!(*to.bytes, message);
        // The receive is consumed, and nothing is written to its memory.
        let mut untouched = Buffer::new(two.b.pd, &[1; 4]);
        assert_eq!(post_receive(two.b.qp, &mut receive(3, &mut [untouched.sge()])).0, 0);
        let mut list = [back.sge()];
        let mut wr = aimed(4, WRITE_WITH_IMM, &mut list, &to);
        wr.imm_data = 99;
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        assert_eq!(seen(&two.b.received()), (3, 0, 129, len as u32, 2, 99));
        assert_eq!(two.a.sent().opcode, 1);
        assert_eq!((&*to.bytes, &*untouched.bytes), (&*there, &[1; 4][..]));
        forget([&mut from, &mut to, &mut back, &mut untouched]);
    }
    two.was_direct(15);
    two.close();
}

/// Tests that operations that are not allowed fail as usual, at both ends.
fn wrong_keys(way: Way) {
    for opcode in [WRITE, WRITE_WITH_IMM, READ] {
        let two = Two::on(way);
        let (mut own, mut there) = (Buffer::new(two.a.pd, &[1; 8]), Buffer::new(two.b.pd, &[2; 8]));
        two.exchange(&mut own, &mut there);
        there.bytes.fill(2);
        assert_eq!(post_receive(two.b.qp, &mut receive(1, &mut [])).0, 0);
        let mut list = [own.sge()];
        let mut wr = aimed(2, opcode, &mut list, &there);
        // SAFETY: it is a number, as all that may be there.
        unsafe { wr.wr.rdma.rkey ^= 1 };
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        assert_eq!(
            (two.a.sent().status, &*own.bytes, &*there.bytes),
            (REMOTE_ACCESS, &[1; 8][..], &[2; 8][..])
        );
        assert_eq!((two.b.received().status, state(&two.b)), (FLUSHED, IBV_QPS_ERR));
        assert_eq!(post_send(two.a.qp, &mut send(3, &mut [])).0, 0);
        assert_eq!((two.a.sent().status, state(&two.a)), (FLUSHED, IBV_QPS_ERR));
        forget([&mut own, &mut there]);
        two.close();
    }
    // The operations go beyond the region's end, or have an invalid local key.
    for wrong_at_home in [false, true] {
        let two = Two::on(way);
        let (mut own, mut there) = (Buffer::new(two.a.pd, &[1; 8]), Buffer::new(two.b.pd, &[2; 8]));
        two.exchange(&mut own, &mut there);
        let mut list = [own.sge()];
        let mut wr = aimed(2, WRITE, &mut list, &there);
        if wrong_at_home {
            list[0].lkey ^= 1;
        } else {
            // SAFETY: it is a number, as all that may be there.
            unsafe { wr.wr.rdma.remote_addr += 1 };
        }
        wr.sg_list = list.as_mut_ptr();
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        let expected = if wrong_at_home { LOCAL_PROTECTION } else { REMOTE_ACCESS };
        assert_eq!(two.a.sent().status, expected);
        forget([&mut own, &mut there]);
        two.close();
    }
}

fn state(end: &End) -> u32 {
    let mut attr = ibv_qp_attr::default();
    // SAFETY: numbers and pointers, which may all be zero.
    let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the queue pair is the test's, which did not destroy it; there are places for the results.
    assert_eq!(unsafe { modify::ibv_query_qp(end.qp, &mut attr, 1, &mut init) }, 0);
    attr.qp_state
}

/// Tests that a message longer than its receive breaks both ends.
fn too_long(way: Way) {
    let two = Two::on(way);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[1; 60]), Buffer::new(two.b.pd, &[2; 60]));
    two.exchange(&mut own, &mut there);
    let mut short = there.sge();
    short.length = 59;
    assert_eq!(post_receive(two.b.qp, &mut receive(1, &mut [short])).0, 0);
    assert_eq!(post_send(two.a.qp, &mut send(2, &mut [own.sge()])).0, 0);
    // The receiver reports a local length error; the sender reports an invalid request at the peer.
    assert_eq!((two.b.received().status, two.a.sent().status), (1, 9));
    forget([&mut own, &mut there]);
    two.close();
}

/// Tests that memory is no longer accessed once it is deregistered, or no longer permits the access.
fn rights_end(way: Way) {
    // First the region goes; then its rights; then the queue pair's.
    for what in 0..3 {
        let two = Two::on(way);
        let (mut own, mut there) = (Buffer::new(two.a.pd, &[1; 64]), Buffer::new(two.b.pd, &[2; 64]));
        let mut list = [own.sge()];
        let mut wr = aimed(2, WRITE, &mut list, &there);
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        assert_eq!((two.a.sent().status, &*there.bytes), (0, &[1; 64][..]));
        there.bytes.fill(2);
        // SAFETY: region and queue pair are the test's, and the attributes are whole.
        unsafe {
            match what {
                0 => there.forget(),
                1 => assert_eq!(memory::ibv_rereg_mr(there.mr, 4, null_mut(), null_mut(), 0, 1), 0),
                _ => {
                    let (mut attr, _) = attributes(IBV_QPT_RC, 0, 0, 0);
                    attr.qp_access_flags = 1;
                    assert_eq!(modify::ibv_modify_qp(two.b.qp, &mut attr, mask::ACCESS_FLAGS as c_int), 0);
                }
            }
        }
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        // A queue pair without the right gives the same error as memory without it.
        assert_eq!((two.a.sent().status, &*there.bytes), (REMOTE_ACCESS, &[2; 64][..]));
        own.forget();
        if what > 0 {
            there.forget();
        }
        two.close();
    }
}

/// Tests that a peer that has ended does not answer, whatever was shared before, and that both connecting and
/// disconnecting work.
fn states(way: Way) {
    let two = Two::on(way);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[1; 8]), Buffer::new(two.b.pd, &[2; 8]));
    for round in 0..3 {
        two.exchange(&mut own, &mut there);
        assert_eq!(post_receive(two.b.qp, &mut receive(1, &mut [there.sge()])).0, 0);
        assert_eq!(modify_to(two.b.qp, IBV_QPS_ERR), 0);
        assert_eq!((two.b.received().wr_id, two.b.qp.is_null()), (1, false));
        assert_eq!(post_send(two.a.qp, &mut send(2, &mut [own.sge()])).0, 0);
        assert_eq!((round, two.a.sent().status), (round, NO_ANSWER));
        assert_eq!((modify_to(two.a.qp, 0), modify_to(two.b.qp, 0)), (0, 0));
        two.a.connect(&two.b);
        // The peer is not ready yet.
        assert_eq!(modify_to(two.b.qp, 1), 0);
        assert_eq!(post_receive(two.b.qp, &mut receive(3, &mut [there.sge()])).0, 0);
        for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
            let (mut attr, mask) = attributes(IBV_QPT_RC, state, two.a.index, two.a.number());
            // SAFETY: the queue pair is the test's, and the attributes are whole.
            assert_eq!(unsafe { modify::ibv_modify_qp(two.b.qp, &mut attr, mask as c_int) }, 0);
        }
        assert_eq!(post_send(two.a.qp, &mut send(4, &mut [own.sge()])).0, 0);
        assert_eq!((two.a.sent().wr_id, two.b.received().wr_id), (4, 3));
    }
    two.was_direct(1);
    forget([&mut own, &mut there]);
    // The peer is destroyed.
    let Two { a, b, .. } = two;
    b.close();
    assert_eq!(post_send(a.qp, &mut send(5, &mut [])).0, 0);
    assert_eq!(a.sent().status, NO_ANSWER);
    a.close();
}

/// Tests that a sleeping program is woken once, at both ends.
fn sleepers(way: Way) {
    let two = Two::on(way);
    for round in 0..20 {
        let solicited = round % 2;
        for id in 0..2 {
            assert_eq!(post_receive(two.b.qp, &mut receive(id, &mut [])).0, 0);
        }
        // SAFETY: the queues are the test's, which did not destroy them.
        unsafe {
            completion::req_notify_cq(two.b.cqs[1], solicited);
            completion::req_notify_cq(two.a.cqs[0], 0);
        }
        assert_eq!(post_send(two.a.qp, &mut send(1, &mut [])).0, 0);
        assert_eq!(two.a.told(), two.a.cqs[0]);
        if solicited == 1 {
            two.a.sent();
            until(|| !poll_waiting(&two.b));
            assert!(!two.b.is_told());
        }
        let mut wr = send(2, &mut []);
        wr.send_flags |= 4;
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        assert_eq!((two.b.told(), two.b.is_told()), (two.b.cqs[1], false));
        take(two.b.cqs[1], 2);
        take(two.a.cqs[0], 2 - solicited as usize);
        assert!(!two.a.is_told());
    }
    two.was_direct(40);
    two.close();
}

/// Tests that a program that doesn't read its events for long still gets every notification that it waits for, once it
/// reads them.
fn unread_events(way: Way) {
    let two = Two::on(way);
    let (a, b) = (&two.a, &two.b);
    // Another connection, whose receives complete in another queue.
    let other = [a, b].map(|end| create(end.context, end.pd, [end.cqs[0]; 2], null_mut(), IBV_QPT_RC));
    // SAFETY: the queue pair is the test's, which did not destroy it.
    connect(other[1], a.index, unsafe { (*other[0]).qp_num });
    // SAFETY: the queue pair is the test's, which did not destroy it.
    connect(other[0], b.index, unsafe { (*other[1]).qp_num });
    let bring = |from: *mut ibv_qp, to: *mut ibv_qp, cq: *mut ibv_cq| {
        assert_eq!(post_receive(to, &mut receive(1, &mut [])).0, 0);
        // SAFETY: the queue is the test's, which did not destroy it.
        unsafe { completion::req_notify_cq(cq, 0) };
        assert_eq!(post_send(from, &mut send(2, &mut [])).0, 0);
        assert_eq!((a.sent().status, take(cq, 1)[0].status), (0, 0));
    };
    // These are far more than there is room for.
    (0..600).for_each(|_| bring(a.qp, b.qp, b.cqs[1]));
    bring(other[0], other[1], b.cqs[0]);
    while b.told() != b.cqs[0] {}
    bring(a.qp, b.qp, b.cqs[1]);
    while b.told() != b.cqs[1] {}
    two.was_direct(601);
    // SAFETY: they are the test's, which uses them no more.
    assert_eq!(other.map(|qp| unsafe { verbs::queue_pair::ibv_destroy_qp(qp) }), [0, 0]);
    two.close();
}

/// Is true if the device still has work to do for its only message.
fn poll_waiting(end: &End) -> bool {
    // SAFETY: the queue is the test's, which did not destroy it.
    let handle = unsafe { (*end.cqs[1]).handle };
    described(end.index).iter().flat_map(|client| &client.cqs).all(|cq| cq.cq != handle || cq.waiting != 1)
}

/// Tests atomic operations. The device executes them in memory that is in no window; the process may execute the
/// writes before and after them itself.
fn atomics(way: Way) {
    let two = Two::on(way);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[0; 16]), Buffer::new(two.b.pd, &[0; 8]));
    let mut sge = own.sge();
    sge.length = 8;
    let mut list = [sge];
    let mut back = [ibv_sge { addr: sge.addr + 8, ..sge }];
    for round in 0..10_u64 {
        own.bytes[..8].copy_from_slice(&(100 * round).to_ne_bytes());
        let mut second = aimed(2, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut back, &there);
        // SAFETY: numbers, as all that may be there.
        let (remote_addr, rkey) = unsafe { (second.wr.rdma.remote_addr, second.wr.rdma.rkey) };
        second.wr.atomic = Atomic { remote_addr, compare_add: 7, swap: 0, rkey };
        let mut first = aimed(1, WRITE, &mut list, &there);
        first.next = &mut second;
        assert_eq!(post_send(two.a.qp, &mut first).0, 0);
        let done: Vec<_> = take(two.a.cqs[0], 2).iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
        assert_eq!(done, [(1, 0, 1), (2, 0, 4)]);
        assert_eq!(own.bytes[8..], (100 * round).to_ne_bytes());
        assert_eq!(*there.bytes, (100 * round + 7).to_ne_bytes());
    }
    // An atomic has one segment of eight bytes; others are not posted.
    let mut wrong = aimed(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut back, &there);
    back[0].length = 4;
    // SAFETY: numbers, as all that may be there.
    let (remote_addr, rkey) = unsafe { (wrong.wr.rdma.remote_addr, wrong.wr.rdma.rkey) };
    wrong.wr.atomic = Atomic { remote_addr, compare_add: 7, swap: 0, rkey };
    wrong.sg_list = back.as_mut_ptr();
    assert_eq!(post_send(two.a.qp, &mut wrong), (libc::EINVAL, Some(3)));
    assert_eq!(*there.bytes, 907_u64.to_ne_bytes());
    // Peers execute atomics themselves if the memory is in the common window.
    two.was_direct(if matches!(way, Way::CommonWindow | Way::ToMachine) { 20 } else { 10 });
    forget([&mut own, &mut there]);
    two.close();
}

/// Tests that the peer's device goes, as if its daemon had ended.
fn death(way: Way) {
    let two = Two::of(way.shares(), way.first() + 2);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[0; 8]), Buffer::new(two.b.pd, &[0; 8]));
    two.exchange(&mut own, &mut there);
    two.was_direct(1);
    end(two.b.index);
    assert_eq!(post_send(two.a.qp, &mut send(1, &mut [own.sge()])).0, 0);
    assert_eq!(two.a.sent().status, NO_ANSWER);
    own.forget();
    two.a.close();
    // The queue pair itself is flushed.
    assert_eq!(post_receive(two.b.qp, &mut receive(2, &mut [])).0, 0);
    assert_eq!(two.b.received().status, FLUSHED);
    there.forget();
    two.b.close();
}

/// Tests that a program whose queue pair is only ready to receive is notified once that its peer communicates.
fn established(way: Way) {
    let first = way.first();
    let (a, b) = (End::new(first), End::new(first + 1));
    // SAFETY: the context is the test's until its end.
    unsafe { libc::fcntl((*b.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK) };
    for state in [1, IBV_QPS_RTR] {
        let (mut attr, mask) = attributes(IBV_QPT_RC, state, a.index, a.number());
        // SAFETY: the queue pair is the test's, and the attributes are whole.
        assert_eq!(unsafe { modify::ibv_modify_qp(b.qp, &mut attr, mask as c_int) }, 0);
    }
    a.connect(&b);
    let mut event = MaybeUninit::<ibv_async_event>::uninit();
    // SAFETY: the context is the test's until its end, and there is a place for the result.
    let mut is_there = || unsafe { events::ibv_get_async_event(b.context, event.as_mut_ptr()) } == 0;
    assert!(!is_there());
    for id in 0..2 {
        assert_eq!(post_receive(b.qp, &mut receive(id, &mut [])).0, 0);
        assert_eq!(post_send(a.qp, &mut send(id, &mut [])).0, 0);
        assert_eq!((a.sent().status, b.received().wr_id), (0, id));
        if id == 0 {
            until(&mut is_there);
        }
    }
    assert!(!is_there());
    // SAFETY: it was got above, and is acknowledged once.
    unsafe {
        let told = event.assume_init();
        assert_eq!((told.event_type, told.element.qp), (event::COMM_EST, b.qp));
        events::ibv_ack_async_event(event.as_mut_ptr());
    }
    a.close();
    b.close();
}

/// Tests peers of one guest: two applications, and two queue pairs of one application.
fn one_device(way: Way) {
    let index = way.first();
    let (a, b) = (End::new(index), End::new(index));
    b.connect(&a);
    a.connect(&b);
    let two = Two { a, b, shares: way.shares() };
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[1; 64]), Buffer::new(two.b.pd, &[2; 64]));
    two.exchange(&mut own, &mut there);
    assert_eq!(*own.bytes, *there.bytes);
    two.was_direct(1);
    forget([&mut own, &mut there]);
    two.close();
    let pair = Pair::new(index, IBV_QPT_RC);
    assert_eq!(post_receive(pair.qps[1], &mut receive(1, &mut [])).0, 0);
    assert_eq!(post_send(pair.qps[0], &mut send(2, &mut [])).0, 0);
    assert!(pair.completions(2).iter().all(|wc| wc.status == 0));
    // SAFETY: the queue pair is the test's, which did not destroy it.
    let number = unsafe { (*pair.qps[0]).qp_num };
    let mut qps = described(index).into_iter().flat_map(|client| client.qps);
    assert_eq!(qps.find(|qp| qp.qpn == number).unwrap().direct.0, u64::from(way.shares()));
    pair.destroy();
}

/// An earlier, untrusted peer of a queue pair does not matter for the next peer.
#[test]
fn another_peer_is_trusted_anew() {
    let (a, b) = (End::new(TRUSTING), End::new(0));
    b.connect(&a);
    a.connect(&b);
    let untrusted = Two { a, b, shares: false };
    let (mut own, mut there) = (Buffer::new(untrusted.a.pd, &[1; 8]), Buffer::new(untrusted.b.pd, &[2; 8]));
    untrusted.exchange(&mut own, &mut there);
    untrusted.was_direct(0);
    there.forget();
    let Two { a, b, .. } = untrusted;
    b.close();
    assert_eq!(modify_to(a.qp, IBV_QPS_RESET), 0);
    let b = End::new(TRUSTING + 1);
    b.connect(&a);
    a.connect(&b);
    let trusted = Two { a, b, shares: true };
    let mut there = Buffer::new(trusted.b.pd, &[2; 8]);
    trusted.exchange(&mut own, &mut there);
    trusted.was_direct(1);
    forget([&mut own, &mut there]);
    trusted.close();
}

all_ways! {
    messages order inline_in_parts remote_memory wrong_keys too_long rights_end states sleepers unread_events atomics
    death
    established one_device
}
