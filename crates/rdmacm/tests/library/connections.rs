//! Programs with event channels.

use crate::devices::{self, ADDRESSES};
use crate::programs::{
    acknowledge, acknowledged, end, errno, event, heard, id, init_attr, listener, queue_pair, resolved, said,
};
use crate::verbs::modified;
use libc::{POLLIN, pollfd};
use rdmacm::abi::{EventChannel, IBV_QPT_RC, IBV_QPT_UD, RDMA_PS_TCP, RDMA_PS_UDP, event as kind};
use rdmacm::{address, *};
use std::net::SocketAddr;
use std::ptr;
use std::time::Duration;
use uverbs::QpState;
use uverbs::qp::{access, mask};

const UNREACHABLE: u32 = 7;
const TIMEWAIT_EXIT: u32 = 15;

fn is_readable(channel: *mut EventChannel) -> bool {
    // SAFETY: the channel is the test's, and not destroyed yet.
    let mut poll = pollfd { fd: unsafe { (*channel).fd }, events: POLLIN, revents: 0 };
    // SAFETY: it is one descriptor.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

fn states(qp: *mut rdmacm::abi::Qp) -> Vec<u32> {
    modified(qp).iter().map(|(attr, _)| attr.qp_state).collect()
}

#[test]
fn a_client_connects_to_a_server() {
    let (there, here) = (rdma_create_event_channel(), rdma_create_event_channel());
    let (listening, to) = listener(there, RDMA_PS_TCP, "0.0.0.0");
    let client = resolved(here, RDMA_PS_TCP, to);
    // SAFETY: the identifier has its addresses and its path in it since it was resolved.
    unsafe {
        let addr = &(*client).route.addr;
        assert_eq!(address::read((&raw const addr.dst_addr).cast()), Some(to));
        assert_eq!(address::of_gid(addr.sgid), ADDRESSES[0]);
        assert_ne!(rdma_get_src_port(client), 0);
        assert_eq!((*(*client).route.path_rec).mtu, 3);
    }
    let ours = queue_pair(client, IBV_QPT_RC);
    assert_eq!(states(ours), [QpState::Init as u32]);
    let mut wanted = said(b"hello");
    // SAFETY: the identifier is the test's, and parameters and what they lead to are constants or live here.
    assert_eq!(unsafe { rdma_connect(client, &raw mut wanted) }, 0);

    let request = event(there, kind::CONNECT_REQUEST);
    // SAFETY: the event is not acknowledged yet.
    let (server, parent) = unsafe { ((*request).id, (*request).listen_id) };
    assert_eq!(parent, listening);
    // SAFETY: the identifier came with the request.
    assert_eq!((unsafe { (*server).context }, heard(request).len()), (0x77 as _, 56));
    assert!(heard(request).starts_with(b"hello\0"));
    // SAFETY: the event is not acknowledged yet.
    let conn = unsafe { (*request).param.conn };
    assert_eq!((conn.responder_resources, conn.initiator_depth, conn.retry_count), (3, 4, 5));
    let theirs = queue_pair(server, IBV_QPT_RC);
    // SAFETY: the queue pair is not destroyed yet.
    assert_eq!(conn.qp_num, unsafe { (*ours).qp_num });
    let mut accepted = said(b"welcome");
    // SAFETY: the identifier is the test's, and parameters and what they lead to are constants or live here.
    assert_eq!(unsafe { rdma_accept(server, &raw mut accepted) }, 0);
    acknowledge(request);

    let established = event(here, kind::ESTABLISHED);
    assert!(heard(established).starts_with(b"welcome\0"));
    acknowledge(established);
    acknowledged(there, kind::ESTABLISHED);
    check_queue_pairs(ours, theirs);

    // SAFETY: the identifier is the test's.
    assert_eq!(unsafe { rdma_disconnect(client) }, 0);
    acknowledged(there, kind::DISCONNECTED);
    acknowledged(here, kind::DISCONNECTED);
    // SAFETY: the identifier is the test's.
    assert_eq!(unsafe { rdma_disconnect(server) }, 0);
    assert_eq!(states(ours).last(), Some(&(QpState::Error as u32)));
    devices::pass(Duration::from_secs(1));
    acknowledged(here, TIMEWAIT_EXIT);
    for id in [client, server, listening] {
        // SAFETY: it is the test's, which uses it no more.
        unsafe {
            rdma_destroy_qp(id);
            assert_eq!(rdma_destroy_id(id), 0);
        }
    }
    end(&[], &[here, there]);
}

/// The server listens on loopback or everywhere, and the client is in the same guest.
#[test]
fn a_guest_connects_with_itself() {
    for (listens, to) in
        [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "0.0.0.0")]
    {
        let channel = rdma_create_event_channel();
        let (listening, SocketAddr::V4(at)) = listener(channel, RDMA_PS_TCP, listens) else { panic!() };
        let client = id(channel, RDMA_PS_TCP);
        let mut there = address::write(SocketAddr::new(to.parse().unwrap(), at.port()));
        // SAFETY: the identifier was just made, and the address is whole.
        assert_eq!(unsafe { rdma_resolve_addr(client, ptr::null_mut(), (&raw mut there).cast(), 1000) }, 0);
        acknowledged(channel, kind::ADDR_RESOLVED);
        // SAFETY: as above.
        assert_eq!(unsafe { rdma_resolve_route(client, 1000) }, 0);
        acknowledged(channel, kind::ROUTE_RESOLVED);
        // SAFETY: the identifier has its addresses in it since it was resolved.
        unsafe {
            let addr = &(*client).route.addr;
            let source = address::read((&raw const addr.src_addr).cast()).unwrap();
            assert!(source.ip().is_loopback() && source.port() != 0, "{source}");
            // For IPv6 it is the link-local address, if there is no other.
            let own = address::of_gid(addr.sgid);
            assert!(own == ADDRESSES[0] || own == "fe80::1".parse::<std::net::IpAddr>().unwrap(), "{own}");
            assert_eq!(addr.sgid, addr.dgid);
        }
        end(&[client, listening], &[channel]);
    }
}

/// Checks that both queue pairs went through the states, and know each other.
fn check_queue_pairs(ours: *mut rdmacm::abi::Qp, theirs: *mut rdmacm::abi::Qp) {
    let way = [QpState::Init, QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    let (first, second) = (modified(ours), modified(theirs));
    assert_eq!(
        (states(ours), states(theirs)),
        (way.map(|s| s as u32).to_vec(), way.map(|s| s as u32).to_vec())
    );
    for (one, other, number, source) in
        [(&first, &second, theirs, ADDRESSES[1]), (&second, &first, ours, ADDRESSES[0])]
    {
        let (init, rtr, rts) = (&one[1].0, &one[2].0, &one[3].0);
        assert_eq!(init.qp_access_flags, access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC);
        // SAFETY: the queue pair is not destroyed yet.
        assert_eq!((rtr.dest_qp_num, rtr.path_mtu), (unsafe { (*number).qp_num }, 3));
        assert_eq!((rtr.rq_psn, rtr.ah_attr.is_global), (other[3].0.sq_psn, 1));
        assert_eq!((address::of_gid(rtr.ah_attr.grh.dgid), rtr.ah_attr.grh.sgid_index), (source.into(), 1));
        assert_eq!((rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic), (5, 6, 3));
        let rtr_mask = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        assert_eq!(one[2].1, rtr_mask | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
    }
}

#[test]
fn a_server_may_reject() {
    let channel = rdma_create_event_channel();
    let (listening, to) = listener(channel, RDMA_PS_TCP, "10.0.0.2");
    // SAFETY: the identifier is the test's.
    assert!(!unsafe { (*listening).verbs }.is_null());
    let client = resolved(channel, RDMA_PS_TCP, to);
    let qp = queue_pair(client, IBV_QPT_RC);
    // SAFETY: the identifier is the test's; without parameters there is nothing to read.
    assert_eq!(unsafe { rdma_connect(client, ptr::null_mut()) }, 0);
    let request = event(channel, kind::CONNECT_REQUEST);
    // SAFETY: the event is not acknowledged yet.
    let server = unsafe { (*request).id };
    // SAFETY: the identifier is the test's, and as many bytes of private data are there.
    assert_eq!(unsafe { rdma_reject(server, b"no".as_ptr().cast(), 2) }, 0);
    acknowledge(request);
    let rejected = event(channel, kind::REJECTED);
    // SAFETY: the event is not acknowledged yet.
    assert_eq!((unsafe { (*rejected).status }, heard(rejected).len()), (28, 148));
    acknowledge(rejected);
    assert_eq!(states(qp).last(), Some(&(QpState::Error as u32)));
    let mut wanted = said(b"");
    wanted.responder_resources = 17;
    // SAFETY: the identifier is the test's, and parameters and what they lead to are constants or live here.
    assert_eq!((unsafe { rdma_connect(client, &raw mut wanted) }, errno()), (-1, libc::EINVAL));
    end(&[client, server, listening], &[channel]);
}

/// This is how programs connect queue pairs that they created themselves.
#[test]
fn a_client_without_a_queue_pair_establishes_by_itself() {
    let channel = rdma_create_event_channel();
    let (listening, to) = listener(channel, RDMA_PS_TCP, "0.0.0.0");
    let client = resolved(channel, RDMA_PS_TCP, to);
    let mut wanted = said(b"");
    wanted.qp_num = 4711;
    // SAFETY: the identifier is the test's, and parameters and what they lead to are constants or live here.
    assert_eq!(unsafe { rdma_connect(client, &raw mut wanted) }, 0);
    let request = event(channel, kind::CONNECT_REQUEST);
    // SAFETY: the event is not acknowledged yet.
    let server = unsafe { (*request).id };
    // SAFETY: the event is not acknowledged yet.
    assert_eq!(unsafe { (*request).param.conn.qp_num }, 4711);
    wanted.qp_num = 4712;
    // SAFETY: the identifier is the test's, and parameters and what they lead to are constants or live here.
    assert_eq!(unsafe { rdma_accept(server, &raw mut wanted) }, 0);
    acknowledge(request);
    let response = event(channel, kind::CONNECT_RESPONSE);
    // SAFETY: the event is not acknowledged yet.
    assert_eq!(unsafe { (*response).param.conn.qp_num }, 4712);
    acknowledge(response);
    let mut attr = rdmacm::abi::QpAttr { qp_state: QpState::ReadyToReceive as u32, ..Default::default() };
    let mut mask = 0;
    // SAFETY: the identifier is the test's, and there are places for the results.
    assert_eq!(unsafe { rdma_init_qp_attr(client, &raw mut attr, &raw mut mask) }, 0);
    assert_eq!((attr.dest_qp_num, mask as u32 & mask::DEST_QPN), (4712, mask::DEST_QPN));
    assert!(!is_readable(channel));
    // SAFETY: the identifier is the test's.
    assert_eq!(unsafe { rdma_establish(client) }, 0);
    acknowledged(channel, kind::ESTABLISHED);
    end(&[client, server, listening], &[channel]);
}

#[test]
fn datagrams_find_their_queue_pair() {
    let channel = rdma_create_event_channel();
    let (listening, to) = listener(channel, RDMA_PS_UDP, "0.0.0.0");
    let client = resolved(channel, RDMA_PS_UDP, to);
    let qp = queue_pair(client, IBV_QPT_UD);
    assert_eq!(states(qp), [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend].map(|s| s as u32));
    assert_eq!(modified(qp)[0].0.qkey, 0x0123_4567);
    let mut wanted = said(b"where?");
    // SAFETY: the identifier is the test's, and parameters and what they lead to are constants or live here.
    assert_eq!(unsafe { rdma_connect(client, &raw mut wanted) }, 0);
    let request = event(channel, kind::CONNECT_REQUEST);
    // SAFETY: the event is not acknowledged yet.
    let server = unsafe { (*request).id };
    // SAFETY: the event is not acknowledged yet.
    assert_eq!(unsafe { (*request).param.ud.private_data_len }, 180);
    let theirs = queue_pair(server, IBV_QPT_UD);
    // SAFETY: the identifier is the test's; without parameters there is nothing to read.
    assert_eq!(unsafe { rdma_accept(server, ptr::null_mut()) }, 0, "{}", errno());
    acknowledge(request);
    let found = event(channel, kind::ESTABLISHED);
    // SAFETY: the event is not acknowledged yet, and of datagrams it has this part.
    let ud = unsafe { (*found).param.ud };
    // SAFETY: the queue pair is not destroyed yet.
    assert_eq!((ud.qp_num, ud.qkey), (unsafe { (*theirs).qp_num }, 0x0123_4567));
    assert_eq!((address::of_gid(ud.ah_attr.grh.dgid), ud.ah_attr.port_num), (ADDRESSES[1].into(), 1));
    acknowledge(found);

    let nobody = resolved(channel, RDMA_PS_UDP, SocketAddr::new(to.ip(), 1));
    // SAFETY: the identifier is the test's; without parameters there is nothing to read.
    assert_eq!(unsafe { rdma_connect(nobody, ptr::null_mut()) }, 0);
    acknowledged(channel, UNREACHABLE);
    end(&[nobody, client, server, listening], &[channel]);
}

#[test]
fn a_channel_is_readable_while_there_are_events() {
    let channel = rdma_create_event_channel();
    let mut got = ptr::null_mut();
    // SAFETY: the channel was just made.
    unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    // SAFETY: the channel was just made, and there is a place for the result.
    assert_eq!((unsafe { rdma_get_cm_event(channel, &raw mut got) }, errno()), (-1, libc::EAGAIN));
    let (listening, to) = listener(channel, RDMA_PS_TCP, "0.0.0.0");
    let clients = [(); 2].map(|()| resolved(channel, RDMA_PS_TCP, to));
    for client in clients {
        queue_pair(client, IBV_QPT_RC);
        // SAFETY: the identifier is the test's; without parameters there is nothing to read.
        assert_eq!(unsafe { rdma_connect(client, ptr::null_mut()) }, 0);
    }
    assert!(is_readable(channel));
    for _ in clients {
        let request = event(channel, kind::CONNECT_REQUEST);
        // SAFETY: the event is not acknowledged yet, and the identifier that came with it is the test's.
        unsafe {
            let server = (*request).id;
            rdma_ack_cm_event(request);
            rdma_destroy_id(server);
        }
    }
    clients.iter().for_each(|_| acknowledged(channel, kind::REJECTED));
    assert!(!is_readable(channel));
    // SAFETY: they are the test's, which uses them no more.
    clients.iter().for_each(|client| unsafe { rdma_destroy_ep(*client) });
    // SAFETY: they are the test's, which uses them no more.
    unsafe {
        rdma_destroy_id(listening);
        rdma_destroy_event_channel(channel);
    }
}

#[test]
fn events_go_with_their_identifier() {
    let channel = rdma_create_event_channel();
    let (listening, to) = listener(channel, RDMA_PS_TCP, "0.0.0.0");
    let here = rdma_create_event_channel();
    let [first, second] = [(); 2].map(|()| resolved(here, RDMA_PS_TCP, to));
    for client in [first, second] {
        queue_pair(client, IBV_QPT_RC);
        // SAFETY: the identifier is the test's; without parameters there is nothing to read.
        assert_eq!(unsafe { rdma_connect(client, ptr::null_mut()) }, 0);
    }
    assert!(is_readable(channel) && !is_readable(here));
    // No program saw the requests: they are refused. SAFETY: it is the test's, which no longer uses it.
    assert_eq!(unsafe { rdma_destroy_id(listening) }, 0);
    assert!(!is_readable(channel) && is_readable(here));
    // SAFETY: the identifier is the test's.
    unsafe { rdma_destroy_qp(first) };
    // SAFETY: it is the test's, which uses it no more.
    assert_eq!(unsafe { rdma_destroy_id(first) }, 0);
    // The other identifier's event is still there, and moves to another channel.
    assert!(is_readable(here));
    // SAFETY: the identifier is the test's, and so is the channel.
    assert_eq!(unsafe { rdma_migrate_id(second, channel) }, 0);
    assert!(!is_readable(here) && is_readable(channel));
    let rejected = event(channel, kind::REJECTED);
    // SAFETY: the event is not acknowledged yet.
    assert_eq!(unsafe { (*rejected).id }, second);
    acknowledge(rejected);
    assert!(!is_readable(channel));
    end(&[second], &[here, channel]);
}

/// Programs end like this, with a thread that still waits.
#[test]
fn a_channel_may_be_destroyed_under_who_waits() {
    let channel = rdma_create_event_channel() as usize;
    let (tell, told) = std::sync::mpsc::channel();
    let waits = std::thread::spawn(move || {
        // SAFETY: it asks for nothing.
        tell.send(unsafe { libc::gettid() }).unwrap();
        let mut event = ptr::null_mut();
        // SAFETY: the channel was not destroyed when the call began, and the library keeps callers that it is
        // destroyed under.
        unsafe { (rdma_get_cm_event(channel as *mut EventChannel, &raw mut event), errno()) }
    });
    // The test waits until the thread waits: a program can't know that either.
    let call = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
    let polls = [libc::SYS_poll, libc::SYS_ppoll].map(|number| format!("{number} "));
    while !polls.iter().any(|poll| std::fs::read_to_string(&call).unwrap().starts_with(poll)) {
        std::thread::yield_now();
    }
    // SAFETY: nobody calls with it from here on; the library keeps the thread that waits.
    unsafe { rdma_destroy_event_channel(channel as *mut EventChannel) };
    // The thread leaves its system call, and does not return: the test waits until it sleeps for good.
    let sleeps = format!("{} ", libc::SYS_futex);
    while !std::fs::read_to_string(&call).unwrap().starts_with(&sleeps) {
        assert!(!waits.is_finished());
        std::thread::yield_now();
    }
}

#[test]
fn what_can_not_be_is_refused() {
    let channel = rdma_create_event_channel();
    let one = id(channel, RDMA_PS_TCP);
    let mut foreign = address::write("192.0.2.1:5".parse().unwrap());
    let foreign = (&raw mut foreign).cast::<libc::sockaddr>();
    // SAFETY: the identifier is the test's until the end; it, addresses and parameters may be null, else they are
    // whole, and the value has four bytes, or one as it is said.
    unsafe {
        assert_eq!((rdma_bind_addr(one, foreign), errno()), (-1, libc::EADDRNOTAVAIL));
        assert_eq!((rdma_bind_addr(one, ptr::null_mut()), errno()), (-1, libc::EINVAL));
        assert_eq!((rdma_resolve_addr(one, foreign, foreign, 1), errno()), (-1, libc::EADDRNOTAVAIL));
        assert_eq!((rdma_connect(one, ptr::null_mut()), errno()), (-1, libc::EINVAL));
        assert_eq!((rdma_listen(ptr::null_mut(), 1), errno()), (-1, libc::EINVAL));
        assert_eq!((rdma_disconnect(one), errno()), (-1, libc::EINVAL));
        let mut attr = init_attr(IBV_QPT_RC);
        assert_eq!((rdma_create_qp(one, ptr::null_mut(), &raw mut attr), errno()), (-1, libc::EINVAL));
        let mut number = 1;
        let value = (&raw mut number).cast();
        assert_eq!(rdma_set_option(one, 0, 1, value, 4), 0);
        assert_eq!((rdma_set_option(one, 0, 1, value, 1), errno()), (-1, libc::EINVAL));
        assert_eq!((rdma_set_option(one, 1, 1, value, 4), errno()), (-1, libc::ENOSYS));
        assert_eq!((rdma_migrate_id(one, ptr::null_mut()), rdma_destroy_id(one)), (0, 0));
    }
    let lost = id(channel, RDMA_PS_TCP);
    let mut nowhere = address::write(SocketAddr::new(devices::NOWHERE.into(), 1));
    // SAFETY: the identifier is the test's, and the address is whole.
    assert_eq!(unsafe { rdma_resolve_addr(lost, ptr::null_mut(), (&raw mut nowhere).cast(), 1) }, 0);
    let failed = event(channel, 1);
    // SAFETY: the event is not acknowledged yet.
    assert_eq!(unsafe { (*failed).status }, -libc::EHOSTUNREACH);
    // SAFETY: they are the test's, which uses them no more.
    unsafe {
        rdma_ack_cm_event(failed);
        rdma_destroy_id(lost);
        rdma_destroy_event_channel(channel);
    }
}

#[test]
fn devices_are_listed() {
    let mut count = 0;
    // SAFETY: there is a place for the number.
    let list = unsafe { rdma_get_devices(&raw mut count) };
    assert_eq!(count, 2);
    // SAFETY: the list has two devices, and a null behind them.
    assert!(unsafe { !(*list).is_null() && (*list.add(2)).is_null() });
    // SAFETY: it was got above, and is not looked at any more.
    unsafe { rdma_free_devices(list) };
}
