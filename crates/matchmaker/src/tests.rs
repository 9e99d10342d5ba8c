mod agents;

use crate::{End, GuestSpec, Key, Limits, Service, Ways};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with,
};
use sockring::Message;
use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// All addresses are guests', and connections between them may be moved.
struct Everything;

impl Ways for Everything {
    fn inside(&self, _: &str, own: SocketAddr, peer: SocketAddr) -> Option<Key> {
        let end = |of: SocketAddr| End { vrf: 1, addr: of.ip(), port: of.port() };
        Some(Key { within: None, own: end(own), peer: end(peer), seen: [own.ip(), peer.ip()] })
    }

    fn elsewhere(&self, _: &str, _: SocketAddr, _: SocketAddr) -> Option<Key> {
        None
    }

    fn may_carry(&self, _: &str, _: &Key) -> bool {
        false
    }

    fn may_share(&self, _: (&str, &str), _: &Key) -> bool {
        true
    }

    fn in_use(&self, _: &Key, _: (u64, u64)) {}
}

fn service(dir: &Path, limits: Limits) -> Service {
    let service = Service::start(Box::new(Everything), limits).unwrap();
    let spec = |guest: &str| GuestSpec { guest: guest.to_owned(), socket: Some(dir.join(guest)) };
    service.keep(vec![spec("a"), spec("b")], sockets::here());
    assert_eq!(service.problems(), []);
    service
}

struct Program(OwnedFd);

impl Program {
    fn new(path: &Path) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(socket)
    }

    fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
    }

    fn receive(&self) -> Option<Message> {
        let mut bytes = [0; 64];
        let (len, _) = rustix::net::recv(&self.0, &mut bytes, rustix::net::RecvFlags::empty()).ok()?;
        Message::read(&bytes[..len])
    }
}

/// Returns the offer of a program whose library knows neither of files for many nor of other hosts.
const fn old_offer(token: u64) -> Message {
    Message::Offer { token, doors: false, carries: false, relays: false }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Makes a connection from this port, which ends without a trace.
fn connection_from(port: u16, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    connect(&socket, &listener.local_addr().unwrap()).unwrap();
    let ends = (TcpStream::from(socket), listener.accept().unwrap().0);
    for end in [&ends.0, &ends.1] {
        rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO)).unwrap();
    }
    ends
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "it does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn two_ends_are_matched_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let (a, b) = (Program::new(&dir.path().join("a")), Program::new(&dir.path().join("b")));
    let (client, server) = connection();
    assert!(a.send(&old_offer(7).bytes(), Some(client.as_fd())));
    until(|| service.status().offers == 1);
    assert!(b.send(&old_offer(9).bytes(), Some(server.as_fd())));
    assert_eq!(a.receive(), Some(Message::Again { token: 7 }));
    assert_eq!(service.status().pairs, []);
    assert!(a.send(&old_offer(7).bytes(), Some(client.as_fd())));
    let (Some(Message::Matched { token: 7, pair, second: false, .. }), Some(other)) =
        (a.receive(), b.receive())
    else {
        panic!("no match");
    };
    assert_eq!(other, Message::Matched { token: 9, pair, second: true, offset: 0, slot: 0 });
    assert!(a.send(&Message::Poke { pair }.bytes(), None));
    assert_eq!(
        (a.receive(), b.receive()),
        (Some(Message::Look { token: 7 }), Some(Message::Look { token: 9 }))
    );
    drop(a);
    assert!(b.send(&Message::Gone { token: 9, pair }.bytes(), None));
    until(|| service.status().pairs.is_empty());
}

/// Whoever offers a connection that is gone gets nothing of the next one with the same ports.
#[test]
fn a_stale_offer_claims_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let program = |guest: &str| Program::new(&dir.path().join(guest));
    let (thief, owner, b) = (program("a"), program("a"), program("b"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (first, end) = connection_from(0, &listener);
    let port = first.local_addr().unwrap().port();
    assert!(thief.send(&old_offer(1).bytes(), Some(first.as_fd())));
    until(|| service.status().offers == 1);
    drop((first, end));
    let (client, server) = connection_from(port, &listener);
    assert!(b.send(&old_offer(2).bytes(), Some(server.as_fd())));
    assert_eq!(thief.receive(), Some(Message::Again { token: 1 }));
    // The thief has another connection by now.
    let (other, _peer) = connection();
    assert!(thief.send(&old_offer(1).bytes(), Some(other.as_fd())));
    assert_eq!(thief.receive(), Some(Message::Refused { token: 1 }));
    assert!(owner.send(&old_offer(3).bytes(), Some(client.as_fd())));
    assert_eq!(b.receive(), Some(Message::Again { token: 2 }));
    assert!(b.send(&old_offer(2).bytes(), Some(server.as_fd())));
    assert!(matches!(owner.receive(), Some(Message::Matched { token: 3, .. })));
    assert!(matches!(b.receive(), Some(Message::Matched { token: 2, .. })));
}

/// The owner need not wait until the stale offer ends.
#[test]
fn a_live_socket_displaces_a_stale_offer() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let (thief, owner) = (Program::new(&dir.path().join("a")), Program::new(&dir.path().join("a")));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (first, end) = connection_from(0, &listener);
    let port = first.local_addr().unwrap().port();
    assert!(thief.send(&old_offer(1).bytes(), Some(first.as_fd())));
    until(|| service.status().offers == 1);
    drop((first, end));
    let (client, _server) = connection_from(port, &listener);
    assert!(owner.send(&old_offer(3).bytes(), Some(client.as_fd())));
    assert_eq!(thief.receive(), Some(Message::Refused { token: 1 }));
    until(|| service.status().offers == 1);
    assert!(owner.send(&Message::Cancel { token: 3 }.bytes(), None));
    until(|| service.status().offers == 0);
}

#[test]
fn the_copy_of_a_socket_is_closed_at_once() {
    use std::io::Read;
    let dir = tempfile::tempdir().unwrap();
    let _service = service(dir.path(), Limits::default());
    let a = Program::new(&dir.path().join("a"));
    let (client, mut server) = connection();
    assert!(a.send(&old_offer(7).bytes(), Some(client.as_fd())));
    drop(client);
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn what_is_the_same_end_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let a = Program::new(&dir.path().join("a"));
    let (client, _server) = connection();
    assert!(a.send(&old_offer(1).bytes(), Some(client.as_fd())));
    assert!(a.send(&old_offer(2).bytes(), Some(client.as_fd())));
    let refused = [a.receive(), a.receive()];
    assert_eq!(refused, [Some(Message::Refused { token: 1 }), Some(Message::Refused { token: 2 })]);
    assert_eq!(service.status().offers, 0);
}

#[test]
fn no_user_has_more_than_his_share() {
    let dir = tempfile::tempdir().unwrap();
    let _service = service(dir.path(), Limits { programs: 1, connections: 2 });
    let a = Program::new(&dir.path().join("a"));
    let connections = [connection(), connection(), connection()];
    for (token, (client, _)) in connections.iter().enumerate() {
        assert!(a.send(&old_offer(token as u64).bytes(), Some(client.as_fd())));
    }
    assert_eq!(a.receive(), Some(Message::Refused { token: 2 }));
    assert!(a.send(&Message::Cancel { token: 0 }.bytes(), None));
    assert!(a.send(&old_offer(3).bytes(), Some(connections[2].0.as_fd())));
    let second = Program::new(&dir.path().join("a"));
    // The second program of the user is not served.
    assert_eq!(second.receive(), None);
}

/// Whatever programs say and send, the daemon goes on to match others.
#[test]
fn any_messages_are_survived() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let (path, others) = (dir.path().join("a"), connection());
    let file = std::fs::File::open("/dev/null").unwrap();
    let status = std::panic::AssertUnwindSafe(|| service.status());
    bolero::check!().with_type::<Vec<(u8, u8, u64, Vec<u8>)>>().for_each(|said| {
        let programs = [Program::new(&path), Program::new(&path)];
        for (kind, of, number, bytes) in said {
            let descriptor = match of % 8 {
                0 => Some(file.as_fd()),
                1 | 2 => Some(others.0.as_fd()),
                3 | 4 => Some(others.1.as_fd()),
                _ => None,
            };
            let (token, pair) = (number % 4, number % 16);
            let message = match kind % 8 {
                0..=2 => old_offer(token).bytes().to_vec(),
                3 => Message::Cancel { token }.bytes().to_vec(),
                4 => Message::Poke { pair }.bytes().to_vec(),
                5 => Message::Gone { token, pair }.bytes().to_vec(),
                6 => Message::Adopt { token, pair }.bytes().to_vec(),
                _ => bytes.clone(),
            };
            _ = programs[usize::from(*of) / 128].send(&message, descriptor);
        }
        drop(programs);
        until(|| {
            let status = (*status)();
            status.guests.iter().all(|(_, programs)| *programs == 0)
                && status.pairs.is_empty()
                && status.offers == 0
        });
    });
}

/// The closer is stuck with a socket that lingers: its peer takes nothing.
#[test]
fn what_takes_long_to_close_holds_up_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let slow = Program::new(&dir.path().join("a"));
    // The service must have the last copy of the socket, so it waits until that is so.
    let held = service.hold();
    let (mut client, server) = connection();
    client.set_nonblocking(true).unwrap();
    while client.write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::from_secs(600))).unwrap();
    assert!(slow.send(&old_offer(0).bytes(), Some(client.as_fd())));
    drop(client);
    drop(held);
    let file = std::fs::File::open("/dev/null").unwrap();
    // More descriptors than may wait end the program.
    until(|| !slow.send(&Message::Cancel { token: 0 }.bytes(), Some(file.as_fd())));
    let again = Program::new(&dir.path().join("a"));
    assert_eq!(again.receive(), None, "its user waits until they are closed");
    let (b, (one, _other)) = (Program::new(&dir.path().join("b")), connection());
    assert!(b.send(&old_offer(1).bytes(), Some(one.as_fd())));
    until(|| service.status().offers == 1);
    drop(server);
    // A turn of the clock later, all is closed.
    until(|| {
        let program = Program::new(&dir.path().join("a"));
        program.send(&old_offer(2).bytes(), Some(one.as_fd()))
            && program.receive() == Some(Message::Refused { token: 2 })
    });
}

/// However many users a guest has, each of them is served, and so are those of other guests.
#[test]
fn many_users_share_threads() {
    let mut closers = crate::closing::Closers::default();
    for guest in ["a", "b"] {
        for user in 0..300 {
            assert!(closers.admit(&(guest.to_owned(), user)), "user {user} of {guest}");
        }
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(closers.close(&("a".to_owned(), 299), file.into()));
}

/// Descriptors in flight are the daemon's: who does not read them gets no more.
#[test]
fn who_does_not_read_gets_no_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let (a, b) = (Program::new(&dir.path().join("a")), Program::new(&dir.path().join("b")));
    let refused = || service.status().counters.refused.get("unread").copied().unwrap_or_default();
    let mut connections = Vec::new();
    while refused() == 0 {
        let token = connections.len() as u64;
        assert!(token < 300, "it has {token} descriptors that it does not read");
        let (client, server) = connection();
        let offer = old_offer(token).bytes();
        assert!(a.send(&offer, Some(client.as_fd())));
        until(|| service.status().counters.offered == 3 * token + 1);
        assert!(b.send(&offer, Some(server.as_fd())));
        until(|| service.status().counters.offered == 3 * token + 2);
        assert!(a.send(&offer, Some(client.as_fd())));
        assert!(matches!(b.receive(), Some(Message::Matched { .. } | Message::Refused { .. })));
        connections.push((client, server));
    }
    assert!(service.status().counters.matched >= 16);
}

/// Programs that know of files have one for all of their connections, and each its doorbell and the other's.
#[test]
fn connections_of_two_programs_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits::default());
    let (a, b) = (Program::new(&dir.path().join("a")), Program::new(&dir.path().join("b")));
    let connections = [connection(), connection()];
    let offer = |token| Message::Offer { token, doors: true, carries: false, relays: false }.bytes();
    let mut pairs = Vec::new();
    for (token, (client, server)) in (1..).zip(&connections) {
        assert!(a.send(&offer(token), Some(client.as_fd())));
        until(|| service.status().offers == 1);
        assert!(b.send(&offer(token), Some(server.as_fd())));
        assert_eq!(a.receive(), Some(Message::Again { token }));
        assert!(a.send(&offer(token), Some(client.as_fd())));
        for (program, is_second) in [(&a, false), (&b, true)] {
            let mut next = program.receive();
            if token == 1 {
                assert_eq!(next, Some(Message::File { file: 1, second: is_second }));
                for own in [true, false] {
                    assert_eq!(program.receive(), Some(Message::Bell { file: 1, second: is_second, own }));
                }
                next = program.receive();
            }
            let Some(Message::Matched { pair, second, offset: 1, slot, .. }) = next else {
                panic!("{next:?}")
            };
            assert_eq!((second, u64::from(slot)), (is_second, token));
            pairs.push((token, pair));
        }
    }
    // A slot is free once both have let go.
    for (program, (token, pair)) in [&a, &b].into_iter().zip(pairs) {
        assert!(program.send(&Message::Gone { token, pair }.bytes(), None));
    }
    until(|| service.status().pairs.len() == 1);
    // A program that forks has its next connections elsewhere.
    assert!(a.send(&Message::Full { file: 0 }.bytes(), None));
    assert_eq!([&a, &b].map(Program::receive), [Some(Message::Full { file: 1 }); 2]);
}

/// A file has room for more connections than it has, and both users are charged with that. Who has no more room for a
/// file has memory for each connection.
#[test]
fn users_are_charged_with_files() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path(), Limits { programs: 8, connections: 20 });
    let offer = |token| Message::Offer { token, doors: true, carries: false, relays: false }.bytes();
    let mut programs = Vec::new();
    for is_file in [true, false] {
        let (a, b) = (Program::new(&dir.path().join("a")), Program::new(&dir.path().join("b")));
        let (client, server) = connection();
        assert!(a.send(&offer(1), Some(client.as_fd())));
        until(|| service.status().offers == 1);
        assert!(b.send(&offer(1), Some(server.as_fd())));
        assert_eq!(a.receive(), Some(Message::Again { token: 1 }));
        assert!(a.send(&offer(1), Some(client.as_fd())));
        match b.receive() {
            Some(Message::File { .. }) if is_file => {}
            Some(Message::Matched { slot: 0, .. }) if !is_file => {}
            other => panic!("{other:?}"),
        }
        programs.push((a, b));
    }
    // Once a file is gone, there is room for another one.
    let (a, b) = programs.remove(0);
    drop((a, b));
    until(|| service.status().pairs.len() == 1);
    assert_eq!(service.held("a"), 1);
}
