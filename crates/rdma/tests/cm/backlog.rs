//! Limits on requests that wait for an answer: for a listener, for all listeners, and for all identifiers.

use super::hosts::{CLIENT, Host, parameters};
use super::peer::{Kind, Stage, Talk};
use packet::roce::cm::{Ids, Message, Req};
use rdma::cm::{EventKind, Limits, Transport};

const MANY: Limits = Limits { channels: 8, ids: 1000, requests: 1000, backlog: 1000 };
const FULL: &str = "REJ0:3";

/// Creates a host with a listener of each kind at port 7174, and another at 7175.
fn limited(limits: Limits) -> Talk {
    let mut host = Host::limited("10.0.0.2", limits);
    host.listen("0.0.0.0:7175", Transport::Reliable);
    Talk::new(host)
}

/// Sends the `number`-th request. Returns the result.
fn ask(talk: &mut Talk, number: u32, port: u16) -> String {
    let service = 0x0106 << 16 | u64::from(port);
    let message = Message::Req(Req { local: number, queue_pair: number, service, ..talk.req() });
    heard(talk, number, message)
}

fn question(talk: &mut Talk, number: u32) -> String {
    let Message::SidrReq { partition, service, private, .. } = talk.message(Kind::SidrReq) else { panic!() };
    heard(talk, number, Message::SidrReq { request: number, partition, service, private })
}

fn heard(talk: &mut Talk, number: u32, message: Message) -> String {
    let heard = talk.hear(talk.from, talk.to, number.into(), message);
    for event in talk.host.events.drain(..).filter(|event| event.kind == EventKind::ConnectRequest) {
        talk.id = event.id;
    }
    heard
}

/// Sends 20 requests to each of three listeners. Returns the numbers of those that wait in the end: at the first
/// listener, at the second, and at the one for datagrams.
fn waiting(limits: Limits) -> [usize; 3] {
    let mut talk = limited(limits);
    let is_new = |heard: &str| {
        heard == "ConnectRequest:0" || (assert!([FULL, "SIDR_REP:3"].contains(&heard)), false).1
    };
    [
        (1..=20).filter(|number| is_new(&ask(&mut talk, *number, 7174))).count(),
        (21..=40).filter(|number| is_new(&ask(&mut talk, *number, 7175))).count(),
        (41..=60).filter(|number| is_new(&question(&mut talk, *number))).count(),
    ]
}

#[test]
fn no_more_wait_than_there_may_be() {
    assert_eq!(waiting(MANY), [20; 3]);
    assert_eq!(waiting(Limits { backlog: 7, ..MANY }), [7; 3]);
    assert_eq!(waiting(Limits { requests: 30, ..MANY }), [20, 10, 0]);
    assert_eq!(waiting(Limits { requests: 50, ..MANY }), [20, 20, 10]);
    // Three of the identifiers are the listeners.
    assert_eq!(waiting(Limits { ids: 33, ..MANY }), [20, 10, 0]);
    assert_eq!(waiting(Limits { ids: 53, ..MANY }), [20, 20, 10]);
}

#[test]
fn a_program_may_want_fewer_and_not_more() {
    for (wanted, got) in [(0, 8), (1, 1), (7, 7), (8, 8), (9, 8)] {
        let mut talk = Talk::new(Host::new("10.0.0.2"));
        let id = talk.host.id(Transport::Reliable);
        talk.host.manager.bind_addr(CLIENT, id, "10.0.0.2:7".parse().unwrap()).unwrap();
        talk.host.manager.listen(CLIENT, id, wanted).unwrap();
        assert_eq!((1..=16).filter(|number| ask(&mut talk, *number, 7) != FULL).count(), got);
    }
}

/// A request that is answered or withdrawn makes room for one, at its listener and in all.
#[test]
fn what_is_answered_waits_no_longer() {
    type Answer = fn(&mut Talk);
    let answers: [Answer; 4] = [
        |talk| talk.host.manager.accept(talk.now, CLIENT, talk.id, &parameters(1, b"")).unwrap(),
        |talk| talk.host.manager.reject(CLIENT, talk.id, 0, b"").unwrap(),
        |talk| talk.host.manager.destroy_id(talk.now, CLIENT, talk.id).unwrap(),
        |talk| {
            let Message::Rej(mut rej) = talk.message(Kind::Rej) else { panic!() };
            rej.ids = Ids { local: 2, remote: 0 };
            assert_eq!(talk.hear(talk.from, talk.to, 2, Message::Rej(rej)), "Rejected:28");
            talk.host.events.clear();
        },
    ];
    for limits in [Limits { backlog: 2, ..MANY }, Limits { requests: 2, ..MANY }] {
        for answer in answers {
            let mut talk = limited(limits);
            assert_ne!(ask(&mut talk, 1, 7174), FULL);
            assert_ne!(ask(&mut talk, 2, 7174), FULL);
            assert_eq!(ask(&mut talk, 3, 7174), FULL);
            answer(&mut talk);
            talk.said();
            assert_ne!(ask(&mut talk, 4, 7174), FULL);
            assert_eq!(ask(&mut talk, 5, 7174), FULL);
        }
    }
}

/// A request makes room once, whatever happens to it; identifiers of other kinds never make room.
#[test]
fn what_was_answered_does_not_make_room_again() {
    for limits in [Limits { backlog: 1, ..MANY }, Limits { requests: 1, ..MANY }] {
        let mut talk = limited(limits);
        assert_ne!(ask(&mut talk, 1, 7174), FULL);
        talk.host.manager.accept(talk.now, CLIENT, talk.id, &parameters(1, b"")).unwrap();
        talk.said();
        let first = talk.id;
        assert_ne!(ask(&mut talk, 2, 7174), FULL);
        talk.host.manager.notify(CLIENT, first).unwrap();
        talk.host.manager.disconnect(talk.now, CLIENT, first).unwrap();
        talk.host.manager.destroy_id(talk.now, CLIENT, first).unwrap();
        talk.host.resolved("10.0.0.1:5".parse().unwrap(), Transport::Reliable);
        talk.said();
        assert_eq!(ask(&mut talk, 3, 7174), FULL);
    }
}

/// A request that its listener's program has not seen is removed with the listener, even if the peer has withdrawn it.
#[test]
fn what_nobody_heard_of_goes_with_its_listener() {
    for is_withdrawn in [false, true] {
        let mut talk = Talk::at(Stage::Listening);
        let before = talk.host.manager.len();
        let send = |talk: &mut Talk, message| {
            let mad = packet::roce::cm::Mad { transaction: 0x55, message };
            talk.host.manager.receive(talk.now, talk.from, talk.to, &packet::roce::cm::write(&mad));
        };
        let req = talk.message(Kind::Req);
        send(&mut talk, req);
        if is_withdrawn {
            let Message::Rej(mut rej) = talk.message(Kind::Rej) else { panic!() };
            rej.ids.remote = 0;
            send(&mut talk, Message::Rej(rej));
        }
        talk.host.manager.destroy_id(talk.now, CLIENT, talk.id).unwrap();
        assert_eq!(talk.said(), if is_withdrawn { "" } else { "REJ0:28" });
        talk.host.no_event();
        assert_eq!(talk.host.manager.len(), before - 1, "withdrawn: {is_withdrawn}");
    }
}
