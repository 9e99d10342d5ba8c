//! Programs with sockets over RDMA.

use crate::devices::ADDRESSES;
use crate::fabric::{ibv_dereg_mr, ibv_reg_mr};
use crate::programs::{acknowledged, end, errno, queue_pair, resolved, said};
use libc::{AF_INET, SOCK_STREAM, c_int, pollfd, sockaddr};
use rdmacm::abi::{CmId, Cq, IBV_QPT_RC, Mr, RDMA_PS_TCP, Wc, event as kind};
use rdmacm::rsocket::wire::{Buffer, Hello, Message};
use rdmacm::rsocket::*;
use rdmacm::{address, rdma_connect, rdma_create_event_channel};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr;
use verbs_abi::{IBV_WR_RDMA_WRITE_WITH_IMM, ibv_send_wr};

/// A socket of the library. Dropping it closes it.
struct Socket(c_int);

impl Socket {
    fn new() -> Self {
        let fd = rsocket(AF_INET, SOCK_STREAM, 0);
        assert!(fd >= 0, "{}", errno());
        Self(fd)
    }

    /// Creates a socket that listens at any port; returns it with its address.
    fn listening() -> (Self, SocketAddr) {
        let socket = Self::new();
        let any = address::write(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        // SAFETY: the address is whole.
        assert_eq!(unsafe { rbind(socket.0, (&raw const any).cast(), 16) }, 0, "{}", errno());
        assert_eq!(rlisten(socket.0, 8), 0, "{}", errno());
        let port = socket.name(rgetsockname).unwrap().port();
        (socket, SocketAddr::new(ADDRESSES[1].into(), port))
    }

    fn name(
        &self,
        ask: unsafe extern "C" fn(c_int, *mut sockaddr, *mut u32) -> c_int,
    ) -> Result<SocketAddr, c_int> {
        let (mut name, mut len) = (address::write(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)), 16);
        // SAFETY: there is room for as much.
        match unsafe { ask(self.0, (&raw mut name).cast(), &raw mut len) } {
            0 => Ok(unsafe_read(&name)),
            _ => Err(errno()),
        }
    }

    fn connect(&self, to: SocketAddr) -> Result<(), c_int> {
        let to = address::write(to);
        // SAFETY: the address is whole.
        let done = unsafe { rconnect(self.0, (&raw const to).cast(), 16) };
        if done == 0 { Ok(()) } else { Err(errno()) }
    }

    fn accept(&self) -> Result<Self, c_int> {
        // SAFETY: no address is wanted.
        let fd = unsafe { raccept(self.0, ptr::null_mut(), ptr::null_mut()) };
        if fd >= 0 { Ok(Self(fd)) } else { Err(errno()) }
    }

    fn send(&self, bytes: &[u8], flags: c_int) -> Result<usize, c_int> {
        // SAFETY: as many bytes are there.
        let sent = unsafe { rsend(self.0, bytes.as_ptr().cast(), bytes.len(), flags) };
        usize::try_from(sent).map_err(|_| errno())
    }

    fn receive(&self, len: usize, flags: c_int) -> Result<Vec<u8>, c_int> {
        let mut bytes = vec![0; len];
        // SAFETY: there is room for as many.
        let got = unsafe { rrecv(self.0, bytes.as_mut_ptr().cast(), len, flags) };
        bytes.truncate(usize::try_from(got).map_err(|_| errno())?);
        Ok(bytes)
    }

    fn set(&self, level: c_int, name: c_int, value: c_int) -> Result<(), c_int> {
        // SAFETY: there is a number.
        let done = unsafe { rsetsockopt(self.0, level, name, (&raw const value).cast(), 4) };
        if done == 0 { Ok(()) } else { Err(errno()) }
    }

    fn get(&self, level: c_int, name: c_int) -> Result<c_int, c_int> {
        let (mut value, mut len) = (0, 4);
        // SAFETY: there is room for a number.
        let done = unsafe { rgetsockopt(self.0, level, name, (&raw mut value).cast(), &raw mut len) };
        if done == 0 { Ok(value) } else { Err(errno()) }
    }

    fn set_nonblocking(&self) {
        assert_eq!(rfcntl(self.0, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
    }

    /// Returns those of these events that there are, after at most `timeout` milliseconds.
    fn poll(&self, events: i16, timeout: c_int) -> i16 {
        let mut one = pollfd { fd: self.0, events, revents: 0 };
        // SAFETY: there is one.
        let found = unsafe { rpoll(&raw mut one, 1, timeout) };
        assert_eq!(found, c_int::from(one.revents != 0));
        one.revents
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        assert_eq!(rclose(self.0), 0);
    }
}

fn unsafe_read(name: &libc::sockaddr_storage) -> SocketAddr {
    // SAFETY: it is whole.
    unsafe { address::read(ptr::from_ref(name).cast()) }.unwrap()
}

/// Returns the two ends of a connection: first the one that asked, whose buffers are small, then the one that accepted.
fn connected() -> (Socket, Socket) {
    let (listening, to) = Socket::listening();
    let asking = Socket::new();
    asking.set(libc::SOL_SOCKET, libc::SO_SNDBUF, 2048).unwrap();
    asking.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 2048).unwrap();
    let accepted = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listening.accept().unwrap());
        asking.connect(to).unwrap();
        accepting.join().unwrap()
    });
    (asking, accepted)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

#[test]
fn bytes_go_both_ways_at_once() {
    let (one, other) = connected();
    let bytes = pattern(300_001);
    std::thread::scope(|scope| {
        for (socket, size) in [(&one, 100), (&other, 70_000)] {
            let bytes = &bytes;
            // Each end has a sender and a receiver.
            scope.spawn(move || {
                for part in bytes.chunks(size) {
                    assert_eq!(socket.send(part, 0), Ok(part.len()));
                }
            });
            scope.spawn(move || {
                let mut got = Vec::new();
                while got.len() < bytes.len() {
                    got.extend(socket.receive(size * 3, 0).unwrap());
                }
                assert!(got == *bytes);
            });
        }
    });
}

#[test]
fn parts_of_messages_are_one_stream() {
    let (one, other) = connected();
    let part = |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut parts = [pattern(1500), vec![], pattern(300)];
    let list = parts.each_mut().map(|bytes| part(bytes));
    // SAFETY: the parts are there.
    assert_eq!(unsafe { rwritev(one.0, list.as_ptr(), 3) }, 1800);
    assert!(other.receive(1800, libc::MSG_WAITALL).unwrap() == parts.concat());
    other.send(b"abcdefg", 0).unwrap();
    let (mut first, mut second) = ([0; 3], [0; 10]);
    let list = [part(&mut first), part(&mut second)];
    // SAFETY: there is room.
    assert_eq!(unsafe { rreadv(one.0, list.as_ptr(), 2) }, 7);
    assert_eq!((&first, &second[..4]), (b"abc", &b"defg"[..]));
}

#[test]
fn nothing_waits_if_that_is_wanted() {
    let (listening, to) = Socket::listening();
    listening.set_nonblocking();
    assert_eq!(listening.accept().err(), Some(libc::EAGAIN));
    let asking = Socket::new();
    asking.set_nonblocking();
    assert_eq!(asking.connect(to), Err(libc::EINPROGRESS));
    assert_eq!(asking.poll(libc::POLLOUT, 0), 0);
    assert_eq!(asking.send(b"x", 0), Err(libc::EAGAIN));
    assert_eq!(listening.poll(libc::POLLIN, -1), libc::POLLIN);
    let accepted = listening.accept().unwrap();
    assert_eq!(asking.poll(libc::POLLIN | libc::POLLOUT, -1), libc::POLLOUT);
    assert_eq!((asking.connect(to), asking.get(libc::SOL_SOCKET, libc::SO_ERROR)), (Ok(()), Ok(0)));
    assert_eq!(asking.receive(1, 0), Err(libc::EAGAIN));
    // Bytes are sent until all is full, and not further.
    let bytes = pattern(1 << 20);
    let mut sent = 0;
    let full = loop {
        match asking.send(&bytes[sent..], 0) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
    };
    assert_eq!((full, asking.poll(libc::POLLOUT, 0)), (libc::EAGAIN, 0));
    assert_eq!(accepted.receive(10, libc::MSG_PEEK).unwrap(), bytes[..10]);
    assert!(accepted.receive(sent, libc::MSG_WAITALL).unwrap() == bytes[..sent]);
    assert_eq!(asking.poll(libc::POLLOUT, -1), libc::POLLOUT);
}

/// A sleeping thread is woken if another thread takes what it waits for.
#[test]
fn threads_that_sleep_are_woken() {
    let (one, other) = connected();
    let full = |socket: &Socket| while socket.send(&[1; 4096], libc::MSG_DONTWAIT).is_ok() {};
    full(&one);
    std::thread::scope(|scope| {
        let writable = scope.spawn(|| one.poll(libc::POLLOUT, -1));
        let readable = scope.spawn(|| one.poll(libc::POLLIN, -1));
        let received = scope.spawn(|| one.receive(3, libc::MSG_PEEK | libc::MSG_WAITALL).unwrap());
        while other.receive(4096, libc::MSG_DONTWAIT).is_ok() {}
        other.send(b"abc", 0).unwrap();
        assert_eq!(writable.join().unwrap(), libc::POLLOUT);
        assert_eq!(readable.join().unwrap(), libc::POLLIN);
        assert_eq!(received.join().unwrap(), b"abc");
    });
}

#[test]
fn select_leaves_what_is_ready() {
    let (one, other) = connected();
    other.send(b"a", 0).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    use std::os::fd::AsRawFd;
    // SAFETY: zeroes are empty sets; descriptors are small.
    unsafe {
        let (mut reads, mut writes): (libc::fd_set, libc::fd_set) = (std::mem::zeroed(), std::mem::zeroed());
        for fd in [one.0, other.0, reader.as_raw_fd()] {
            libc::FD_SET(fd, &mut reads);
        }
        libc::FD_SET(writer.as_raw_fd(), &mut writes);
        let (reads, writes) = (&raw mut reads, &raw mut writes);
        assert_eq!(rselect(1024, reads, writes, ptr::null_mut(), ptr::null_mut()), 2);
        let are = [one.0, other.0, reader.as_raw_fd()].map(|fd| libc::FD_ISSET(fd, reads));
        assert_eq!((are, libc::FD_ISSET(writer.as_raw_fd(), writes)), ([true, false, false], true));
    }
}

#[test]
fn ends_end() {
    let (one, other) = connected();
    one.send(b"last", 0).unwrap();
    assert_eq!(rshutdown(one.0, libc::SHUT_WR), 0);
    assert_eq!(one.send(b"x", 0), Err(libc::EPIPE));
    assert_eq!(other.receive(10, libc::MSG_WAITALL).unwrap(), b"last");
    assert_eq!(other.receive(10, 0).unwrap(), b"");
    // The other direction goes on.
    other.send(b"answer", 0).unwrap();
    assert_eq!(one.receive(10, 0).unwrap(), b"answer");
    drop(other);
    assert_eq!(one.receive(10, 0).unwrap(), b"");
    assert_eq!(one.poll(libc::POLLIN, -1), libc::POLLIN | libc::POLLHUP);
    let (one, other) = connected();
    other.send(b"before", 0).unwrap();
    drop(other);
    assert_eq!(one.receive(10, 0).unwrap(), b"before");
    assert_eq!(one.receive(10, 0).unwrap(), b"");
    assert_eq!(one.send(b"x", 0), Err(libc::ECONNRESET));
}

/// Waits until a thread sleeps.
fn sleeps(thread: &std::sync::mpsc::Receiver<rustix::process::Pid>) {
    let id = thread.recv().unwrap();
    let stat = format!("/proc/self/task/{}/stat", id.as_raw_nonzero());
    while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
        std::thread::yield_now();
    }
}

#[test]
fn a_closed_socket_wakes_who_sleeps() {
    let (one, _other) = connected();
    let (listening, _) = Socket::listening();
    let (tell, told) = std::sync::mpsc::channel();
    let tell = &|| tell.send(rustix::thread::gettid()).unwrap();
    std::thread::scope(|scope| {
        let begin = |act: fn(&Socket) -> c_int, socket| {
            let thread = scope.spawn(move || {
                tell();
                act(socket)
            });
            sleeps(&told);
            thread
        };
        let receiving = begin(|one| one.receive(1, 0).err().unwrap_or(0), &one);
        let accepting = begin(|one| one.accept().err().unwrap_or(0), &listening);
        let polling = begin(|one| one.poll(libc::POLLIN, -1).into(), &listening);
        assert_eq!((rclose(one.0), rclose(listening.0)), (0, 0));
        assert!([0, libc::EBADF].contains(&receiving.join().unwrap()));
        assert_eq!(accepting.join().unwrap(), libc::EBADF);
        assert_eq!(polling.join().unwrap(), c_int::from(libc::POLLNVAL));
    });
    std::mem::forget((one, listening));
}

#[test]
fn nobody_listens() {
    let asking = Socket::new();
    let nowhere = SocketAddr::new(IpAddr::from(ADDRESSES[1]), 1);
    assert_eq!(asking.connect(nowhere), Err(libc::ECONNREFUSED));
    assert_eq!(asking.get(libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    assert_eq!(asking.send(b"x", 0), Err(libc::ENOTCONN));
    assert_eq!(asking.poll(libc::POLLOUT, -1), libc::POLLOUT | libc::POLLERR | libc::POLLHUP);
}

#[test]
fn options_are_kept() {
    let socket = Socket::new();
    for (level, name, value, told) in [
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 10_000, 19_968),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 1, 4096),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1, 1),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1, 1),
        (0x10000, 0, 1_000_000, 0x7ffe),
        (0x10000, 1, 1, 16),
        (0x10000, 2, -1, 0),
    ] {
        socket.set(level, name, value).unwrap();
        assert_eq!(socket.get(level, name), Ok(told), "{level} {name}");
    }
    assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_TYPE), Ok(SOCK_STREAM));
    assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_PEERCRED), Err(libc::ENOPROTOOPT));
    // librspreload asks for the family like this.
    let mut len = 0;
    // SAFETY: there is no room for an address, and none is written.
    assert_eq!(unsafe { rgetsockname(socket.0, ptr::null_mut(), &raw mut len) }, 0);
    assert_eq!((len, socket.name(rgetpeername)), (16, Err(libc::ENOTCONN)));
    assert_eq!((rfcntl(socket.0, libc::F_GETFL, 0), rfcntl(-1, libc::F_GETFL, 0)), (libc::O_RDWR, -1));
}

/// A peer that may send anything: an identifier with a queue pair, and a table for buffers.
struct Peer {
    id: *mut CmId,
    channel: *mut rdmacm::abi::EventChannel,
    table: Box<[u64; 4]>,
    region: *mut Mr,
}

impl Peer {
    /// Connects with this private data, into which it writes the address of the table.
    fn connect(to: SocketAddr, private: &[u8]) -> Self {
        let channel = rdma_create_event_channel();
        let id = resolved(channel, RDMA_PS_TCP, to);
        queue_pair(id, IBV_QPT_RC);
        let mut table = Box::new([0; 4]);
        // SAFETY: the identifier is the test's.
        let pd = unsafe { (*id).pd };
        let region = ibv_reg_mr(pd, table.as_mut_ptr().cast(), 32, 3);
        let mut private = private.to_vec();
        if let Some(place) = private.get_mut(8..20) {
            place[..8].copy_from_slice(&(table.as_ptr() as u64).to_be_bytes());
            // SAFETY: it was just made.
            place[8..].copy_from_slice(&unsafe { (*region).rkey }.to_be_bytes());
        }
        let mut wanted = said(&private);
        // SAFETY: the identifier is the test's, and the private data is there.
        assert_eq!(unsafe { rdma_connect(id, &raw mut wanted) }, 0);
        let this = Self { id, channel, table, region };
        this.receive(4);
        this
    }

    /// Connects with a hello, and waits until the socket accepts.
    fn accepted(by: &Socket, to: SocketAddr, hello: Hello) -> (Self, Socket) {
        let peer = Self::connect(to, &hello.to_bytes());
        let accepted = by.accept().unwrap();
        acknowledged(peer.channel, kind::ESTABLISHED);
        (peer, accepted)
    }

    fn receive(&self, count: usize) {
        let mut wr =
            verbs_abi::ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        for _ in 0..count {
            // SAFETY: the queue pair is the test's, and the request whole.
            unsafe {
                let post = (*(*(*self.id).qp).context).ops.post_recv.unwrap();
                assert_eq!(post((*self.id).qp, &raw mut wr, &mut ptr::null_mut()), 0);
            }
        }
    }

    fn say(&self, number: u32) {
        // SAFETY: numbers and pointers, which may all be zero.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        (wr.opcode, wr.imm_data) = (IBV_WR_RDMA_WRITE_WITH_IMM, number.to_be());
        let mut nothing = verbs_abi::ibv_sge::default();
        wr.sg_list = &raw mut nothing;
        // SAFETY: the queue pair is the test's, and the request whole.
        unsafe {
            let post = (*(*(*self.id).qp).context).ops.post_send.unwrap();
            assert_eq!(post((*self.id).qp, &raw mut wr, &mut ptr::null_mut()), 0);
            completions((*self.id).send_cq);
        }
    }

    /// Returns the immediate data that has arrived since the last call.
    fn heard(&self) -> Vec<u32> {
        // SAFETY: the completion queue is the identifier's.
        let found = unsafe { completions((*self.id).recv_cq) };
        found.iter().map(|wc| u32::from_be(wc.imm_data)).collect()
    }

    fn end(self) {
        end(&[self.id], &[self.channel]);
        ibv_dereg_mr(self.region);
        drop(self.table);
    }
}

/// Takes the completions of a queue.
///
/// # Safety
/// The completion queue must exist.
unsafe fn completions(cq: *mut Cq) -> Vec<Wc> {
    let mut found = [Wc::default(); 16];
    // SAFETY: there is room for as many; the caller's promise.
    let count = unsafe { (*(*cq).context).ops.poll_cq.unwrap()(cq, 16, found.as_mut_ptr()) };
    found[..count as usize].to_vec()
}

fn hello(credits: u16) -> Hello {
    let table = Buffer { address: 0, key: 0, len: 2 };
    Hello { is_big_endian: false, credits, table, data: Buffer { address: 0, key: 0, len: 100 } }
}

#[test]
fn who_says_nonsense_is_not_accepted() {
    let (listening, to) = Socket::listening();
    listening.set_nonblocking();
    for private in [&b""[..], b"GET / HTTP/1.1", &[1; 40], &[0xff; 56], &hello(0).to_bytes()] {
        let peer = Peer::connect(to, private);
        assert_eq!(listening.poll(libc::POLLIN, -1), libc::POLLIN);
        assert_eq!(listening.accept().err(), Some(libc::EAGAIN));
        acknowledged(peer.channel, kind::REJECTED);
        peer.end();
    }
}

/// Each message is sent, and the connection's state is checked afterwards.
#[test]
fn who_breaks_the_rules_loses_the_connection() {
    let (listening, to) = Socket::listening();
    let bad: [&[u32]; 8] = [
        &[0x2000_0001],
        &[0xffff_ffff],
        &[0],
        &[0x1fff_ffff],
        &[Message::Data(131_073).to_number()],
        &[Message::Credits(65_535).to_number()],
        &[Message::Credits(9).to_number()],
        &[Message::Shutdown.to_number(), Message::Data(1).to_number()],
    ];
    for numbers in bad {
        let (peer, accepted) = Peer::accepted(&listening, to, hello(10));
        numbers.iter().for_each(|number| peer.say(*number));
        let ended = accepted.receive(1, 0);
        assert!(ended == Err(libc::ECONNRESET) || numbers.len() == 2 && ended == Ok(vec![]), "{numbers:x?}");
        assert_eq!(accepted.send(b"x", 0), Err(libc::ECONNRESET), "{numbers:x?}");
        assert_ne!(accepted.poll(0, -1) & libc::POLLERR, 0);
        drop(accepted);
        peer.end();
    }
}

/// The peer announces a buffer that it does not have.
#[test]
fn a_peer_without_memory_loses_the_connection() {
    let (listening, to) = Socket::listening();
    let (peer, accepted) = Peer::accepted(&listening, to, hello(10));
    let _ = accepted.send(b"x", 0);
    assert_eq!(accepted.receive(1, 0), Err(libc::ECONNRESET));
    drop(accepted);
    peer.end();
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let (listening, to) = Socket::listening();
    let (peer, accepted) = Peer::accepted(&listening, to, hello(10));
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| accepted.receive(1, 0));
        let polling = scope.spawn(|| accepted.poll(libc::POLLIN, -1));
        peer.end();
        assert_eq!(receiving.join().unwrap(), Err(libc::ECONNRESET));
        assert_ne!(polling.join().unwrap() & libc::POLLERR, 0);
    });
}

#[test]
fn who_polls_without_waiting_notices_a_peer_that_is_gone() {
    let (listening, to) = Socket::listening();
    let (peer, accepted) = Peer::accepted(&listening, to, hello(10));
    assert_eq!(accepted.poll(libc::POLLIN, 0), 0);
    peer.end();
    while accepted.poll(libc::POLLIN, 0) & libc::POLLERR == 0 {
        std::thread::yield_now();
    }
}

/// The peer sends no more, and has never announced a buffer.
#[test]
fn who_writes_to_a_peer_that_is_gone_notices() {
    let (listening, to) = Socket::listening();
    let nowhere = Hello { data: Buffer::default(), ..hello(10) };
    let (peer, accepted) = Peer::accepted(&listening, to, nowhere);
    peer.say(Message::Shutdown.to_number());
    assert_eq!(accepted.receive(1, 0).unwrap(), b"");
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| accepted.send(b"x", 0));
        let polling = scope.spawn(|| accepted.poll(libc::POLLOUT, -1));
        peer.end();
        assert_eq!(sending.join().unwrap(), Err(libc::ECONNRESET));
        assert_ne!(polling.join().unwrap() & libc::POLLERR, 0);
    });
}

/// Messages to this peer are never done. It is told of the end later.
#[test]
fn a_shutdown_does_not_wait_for_a_peer_without_receives() {
    let (listening, to) = Socket::listening();
    listening.set(0x10000, 1, 16).unwrap();
    let (peer, accepted) = Peer::accepted(&listening, to, hello(10));
    // The peer has 4 receives. It gets a message with a buffer at first, and one with credits after each 16 messages.
    for _ in 0..8 {
        (0..16).for_each(|_| peer.say(Message::Data(1).to_number()));
        assert_eq!(accepted.receive(16, libc::MSG_WAITALL).unwrap().len(), 16);
    }
    assert_eq!(rshutdown(accepted.0, libc::SHUT_WR), 0);
    let is_told = || peer.heard().contains(&Message::Shutdown.to_number());
    assert!(!is_told());
    peer.receive(4);
    assert!(!is_told());
    peer.receive(4);
    assert_eq!(accepted.poll(libc::POLLIN, 0), 0);
    assert!(is_told());
    drop(accepted);
    peer.end();
}

/// A request does not wake a thread that does not ask for it.
#[test]
fn who_polls_a_listener_for_nothing_sleeps() {
    let (listening, to) = Socket::listening();
    let peer = Peer::connect(to, &hello(10).to_bytes());
    assert_eq!(listening.poll(libc::POLLIN, -1), libc::POLLIN);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let polling = scope.spawn(|| {
            tell.send(rustix::thread::gettid()).unwrap();
            listening.poll(libc::POLLOUT, -1)
        });
        sleeps(&told);
        assert_eq!(rclose(listening.0), 0);
        assert_eq!(polling.join().unwrap(), libc::POLLNVAL);
    });
    std::mem::forget(listening);
    peer.end();
}

#[test]
fn who_is_gone_is_not_accepted() {
    let (listening, to) = Socket::listening();
    listening.set_nonblocking();
    Peer::connect(to, &hello(10).to_bytes()).end();
    assert_eq!(listening.poll(libc::POLLIN, -1), libc::POLLIN);
    assert_eq!(listening.accept().err(), Some(libc::EAGAIN));
}

/// The thread that ends the program does this.
#[test]
fn a_thread_waits_at_its_end() {
    struct Last(Socket);
    impl Drop for Last {
        fn drop(&mut self) {
            assert_eq!(self.0.poll(libc::POLLIN, 1), 0);
        }
    }
    thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });
    let (one, _other) = connected();
    let ending = std::thread::spawn(|| {
        // It is older than the library's thread-local data, and ends after it.
        LAST.set(Some(Last(one)));
        LAST.with_borrow(|last| assert_eq!(last.as_ref().unwrap().0.poll(libc::POLLIN, 1), 0));
    });
    ending.join().unwrap();
}
