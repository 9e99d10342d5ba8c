//! Queues that are full, overrun or resized: the results are the same whether or not memory is shared with the peer.

use crate::program::two::*;
use crate::program::*;
use verbs::abi::*;
use verbs::{completion, modify};

const WRITE: u32 = IBV_WR_RDMA_WRITE;

/// Tests that requests without completions free their room, and keep their order.
fn unsignaled(way: Way) {
    let two = Two::on(way);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[0; 8]), Buffer::new(two.b.pd, &[0; 8]));
    let mut list = [own.sge()];
    for round in 0..50_u64 {
        own.bytes.copy_from_slice(&round.to_ne_bytes());
        let mut wr = aimed(round, WRITE, &mut list, &there);
        wr.send_flags = if round % 4 == 3 { 2 } else { 0 };
        // If there is no room, the device has not processed the request yet.
        until(|| post_send(two.a.qp, &mut wr).0 == 0);
        if round % 4 == 3 {
            assert_eq!((two.a.sent().wr_id, &*there.bytes), (round, &round.to_ne_bytes()[..]));
        }
    }
    two.was_direct(50);
    forget([&mut own, &mut there]);
    two.close();
}

/// Tests that a send takes room until its completion, or a later one, is polled, no matter who executed it and how
/// soon.
fn full_queue(way: Way) {
    let two = Two::on(way);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[1; 8]), Buffer::new(two.b.pd, &[0; 8]));
    let mut list = [own.sge()];
    let mut post = |id: u64, is_signaled: bool| {
        let mut wr = aimed(id, WRITE, &mut list, &there);
        wr.send_flags = if is_signaled { 2 } else { 0 };
        post_send(two.a.qp, &mut wr)
    };
    let depth = u64::from(DEPTH);
    for round in 0..20 {
        for id in 0..depth {
            assert_eq!(post(id, id + 1 == depth || round % 2 == 0).0, 0);
        }
        // The sends are done; the program knows that once it polls.
        until(|| !are_awaited(&two.a, 0, if round % 2 == 0 { DEPTH } else { 1 }));
        assert_eq!(post(9, true), (libc::ENOMEM, Some(9)));
        if round % 2 == 0 {
            assert_eq!(poll_one(two.a.cqs[0]), Some(0));
            assert_eq!((post(9, true), post(10, true)), ((0, None), (libc::ENOMEM, Some(10))));
            assert_eq!(take(two.a.cqs[0], DEPTH as usize).last().map(|wc| wc.wr_id), Some(9));
        } else {
            assert_eq!(poll_one(two.a.cqs[0]), Some(depth - 1));
        }
    }
    forget([&mut own, &mut there]);
    two.close();
}

fn poll_one(cq: *mut ibv_cq) -> Option<u64> {
    let mut room = ibv_wc::default();
    // SAFETY: the queue is the test's, which did not destroy it; there is room for one.
    (unsafe { completion::poll_cq(cq, 1, &mut room) } == 1).then_some(room.wr_id)
}

/// Tests that a completion queue that nobody polls overruns: this is reported, and breaks the queue pair.
fn overrun(way: Way) {
    let two = Two::deep_on(way, FEWEST + 1);
    // SAFETY: the queue is the test's, which did not destroy it.
    let room = unsafe { (*two.a.cqs[0]).cqe };
    assert_eq!(room, FEWEST.cast_signed());
    for id in 0..room {
        assert_eq!(post_receive(two.b.qp, &mut receive(0, &mut [])).0, 0);
        until(|| post_send(two.a.qp, &mut send(id as u64, &mut [])).0 == 0);
        assert_eq!(two.b.received().status, 0);
    }
    assert_eq!(post_receive(two.b.qp, &mut receive(0, &mut [])).0, 0);
    until(|| post_send(two.a.qp, &mut send(99, &mut [])).0 == 0);
    until(|| state(&two.a) == IBV_QPS_ERR);
    let ids: Vec<_> = take(two.a.cqs[0], room as usize).iter().map(|wc| wc.wr_id).collect();
    assert!(ids.into_iter().eq(0..room as u64) && poll(two.a.cqs[0]).is_empty());
    two.close();
}

/// Resizes the completion queues of both ends while messages are sent.
fn resized(way: Way) {
    let two = Two::on(way);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[0; 64]), Buffer::new(two.b.pd, &[0; 64]));
    for round in 0..6_u8 {
        own.bytes.fill(round);
        for id in 0..2 {
            assert_eq!(post_receive(two.b.qp, &mut receive(id, &mut [there.sge()])).0, 0);
        }
        for id in 0..2 {
            assert_eq!(post_send(two.a.qp, &mut send(id, &mut [own.sge()])).0, 0);
        }
        until(|| !is_awaited(&two.b, 1) && !is_awaited(&two.a, 0));
        for cq in [two.a.cqs[0], two.b.cqs[1]] {
            // SAFETY: the queue is the test's, which did not destroy it.
            assert_eq!(unsafe { completion::ibv_resize_cq(cq, 8 << (round % 3)) }, 0);
            // SAFETY: the queue is the test's, which did not destroy it.
            assert!(unsafe { (*cq).cqe } >= 8 << (round % 3));
        }
        for end in [two.a.cqs[0], two.b.cqs[1]] {
            let done: Vec<_> = take(end, 2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(done, [(0, 0), (1, 0)]);
        }
        assert!(there.bytes.iter().all(|byte| *byte == round));
    }
    forget([&mut own, &mut there]);
    two.close();
}

/// Is true while a queue still has to receive two completions.
fn is_awaited(end: &End, which: usize) -> bool {
    are_awaited(end, which, 2)
}

/// Is true while a queue has fewer completions than this.
fn are_awaited(end: &End, which: usize, count: u32) -> bool {
    // SAFETY: the queue is the test's, which did not destroy it.
    let handle = unsafe { (*end.cqs[which]).handle };
    // Other contexts on the device have queues with the same handle.
    let is_its = |client: &hca::ClientDescription| client.qps.iter().any(|qp| qp.qpn == end.number());
    let clients = described(end.index);
    let mut cqs = clients.iter().filter(|client| is_its(client)).flat_map(|client| &client.cqs);
    cqs.all(|cq| cq.cq != handle || cq.waiting < count)
}

fn state(end: &End) -> u32 {
    let mut attr = ibv_qp_attr::default();
    // SAFETY: numbers and pointers, which may all be zero.
    let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the queue pair is the test's, which did not destroy it; there are places for the results.
    assert_eq!(unsafe { modify::ibv_query_qp(end.qp, &mut attr, 1, &mut init) }, 0);
    attr.qp_state
}

most_ways! { unsignaled full_queue overrun resized }
