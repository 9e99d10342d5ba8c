//! Programs whose devices end and come back. Devices are the same for all programs of a process, so this is a process of
//! its own, with one test at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the other tests use more of these")]

#[path = "../library/devices.rs"]
mod devices;
#[path = "../library/fabric.rs"]
mod fabric;
#[path = "../library/programs.rs"]
mod programs;
#[path = "../library/verbs.rs"]
mod verbs;
#[path = "../library/wiring.rs"]
mod wiring;

use devices::ADDRESSES;
use libc::{AF_INET, POLLIN, SOCK_STREAM, c_int, pollfd};
use programs::{acknowledge, acknowledged, end, errno, event, id, listener, queue_pair, resolved, said};
use rdmacm::abi::{CmId, EventChannel, IBV_QPT_RC, RDMA_PS_TCP, event as kind};
use rdmacm::rsocket::{raccept, rbind, rclose, rconnect, rfcntl, rlisten, rpoll, rrecv, rsend, rsocket};
use rdmacm::{address, *};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    both_are_back();
    alone
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn number_of_devices() -> c_int {
    let mut count = -1;
    // SAFETY: there is a place for the number, and nobody looks at the list.
    unsafe { rdma_free_devices(rdma_get_devices(&raw mut count)) };
    count
}

fn both_are_back() {
    [0, 1].into_iter().for_each(devices::start);
    eventually("both devices", || number_of_devices() == 2);
}

fn has_event(channel: *mut EventChannel) -> bool {
    // SAFETY: the channel is the test's, and not destroyed yet.
    let mut poll = pollfd { fd: unsafe { (*channel).fd }, events: POLLIN, revents: 0 };
    // SAFETY: it is one descriptor.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Returns the identifier that the next event tells is without a device.
fn removed(channel: *mut EventChannel) -> *mut CmId {
    let removal = event(channel, kind::DEVICE_REMOVAL);
    // SAFETY: it is not acknowledged yet.
    let id = unsafe { (*removal).id };
    acknowledge(removal);
    id
}

/// Connects from the first device; returns both ends.
fn connected(here: *mut EventChannel, there: *mut EventChannel, to: SocketAddr) -> (*mut CmId, *mut CmId) {
    let client = resolved(here, RDMA_PS_TCP, to);
    queue_pair(client, IBV_QPT_RC);
    let mut wanted = said(b"hello");
    // SAFETY: the identifier is the test's, and parameters and what they lead to live here.
    assert_eq!(unsafe { rdma_connect(client, &raw mut wanted) }, 0);
    let request = event(there, kind::CONNECT_REQUEST);
    // SAFETY: the event is not acknowledged yet.
    let server = unsafe { (*request).id };
    queue_pair(server, IBV_QPT_RC);
    // SAFETY: as above.
    assert_eq!(unsafe { rdma_accept(server, &raw mut wanted) }, 0);
    acknowledge(request);
    acknowledged(here, kind::ESTABLISHED);
    acknowledged(there, kind::ESTABLISHED);
    (client, server)
}

/// Tries to connect until somebody listens there, and no longer.
fn someone_listens(to: SocketAddr) {
    let channel = rdma_create_event_channel();
    eventually("a listener", || {
        let client = resolved(channel, RDMA_PS_TCP, to);
        queue_pair(client, IBV_QPT_RC);
        let mut wanted = said(b"");
        // SAFETY: the identifier is the test's, and parameters and what they lead to live here.
        assert_eq!(unsafe { rdma_connect(client, &raw mut wanted) }, 0);
        // Nobody accepts the request, so there is an event only if it is rejected.
        let listens = !has_event(channel);
        if !listens {
            acknowledged(channel, kind::REJECTED);
        }
        end(&[client], &[]);
        listens
    });
    end(&[], &[channel]);
}

#[test]
fn identifiers_learn_that_their_device_is_gone_and_listeners_listen_again() {
    let _alone = alone();
    let (here, there, everywhere) =
        (rdma_create_event_channel(), rdma_create_event_channel(), rdma_create_event_channel());
    let (at, to) = listener(there, RDMA_PS_TCP, "10.0.0.2");
    let (anywhere, to_any) = listener(everywhere, RDMA_PS_TCP, "0.0.0.0");
    let (client, server) = connected(here, there, to);
    assert!(!has_event(here) && !has_event(there) && !has_event(everywhere));

    devices::end(1);
    let mut gone = [removed(there), removed(there)];
    gone.sort();
    let mut both = [at, server];
    both.sort();
    assert_eq!(gone, both);
    assert!(!has_event(there), "each identifier is told once");
    // SAFETY: the identifiers are the test's.
    unsafe {
        assert_eq!((rdma_disconnect(server), errno()), (-1, libc::ENODEV));
        rdma_destroy_qp(server);
        assert_eq!(rdma_destroy_id(server), 0);
    }
    devices::pass(Duration::from_secs(60));

    devices::start(1);
    // Requests of earlier attempts are gone before others come.
    for (channel, to) in [(there, to), (everywhere, to_any)] {
        someone_listens(to);
        let next = rdma_create_event_channel();
        while has_event(channel) {
            let request = event(channel, kind::CONNECT_REQUEST);
            // SAFETY: the event is not acknowledged yet.
            let id = unsafe { (*request).id };
            acknowledge(request);
            end(&[id], &[]);
        }
        let (client, server) = connected(next, channel, to);
        end(&[client, server], &[next]);
        while has_event(channel) {
            acknowledge(event(channel, kind::DISCONNECTED));
        }
    }

    // The client's device is still there, until now.
    // SAFETY: the identifiers are the test's.
    unsafe { rdma_destroy_qp(client) };
    while has_event(here) {
        let mut other = ptr::null_mut();
        // SAFETY: there is a place for the event.
        assert_eq!(unsafe { rdma_get_cm_event(here, &raw mut other) }, 0);
        acknowledge(other);
    }
    devices::end(0);
    assert_eq!(removed(here), client);
    end(&[client], &[]);
    both_are_back();
    let (client, server) = connected(here, there, to);
    end(&[client, server, at, anywhere], &[here, there, everywhere]);
}

#[test]
fn calls_that_wait_end_with_their_device() {
    let _alone = alone();
    let (channel, id) = (rdma_create_event_channel(), id(ptr::null_mut(), RDMA_PS_TCP));
    let mut own = address::write(SocketAddr::new(ADDRESSES[0].into(), 0));
    // SAFETY: the identifier was just made, and the address is whole.
    unsafe {
        assert_eq!(rdma_bind_addr(id, (&raw mut own).cast()), 0);
        assert_eq!(rdma_listen(id, 1), 0);
    }
    devices::end(0);
    let mut request = ptr::null_mut();
    // SAFETY: there is a place for the result.
    assert_eq!((unsafe { rdma_get_request(id, &raw mut request) }, errno()), (-1, libc::ENODEV));
    assert!(!rdma_create_event_channel().is_null(), "the device may come back");
    assert_eq!(number_of_devices(), 1);
    end(&[id], &[channel]);
    both_are_back();
}

fn bound(to: SocketAddr) -> c_int {
    let (fd, to) = (rsocket(AF_INET, SOCK_STREAM, 0), address::write(to));
    assert!(fd >= 0, "{}", errno());
    // SAFETY: the address is whole.
    assert_eq!(unsafe { rbind(fd, (&raw const to).cast(), 16) }, 0, "{}", errno());
    assert_eq!(rlisten(fd, 8), 0, "{}", errno());
    fd
}

fn polled(fd: c_int, timeout: c_int) -> i16 {
    let mut one = pollfd { fd, events: POLLIN, revents: 0 };
    // SAFETY: there is one.
    unsafe { rpoll(&raw mut one, 1, timeout) };
    one.revents
}

/// Connects to a listening socket, once it listens; returns both ends.
fn stream(listening: c_int, to: SocketAddr) -> (c_int, c_int) {
    let to = address::write(to);
    let mut asking = -1;
    std::thread::scope(|scope| {
        // SAFETY: no address is wanted.
        let accepting = scope.spawn(move || unsafe { raccept(listening, ptr::null_mut(), ptr::null_mut()) });
        eventually("a connection", || {
            asking = rsocket(AF_INET, SOCK_STREAM, 0);
            // SAFETY: the address is whole.
            let is_there = unsafe { rconnect(asking, (&raw const to).cast(), 16) } == 0;
            is_there || rclose(asking) != 0
        });
        (asking, accepting.join().unwrap())
    })
}

fn carries(from: c_int, to: c_int) {
    let mut got = [0; 5];
    // SAFETY: as many bytes are there.
    unsafe {
        assert_eq!(rsend(from, b"bytes".as_ptr().cast(), 5, 0), 5);
        assert_eq!(rrecv(to, got.as_mut_ptr().cast(), 5, libc::MSG_WAITALL), 5);
    }
    assert_eq!(&got, b"bytes");
}

#[test]
fn listening_sockets_accept_again() {
    let _alone = alone();
    let at = |ip: &str, port| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port);
    let there = |port| SocketAddr::new(ADDRESSES[1].into(), port);
    let sockets = [(bound(at("0.0.0.0", 7001)), there(7001)), (bound(at("10.0.0.2", 7002)), there(7002))];
    let streams = sockets.map(|(fd, to)| stream(fd, to));
    streams.iter().for_each(|(asking, accepted)| carries(*asking, *accepted));
    [0, 1].into_iter().for_each(devices::end);
    for (fd, _) in sockets {
        assert_eq!(polled(fd, 0), 0, "nobody asks");
        assert_eq!(rfcntl(fd, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
        // SAFETY: no address is wanted.
        assert_eq!((unsafe { raccept(fd, ptr::null_mut(), ptr::null_mut()) }, errno()), (-1, libc::EAGAIN));
        assert_eq!(rfcntl(fd, libc::F_SETFL, 0), 0);
    }
    for fd in streams.iter().flat_map(|(asking, accepted)| [*asking, *accepted]) {
        assert_eq!(polled(fd, 20_000) & POLLIN, POLLIN);
        let mut byte = 0_u8;
        // SAFETY: there is room for a byte.
        let got = unsafe { rrecv(fd, (&raw mut byte).cast(), 1, 0) };
        assert_eq!((got, errno()), (-1, libc::ECONNRESET));
        assert_eq!(rclose(fd), 0);
    }
    // A server that begins anew does not have to wait for the device.
    let late = [(bound(at("0.0.0.0", 7003)), there(7003)), (bound(at("10.0.0.2", 7004)), there(7004))];
    both_are_back();
    for (fd, to) in sockets.into_iter().chain(late) {
        let (asking, accepted) = stream(fd, to);
        carries(accepted, asking);
        [asking, accepted, fd].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
    }
}
