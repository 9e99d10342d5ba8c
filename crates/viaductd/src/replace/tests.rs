use super::message::{Conversation, Greeting, Message};
use super::new::{shared, stopped};
use crate::inherit::{Inheritance, Succession};
use crate::privileges::Privileges;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use seqpacket::{Connection, MOST_DESCRIPTORS};
use sockets::Place;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

/// Returns the other daemon's end, and ours.
fn pair() -> (Connection, Conversation) {
    let (other, own) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (Connection::carrying(other, MOST_DESCRIPTORS), Conversation::over(own).unwrap())
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
fn daemons_agree_on_the_newest_version_that_both_speak() {
    let agree = |oldest, newest| Greeting { oldest, newest, ..Greeting::ours() }.agree().ok();
    assert_eq!(Greeting::ours().agree().unwrap(), 1);
    assert_eq!([agree(1, 1), agree(0, 1), agree(1, 9)], [Some(1); 3]);
    assert_eq!([agree(2, 9), agree(0, 0), agree(9, 1)], [None; 3]);
    let (mut other, mut own) = pair();
    other.send(&serde_json::json!({"oldest": 1, "newest": 2, "later": {"a": []}}), &[]).unwrap();
    assert_eq!(own.greeted().unwrap(), Greeting { oldest: 1, newest: 2, build: String::new(), pid: 0 });
}

#[test]
fn what_is_shared_is_read_and_what_is_unknown_left_out() {
    let (mut other, mut own) = pair();
    let null = null();
    other.send(&Message::RunDir, &[null.as_fd()]).unwrap();
    other.send(&Message::Notice { text: "something ends".to_owned() }, &[]).unwrap();
    other.send(&serde_json::json!({"kind": "from-tomorrow", "what": 7}), &[null.as_fd()]).unwrap();
    let port = |name: &str| Message::Port { name: name.to_owned(), device: "tap t".to_owned() };
    // As for a wire with many queues.
    other.send(&port("a"), &[null.as_fd(); 200]).unwrap();
    other.send(&port("a"), &[null.as_fd(); 55]).unwrap();
    other.send(&serde_json::json!({"kind": "port", "name": "b", "device": "", "later": 1}), &[]).unwrap();
    other.send(&Message::Listener { name: "api".to_owned() }, &[null.as_fd()]).unwrap();
    other.send(&Message::Shared, &[]).unwrap();
    let shared = shared(&mut own).unwrap();
    assert!(shared.run_dir.is_some() && shared.store.is_none() && shared.listeners.contains_key("api"));
    let ports: Vec<_> = shared.ports.iter().map(|(name, (_, open))| (name.as_str(), open.len())).collect();
    assert_eq!(ports, [("a", 255), ("b", 0)]);
}

#[test]
fn parts_of_a_state_come_together() {
    let (mut other, mut own) = pair();
    let null = null();
    let part = |port: &str, state: &str, more| Message::Session {
        port: port.to_owned(),
        state: state.to_owned(),
        more,
    };
    other.send(&part("a", "ab", true), &[null.as_fd(); 200]).unwrap();
    other.send(&part("a", "c", false), &[null.as_fd(); 3]).unwrap();
    other.send(&part("b", "", false), &[]).unwrap();
    other.send(&Message::Frozen { since_ns: 5 }, &[]).unwrap();
    let stopped = stopped(&mut own).unwrap();
    let a = &stopped.sessions["a"];
    assert_eq!((a.state.as_str(), a.descriptors.len(), stopped.since_ns), ("abc", 203, 5));
    assert_eq!(stopped.sessions.len(), 2);
}

#[test]
fn a_refusal_and_what_comes_at_the_wrong_time_end_the_conversation() {
    for (message, why) in [
        (Message::Refused { reason: "it rains".to_owned() }, "it rains"),
        (Message::Go, "while it shares"),
        (Message::Frozen { since_ns: 0 }, "while it shares"),
    ] {
        let (mut other, mut own) = pair();
        other.send(&message, &[]).unwrap();
        let said = shared(&mut own).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    let (other, mut own) = pair();
    drop(other);
    assert!(stopped(&mut own).is_err());
}

#[test]
fn the_file_of_a_shared_socket_goes_with_who_has_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place { path: dir.path().join("vm.sock"), owner: None, mode: 0o600 };
    let listening = UnixListener::bind(&place.path).unwrap();
    let mode = || std::fs::metadata(&place.path).unwrap().permissions().mode() & 0o777;
    let (others, succession) = (mode(), Arc::new(Succession::default()));
    assert_ne!(others, place.mode);
    for has_the_host in [false, true] {
        let socket = listening.as_fd().try_clone_to_owned().unwrap();
        let ports = BTreeMap::from([("vm".to_owned(), ("here".to_owned(), vec![socket]))]);
        let inheritance = Inheritance::new(ports, succession.clone());
        assert!(inheritance.waits());
        let own = Privileges::here();
        let listen = |device: &str| {
            inheritance.privileges("vm", device, &own).sockets.listen(&place, SocketType::STREAM, 8)
        };
        let (socket, file) = listen("here").unwrap();
        let _client = UnixStream::connect(&place.path).unwrap();
        assert!(UnixListener::from(socket).accept().is_ok());
        assert!(matches!(listen("here"), Err(sockets::Error::InUse(_))), "it is shared once");
        assert_eq!(mode(), others);
        if has_the_host {
            succession.succeed(&sockets::Here);
            assert_eq!(mode(), place.mode);
            file.give_to(None, 0o640).unwrap();
            assert_eq!(mode(), 0o640);
        }
        drop(file);
        assert_eq!(place.path.exists(), !has_the_host);
    }
}

#[test]
fn the_file_of_a_window_that_is_there_is_given_to_its_owner_by_who_has_the_host() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = |name: &str, mode| Place { path: dir.path().join(name), owner: None, mode };
    let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    std::fs::write(dir.path().join("old"), "").unwrap();
    let (others, succession) = (mode("old"), Arc::new(Succession::default()));
    let own = Privileges::here();
    let privileges = Inheritance::new(BTreeMap::new(), succession.clone()).late(&own);
    let open = |place: Place| drop(privileges.sockets.memory(&place, false).unwrap());
    open(place("old", 0o640));
    open(place("old", 0o600));
    open(place("new", 0o640));
    assert_eq!((mode("old"), mode("new")), (others, 0o640));
    succession.succeed(&*own.sockets);
    assert_eq!(mode("old"), 0o600);
    open(place("old", 0o640));
    assert_eq!(mode("old"), 0o640);
}

#[test]
fn each_socket_of_a_device_is_that_of_its_type() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name| Place { path: dir.path().join(name), owner: None, mode: 0o600 };
    let (machines, programs) = (place("c1.vsock_4791"), place("c1"));
    let own = Privileges::here();
    let old: Vec<_> = [(&machines, SocketType::STREAM), (&programs, SocketType::SEQPACKET)]
        .map(|(place, kind)| own.sockets.listen(place, kind, 8).unwrap())
        .into();
    let shared: Vec<_> = old.iter().map(|(socket, _)| socket.try_clone().unwrap()).collect();
    let privileges = own.inheriting(shared, &Arc::default());
    // In a different order.
    for (place, kind) in [(&programs, SocketType::SEQPACKET), (&machines, SocketType::STREAM)] {
        let (socket, _file) = privileges.sockets.listen(place, kind, 8).unwrap();
        assert_eq!(rustix::net::sockopt::socket_type(&socket), Ok(kind));
        assert!(privileges.sockets.listen(place, kind, 8).is_err(), "it is shared once");
    }
}

/// `cargo bolero test -p viaductd replace::tests::any_conversation_is_survived`: any messages of the other
/// daemon lead to an answer or an error.
#[test]
fn any_conversation_is_survived() {
    #[derive(Debug, bolero::TypeGenerator)]
    enum Word {
        Raw(Vec<u8>),
        Port(String, String),
        Session(String, String, bool),
        Learned(String, [u8; 6], u32),
        Frozen(u64),
        Notice(String),
        Shared,
        Unknown(String),
    }
    let null = null();
    bolero::check!().with_type::<(bool, Vec<(Word, u8)>)>().for_each(|(prepares, words)| {
        let (other, mut own) = pair();
        let mut other = other;
        for (word, descriptors) in words.iter().take(64) {
            let message = match word {
                Word::Raw(bytes) => {
                    let bytes = &bytes[..bytes.len().min(1000)];
                    let _ = send(other.as_fd(), bytes, SendFlags::DONTWAIT);
                    continue;
                }
                Word::Port(name, device) => Message::Port { name: name.clone(), device: device.clone() },
                Word::Session(port, state, more) => {
                    Message::Session { port: port.clone(), state: state.clone(), more: *more }
                }
                Word::Learned(network, mac, addr) => {
                    let text = serde_json::json!({
                        "kind": "learned",
                        "learned": [{
                            "place": {"Network": network},
                            "addr": std::net::Ipv4Addr::from(*addr),
                            "mac": mac,
                            "by": network,
                        }]
                    });
                    serde_json::from_value(text).unwrap()
                }
                Word::Frozen(since_ns) => Message::Frozen { since_ns: *since_ns },
                Word::Notice(text) => Message::Notice { text: text.clone() },
                Word::Shared => Message::Shared,
                Word::Unknown(kind) => {
                    let _ = other.send(&serde_json::json!({ "kind": kind }), &[]);
                    continue;
                }
            };
            let with = vec![null.as_fd(); usize::from(descriptors % 4)];
            let _ = other.send(&message, &with);
        }
        drop(other);
        let said = if *prepares { shared(&mut own).map(drop) } else { stopped(&mut own).map(drop) };
        let ended = words.iter().any(|(word, _)| match word {
            Word::Shared => *prepares,
            Word::Frozen(_) => !prepares,
            _ => false,
        });
        assert!(ended || said.is_err());
    });
}
