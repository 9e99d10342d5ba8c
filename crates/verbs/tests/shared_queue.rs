//! Two applications whose queue pairs send to a shared receive queue of a third: the results are the same whether or
//! not they share memory.

use crate::program::two::*;
use crate::program::*;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use verbs::abi::*;
use verbs::{channel, completion, context, events, memory, queue_pair, shared_receive};

/// Number of receives that fit into the queue.
const ROOM: u32 = 8;
/// `IBV_EVENT_SRQ_LIMIT_REACHED`.
const LIMIT_REACHED: u32 = 15;

/// Receives for two senders, each with its own application and queue pair.
struct Shared {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qps: Vec<*mut ibv_qp>,
    senders: Vec<End>,
    shares: bool,
}

impl Shared {
    fn new(way: Way) -> Self {
        let (first, shares) = (way.first(), way.shares());
        let context = open(first + 1);
        // SAFETY: the context was just opened, and so were the others where they are used; attributes are
        // whole.
        let (pd, cq, srq) = unsafe {
            let pd = memory::ibv_alloc_pd(context);
            let attr = ibv_srq_attr { max_wr: ROOM, max_sge: 2, srq_limit: 0 };
            let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
            let channel = channel::ibv_create_comp_channel(context);
            let cq = completion::ibv_create_cq(context, 64, null_mut(), channel, 0);
            (pd, cq, shared_receive::ibv_create_srq(pd, &mut init))
        };
        let senders: Vec<_> = (0..2).map(|_| End::new(first)).collect();
        let qps = senders
            .iter()
            .map(|sender| {
                let qp = create(context, pd, [cq; 2], srq, IBV_QPT_RC);
                connect(qp, first, sender.number());
                // SAFETY: the queue pair is the test's, which did not destroy it.
                connect(sender.qp, first + 1, unsafe { (*qp).qp_num });
                qp
            })
            .collect();
        Self { context, pd, cq, srq, qps, senders, shares }
    }

    fn post(&self, id: u64, list: &mut [ibv_sge]) -> c_int {
        // SAFETY: the queue is the test's; the request and its list are whole.
        unsafe { shared_receive::post_srq_recv(self.srq, &mut receive(id, list), &mut null_mut()) }
    }

    fn arm(&self, srq_limit: u32) {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit };
        // SAFETY: the queue is the test's, and the attributes are whole.
        assert_eq!(unsafe { shared_receive::ibv_modify_srq(self.srq, &mut attr, IBV_SRQ_LIMIT) }, 0);
    }

    /// Checks the number of messages that bypassed the device.
    fn was_direct(&self, messages: u64) {
        let sum: u64 = self.senders.iter().map(End::direct).sum();
        assert_eq!(sum, if self.shares { messages } else { 0 });
    }

    fn close(self) {
        self.senders.into_iter().for_each(End::close);
        // SAFETY: they are the test's, which uses them no more, and nothing is left that needs them.
        unsafe {
            self.qps.into_iter().for_each(|qp| assert_eq!(queue_pair::ibv_destroy_qp(qp), 0));
            let channel = (*self.cq).channel;
            assert_eq!(completion::ibv_destroy_cq(self.cq), 0);
            assert_eq!(channel::ibv_destroy_comp_channel(channel), 0);
            assert_eq!(shared_receive::ibv_destroy_srq(self.srq), 0);
            assert_eq!((memory::ibv_dealloc_pd(self.pd), context::ibv_close_device(self.context)), (0, 0));
        }
    }
}

/// Tests messages that fit into a completion and longer ones, to one segment and to two, from both senders in turn.
fn messages(way: Way) {
    let shared = Shared::new(way);
    let lengths = [0, 1, 8, 24, 25, 40, 41, 4096, 100_000];
    for (round, len) in lengths.into_iter().enumerate() {
        for (from, parts) in [(0, 1), (1, 2), (0, 2), (1, 1)] {
            let sender = &shared.senders[from];
            let text: Vec<_> = (0..len).map(|at| (at * 7 + round + from) as u8).collect();
            let (mut own, mut there) =
                (Buffer::new(sender.pd, &text), Buffer::new(shared.pd, &vec![0; len + 9]));
            let mut list = [there.sge(); 2];
            if parts == 2 {
                list[0].length = 3;
                (list[1].addr, list[1].length) = (list[0].addr + 3, len as u32 + 6);
            }
            assert_eq!(shared.post(round as u64, &mut list[..parts]), 0);
            let mut list = [own.sge()];
            let mut wr = send(1, &mut list);
            (wr.opcode, wr.imm_data) = (IBV_WR_SEND_WITH_IMM, 0x0102_0304);
            assert_eq!(post_send(sender.qp, &mut wr).0, 0);
            let (sent, received) = (sender.sent(), take(shared.cq, 1)[0]);
            assert_eq!((sent.status, received.status, received.opcode), (0, 0, 128));
            assert_eq!((received.wr_id, received.byte_len as usize), (round as u64, len));
            // SAFETY: the queue pair is the test's, which did not destroy it.
            let number = unsafe { (*shared.qps[from]).qp_num };
            assert_eq!((received.qp_num, received.wc_flags, received.imm_data), (number, 2, 0x0102_0304));
            assert_eq!((&there.bytes[..len], &there.bytes[len..]), (&text[..], &[0; 9][..]));
            forget([&mut own, &mut there]);
        }
    }
    shared.was_direct(4 * lengths.len() as u64);
    shared.close();
}

/// Lets both send at the same time, always more than there are receives: each message consumes its own receive, and a
/// sender's messages keep their order.
fn all_at_once(way: Way) {
    const MESSAGES: u64 = 500;
    let shared = Shared::new(way);
    // SAFETY: the queue pair is the test's, which did not destroy it.
    let numbers: Vec<_> = shared.qps.iter().map(|qp| unsafe { (**qp).qp_num }).collect();
    let mut room = Buffer::new(shared.pd, &[0; 64 * ROOM as usize]);
    let place = |sge: ibv_sge, id: u64| ibv_sge { addr: sge.addr + 64 * id, length: 64, ..sge };
    let whole = room.sge();
    (0..ROOM.into()).for_each(|id| assert_eq!(shared.post(id, &mut [place(whole, id)]), 0));
    let qps: Vec<_> =
        shared.senders.iter().map(|sender| (sender.qp as usize, sender.cqs[0] as usize)).collect();
    let pds: Vec<_> = shared.senders.iter().map(|sender| sender.pd as usize).collect();
    std::thread::scope(|scope| {
        for ((qp, cq), pd) in qps.into_iter().zip(pds) {
            scope.spawn(move || {
                let mut own = Buffer::new(pd as *mut ibv_pd, &[0; 64]);
                for number in 0..MESSAGES {
                    own.bytes[..8].copy_from_slice(&number.to_ne_bytes());
                    // One message fits into a completion, and one is longer.
                    let mut sge = own.sge();
                    sge.length = if number % 3 == 0 { 64 } else { 8 };
                    assert_eq!(post_send(qp as *mut ibv_qp, &mut send(number, &mut [sge])).0, 0);
                    assert_eq!(take(cq as *mut ibv_cq, 1)[0].status, 0);
                }
                own.forget();
            });
        }
        let mut next = [0; 2];
        let mut posted: BTreeSet<_> = (0..u64::from(ROOM)).collect();
        until(|| {
            for wc in poll(shared.cq) {
                assert!(wc.status == 0 && posted.remove(&wc.wr_id), "{}", wc.wr_id);
                let from = numbers.iter().position(|number| *number == wc.qp_num).unwrap();
                let at = 64 * wc.wr_id as usize;
                assert_eq!(room.bytes[at..at + 8], u64::to_ne_bytes(next[from]));
                next[from] += 1;
                posted.insert(wc.wr_id);
                assert_eq!(shared.post(wc.wr_id, &mut [place(whole, wc.wr_id)]), 0);
            }
            next == [MESSAGES; 2]
        });
    });
    room.forget();
    shared.close();
}

/// Tests that a message without a receive waits for one, and that a WRITE with immediate data consumes one too.
fn later(way: Way) {
    let shared = Shared::new(way);
    let sender = &shared.senders[0];
    let (mut own, mut there) = (Buffer::new(sender.pd, &[1; 8]), Buffer::new(shared.pd, &[2; 8]));
    assert_eq!(post_send(sender.qp, &mut send(1, &mut [own.sge()])).0, 0);
    assert!(poll(sender.cqs[0]).is_empty());
    assert_eq!(shared.post(5, &mut [there.sge()]), 0);
    assert_eq!((sender.sent().status, take(shared.cq, 1)[0].wr_id, &*there.bytes), (0, 5, &[1; 8][..]));
    own.bytes.fill(3);
    assert_eq!(shared.post(6, &mut []), 0);
    let mut list = [own.sge()];
    let mut wr = aimed(2, IBV_WR_RDMA_WRITE_WITH_IMM, &mut list, &there);
    wr.imm_data = 9;
    assert_eq!(post_send(sender.qp, &mut wr).0, 0);
    let received = take(shared.cq, 1)[0];
    assert_eq!((sender.sent().status, received.wr_id, received.opcode), (0, 6, 129));
    assert_eq!((received.imm_data, received.byte_len, &*there.bytes), (9, 8, &[3; 8][..]));
    forget([&mut own, &mut there]);
    shared.close();
}

/// Tests that a receive that is too short for its message breaks both queue pairs, and no other.
fn too_long(way: Way) {
    let shared = Shared::new(way);
    let sender = &shared.senders[0];
    let (mut own, mut there) = (Buffer::new(sender.pd, &[1; 60]), Buffer::new(shared.pd, &[2; 59]));
    assert_eq!(shared.post(1, &mut [there.sge()]), 0);
    assert_eq!(post_send(sender.qp, &mut send(2, &mut [own.sge()])).0, 0);
    let received = take(shared.cq, 1)[0];
    assert_eq!((received.wr_id, received.status, sender.sent().status), (1, 1, 9));
    let other = &shared.senders[1];
    assert_eq!(shared.post(3, &mut [there.sge()]), 0);
    assert_eq!(post_send(other.qp, &mut send(4, &mut [])).0, 0);
    assert_eq!((other.sent().status, take(shared.cq, 1)[0].wr_id), (0, 3));
    forget([&mut own, &mut there]);
    shared.close();
}

/// Tests that an event reports once that there are fewer receives than the limit, no matter who consumed them.
fn limit(way: Way) {
    let shared = Shared::new(way);
    // SAFETY: the context is the test's until its end.
    unsafe { libc::fcntl((*shared.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK) };
    let mut event = MaybeUninit::<ibv_async_event>::uninit();
    // SAFETY: the context is the test's; an event that was got is whole, and acknowledged once.
    let mut is_told = || unsafe {
        if events::ibv_get_async_event(shared.context, event.as_mut_ptr()) != 0 {
            return false;
        }
        let told = event.assume_init();
        // Other events are for queue pairs: their peers communicate.
        let of_srq = told.event_type == LIMIT_REACHED && told.element.srq == shared.srq;
        events::ibv_ack_async_event(event.as_mut_ptr());
        of_srq
    };
    for round in 0..3 {
        (0..4).for_each(|id| assert_eq!(shared.post(id, &mut []), 0));
        shared.arm(2);
        for id in 0..4 {
            let sender = &shared.senders[(id + round) % 2];
            assert_eq!(post_send(sender.qp, &mut send(id as u64, &mut [])).0, 0);
            assert_eq!((sender.sent().status, take(shared.cq, 1)[0].wr_id), (0, id as u64));
            if id == 2 {
                until(&mut is_told);
            } else {
                assert!(!is_told(), "{id}");
            }
        }
        let mut found = ibv_srq_attr::default();
        // SAFETY: the queue is the test's, and there is a place for the result.
        assert_eq!(unsafe { shared_receive::ibv_query_srq(shared.srq, &mut found) }, 0);
        assert_eq!(found.srq_limit, 0);
    }
    shared.was_direct(12);
    shared.close();
}

/// Tests that waiting receives move to the queue of a new size if there is room for them, and that every sender finds
/// them there.
fn resize(way: Way) {
    let shared = Shared::new(way);
    let modify = |max_wr, srq_limit, mask| {
        let mut attr = ibv_srq_attr { max_wr, max_sge: 0, srq_limit };
        // SAFETY: the queue is the test's, and the attributes are whole.
        unsafe { shared_receive::ibv_modify_srq(shared.srq, &mut attr, mask) }
    };
    let size = || {
        let mut found = ibv_srq_attr::default();
        // SAFETY: the queue is the test's, and there is a place for the result.
        assert_eq!(unsafe { shared_receive::ibv_query_srq(shared.srq, &mut found) }, 0);
        (found.max_wr, found.max_sge, found.srq_limit)
    };
    let mut next = 0;
    let mut expect = |receives: u64| {
        for _ in 0..receives {
            let sender = &shared.senders[next as usize % 2];
            assert_eq!(post_send(sender.qp, &mut send(next, &mut [])).0, 0);
            assert_eq!((sender.sent().status, take(shared.cq, 1)[0].wr_id), (0, next));
            next += 1;
        }
    };
    let both = IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT;
    (0..7).for_each(|id| assert_eq!(shared.post(id, &mut []), 0));
    expect(1);
    for (max_wr, limit, mask) in [(5, 0, IBV_SRQ_MAX_WR), (0, 0, IBV_SRQ_MAX_WR), (6, 7, both), (6, 2, 4)] {
        assert_eq!(modify(max_wr, limit, mask), libc::EINVAL, "{max_wr} {limit}");
        assert_eq!(size(), (ROOM, 2, 0));
    }
    assert_eq!((modify(6, 2, both), size()), (0, (6, 2, 2)));
    assert_eq!(shared.post(7, &mut []), libc::ENOMEM);
    expect(3);
    assert_eq!((modify(40, 0, both), size()), (0, (40, 2, 0)));
    (7..44).for_each(|id| assert_eq!(shared.post(id, &mut []), 0));
    assert_eq!(shared.post(44, &mut []), libc::ENOMEM);
    expect(40);
    if way.shares() {
        // Peers that share memory share it again.
        let direct = || shared.senders.iter().map(End::direct).sum::<u64>();
        let before = direct();
        let mut id = 44;
        until(|| {
            assert_eq!(shared.post(id, &mut []), 0);
            expect(1);
            id += 1;
            direct() > before
        });
    }
    shared.close();
}

most_ways! { messages all_at_once later too_long limit resize }
