//! Sockets that end while unread data waits in them.

use super::*;
use crate::testing::{lingering, send_with};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, send, socketpair};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns our end, and the other one.
fn pair(kind: SocketType, closing: &Arc<Closing>) -> (Untrusted, OwnedFd) {
    let (ours, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    (Untrusted::new(ours, closing).unwrap(), other)
}

/// Drops a value on a thread that must not wait.
fn drop_in_time(what: impl Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        drop(what);
        done.send(())
    });
    is_done.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn only_what_may_take_long_is_closed_elsewhere() {
    let (tell, told) = mpsc::channel();
    let closing = Closing::telling(move || tell.send(()).unwrap());
    let ends = |ours: Untrusted| {
        drop(ours);
        closing.count() > 0 || told.try_recv().is_ok()
    };
    assert!(!ends(pair(SocketType::STREAM, &closing).0), "the other end is closed");
    let (ours, other) = pair(SocketType::STREAM, &closing);
    send(&other, b"ab", SendFlags::empty()).unwrap();
    assert_eq!(ours.receive(&mut [0; 9]), Ok(2));
    assert_eq!(ours.receive(&mut [0; 9]), Err(Errno::AGAIN));
    assert!(!ends(ours), "all was read");
    let (ours, other) = pair(SocketType::STREAM, &closing);
    send(&other, b"ab", SendFlags::empty()).unwrap();
    assert!(ends(ours), "something is unread");
}

#[test]
fn descriptors_end_a_connection_and_hold_up_nobody() {
    for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
        for count in [1, 253] {
            let (tell, told) = mpsc::channel();
            let closing = Closing::telling(move || tell.send(()).unwrap());
            let (ours, other) = pair(kind, &closing);
            let (stream, unread) = lingering();
            send_with(&other, b"a", (&stream, count), SendFlags::empty()).unwrap();
            send(&other, b"b", SendFlags::empty()).unwrap();
            drop(stream);
            for _ in 0..2 {
                assert_eq!(ours.receive(&mut [0; 9]), Err(Errno::BADMSG));
            }
            drop_in_time(ours);
            assert_eq!(closing.count(), 1);
            assert_eq!(send(&other, b"c", SendFlags::NOSIGNAL), Err(Errno::PIPE));
            drop(unread);
            told.recv_timeout(PATIENCE).unwrap();
            assert_eq!(closing.count(), 0);
        }
    }
}

#[test]
fn descriptors_that_nobody_received_hold_up_nobody() {
    for (kind, bytes) in
        [(SocketType::STREAM, &b"a"[..]), (SocketType::SEQPACKET, b"a"), (SocketType::SEQPACKET, b"")]
    {
        let (ours, other) = pair(kind, &Arc::default());
        let (stream, _unread) = lingering();
        send_with(&other, bytes, (&stream, 1), SendFlags::empty()).unwrap();
        drop(stream);
        drop_in_time(ours);
    }
}

#[test]
fn a_listener_whose_clients_wait_with_descriptors_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.sock");
    let listener = Listener::from(OwnedFd::from(UnixListener::bind(&path).unwrap()));
    let (stream, _unread) = lingering();
    let client = UnixStream::connect(&path).unwrap();
    send_with(&client, b"a", (&stream, 1), SendFlags::empty()).unwrap();
    drop(stream);
    drop_in_time(listener);
}
