//! Drivers that send what takes long to close.

use super::fake::Fake;
use crate::protocol::Answer;
use crate::service::Service;
use crate::state::Times;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, listen, recv, sendmsg, socket_with, sockopt::set_socket_linger,
};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Connections that wait.
const BACKLOG: i32 = 32;
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// A hello of version 1, without a name.
fn hello() -> Vec<u8> {
    let words = [1_u32, 56, 0x5356_4f56, 1, 1, 0].map(u32::to_le_bytes);
    [words.as_flattened(), &[0; 32]].concat()
}

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Two ends of a connection. The first one has data that the other does not read, and lingers on close.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    (stream, other)
}

/// Sends a hello with this descriptor, so often.
fn send_with(driver: &OwnedFd, descriptor: impl AsFd, count: usize) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = vec![descriptor.as_fd(); count];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(driver, &[IoSlice::new(&hello())], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

fn is_served(driver: &OwnedFd) -> bool {
    rustix::net::send(driver, &hello(), SendFlags::NOSIGNAL).unwrap();
    let mut wanted = [PollFd::new(driver, PollFlags::IN)];
    poll(&mut wanted, Some(&PATIENCE)).unwrap() == 1
        && recv(driver, &mut [0; Answer::LEN], RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len == Answer::LEN)
}

#[test]
fn descriptors_that_take_long_to_close_are_their_drivers_own_affair() {
    let name = format!("ovs-descriptors-{}", std::process::id());
    let address: SocketAddrUnix = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let listener = socket();
    bind(&listener, &address).unwrap();
    listen(&listener, BACKLOG).unwrap();
    let driver = || {
        let driver = socket();
        connect(&driver, &address).unwrap();
        driver
    };
    // They are sent before they are received, so that the last ones to be closed are those that the service gets: one,
    // as many as can be, and one behind a message that ends the session.
    let mut kept = Vec::new();
    for (count, wrong_before) in [(1, false), (253, false), (1, true)] {
        let (stream, other) = lingering();
        let driver = driver();
        if wrong_before {
            rustix::net::send(&driver, b"wrong", SendFlags::NOSIGNAL).unwrap();
        }
        send_with(&driver, &stream, count);
        kept.push((other, driver));
    }
    let service = Service::new(Arc::new(Fake::default()), Times::default()).unwrap();
    service.serve(listener).unwrap();
    for (_, driver) in &kept {
        let mut wanted = [PollFd::new(driver, PollFlags::IN)];
        assert_eq!(poll(&mut wanted, Some(&PATIENCE)).unwrap(), 1);
    }
    assert!(is_served(&driver()));
}
