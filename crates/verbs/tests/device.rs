//! The library against a device.

use crate::program::*;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use uverbs::qp::mask;
use verbs::abi::*;
use verbs::{address, channel, completion, context, device, events, gid, memory, modify, query, queue_pair};
use verbs::{completion_ex, shared_receive};

#[test]
fn a_device_and_its_port_are_described() {
    let context = open(0);
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results, which are read when a call has filled them.
    unsafe {
        let guid = device::ibv_get_device_guid((*context).device);
        assert_eq!(u64::from_be(guid), 0x0000_00ff_fe00_0001);
        let mut attr = MaybeUninit::<ibv_device_attr>::uninit();
        assert_eq!(query::ibv_query_device(context, attr.as_mut_ptr()), 0);
        assert_eq!((attr.assume_init().max_qp, attr.assume_init().node_guid), (64, guid));
        // Programs that call the function by its symbol pass a shorter structure.
        let mut port = [0xaa_u8; size_of::<ibv_port_attr>()];
        assert_eq!(query::ibv_query_port(context, 1, port.as_mut_ptr().cast()), 0);
        assert!(port[COMPAT_PORT_ATTR..].iter().all(|byte| *byte == 0xaa));
        let port = port.as_ptr().cast::<ibv_port_attr>().read_unaligned();
        assert_eq!((port.state, port.gid_tbl_len, port.lid, port.link_layer), (4, 3, 0, 2));
        assert_eq!(query::ibv_query_port(context, 2, null_mut()), libc::EINVAL);
        let mut pkey = 0;
        assert_eq!((gid::ibv_query_pkey(context, 1, 0, &mut pkey), pkey), (0, 0xffff));
        assert_eq!((gid::ibv_query_pkey(context, 1, 1, &mut pkey), errno()), (-1, libc::EINVAL));
        assert_eq!(
            (gid::ibv_get_pkey_index(context, 1, 0xffff), gid::ibv_get_pkey_index(context, 1, 1)),
            (0, -1)
        );
        context::ibv_close_device(context);
    }
}

#[test]
fn gids_are_told_one_by_one_and_all_at_once() {
    let context = open(0);
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results.
    unsafe {
        let mut one = ibv_gid::default();
        assert_eq!(gid::ibv_query_gid(context, 1, 1, &mut one), 0);
        assert_eq!(one.raw[10..], [255, 255, 10, 0, 0, 1]);
        let mut first = ibv_gid::default();
        assert_eq!((gid::ibv_query_gid(context, 1, 0, &mut first), first), (0, one));
        assert_eq!((gid::ibv_query_gid(context, 1, 3, &mut first), errno()), (-1, libc::EINVAL));
        let mut kind = 9;
        assert_eq!((gid::ibv_query_gid_type(context, 1, 0, &mut kind), kind), (0, 1));
        let mut all = [ibv_gid_entry::default(); 4];
        let size = size_of::<ibv_gid_entry>();
        assert_eq!(gid::_ibv_query_gid_table(context, all.as_mut_ptr(), 4, 0, size), 3);
        assert_eq!((all[1].gid, all[1].gid_index, all[1].gid_type), (one, 1, IBV_GID_TYPE_ROCE_V2));
        let too_few = gid::_ibv_query_gid_table(context, all.as_mut_ptr(), 1, 0, size);
        assert_eq!(too_few, -(libc::EINVAL as isize));
        assert_eq!(gid::_ibv_query_gid_ex(context, 1, 0, all.as_mut_ptr(), 1, size), libc::EINVAL);
        context::ibv_close_device(context);
    }
}

#[test]
fn messages_arrive() {
    let pair = Pair::new(0, IBV_QPT_RC);
    let (mut from, mut to) = (Buffer::new(pair.pd, b"message!"), Buffer::new(pair.pd, &[0; 8]));
    let [mut half, mut other] = [from.sge(); 2];
    (half.length, other.length, other.addr) = (3, 5, other.addr + 3);
    assert_eq!(post_receive(pair.qps[1], &mut receive(1, &mut [to.sge()])).0, 0);
    assert_eq!(post_send(pair.qps[0], &mut send(2, &mut [half, other])).0, 0);
    let mut done = pair.completions(2);
    done.sort_by_key(|wc| wc.wr_id);
    assert_eq!(
        done.iter().map(|wc| (wc.status, wc.opcode, wc.byte_len)).collect::<Vec<_>>(),
        [(0, 128, 8), (0, 0, 8)]
    );
    assert_eq!(*to.bytes, *b"message!");
    // The message is inline: after posting, its memory may change or be freed.
    let mut inline = send(3, &mut []);
    let mut gone = Box::new(*b"12");
    let mut list = [ibv_sge { addr: gone.as_mut_ptr() as u64, length: 2, lkey: 0 }];
    (inline.sg_list, inline.num_sge, inline.send_flags) = (list.as_mut_ptr(), 1, 2 | IBV_SEND_INLINE);
    assert_eq!(post_send(pair.qps[0], &mut inline).0, 0);
    *gone = *b"99";
    assert_eq!(post_receive(pair.qps[1], &mut receive(4, &mut [to.sge()])).0, 0);
    pair.completions(2);
    assert_eq!(to.bytes[..2], *b"12");
    forget([&mut from, &mut to]);
    pair.destroy();
}

#[test]
fn what_cannot_be_posted_is_pointed_at() {
    let pair = Pair::new(0, IBV_QPT_RC);
    let mut buffer = Buffer::new(pair.pd, &[0; 8]);
    let sge = buffer.sge();
    let mut wrong = send(2, &mut []);
    wrong.opcode = 8;
    let mut list = [sge];
    let mut first = send(1, &mut list);
    first.next = &mut wrong;
    assert_eq!(post_send(pair.qps[0], &mut first), (libc::EINVAL, Some(2)));
    assert_eq!(post_send(pair.qps[0], &mut send(3, &mut [sge; 3])), (libc::EINVAL, Some(3)));
    let mut long = [0; 65];
    let mut inline = [ibv_sge { addr: long.as_mut_ptr() as u64, length: 65, lkey: 0 }];
    let mut wr = send(4, &mut inline);
    wr.send_flags |= IBV_SEND_INLINE;
    assert_eq!(post_send(pair.qps[0], &mut wr), (libc::EINVAL, Some(4)));
    // One already waits for its receive; the queue has room for three more.
    for id in 5..8 {
        assert_eq!(post_send(pair.qps[0], &mut send(id, &mut [sge])).0, 0);
    }
    assert_eq!(post_send(pair.qps[0], &mut send(8, &mut [sge])), (libc::ENOMEM, Some(8)));
    assert_eq!(post_receive(pair.qps[1], &mut receive(9, &mut [sge; 3])), (libc::EINVAL, Some(9)));
    // In RESET nothing can be posted, and before RTS no sends. Afterwards everything starts again.
    assert_eq!(modify_to(pair.qps[0], IBV_QPS_RESET), 0);
    assert_eq!(post_receive(pair.qps[0], &mut receive(1, &mut [sge])), (libc::EINVAL, Some(1)));
    assert_eq!(modify_to(pair.qps[0], 1), 0);
    assert_eq!(post_receive(pair.qps[0], &mut receive(1, &mut [sge])).0, 0);
    assert_eq!(post_send(pair.qps[0], &mut send(1, &mut [sge])), (libc::EINVAL, Some(1)));
    // SAFETY: the queue pair is the test's, which did not destroy it.
    assert_eq!(unsafe { (*pair.qps[0]).state }, 1);
    // In the error state requests are flushed, whether posted before or after.
    assert_eq!(modify_to(pair.qps[0], IBV_QPS_ERR), 0);
    assert_eq!(post_send(pair.qps[0], &mut send(2, &mut [sge])).0, 0);
    assert_eq!(post_receive(pair.qps[0], &mut receive(3, &mut [sge])).0, 0);
    let mut flushed: Vec<_> = pair.completions(3).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [(1, 5), (2, 5), (3, 5)]);
    forget([&mut buffer]);
    pair.destroy();
}

#[test]
fn requests_are_made_call_by_call() {
    let pair = Pair::new(0, IBV_QPT_RC);
    let (mut from, mut to) = (Buffer::new(pair.pd, b"abcd"), Buffer::new(pair.pd, &[0; 4]));
    for id in 0..2 {
        assert_eq!(post_receive(pair.qps[1], &mut receive(id, &mut [to.sge()])).0, 0);
    }
    let sge = from.sge();
    // SAFETY: the queue pair was made with these functions, which are called in the order that they ask for;
    // parts lie in `from`.
    unsafe {
        let qp = queue_pair::ibv_qp_to_qp_ex(pair.qps[0]);
        let ops = qp.read();
        let start = |id| {
            ops.wr_start.unwrap()(qp);
            ((*qp).wr_id, (*qp).wr_flags) = (id, 2);
        };
        start(10);
        ops.wr_send.unwrap()(qp);
        ops.wr_set_sge.unwrap()(qp, sge.lkey, sge.addr, 4);
        ops.wr_abort.unwrap()(qp);
        start(11);
        ops.wr_send_tso.unwrap()(qp, null_mut(), 0, 0);
        assert_eq!(ops.wr_complete.unwrap()(qp), libc::EOPNOTSUPP);
        start(12);
        for _ in 0..=DEPTH {
            ops.wr_send.unwrap()(qp);
            ops.wr_set_sge.unwrap()(qp, sge.lkey, sge.addr, 4);
        }
        assert_eq!(ops.wr_complete.unwrap()(qp), libc::ENOMEM);
        start(13);
        ops.wr_send_imm.unwrap()(qp, 77);
        ops.wr_set_sge.unwrap()(qp, sge.lkey, sge.addr, 4);
        (*qp).wr_id = 14;
        ops.wr_send.unwrap()(qp);
        let parts = [(2, 2), (0, 1)]
            .map(|(at, length)| ibv_data_buf { addr: from.bytes.as_mut_ptr().add(at).cast(), length });
        ops.wr_set_inline_data_list.unwrap()(qp, 2, parts.as_ptr());
        assert_eq!(ops.wr_complete.unwrap()(qp), 0);
    }
    let done = pair.completions(4);
    let of = |id| done.iter().find(|wc| wc.wr_id == id).unwrap();
    assert_eq!((of(0).imm_data, of(0).wc_flags, of(13).status, of(14).status), (77, 2, 0, 0));
    assert_eq!((of(1).byte_len, &*to.bytes), (3, &b"cdad"[..]));
    forget([&mut from, &mut to]);
    pair.destroy();
}

/// The test has this device for itself.
#[test]
fn extended_polling_reads_field_by_field() {
    let context = open(3);
    // SAFETY: numbers and pointers, which may all be zero.
    let mut attr: ibv_cq_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.cqe, attr.wc_flags) = (5, 0xff);
    // SAFETY: the context was just opened, and the attributes are whole.
    let cq = unsafe { completion_ex::create_cq_ex(context, &mut attr) };
    let pair = Pair::with(3, context, cq.cast(), null_mut(), IBV_QPT_UC);
    let mut buffer = Buffer::new(pair.pd, b"xyz");
    let sge = buffer.sge();
    // SAFETY: the queue was made with these functions, which are called in the order that they ask for.
    unsafe {
        let ops = cq.read();
        let mut none = ibv_poll_cq_attr::default();
        assert_eq!(ops.start_poll.unwrap()(cq, &mut none), libc::ENOENT);
        assert_eq!(ops.base.cqe, FEWEST.cast_signed());
        assert_eq!(post_receive(pair.qps[1], &mut receive(21, &mut [sge])).0, 0);
        let mut wr = send(22, &mut []);
        wr.send_flags = 0;
        assert_eq!(post_send(pair.qps[0], &mut wr).0, 0);
        while ops.start_poll.unwrap()(cq, &mut none) == libc::ENOENT {}
        assert_eq!(((*cq).wr_id, (*cq).status), (21, 0));
        assert_eq!((ops.read_opcode.unwrap()(cq), ops.read_byte_len.unwrap()(cq)), (128, 0));
        assert_eq!(ops.read_qp_num.unwrap()(cq), (*pair.qps[1]).qp_num);
        assert_ne!(ops.read_completion_ts.unwrap()(cq), 0);
        assert_eq!(ops.next_poll.unwrap()(cq), libc::ENOENT);
        ops.end_poll.unwrap()(cq);
        attr.wc_flags = 1 << 8;
        assert!(completion_ex::create_cq_ex(context, &mut attr).is_null() && errno() == libc::EOPNOTSUPP);
        // Completions that were not polled stay when the queue is resized.
        assert_eq!(post_receive(pair.qps[1], &mut receive(23, &mut [sge])).0, 0);
        assert_eq!(post_receive(pair.qps[1], &mut receive(24, &mut [sge])).0, 0);
        assert_eq!(post_send(pair.qps[0], &mut wr).0, 0);
        let first = pair.completions(1)[0].wr_id;
        wr.send_flags = 2;
        assert_eq!(post_send(pair.qps[0], &mut wr).0, 0);
        let handle = (*pair.cq).handle;
        until(|| {
            described(3).iter().flat_map(|client| &client.cqs).any(|cq| cq.cq == handle && cq.waiting == 2)
        });
        assert_eq!((first, completion::ibv_resize_cq(pair.cq, 20), (*pair.cq).cqe), (23, 0, 32));
    }
    let mut left: Vec<_> = pair.completions(2).iter().map(|wc| wc.wr_id).collect();
    left.sort_unstable();
    assert_eq!(left, [22, 24]);
    forget([&mut buffer]);
    pair.destroy();
}

/// The test has this device for itself.
#[test]
fn a_channel_tells_once_and_is_waited_for() {
    let context = open(4);
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results; what is destroyed is not used any more.
    unsafe {
        let channel = channel::ibv_create_comp_channel(context);
        libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        let tag = 5_usize as *mut _;
        let cq = completion::ibv_create_cq(context, 8, tag, channel, 0);
        let pair = Pair::with(4, context, cq, null_mut(), IBV_QPT_RC);
        let (mut told, mut its_tag) = (null_mut(), null_mut());
        assert_eq!(channel::ibv_get_cq_event(channel, &mut told, &mut its_tag), -1);
        assert_eq!((errno(), channel::ibv_destroy_comp_channel(channel)), (libc::EAGAIN, libc::EBUSY));
        completion::req_notify_cq(cq, 0);
        assert_eq!(post_receive(pair.qps[1], &mut receive(1, &mut [])).0, 0);
        assert_eq!(post_send(pair.qps[0], &mut send(2, &mut [])).0, 0);
        pair.completions(2);
        assert_eq!(channel::ibv_get_cq_event(channel, &mut told, &mut its_tag), 0);
        assert_eq!((told, its_tag), (cq, tag));
        assert_eq!(channel::ibv_get_cq_event(channel, &mut told, &mut its_tag), -1);
        // Destroying it waits for the acknowledgement.
        let (address, handle, is_acknowledged) = (cq as usize, (*cq).handle, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                until(|| described(4)[0].cqs.iter().all(|cq| cq.cq != handle));
                is_acknowledged.store(true, Ordering::Release);
                channel::ibv_ack_cq_events(address as *mut ibv_cq, 1);
            });
            destroy_queue_pairs(&pair);
            assert_eq!(completion::ibv_destroy_cq(cq), 0);
            assert!(is_acknowledged.load(Ordering::Acquire));
        });
        assert_eq!(channel::ibv_destroy_comp_channel(channel), 0);
        memory::ibv_dealloc_pd(pair.pd);
        context::ibv_close_device(context);
    }
}

#[test]
fn a_shared_receive_queue_tells_of_its_limit() {
    let context = open(0);
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results, which are read when a call has filled them.
    unsafe {
        let pd = memory::ibv_alloc_pd(context);
        let attr = ibv_srq_attr { max_wr: 2, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        let srq = shared_receive::ibv_create_srq(pd, &mut init);
        let cq = completion::ibv_create_cq(context, 8, null_mut(), null_mut(), 0);
        let pair = Pair::with(0, context, cq, srq, IBV_QPT_RC);
        let mut bad = null_mut();
        for (id, outcome) in [(1, 0), (2, 0), (3, libc::ENOMEM)] {
            let posted = shared_receive::post_srq_recv(srq, &mut receive(id, &mut []), &mut bad);
            assert_eq!((id, posted), (id, outcome));
        }
        assert_eq!(post_receive(pair.qps[1], &mut receive(1, &mut [])), (libc::EINVAL, Some(1)));
        let mut limit = ibv_srq_attr { srq_limit: 3, ..attr };
        assert_eq!(shared_receive::ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT), libc::EINVAL);
        limit.srq_limit = 2;
        assert_eq!(shared_receive::ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT), 0);
        let mut found = ibv_srq_attr::default();
        assert_eq!((shared_receive::ibv_query_srq(srq, &mut found), found.srq_limit), (0, 2));
        assert_eq!(post_send(pair.qps[0], &mut send(4, &mut [])).0, 0);
        let mut event = MaybeUninit::<ibv_async_event>::uninit();
        assert_eq!(events::ibv_get_async_event(context, event.as_mut_ptr()), 0);
        assert_eq!((event.assume_init().event_type, event.assume_init().element.srq), (15, srq));
        events::ibv_ack_async_event(event.as_mut_ptr());
        pair.completions(2);
        destroy_queue_pairs(&pair);
        assert_eq!(shared_receive::ibv_destroy_srq(srq), 0);
        context::ibv_close_device(context);
    }
}

#[test]
fn datagrams_can_be_answered() {
    let pair = Pair::new(0, IBV_QPT_UD);
    let (mut from, mut to) = (Buffer::new(pair.pd, b"hello"), Buffer::new(pair.pd, &[0; 45]));
    let mut wr = send(1, &mut []);
    // SAFETY: the queue pair is the test's, which did not destroy it.
    wr.wr.ud = Ud { ah: null_mut(), remote_qpn: unsafe { (*pair.qps[1]).qp_num }, remote_qkey: 3 };
    assert_eq!(post_send(pair.qps[0], &mut wr), (libc::EINVAL, Some(1)));
    let there = handle(pair.pd, pair.index);
    wr.wr.ud.ah = there;
    let mut list = [from.sge()];
    (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), 1);
    assert_eq!(post_receive(pair.qps[1], &mut receive(2, &mut [to.sge()])).0, 0);
    assert_eq!(post_send(pair.qps[0], &mut wr).0, 0);
    let mut wc = *pair.completions(2).iter().find(|wc| wc.wr_id == 2).unwrap();
    // SAFETY: the queue pair is the test's, which did not destroy it.
    assert_eq!((wc.byte_len, wc.wc_flags, wc.src_qp), (45, IBV_WC_GRH, unsafe { (*pair.qps[0]).qp_num }));
    assert_eq!(to.bytes[40..], *b"hello");
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results; the completion and its header are of a datagram.
    unsafe {
        let mut attr = ibv_ah_attr::default();
        let grh = to.bytes.as_mut_ptr().cast();
        assert_eq!(address::ibv_init_ah_from_wc(pair.context, 1, &mut wc, grh, &mut attr), 0);
        assert_eq!(
            (attr.grh.sgid_index, attr.is_global, attr.grh.dgid.raw[12..].to_vec()),
            (0, 1, vec![10, 0, 0, 1])
        );
        let answer = address::ibv_create_ah_from_wc(pair.pd, &mut wc, grh, 1);
        wr.wr.ud = Ud { ah: answer, remote_qpn: wc.src_qp, remote_qkey: 3 };
        assert_eq!(post_receive(pair.qps[0], &mut receive(3, &mut [to.sge()])).0, 0);
        assert_eq!(post_send(pair.qps[1], &mut wr).0, 0);
        assert!(pair.completions(2).iter().all(|wc| wc.status == 0));
        assert_eq!((address::ibv_destroy_ah(answer), address::ibv_destroy_ah(there)), (0, 0));
    }
    forget([&mut from, &mut to]);
    pair.destroy();
}

fn destroy_queue_pairs(pair: &Pair) {
    for qp in pair.qps {
        // SAFETY: they are the test's, which uses them no more.
        assert_eq!(unsafe { queue_pair::ibv_destroy_qp(qp) }, 0);
    }
}

/// The test has this device for itself, because it reaches the device's limits.
#[test]
fn what_the_device_says_is_passed_on() {
    let pair = Pair::new(1, IBV_QPT_RC);
    let (context, pd) = (pair.context, pair.pd);
    let mut buffer = Buffer::new(pd, b"12345678");
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results, and memory that is registered lives here, but for an address that is refused.
    unsafe {
        assert_eq!(
            (memory::ibv_dealloc_pd(pd), completion::ibv_destroy_cq(pair.cq)),
            (libc::EBUSY, libc::EBUSY)
        );
        // Peers address this region from 99 on; its access flags include an unknown one of those that may be ignored.
        let mut bytes = *b"........";
        let mr = memory::ibv_reg_mr_iova2(pd, bytes.as_mut_ptr().cast(), 8, 99, 1 << 20 | 3);
        let mut write = send(1, &mut []);
        let mut list = [buffer.sge()];
        list[0].length = 4;
        (write.opcode, write.sg_list, write.num_sge) = (IBV_WR_RDMA_WRITE, list.as_mut_ptr(), 1);
        write.wr.rdma = Rdma { remote_addr: 101, rkey: (*mr).rkey };
        assert_eq!(post_send(pair.qps[0], &mut write).0, 0);
        assert_eq!((pair.completions(1)[0].status, &bytes), (0, b"..1234.."));
        let wrong = memory::ibv_rereg_mr(mr, 1, null_mut(), null_mut(), 0, 0);
        assert_eq!((wrong, errno()), (IBV_REREG_MR_ERR_INPUT, libc::EINVAL));
        let wrong = memory::ibv_rereg_mr(mr, 4, null_mut(), null_mut(), 0, 2);
        assert_eq!((wrong, errno()), (IBV_REREG_MR_ERR_CMD, libc::EINVAL));
        // The key stays the same with new access flags: its holders may do what these allow.
        let key = (*mr).rkey;
        assert_eq!((memory::ibv_rereg_mr(mr, 4, null_mut(), null_mut(), 0, 1), (*mr).rkey), (0, key));
        assert_eq!(post_send(pair.qps[0], &mut write).0, 0);
        assert_eq!(pair.completions(1)[0].status, 10);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
        for (flags, errno_of) in [(1 << 12, libc::EOPNOTSUPP), (2, libc::EINVAL)] {
            assert!(memory::ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), 8, flags).is_null());
            assert_eq!(errno(), errno_of);
        }
        assert!(memory::ibv_reg_mr(pd, 4096 as *mut _, 8, 1).is_null() && errno() == libc::EFAULT);
        let all: Vec<_> = std::iter::repeat_with(|| memory::ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), 8, 1))
            .take_while(|mr| !mr.is_null())
            .collect();
        assert_eq!((all.len(), errno()), (REGIONS as usize - 1, libc::ENOMEM));
        all.into_iter().for_each(|mr| assert_eq!(memory::ibv_dereg_mr(mr), 0));
        let mut attr = ibv_parent_domain_init_attr { pd, ..std::mem::zeroed() };
        let child = memory::alloc_parent_domain(context, &mut attr);
        assert_eq!(((*child).handle, memory::ibv_dealloc_pd(pd)), ((*pd).handle, libc::EBUSY));
        assert_eq!(memory::ibv_dealloc_pd(child), 0);
        assert_eq!(memory::ibv_dereg_mr(buffer.mr), 0);
    }
    pair.destroy();
}

#[test]
fn what_there_is_not_is_refused() {
    let pair = Pair::new(0, IBV_QPT_RC);
    let srq_attr = ibv_srq_attr { max_wr: 2, max_sge: 1, srq_limit: 0 };
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results, which are read when a call has filled them.
    unsafe {
        let mut limits = MaybeUninit::<ibv_device_attr>::uninit();
        assert_eq!(query::ibv_query_device(pair.context, limits.as_mut_ptr()), 0);
        let limits = limits.assume_init();
        let vectors = (*pair.context).num_comp_vectors;
        for (cqe, vector) in [(0, 0), (-1, 0), (limits.max_cqe + 1, 0), (1, vectors), (1, -1)] {
            let cq = completion::ibv_create_cq(pair.context, cqe, null_mut(), null_mut(), vector);
            assert_eq!((cq.is_null(), errno()), (true, libc::EINVAL), "{cqe}");
        }
        // Capacities: the maximum, and one more.
        let most =
            [limits.max_qp_wr, limits.max_qp_wr, limits.max_sge, limits.max_sge].map(|most| most as u32);
        for beyond in [None, Some(0), Some(1), Some(2), Some(3)] {
            let mut asked = most;
            if let Some(at) = beyond {
                asked[at] += 1;
            }
            let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge] = asked;
            let mut init: ibv_qp_init_attr = std::mem::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (pair.cq, pair.cq, IBV_QPT_UD);
            init.cap =
                ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data: 0 };
            let qp = queue_pair::ibv_create_qp(pair.pd, &mut init);
            if beyond.is_none() {
                assert_eq!(queue_pair::ibv_destroy_qp(qp), 0);
            } else {
                assert_eq!((qp.is_null(), errno()), (true, libc::EINVAL), "{beyond:?}");
            }
        }
        // An address without a route, and a queue pair with an alternate path or a rate limit.
        let mut attr = ibv_ah_attr { dlid: 1, port_num: 1, ..ibv_ah_attr::default() };
        assert_eq!((address::ibv_create_ah(pair.pd, &mut attr).is_null(), errno()), (true, libc::EINVAL));
        for bit in [mask::ALT_PATH, mask::RATE_LIMIT, mask::CAP, mask::PATH_MIG_STATE, 1 << 30] {
            let (mut attr, _) = attributes(IBV_QPT_RC, IBV_QPS_RTS, 0, 0);
            let changed = modify::ibv_modify_qp(pair.qps[0], &mut attr, (mask::STATE | bit) as i32);
            assert_eq!((changed, (*pair.qps[0]).state), (libc::EINVAL, IBV_QPS_RTS));
        }
        // Objects in use are not destroyed.
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr: srq_attr };
        let srq = shared_receive::ibv_create_srq(pair.pd, &mut init);
        let user = create(pair.context, pair.pd, [pair.cq; 2], srq, IBV_QPT_RC);
        assert_eq!(shared_receive::ibv_destroy_srq(srq), libc::EBUSY);
        assert_eq!((queue_pair::ibv_destroy_qp(user), shared_receive::ibv_destroy_srq(srq)), (0, 0));
        assert_eq!(completion::ibv_destroy_cq(pair.cq), libc::EBUSY);
        // A queue can't become smaller than its contents. Memory of no bytes can be registered.
        assert_eq!((completion::ibv_resize_cq(pair.cq, 17), (*pair.cq).cqe), (0, 32));
        let full = create_of(FEWEST + 1, pair.context, pair.pd, [pair.cq; 2], null_mut(), IBV_QPT_RC);
        connect(full, pair.index, (*full).qp_num);
        for id in 0..=FEWEST {
            assert_eq!(post_receive(full, &mut receive(id.into(), &mut [])).0, 0);
        }
        assert_eq!(modify_to(full, IBV_QPS_ERR), 0);
        assert_eq!(completion::ibv_resize_cq(pair.cq, 1), libc::EINVAL);
        assert_eq!(completion::ibv_resize_cq(pair.cq, limits.max_cqe + 1), libc::EINVAL);
        assert_eq!(((*pair.cq).cqe, pair.poll().len()), (32, 8));
        assert_eq!(completion::ibv_resize_cq(pair.cq, 8), libc::EINVAL);
        assert_eq!((completion::ibv_resize_cq(pair.cq, 9), (*pair.cq).cqe), (0, 16));
        assert_eq!(pair.completions(9).len(), 9);
        assert_eq!((completion::ibv_resize_cq(pair.cq, 2), (*pair.cq).cqe), (0, 2));
        assert_eq!(queue_pair::ibv_destroy_qp(full), 0);
        let mut nothing = Buffer::new(pair.pd, &[]);
        nothing.forget();
    }
    pair.destroy();
}

/// The test has this device for itself.
#[test]
fn when_the_device_dies_everything_is_flushed() {
    let context = open(2);
    // SAFETY: what is passed was made here and not destroyed yet, or is null where it may be; there are
    // places for results, which are read when a call has filled them; what is destroyed is not used any more.
    unsafe {
        let channel = channel::ibv_create_comp_channel(context);
        let cq = completion::ibv_create_cq(context, 8, null_mut(), channel, 0);
        let pair = Pair::with(2, context, cq, null_mut(), IBV_QPT_RC);
        assert_eq!(post_receive(pair.qps[0], &mut receive(1, &mut [])).0, 0);
        assert_eq!(post_send(pair.qps[0], &mut send(2, &mut [])).0, 0);
        let mut unsignaled = send(3, &mut []);
        unsignaled.send_flags = 0;
        assert_eq!(post_send(pair.qps[0], &mut unsignaled).0, 0);
        completion::req_notify_cq(cq, 0);
        assert!(pair.poll().is_empty());
        end(2);
        let mut flushed: Vec<_> = pair.completions(3).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        flushed.sort_unstable();
        assert_eq!(flushed, [(1, 5), (2, 5), (3, 5)]);
        assert_eq!(post_send(pair.qps[0], &mut send(4, &mut [])).0, 0);
        assert_eq!(pair.completions(1)[0].status, IBV_WC_WR_FLUSH_ERR);
        let (mut told, mut tag) = (null_mut(), null_mut());
        assert_eq!((channel::ibv_get_cq_event(channel, &mut told, &mut tag), told), (0, cq));
        assert_eq!((channel::ibv_get_cq_event(channel, &mut told, &mut tag), errno()), (-1, libc::EIO));
        channel::ibv_ack_cq_events(cq, 1);
        let mut event = MaybeUninit::<ibv_async_event>::uninit();
        assert_eq!(events::ibv_get_async_event(context, event.as_mut_ptr()), 0);
        assert_eq!(event.assume_init().event_type, event::DEVICE_FATAL);
        events::ibv_ack_async_event(event.as_mut_ptr());
        assert_eq!((events::ibv_get_async_event(context, event.as_mut_ptr()), errno()), (-1, libc::EIO));
        assert!(memory::ibv_alloc_pd(context).is_null() && errno() == libc::EIO);
        let mut attr = ibv_qp_attr::default();
        assert_eq!(modify::ibv_modify_qp(pair.qps[0], &mut attr, 1), libc::EIO);
        pair.destroy();
    }
}

#[test]
fn a_message_waits_for_its_receive() {
    let pair = Pair::new(0, IBV_QPT_RC);
    assert_eq!(post_receive(pair.qps[1], &mut receive(1, &mut [])).0, 0);
    for id in [2, 3] {
        assert_eq!(post_send(pair.qps[0], &mut send(id, &mut [])).0, 0);
    }
    pair.completions(2);
    assert!(pair.poll().is_empty());
    assert_eq!(post_receive(pair.qps[1], &mut receive(4, &mut [])).0, 0);
    let mut done: Vec<_> = pair.completions(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    done.sort_unstable();
    assert_eq!(done, [(3, 0), (4, 0)]);
    pair.destroy();
}

#[test]
fn pages_are_registered_for_what_they_allow() {
    const PAGE: usize = 4096;
    let pair = Pair::new(0, IBV_QPT_RC);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // Two pages are written to, one is read, and one is for nothing.
    // SAFETY: new memory, and parts of it.
    let start = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let start = libc::mmap(null_mut(), 4 * PAGE, access, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(start.byte_add(2 * PAGE), PAGE, libc::PROT_READ), 0);
        assert_eq!(libc::mprotect(start.byte_add(3 * PAGE), PAGE, libc::PROT_NONE), 0);
        start
    };
    // SAFETY: the domain is the test's; nobody uses what is registered.
    let register = |pages: usize, access| unsafe { memory::ibv_reg_mr(pair.pd, start, pages * PAGE, access) };
    for (pages, access, may) in [
        (2, 15, true),
        (3, 0, true),
        (3, 4, true),
        (3, 1, false),
        (3, 3, false),
        (3, 9, false),
        (4, 0, false),
    ] {
        let mr = register(pages, access);
        assert_eq!(!mr.is_null(), may, "{pages} {access}");
        if may {
            // SAFETY: it is registered.
            assert_eq!(unsafe { memory::ibv_dereg_mr(mr) }, 0);
        } else {
            assert_eq!(errno(), libc::EFAULT);
        }
    }
    let mr = register(3, 4);
    // SAFETY: it is registered, and goes with its memory.
    unsafe {
        assert_ne!(memory::ibv_rereg_mr(mr, 4, null_mut(), null_mut(), 0, 3), 0);
        assert_eq!(errno(), libc::EFAULT);
        assert_eq!(memory::ibv_rereg_mr(mr, 1 | 4, null_mut(), start, PAGE, 3), 0);
        assert_ne!(memory::ibv_rereg_mr(mr, 1, null_mut(), start, 3 * PAGE, 0), 0);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
        libc::munmap(start, 4 * PAGE);
    }
    pair.destroy();
}
