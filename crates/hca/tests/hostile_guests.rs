//! Hostile programs in virtual machines, at the device's streams.

use crate::common::guests::{Guest, TestWindow, dial, listener, stranger};
use crate::common::{App, Host, TRUSTING, gid, own_memory, spec, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use sockets::testing::{lingering, send_with};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use uverbs::cm::{CmEvent, CmReply, CmRequest};
use uverbs::{
    Claim, Connection, Endpoint, Given, JoinError, Lent, Nonce, Opening, OpeningError, QpType, Refusal,
    Reply, Request, Stream, Ticket, Uuid, VERSION, Welcome, WindowKind, open_program, open_ticket,
};

type Said = Result<Welcome, Refusal>;

fn program(window: u8, boot: u8) -> Opening {
    let claim = Claim { pid: 7, program: "evil".into(), boot: Uuid([boot; 16]), ..Claim::default() };
    Opening::Program { version: VERSION, window: Uuid([window; 16]), claim }
}

/// Says something, and hears the answer.
fn say(connection: &mut Connection, opening: &Opening) -> Said {
    connection.send(opening, &[]).unwrap();
    connection.receive::<Said>().unwrap().0
}

fn errno<T: std::fmt::Debug>(refused: Result<T, Refusal>) -> Errno {
    Errno::from_raw_os_error(refused.unwrap_err().errno)
}

/// Waits for the end of a stream.
fn ends(stream: impl AsFd) {
    let mut wanted = [PollFd::new(&stream, PollFlags::RDHUP)];
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut wanted, Some(&patience)), Ok(1), "it stays open");
}

/// Reads a nonce as a program does, in its window.
fn nonce_at(guest: &Guest, offset: u64) -> Nonce {
    let mut nonce = Nonce::default();
    let file = std::fs::File::from(guest.own.file.try_clone().unwrap());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut nonce, uverbs::window::DATA + offset).unwrap();
    nonce
}

/// Counts the descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn who_does_not_know_the_window_is_refused() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let path = host.streams(1);
    let newer = Opening::Program { version: VERSION + 1, window: Uuid([1; 16]), claim: Claim::default() };
    let refused = say(&mut stranger(&path), &newer).unwrap_err();
    assert!(
        refused.errno == 93 && refused.message.contains(&format!("version {}", VERSION + 1)),
        "{refused:?}"
    );
    assert_eq!(errno(say(&mut stranger(&path), &program(2, 1))), Errno::NODEV);
    assert_eq!(errno(say(&mut stranger(&path), &Opening::Proof { nonce: [0; 32] })), Errno::PERM);
    assert_eq!(errno(say(&mut stranger(&path), &Opening::Ticket { ticket: Ticket(1) })), Errno::PERM);
    let mut connection = stranger(&path);
    let Ok(Welcome::Challenge { offset }) = say(&mut connection, &program(1, 1)) else { panic!() };
    let mut nonce = nonce_at(&guest, offset);
    nonce[31] ^= 1;
    assert_eq!(errno(say(&mut connection, &Opening::Proof { nonce })), Errno::PERM);
    ends(&connection);
    // A challenge to one stream helps no other stream, nor later.
    let mut connection = stranger(&path);
    let mut other = stranger(&path);
    let Ok(Welcome::Challenge { offset }) = say(&mut connection, &program(1, 1)) else { panic!() };
    let nonce = nonce_at(&guest, offset);
    assert!(matches!(say(&mut other, &program(1, 1)), Ok(Welcome::Challenge { .. })));
    assert_eq!(errno(say(&mut other, &Opening::Proof { nonce })), Errno::PERM);
    assert!(matches!(say(&mut connection, &program(1, 1)), Ok(Welcome::Challenge { .. })));
    assert_eq!(errno(say(&mut connection, &Opening::Proof { nonce })), Errno::PERM);
    until(|| nonce_at(&guest, offset) == [0; 32]);
    App::join(&guest.endpoint).unwrap().ask(&Request::QueryPort).unwrap();
}

/// Who proves nothing can't keep the thread busy that lets in programs of all machines.
#[test]
fn a_stream_asks_a_few_times_to_be_let_in() {
    let host = Host::new();
    let _guest = host.guest(1, None);
    let mut connection = stranger(&host.streams(1));
    for _ in 0..4 {
        assert!(matches!(say(&mut connection, &program(1, 1)), Ok(Welcome::Challenge { .. })));
    }
    assert_eq!(errno(say(&mut connection, &program(1, 1))), Errno::PROTO);
    ends(&connection);
}

#[test]
fn what_is_no_message_ends_its_stream_and_no_other() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let path = host.streams(1);
    let mut app = App::join(&guest.endpoint).unwrap();
    let framed = |text: &[u8]| [&(text.len() as u32).to_le_bytes()[..], text].concat();
    for bytes in [
        vec![0xff; 4],
        65_537_u32.to_le_bytes().into(),
        framed(b""),
        framed(b"{"),
        framed(br#"{"body":{"proof":{"nonce":[1]}}}"#),
        framed(br#"{"body":"program"}"#),
        framed(&[b'['; 65_536]),
    ] {
        let socket = dial(&path);
        let _ = rustix::net::send(&socket, &bytes, SendFlags::NOSIGNAL);
        ends(&socket);
        app.ask(&Request::QueryPort).unwrap();
    }
    // The same of one that is let in, before and after its greeting.
    for greets in [false, true] {
        let joined = guest.endpoint.connect().unwrap();
        let mut connection = joined.connection;
        if greets {
            connection
                .send(&Request::Hello { version: VERSION, token: 0, program: Uuid::default() }, &[])
                .unwrap();
            connection.receive::<Result<Reply, Refusal>>().unwrap().0.unwrap();
        }
        rustix::net::send(&connection, &framed(b"{\"body\":7}"), SendFlags::NOSIGNAL).unwrap();
        ends(&connection);
    }
    // A descriptor is nothing.
    let mut joined = guest.endpoint.connect().unwrap();
    let memory = own_memory();
    let sent = joined.connection.send(&Request::AllocPd, &[Lent::from(memory.as_fd())]);
    assert!(sent.is_err());
    app.ask(&Request::QueryPort).unwrap();
}

/// VMMs can send descriptors where programs in their machines can't.
#[test]
fn descriptors_that_take_long_to_close_hold_up_no_other_machine() {
    let host = Host::new();
    let other = host.guest(2, None);
    let device = host.device_of(1, spec(1, 1)).0;
    let path = host.streams(1);
    let listening = listener(&path);
    let sends = |bytes_before: &[u8], count, flags| {
        let (stream, unread) = lingering();
        let socket = dial(&path);
        rustix::net::send(&socket, bytes_before, SendFlags::NOSIGNAL).unwrap();
        send_with(&socket, b"x", (&stream, count), flags).unwrap();
        (unread, socket)
    };
    // They are sent before they are received, so that the last ones to be closed are those that the device gets: some,
    // as many as can be, one out of band, and one behind what ends the stream.
    let mut all = Vec::new();
    for (before, count, flags) in [
        (&b""[..], 1, SendFlags::empty()),
        (b"", 253, SendFlags::empty()),
        (b"", 1, SendFlags::OOB),
        (&[0xff; 4], 1, SendFlags::empty()),
    ] {
        all.push(sends(before, count, flags));
    }
    // More than may be closed at a time: the last ones wait.
    let refused: Vec<_> = (0..70).map(|_| sends(b"", 1, SendFlags::empty())).collect();
    device.listen_streams(listening).unwrap();
    all.iter().chain(&refused[..56]).for_each(|(_, socket)| ends(socket));
    App::join(&other.endpoint).unwrap();
    // Waiting streams are closed with the socket.
    drop(device);
    refused.iter().for_each(|(_, socket)| ends(socket));
    App::join(&other.endpoint).unwrap();
}

#[test]
fn those_who_say_nothing_keep_nobody_out() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let path = host.streams(1);
    App::join(&guest.endpoint).unwrap();
    let before = descriptors();
    let silent: Vec<OwnedFd> = (0..200)
        .map(|at| {
            let socket = dial(&path);
            // Some say half of something.
            rustix::net::send(&socket, &[9, 0, 0, 0, b'{'][..at % 6], SendFlags::NOSIGNAL).unwrap();
            socket
        })
        .collect();
    let mut app = App::join(&guest.endpoint).unwrap();
    app.ask(&Request::QueryPort).unwrap();
    // Most of them are closed already: newer ones took their places.
    until(|| descriptors() < before + 200 + 80);
    drop((silent, app));
    until(|| descriptors() <= before);
}

#[test]
fn thousands_of_openings_leave_nothing_behind() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let path = host.streams(1);
    App::join(&guest.endpoint).unwrap();
    until(|| guest.device.describe().is_empty());
    let before = descriptors();
    for round in 0..3000_u32 {
        match round % 4 {
            0 => drop(dial(&path)),
            1 => {
                let mut connection = stranger(&path);
                connection.send(&program(1, 1), &[]).unwrap();
            }
            2 => {
                let mut connection = stranger(&path);
                assert!(matches!(say(&mut connection, &program(1, 1)), Ok(Welcome::Challenge { .. })));
            }
            _ if round % 40 == 3 => drop(guest.endpoint.connect().unwrap()),
            _ => {
                assert!(say(&mut stranger(&path), &Opening::Ticket { ticket: Ticket(round.into()) }).is_err())
            }
        }
    }
    App::join(&guest.endpoint).unwrap().ask(&Request::QueryPort).unwrap();
    until(|| descriptors() <= before && guest.device.describe().is_empty());
    until(|| host.fabric.taken() == (0, 0) && guest.own.window.describe().used == 0);
}

#[test]
fn tickets_are_for_the_machine_that_got_them_and_for_once() {
    let host = Host::new();
    let guests = [host.guest(1, None), host.guest(2, None)];
    let mut app = App::join(&guests[0].endpoint).unwrap();
    let mut ticket = || {
        let (_, given) = app.send_all(&Request::CreateChannel).unwrap();
        let [Given::Stream(ticket)] = given[..] else { panic!("{given:?}") };
        ticket
    };
    let (stolen, expired) = (ticket(), ticket());
    let refused = |at: &Path, ticket| {
        assert!(matches!(open_ticket(dial(at), ticket), Err(OpeningError::Refused(_))));
    };
    refused(&host.streams(2), stolen);
    let events = open_ticket(dial(&host.streams(1)), stolen).unwrap();
    refused(&host.streams(1), stolen);
    drop(app);
    ends(&events);
    until(|| guests[0].device.describe().is_empty());
    refused(&host.streams(1), expired);
    // The window has no purpose without the program, though the other machine's device knows nothing of it.
    App::join(&guests[1].endpoint).unwrap();
}

#[test]
fn who_never_reads_its_answers_waits_alone() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let mut other = App::join(&guest.endpoint).unwrap();
    let mut app = App::join(&guest.endpoint).unwrap();
    let stream = rustix::io::dup(&app.connection).unwrap();
    let asked = br#"{"body":"query_port"}"#;
    let asked = [&(asked.len() as u32).to_le_bytes()[..], asked].concat();
    let mut sent = 0;
    // Until neither side has room for more.
    loop {
        match rustix::net::send(&stream, &asked, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(len) if len == asked.len() => sent += 1,
            _ => {
                other.ask(&Request::QueryPort).unwrap();
                let mut wanted = [PollFd::new(&stream, PollFlags::OUT)];
                if poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 })) == Ok(0) {
                    break;
                }
            }
        }
        assert!(sent < 1 << 20, "somebody stores all of it");
    }
    assert_eq!(guest.device.describe().len(), 2);
    // It gets the answers once it reads them.
    for _ in 0..100 {
        app.connection.receive::<Result<Reply, Refusal>>().unwrap().0.unwrap();
    }
    drop((app, stream));
    until(|| guest.device.describe().len() == 1);
    other.ask(&Request::QueryPort).unwrap();
}

#[test]
fn programs_of_an_earlier_boot_are_gone() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let join = |boot: u8| {
        let claim = Claim { boot: Uuid([boot; 16]), ..Claim::default() };
        let read = |offset| Some(nonce_at(&guest, offset));
        open_program(dial(&host.streams(1)), Uuid([1; 16]), claim, read).unwrap().0
    };
    let (old, same) = (join(1), join(1));
    let mut new = join(2);
    ends(&old);
    ends(&same);
    new.send(&Request::Hello { version: VERSION, token: 0, program: Uuid::default() }, &[]).unwrap();
    assert!(new.receive::<Result<Reply, Refusal>>().unwrap().0.is_ok());
    until(|| guest.device.describe().len() == 1);
    // One that does not say so disconnects nobody.
    drop(join(0));
    new.send(&Request::QueryPort, &[]).unwrap();
    assert!(new.receive::<Result<Reply, Refusal>>().unwrap().0.is_ok());
}

#[test]
fn a_socket_for_all_machines_finds_the_device_by_the_window() {
    let host = Host::new();
    let guests = [host.guest(1, None), host.guest(2, None)];
    let socket = host.dir.path().join("all");
    host.fabric.listen_streams(listener(&socket)).unwrap();
    for (guest, number) in guests.iter().zip(1..) {
        let endpoint = Endpoint::Files { own: guest.own.path(), common: None, socket: socket.clone() };
        assert_eq!(App::join(&endpoint).unwrap().info.name, format!("vm{number}"));
    }
    let unknown = TestWindow::new(WindowKind::Own, 77);
    let endpoint = Endpoint::Files { own: unknown.path(), common: None, socket };
    let refused = App::join(&endpoint).map(drop).unwrap_err();
    assert!(matches!(refused, JoinError::Opening(OpeningError::Refused(_))), "{refused}");
}

#[test]
fn a_device_that_closes_takes_its_socket_along() {
    let host = Host::new();
    let guest = host.guest(1, None);
    let path = host.streams(1);
    let waiting = stranger(&path);
    let app = App::join(&guest.endpoint).unwrap();
    drop(guest.device);
    ends(&app.connection);
    until(|| {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&path).unwrap()).is_err()
    });
    drop(waiting);
}

#[test]
fn the_connection_manager_tells_its_events_by_streams() {
    let host = Host::new();
    let guest = host.guest(TRUSTING, None);
    let mut joined = guest.endpoint.connect().unwrap();
    let mut ask = |request: CmRequest| {
        joined.connection.send(&Request::Cm(request), &[]).unwrap();
        let (reply, given) = joined.connection.receive::<Result<Reply, Refusal>>().unwrap();
        reply.map(|reply| (reply, given))
    };
    assert_eq!(ask(CmRequest::Hello { version: VERSION }).unwrap().0, Reply::Done);
    let (reply, mut given) = ask(CmRequest::CreateChannel { tag: 3 }).unwrap();
    let (Reply::Handle(channel), [Given::Stream(_)]) = (reply, &given[..]) else { panic!("{given:?}") };
    let created = ask(CmRequest::CreateId { channel, port_space: 0x106, qp_type: QpType::Rc });
    let Ok((Reply::Handle(id), _)) = created else { panic!("{created:?}") };
    let address = std::net::SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 7000));
    let bound = ask(CmRequest::BindAddr { id, address }).unwrap().0;
    assert!(matches!(bound, Reply::Cm(CmReply::Bound(_))));
    // Events wait for the stream.
    let own = gid(TRUSTING).to_ipv4_mapped().unwrap();
    let other = ask(CmRequest::CreateId { channel, port_space: 0x106, qp_type: QpType::Rc }).unwrap().0;
    let Reply::Handle(other) = other else { panic!("{other:?}") };
    let destination = std::net::SocketAddr::from((own, 7000));
    ask(CmRequest::ResolveAddr { id: other, source: None, destination }).unwrap();
    let events = joined.dial.socket(given.remove(0)).unwrap();
    let mut events = Connection::Stream(Stream::new(events));
    let (event, _) = events.receive::<CmEvent>().unwrap();
    assert_eq!((event.tag, event.id, event.status), (3, other, 0));
    ask(CmRequest::DestroyChannel { channel }).unwrap();
    ends(&events);
    drop(joined);
    until(|| guest.device.describe_connections().is_empty());
}
