//! Connections over a wire without loss.

use super::hosts::{CLIENT, Host, carry, connected, hosts, ip, parameters};
use packet::roce::cm::{self, Ids, Mad, Message, Req};
use rdma::Mtu;
use rdma::cm::{Choice, Client, EventKind, GRACE, Refused, Retrying, Target, Transition, Transport, status};
use std::net::SocketAddr;
use std::time::Duration;

const NOW: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(3600);

#[test]
fn both_ends_learn_of_each_other() {
    let (mut a, mut b, listener, to) = hosts();
    let active = a.connect(NOW, to, 17);
    carry(NOW, &mut a, &mut b);
    let request = b.event();
    assert_eq!((request.kind, request.listener), (EventKind::ConnectRequest, Some(listener)));
    let route = request.route.unwrap();
    assert_eq!((route.local, route.peer.ip()), (to, a.address));
    let details = request.connection.unwrap();
    // The peer's depth is our resources.
    assert_eq!((details.queue_pair, details.responder_resources, details.initiator_depth), (17, 3, 4));
    assert_eq!((&request.private[..5], request.private.len()), (&b"hello"[..], 56));
    let passive = request.id;
    let Ok(Transition::ReadyToReceive { destination, source_index, mtu, queue_pair, psn, reliable, .. }) =
        b.manager.transition(CLIENT, passive, Target::ReadyToReceive)
    else {
        panic!()
    };
    assert_eq!((destination, source_index), ("::ffff:10.0.0.1".parse().unwrap(), 1));
    assert_eq!((mtu, queue_pair, reliable), (Mtu::Bytes1024, 17, Some((3, 12))));

    b.manager.accept(NOW, CLIENT, passive, &parameters(18, &[9; 196])).unwrap();
    carry(NOW, &mut a, &mut b);
    let response = a.event();
    assert_eq!((response.kind, response.id), (EventKind::ConnectResponse, active));
    assert_eq!((response.connection.unwrap().queue_pair, response.private), (18, vec![9; 196]));
    let Ok(Transition::ReadyToSend { psn: sent, reliable: Some(Retrying { reads, retries, .. }) }) =
        a.manager.transition(CLIENT, active, Target::ReadyToSend)
    else {
        panic!()
    };
    assert_eq!((sent, reads, retries), (psn, 3, 7));
    assert_eq!(
        a.manager.transition(CLIENT, active, Target::Init),
        Ok(Transition::Init { writes: true, reads: true })
    );
    b.no_event();
    a.manager.establish(CLIENT, active).unwrap();
    carry(NOW, &mut a, &mut b);
    assert_eq!(
        (b.event().kind, a.manager.poll(NOW), b.manager.poll(NOW)),
        (EventKind::Established, None, None)
    );
}

/// The receiver of packets determines the first one's number (IBTA 12.7).
#[test]
fn packets_are_numbered_as_their_receiver_says() {
    let (mut a, mut b, _, to) = hosts();
    let active = a.connect(NOW, to, 17);
    let request = a.sent().remove(0);
    b.manager.receive(NOW, request.source, request.destination, &request.mad);
    let passive = b.event().id;
    b.manager.accept(NOW, CLIENT, passive, &parameters(18, &[])).unwrap();
    let reply = b.sent().remove(0);
    a.manager.receive(NOW, reply.source, reply.destination, &reply.mad);

    let numbers = |host: &mut Host, id| {
        let mut transition = |target| host.manager.transition(CLIENT, id, target).unwrap();
        match (transition(Target::ReadyToReceive), transition(Target::ReadyToSend)) {
            (Transition::ReadyToReceive { psn, .. }, Transition::ReadyToSend { psn: sent, .. }) => {
                (psn, sent)
            }
            other => panic!("{other:?}"),
        }
    };
    let (Ok(Mad { message: Message::Req(req), .. }), Ok(Mad { message: Message::Rep(rep), .. })) =
        (cm::parse(&request.mad), cm::parse(&reply.mad))
    else {
        panic!()
    };
    assert_eq!(numbers(&mut a, active), (req.psn, rep.psn));
    assert_eq!(numbers(&mut b, passive), (rep.psn, req.psn));
}

#[test]
fn connections_end_from_either_side_or_both() {
    for (by_active, by_passive) in [(true, false), (false, true), (true, true)] {
        let (mut a, mut b, _, to) = hosts();
        let (active, passive) = connected(&mut a, &mut b, to);
        if by_active {
            a.manager.disconnect(NOW, CLIENT, active).unwrap();
        }
        if by_passive {
            b.manager.disconnect(NOW, CLIENT, passive).unwrap();
        }
        carry(NOW, &mut a, &mut b);
        assert_eq!((a.event().kind, b.event().kind), (EventKind::Disconnected, EventKind::Disconnected));
        // Programs do that when they get the event.
        a.manager.disconnect(NOW, CLIENT, active).unwrap();
        b.manager.disconnect(NOW, CLIENT, passive).unwrap();
        carry(NOW, &mut a, &mut b);
        a.no_event();
        assert_eq!((a.manager.poll(LATER), b.manager.poll(LATER)), (None, None));
        assert_eq!((a.event().kind, b.event().kind), (EventKind::TimewaitExit, EventKind::TimewaitExit));
        a.manager.destroy_id(LATER, CLIENT, active).unwrap();
        assert!(a.manager.is_empty() && a.sent().is_empty());
    }
}

#[test]
fn who_destroys_its_identifier_disconnects() {
    let (mut a, mut b, listener, to) = hosts();
    let (_, passive) = connected(&mut a, &mut b, to);
    a.manager.remove_client(NOW, CLIENT);
    // The peer is informed until it answers, and the connection is remembered for longer.
    assert_eq!((a.manager.len(), a.sent().len()), (1, 1));
    let next = a.manager.poll(NOW).unwrap();
    a.manager.poll(next);
    carry(next, &mut a, &mut b);
    assert_eq!(b.event().kind, EventKind::Disconnected);
    a.manager.poll(LATER);
    assert!(a.manager.is_empty());
    b.manager.destroy_id(LATER, CLIENT, passive).unwrap();
    b.manager.destroy_id(LATER, CLIENT, listener).unwrap();
    b.manager.poll(LATER * 2);
    assert!(b.manager.is_empty());
}

#[test]
fn a_request_waits_a_moment_for_its_listener() {
    let (mut a, mut b) = (Host::new("10.0.0.1"), Host::new("10.0.0.2"));
    let to = SocketAddr::new(b.address, 7174);
    a.connect(NOW, to, 17);
    carry(NOW, &mut a, &mut b);
    b.no_event();
    let listener = b.listen("0.0.0.0:7174", Transport::Reliable);
    assert_eq!(b.manager.poll(NOW), None);
    let request = b.event();
    assert_eq!((request.kind, request.listener), (EventKind::ConnectRequest, Some(listener)));
}

#[test]
fn few_requests_wait_for_listeners() {
    let (mut a, mut b, _, _) = hosts();
    for _ in 0..65 {
        let id = a.connect(NOW, "10.0.0.2:1".parse().unwrap(), 17);
        carry(NOW, &mut a, &mut b);
        a.manager.destroy_id(NOW, CLIENT, id).unwrap();
    }
    // The last one found no room, and was refused at once.
    b.manager.poll(NOW + GRACE);
    assert_eq!(b.sent().len(), 64);
}

#[test]
fn requests_are_refused_with_reasons() {
    let (mut a, mut b, _, to) = hosts();
    let nobody = a.connect(NOW, "10.0.0.2:1".parse().unwrap(), 17);
    carry(NOW, &mut a, &mut b);
    assert_eq!(b.manager.poll(NOW), Some(NOW + GRACE));
    a.no_event();
    b.manager.poll(NOW + GRACE);
    carry(NOW, &mut a, &mut b);
    let rejected = a.event();
    assert_eq!((rejected.kind, rejected.status, rejected.id), (EventKind::Rejected, 8, nobody));

    let unwanted = a.connect(NOW, to, 17);
    carry(NOW, &mut a, &mut b);
    let request = b.event();
    assert_eq!(b.manager.reject(CLIENT, request.id, 0, &[0; 149]), Err(Refused::PrivateData));
    b.manager.reject(CLIENT, request.id, 0, b"no").unwrap();
    carry(NOW, &mut a, &mut b);
    let rejected = a.event();
    assert_eq!((rejected.kind, rejected.status, rejected.id), (EventKind::Rejected, 28, unwanted));
    assert_eq!((&rejected.private[..3], rejected.private.len()), (&b"no\0"[..], 148));
    assert_eq!(b.manager.accept(NOW, CLIENT, request.id, &parameters(1, b"")), Err(Refused::State));

    let id = a.resolved(to, Transport::Unreliable);
    a.manager.connect(NOW, CLIENT, id, &parameters(19, b"")).unwrap();
    carry(NOW, &mut a, &mut b);
    assert_eq!((a.event().status, b.sent().len()), (9, 0));
}

#[test]
fn a_listener_has_as_many_requests_as_it_wants() {
    let (mut a, mut b, _, _) = hosts();
    let listener = b.id(Transport::Reliable);
    b.manager.bind_addr(CLIENT, listener, "10.0.0.2:99".parse().unwrap()).unwrap();
    b.manager.listen(CLIENT, listener, 2).unwrap();
    for queue_pair in 1..=3 {
        a.connect(NOW, "10.0.0.2:99".parse().unwrap(), queue_pair);
    }
    carry(NOW, &mut a, &mut b);
    let (first, second) = (b.event(), b.event());
    b.no_event();
    assert_eq!((a.event().status, second.kind), (3, EventKind::ConnectRequest));
    b.manager.reject(CLIENT, first.id, 0, b"").unwrap();
    a.connect(NOW, "10.0.0.2:99".parse().unwrap(), 4);
    carry(NOW, &mut a, &mut b);
    assert_eq!(b.event().connection.unwrap().queue_pair, 4);
    // The program has never seen the third request: it is removed with the listener.
    a.events.clear();
    a.take_events();
    a.events.clear();
    b.manager.destroy_id(NOW, CLIENT, second.id).unwrap();
    a.connect(NOW, "10.0.0.2:99".parse().unwrap(), 5);
    carry(NOW, &mut a, &mut b);
    b.manager.destroy_id(NOW, CLIENT, listener).unwrap();
    b.no_event();
    carry(NOW, &mut a, &mut b);
    assert_eq!((a.event().status, a.event().status), (28, 28));
}

#[test]
fn a_patient_program_is_waited_for() {
    let (mut a, mut b, _, to) = hosts();
    let active = a.connect(NOW, to, 17);
    carry(NOW, &mut a, &mut b);
    let request = b.event();
    // The request is repeated; then the peer waits for more than a minute.
    let mut now = NOW;
    for _ in 0..3 {
        now = a.manager.poll(now).unwrap();
        a.manager.poll(now);
        carry(now, &mut a, &mut b);
    }
    assert!(now > Duration::from_secs(120) && b.manager.len() == 2, "{now:?}");
    b.no_event();
    b.manager.accept(now, CLIENT, request.id, &parameters(18, b"")).unwrap();
    carry(now, &mut a, &mut b);
    assert_eq!(a.event().kind, EventKind::ConnectResponse);
    // The reply is repeated while the program does something else.
    let again = b.manager.poll(now).unwrap();
    b.manager.poll(again);
    carry(again, &mut a, &mut b);
    assert!(b.manager.poll(again).unwrap() > again + Duration::from_secs(60));
    // A packet of the connection shows that the peer is ready.
    b.manager.notify(CLIENT, request.id).unwrap();
    assert_eq!((b.event().kind, b.manager.poll(again)), (EventKind::Established, None));
    a.manager.establish(CLIENT, active).unwrap();
    carry(now, &mut a, &mut b);
    b.no_event();
}

#[test]
fn what_nobody_answers_fails() {
    let (mut a, _, _, to) = hosts();
    let id = a.connect(NOW, to, 17);
    let (mut now, mut requests) = (NOW, a.sent().len());
    while let Some(next) = a.manager.poll(now) {
        now = next;
        requests += a.sent().len();
    }
    // It is sent sixteen times; then it is given up with a REJ.
    assert_eq!((requests + a.sent().len(), now.as_secs()), (17, 68));
    let failed = a.event();
    assert_eq!((failed.kind, failed.status, failed.id), (EventKind::Unreachable, status::TIMED_OUT, id));
    assert_eq!(a.manager.disconnect(now, CLIENT, id), Err(Refused::State));
}

#[test]
fn a_peer_that_begins_anew_ends_the_old_connection() {
    let (mut a, mut b, _, to) = hosts();
    let (_, passive) = connected(&mut a, &mut b, to);
    let mut a = Host::seeded("10.0.0.1", 99);
    a.connect(NOW, to, 17);
    carry(NOW, &mut a, &mut b);
    assert_eq!((a.event().status, b.event().kind), (10, EventKind::Disconnected));
    b.no_event();
    b.manager.destroy_id(NOW, CLIENT, passive).unwrap();
    a.connect(NOW, to, 17);
    carry(NOW, &mut a, &mut b);
    assert_eq!(b.event().kind, EventKind::ConnectRequest);
}

#[test]
fn a_host_connects_to_itself() {
    let (_, mut b, _, to) = hosts();
    let active = b.connect(NOW, to, 17);
    let around = |b: &mut Host| {
        for message in b.sent() {
            b.manager.receive(NOW, message.source, message.destination, &message.mad);
        }
    };
    around(&mut b);
    let request = b.event();
    b.manager.accept(NOW, CLIENT, request.id, &parameters(18, b"")).unwrap();
    around(&mut b);
    assert_eq!((b.event().id, request.kind), (active, EventKind::ConnectRequest));
    b.manager.establish(CLIENT, active).unwrap();
    around(&mut b);
    assert_eq!(b.event().id, request.id);
    b.manager.disconnect(NOW, CLIENT, active).unwrap();
    (0..3).for_each(|_| around(&mut b));
    let ended = [b.event(), b.event()].map(|event| (event.id, event.kind));
    assert_eq!(ended, [request.id, active].map(|id| (id, EventKind::Disconnected)));
}

#[test]
fn addresses_are_the_guests_and_ports_are_taken_once() {
    let (mut a, ..) = hosts();
    let [x, y, z] = [(); 3].map(|()| a.id(Transport::Reliable));
    let bind = |a: &mut Host, id, text: &str| a.manager.bind_addr(CLIENT, id, text.parse().unwrap());
    assert_eq!(bind(&mut a, x, "10.0.0.9:5"), Err(Refused::AddressNotAvailable));
    let got = bind(&mut a, x, "10.0.0.1:0").unwrap();
    assert!((32768..61000).contains(&got.port()) && got.ip() == a.address);
    assert_eq!(bind(&mut a, x, "10.0.0.1:0"), Err(Refused::State));
    for wanted in ["0.0.0.0", "10.0.0.1", "[::]"] {
        let wanted = format!("{wanted}:{}", got.port());
        assert_eq!(bind(&mut a, y, &wanted), Err(Refused::AddressInUse), "{wanted}");
    }
    assert!(bind(&mut a, y, &format!("[fd00::1]:{}", got.port())).is_ok());
    a.manager.set_option(CLIENT, x, Choice::ReuseAddress(true)).unwrap();
    a.manager.set_option(CLIENT, z, Choice::ReuseAddress(true)).unwrap();
    assert!(bind(&mut a, z, &got.to_string()).is_ok());
    a.manager.listen(CLIENT, x, 1).unwrap();
    assert_eq!(a.manager.listen(CLIENT, z, 1), Err(Refused::AddressInUse));
    // The port is free when its owner is gone.
    a.manager.destroy_id(NOW, CLIENT, x).unwrap();
    a.manager.listen(CLIENT, z, 1).unwrap();
}

#[test]
fn the_listener_of_the_address_goes_first() {
    let (mut a, mut b, any, to) = hosts();
    let passive = b.id(Transport::Reliable);
    for id in [any, passive] {
        let _ = b.manager.set_option(CLIENT, id, Choice::ReuseAddress(true));
    }
    // The identifier that is bound to all addresses listens, and has the port for itself.
    assert_eq!(b.manager.bind_addr(CLIENT, passive, to), Err(Refused::AddressInUse));
    b.manager.destroy_id(NOW, CLIENT, any).unwrap();
    b.manager.bind_addr(CLIENT, passive, to).unwrap();
    let all = b.id(Transport::Reliable);
    b.manager.set_option(CLIENT, all, Choice::ReuseAddress(true)).unwrap();
    b.manager.bind_addr(CLIENT, all, "[::]:7174".parse().unwrap()).unwrap();
    b.manager.listen(CLIENT, all, 0).unwrap();
    a.connect(NOW, to, 1);
    carry(NOW, &mut a, &mut b);
    assert_eq!(b.event().listener, Some(all), "the other does not listen yet");
    b.manager.listen(CLIENT, passive, 0).unwrap();
    a.connect(NOW, to, 2);
    carry(NOW, &mut a, &mut b);
    assert_eq!(b.event().listener, Some(passive));
}

#[test]
fn a_destination_that_is_not_reached_can_be_asked_for_again() {
    let (mut a, ..) = hosts();
    let id = a.id(Transport::Reliable);
    let to = "10.0.0.2:1".parse().unwrap();
    let asked = |source, destination| (source, destination) != (ip("10.0.0.1"), ip("10.0.0.2"));
    a.manager.resolve_addr(CLIENT, id, None, to, asked).unwrap();
    let failed = a.event();
    assert_eq!((failed.kind, failed.status), (EventKind::AddrError, status::UNREACHABLE));
    assert_eq!(a.manager.resolve_route(CLIENT, id), Err(Refused::State));
    a.manager.resolve_addr(CLIENT, id, None, to, |_, _| true).unwrap();
    assert_eq!(a.event().kind, EventKind::AddrResolved);
    assert_eq!(a.manager.connect(NOW, CLIENT, id, &parameters(1, b"")), Err(Refused::State));
    a.manager.resolve_route(CLIENT, id).unwrap();
    assert_eq!(a.manager.connect(NOW, CLIENT, id, &parameters(1, &[0; 57])), Err(Refused::PrivateData));
    // A program that requests events without taking them does not fill the memory.
    let id = a.id(Transport::Reliable);
    let results = (0..20).map(|_| a.manager.resolve_addr(CLIENT, id, None, to, |_, _| false));
    assert_eq!(results.filter(Result::is_ok).count(), 8);
}

#[test]
fn what_is_another_programs_is_not_there() {
    let (mut a, mut b, listener, to) = hosts();
    let other = Client(2);
    let channel = b.manager.create_channel(other).unwrap();
    assert_eq!(b.manager.destroy_id(NOW, other, listener), Err(Refused::NoSuchId));
    assert_eq!(b.manager.migrate_id(other, listener, channel), Err(Refused::NoSuchId));
    assert_eq!(b.manager.migrate_id(CLIENT, listener, channel), Err(Refused::NoSuchId));
    assert_eq!(b.manager.destroy_channel(NOW, CLIENT, channel), Err(Refused::NoSuchId));
    let second = b.manager.create_channel(CLIENT).unwrap();
    a.connect(NOW, to, 1);
    carry(NOW, &mut a, &mut b);
    // A waiting event moves along.
    let mut id = 0;
    b.manager.deliver(|event| {
        id = event.id;
        false
    });
    b.manager.migrate_id(CLIENT, id, second).unwrap();
    assert_eq!((b.event().channel, b.manager.len()), (second, 2));
    b.manager.remove_client(NOW, other);
    assert_eq!(b.manager.len(), 2);
}

#[test]
fn there_are_no_more_than_there_may_be() {
    let (mut a, ..) = hosts();
    let created = (0..100).filter(|_| {
        let space = rdma::cm::PortSpace::Tcp;
        a.manager.create_id(CLIENT, a.channel, space, Transport::Reliable).is_ok()
    });
    assert_eq!(created.count(), 64);
    assert_eq!((0..100).filter(|_| a.manager.create_channel(CLIENT).is_ok()).count(), 7);
}

#[test]
fn whoever_asks_again_is_told_that_it_has_ended() {
    let (mut a, mut b, _, to) = hosts();
    let (active, passive) = connected(&mut a, &mut b, to);
    a.manager.disconnect(NOW, CLIENT, active).unwrap();
    let dreq = a.sent().pop().unwrap();
    let mut now = NOW;
    // This works at once, when the end is no longer remembered, and when nothing of the connection exists any more.
    for round in 0..3 {
        b.manager.receive(now, dreq.source, dreq.destination, &dreq.mad);
        let answers = b.sent();
        b.manager.receive(now, dreq.source, dreq.destination, &dreq.mad);
        assert_eq!((answers.len(), b.sent()), (1, answers));
        now += LATER;
        b.manager.poll(now);
        b.take_events();
        if round == 1 {
            b.manager.destroy_id(now, CLIENT, passive).unwrap();
        }
    }
    let told = [b.event(), b.event()].map(|event| event.kind);
    assert_eq!((told, b.manager.len()), ([EventKind::Disconnected, EventKind::TimewaitExit], 1));
    b.no_event();
}

#[test]
fn patience_is_asked_for_by_who_was_asked() {
    let (mut a, _, _, to) = hosts();
    a.connect(NOW, to, 17);
    let req = a.sent().pop().unwrap();
    let Message::Req(Req { local, .. }) = cm::parse(&req.mad).unwrap().message else { panic!() };
    let transaction = cm::parse(&req.mad).unwrap().transaction;
    let before = a.manager.poll(NOW);
    let ids = Ids { local: 1, remote: local };
    let mra = |which, transaction| {
        let message = Message::Mra { ids, which, timeout: 31, private: [0; 222] };
        cm::write(&Mad { transaction, message })
    };
    let (from, stranger) = (req.destination, ip("10.0.0.3"));
    for (from, mad) in
        [(from, mra(0, transaction ^ 1)), (from, mra(1, transaction)), (stranger, mra(0, transaction))]
    {
        a.manager.receive(NOW, from, req.source, &mad);
        assert_eq!(a.manager.poll(NOW), before);
    }
    a.manager.receive(NOW, from, req.source, &mra(0, transaction));
    let patient = a.manager.poll(NOW).unwrap();
    // The host does not wait for hours, as requested, and waits only once.
    assert!((60..90).contains(&patient.as_secs()), "{patient:?}");
    a.manager.receive(Duration::from_secs(50), from, req.source, &mra(0, transaction));
    assert_eq!(a.manager.poll(NOW), Some(patient));
}
