//! Tests drivers that send descriptors that take long to close.

use super::fake::Fake;
use crate::protocol::Answer;
use crate::service::Service;
use crate::state::Times;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    recv, socket_with,
};
use sockets::testing::{lingering, send_with};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Connections that may wait.
const BACKLOG: i32 = 32;
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Makes a hello of version 1, without a name.
fn hello() -> Vec<u8> {
    let words = [1_u32, 56, 0x5356_4f56, 1, 1, 0].map(u32::to_le_bytes);
    [words.as_flattened(), &[0; 32]].concat()
}

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
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
    // The descriptors are sent before the service runs, so that it gets the last copies: one, as many as
    // possible, and one behind a message that ends the session.
    let mut kept = Vec::new();
    for (count, wrong_before) in [(1, false), (253, false), (1, true)] {
        let (stream, other) = lingering();
        let driver = driver();
        if wrong_before {
            rustix::net::send(&driver, b"wrong", SendFlags::NOSIGNAL).unwrap();
        }
        send_with(&driver, &hello(), (&stream, count), SendFlags::empty()).unwrap();
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

/// A user with many drivers leaves places to other users, even if none is here. Refused drivers make room at
/// once, unless they sent something that takes long to close.
#[test]
fn a_user_has_half_of_the_places() {
    let name = format!("ovs-places-{}", std::process::id());
    let address: SocketAddrUnix = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let listener = socket();
    bind(&listener, &address).unwrap();
    listen(&listener, BACKLOG).unwrap();
    let driver = || {
        let driver = socket();
        connect(&driver, &address).unwrap();
        driver
    };
    let service = Service::new(Arc::new(Fake::default()), Times::default()).unwrap();
    // Four that sent something that takes long to close, and four that stay.
    let unread: Vec<_> = (0..4)
        .map(|_| {
            let (stream, other) = lingering();
            let driver = driver();
            send_with(&driver, &hello(), (&stream, 1), SendFlags::empty()).unwrap();
            (other, driver)
        })
        .collect();
    service.serve(listener).unwrap();
    let mut staying: Vec<_> = (0..4).map(|_| driver()).collect();
    assert!(staying.iter().all(is_served));
    let is_refused = || {
        let driver = driver();
        let mut wanted = [PollFd::new(&driver, PollFlags::IN)];
        poll(&mut wanted, Some(&PATIENCE)).unwrap() == 1
            && recv(&driver, &mut [0; 1], RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len == 0)
    };
    assert!((0..20).all(|_| is_refused()));
    // Once their descriptors are closed, their places are free.
    drop(unread);
    while staying.len() < 8 {
        let driver = driver();
        let mut wanted = [PollFd::new(&driver, PollFlags::IN)];
        let _ = rustix::net::send(&driver, &hello(), SendFlags::NOSIGNAL);
        assert_eq!(poll(&mut wanted, Some(&PATIENCE)).unwrap(), 1);
        if recv(&driver, &mut [0; Answer::LEN], RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {
            staying.push(driver);
        }
    }
    assert!(is_refused());
}
