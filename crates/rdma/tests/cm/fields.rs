//! The fields of messages, events and queue pairs.

use super::hosts::{CLIENT, Host, ip, parameters};
use super::peer::{Kind, OURS, Stage, THEIRS, Talk, gid};
use packet::roce::cm::{Ids, Message, Rep, Req, SidrRep};
use rdma::Mtu;
use rdma::cm::{
    Choice, ConnectionDetails, DatagramDetails, Parameters, PortSpace, Refused, Retrying, Target, Transition,
    Transport,
};
use std::net::SocketAddr;

fn wanted() -> Parameters {
    Parameters {
        queue_pair: OURS,
        queue_key: None,
        shared_receives: true,
        responder_resources: 2,
        initiator_depth: 3,
        flow_control: true,
        // The fields have three bits each.
        retries: 9,
        rnr_retries: 10,
        private: b"hello".to_vec(),
    }
}

/// Returns the only message that the host has sent.
fn sent(talk: &mut Talk) -> Message {
    let mut all = talk.messages();
    assert_eq!(all.len(), 1);
    all.remove(0).2.message
}

/// Returns an identifier with options that has sent a request, and the request.
fn asking(transport: Transport) -> (Talk, Req) {
    let mut talk = Talk::new(Host::new("10.0.0.2"));
    let to = SocketAddr::new(talk.from, 7174);
    talk.id = talk.host.resolved(to, transport);
    for choice in [Choice::TypeOfService(0x88), Choice::AckTimeout(31)] {
        talk.host.manager.set_option(CLIENT, talk.id, choice).unwrap();
    }
    talk.host.manager.connect(talk.now, CLIENT, talk.id, &wanted()).unwrap();
    let Message::Req(req) = sent(&mut talk) else { panic!() };
    (talk, req)
}

#[test]
fn a_request_says_what_the_program_wants() {
    for (transport, code) in [(Transport::Reliable, 0), (Transport::Unreliable, 1)] {
        let (talk, req) = asking(transport);
        let expected = Req {
            local: talk.name,
            guid: 7,
            queue_pair: OURS,
            responder_resources: 2,
            initiator_depth: 3,
            transport: code,
            psn: req.psn,
            retries: 1,
            mtu: 3,
            rnr_retries: 2,
            gids: [gid(talk.to), gid(talk.from)],
            traffic_class: 0x88,
            ack_timeout: 31,
            private: req.private,
            ..talk.req()
        };
        assert_eq!(req, expected);
        let mut private = [0; 92];
        private[1] = 0x40;
        private[2..4].copy_from_slice(&req.private[2..4]);
        private[16..20].copy_from_slice(&[10, 0, 0, 2]);
        private[32..36].copy_from_slice(&[10, 0, 0, 1]);
        private[36..41].copy_from_slice(b"hello");
        assert_eq!(req.private, private);
        assert_ne!(req.private[2..4], [0; 2], "it has a port");
    }
}

#[test]
fn a_reply_says_what_the_program_offers() {
    let mut talk = Talk::at(Stage::ReqReceived);
    talk.host.manager.accept(talk.now, CLIENT, talk.id, &wanted()).unwrap();
    let Message::Rep(rep) = sent(&mut talk) else { panic!() };
    let mut private = [0; 196];
    private[..5].copy_from_slice(b"hello");
    let expected = Rep {
        ids: Ids { local: talk.name, remote: talk.req().local },
        queue_key: 0,
        queue_pair: OURS,
        psn: rep.psn,
        responder_resources: 2,
        initiator_depth: 3,
        ack_delay: 15,
        failover: 1,
        flow_control: true,
        rnr_retries: 2,
        shared_receives: true,
        guid: 7,
        private,
    };
    assert_eq!(rep, expected);
}

#[test]
fn an_answer_says_where_the_queue_pair_is() {
    for (queue_key, answered) in [(None, 0x0123_4567), (Some(5), 5)] {
        let mut talk = Talk::at(Stage::SidrReqReceived);
        talk.host.manager.accept(talk.now, CLIENT, talk.id, &Parameters { queue_key, ..wanted() }).unwrap();
        let Message::SidrRep(rep) = sent(&mut talk) else { panic!() };
        let Message::SidrReq { request, service, .. } = talk.message(Kind::SidrReq) else { panic!() };
        let expected = SidrRep {
            request,
            status: 0,
            info_len: 0,
            queue_pair: OURS,
            service,
            queue_key: answered,
            info: [0; 72],
            private: rep.private,
        };
        assert_eq!((rep, &rep.private[..6], rep.private[6..] == [0; 130]), (expected, &b"hello\0"[..], true));
        let described: Vec<_> = talk.host.manager.describe().filter(|(_, it)| it.id == talk.id).collect();
        assert_eq!(described[0].1.queue_pair, Some(OURS));
    }
    let mut talk = Talk::at(Stage::SidrReqReceived);
    assert_eq!(talk.host.manager.reject(CLIENT, talk.id, 0, &[1; 137]), Err(Refused::PrivateData));
    talk.host.manager.reject(CLIENT, talk.id, 0, &[1; 136]).unwrap();
    let Message::SidrRep(rep) = sent(&mut talk) else { panic!() };
    assert_eq!((rep.status, rep.queue_pair, rep.private), (2, 0, [1; 136]));
}

#[test]
fn private_data_fit_their_field() {
    for (stage, most) in
        [(Stage::RouteResolved, 56), (Stage::ReqReceived, 196), (Stage::SidrReqReceived, 136)]
    {
        for (len, expected) in [(most, Ok(())), (most + 1, Err(Refused::PrivateData))] {
            let mut talk = Talk::at(stage);
            let (now, id, parameters) = (talk.now, talk.id, parameters(1, &vec![1; len]));
            let manager = &mut talk.host.manager;
            let result = match stage {
                Stage::RouteResolved => manager.connect(now, CLIENT, id, &parameters),
                _ => manager.accept(now, CLIENT, id, &parameters),
            };
            assert_eq!(result, expected, "{stage:?}");
            let state = talk.state();
            assert_eq!(talk.said().is_empty(), expected.is_err(), "{stage:?} {state}");
        }
    }
    for (stage, most) in [(Stage::ReqReceived, 148), (Stage::RepReceived, 148)] {
        let mut talk = Talk::at(stage);
        let (id, manager) = (talk.id, &mut talk.host.manager);
        assert_eq!(manager.reject(CLIENT, id, 5, &vec![1; most + 1]), Err(Refused::PrivateData));
        manager.reject(CLIENT, id, 5, &vec![1; most]).unwrap();
        let Message::Rej(rej) = sent(&mut talk) else { panic!() };
        assert_eq!((rej.reason, rej.private), (5, [1; 148]));
    }
}

/// The peer's initiator depth is our responder resources.
#[test]
fn events_say_what_the_peer_offers() {
    let connection = ConnectionDetails {
        queue_pair: THEIRS,
        shared_receives: true,
        responder_resources: 6,
        initiator_depth: 5,
        flow_control: true,
        retries: 3,
        rnr_retries: 4,
    };
    let mut talk = Talk::at(Stage::Listening);
    assert_eq!(talk.tell(Kind::Req), "ConnectRequest:0");
    let event = talk.host.event();
    let route = event.route.unwrap();
    assert_eq!((event.connection, event.listener), (Some(connection), Some(talk.id)));
    let (local, peer) = ("10.0.0.2:7174".parse().unwrap(), "10.0.0.1:99".parse().unwrap());
    assert_eq!((route.local, route.peer, route.mtu), (local, peer, Mtu::Bytes512));

    let (mut talk, _) = asking(Transport::Reliable);
    assert_eq!(talk.tell(Kind::Rep), "ConnectResponse:0");
    assert_eq!(talk.host.event().connection, Some(ConnectionDetails { retries: 1, ..connection }));

    let mut talk = Talk::at(Stage::SidrReqSent);
    talk.tell(Kind::SidrRep(0));
    let expected = DatagramDetails { queue_pair: THEIRS, queue_key: 0x0123_4567 };
    assert_eq!(talk.host.event().datagram, Some(expected));
}

fn transitions(talk: &mut Talk) -> [Result<Transition, Refused>; 3] {
    let targets = [Target::Init, Target::ReadyToReceive, Target::ReadyToSend];
    targets.map(|target| talk.host.manager.transition(CLIENT, talk.id, target))
}

#[test]
fn who_asked_has_a_queue_pair_as_both_agreed() {
    for (transport, is_reliable) in [(Transport::Reliable, true), (Transport::Unreliable, false)] {
        let (mut talk, req) = asking(transport);
        let before = Ok(Transition::Init { writes: false, reads: false });
        assert_eq!(transitions(&mut talk), [before, Err(Refused::State), Err(Refused::State)]);
        talk.tell(Kind::Rep);
        let retrying = Retrying { timeout: 31, retries: 1, rnr_retries: 4, reads: 3 };
        let expected = [
            Ok(Transition::Init { writes: true, reads: true }),
            Ok(Transition::ReadyToReceive {
                destination: gid(talk.from),
                source_index: 1,
                traffic_class: 0x88,
                hop_limit: 64,
                mtu: Mtu::Bytes1024,
                queue_pair: THEIRS,
                psn: req.psn,
                reliable: is_reliable.then_some((2, 12)),
            }),
            Ok(Transition::ReadyToSend { psn: 0x00ab_cdef, reliable: is_reliable.then_some(retrying) }),
        ];
        assert_eq!(transitions(&mut talk), expected);
    }
}

#[test]
fn who_was_asked_has_a_queue_pair_as_both_agreed() {
    let mut talk = Talk::at(Stage::Listening);
    for choice in [Choice::TypeOfService(0x88), Choice::AckTimeout(9)] {
        talk.host.manager.set_option(CLIENT, talk.id, choice).unwrap();
    }
    // These are more than the adapter has.
    let req = Req { initiator_depth: 17, responder_resources: 18, ..talk.req() };
    talk.hear(talk.from, talk.to, 1, Message::Req(req));
    talk.id = talk.host.event().id;
    let reads = |transitions: [Result<Transition, Refused>; 3]| match transitions {
        [
            Ok(Transition::Init { writes: true, reads }),
            Ok(Transition::ReadyToReceive { traffic_class: 0x88, reliable: Some((peer_reads, 12)), .. }),
            Ok(Transition::ReadyToSend { reliable: Some(retrying), .. }),
        ] => {
            assert_eq!((retrying.timeout, retrying.retries, retrying.rnr_retries), (9, 3, 4));
            (reads, peer_reads, retrying.reads)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(reads(transitions(&mut talk)), (true, 16, 16));
    talk.host.manager.accept(talk.now, CLIENT, talk.id, &wanted()).unwrap();
    assert_eq!(reads(transitions(&mut talk)), (true, 2, 3));
    // Without an address of the guest, the identifier can't send.
    talk.host.manager.set_gids(vec![gid(ip("10.0.0.9"))]);
    assert_eq!(transitions(&mut talk)[1], Err(Refused::AddressNotAvailable));
}

#[test]
fn a_peer_may_read_where_some_reads_are_allowed() {
    for (allowed, reads) in [(0, false), (1, true)] {
        let mut talk = Talk::at(Stage::ReqReceived);
        let offer = Parameters { responder_resources: allowed, ..wanted() };
        talk.host.manager.accept(talk.now, CLIENT, talk.id, &offer).unwrap();
        assert_eq!(transitions(&mut talk)[0], Ok(Transition::Init { writes: true, reads }));
    }
}

/// The peer may offer less than was requested, but not more.
#[test]
fn a_reply_limits_what_was_asked_for() {
    for ((takes, sends), (depth, resources)) in
        [((1, 1), (1, 1)), ((3, 2), (3, 2)), ((4, 3), (3, 2)), ((0, 0), (0, 0))]
    {
        let (mut talk, _) = asking(Transport::Reliable);
        let rep = Rep { responder_resources: takes, initiator_depth: sends, ..talk.rep() };
        talk.hear(talk.from, talk.to, talk.transaction, Message::Rep(rep));
        let [
            _,
            Ok(Transition::ReadyToReceive { reliable: Some((got, _)), .. }),
            Ok(Transition::ReadyToSend { reliable: Some(retrying), .. }),
        ] = transitions(&mut talk)
        else {
            panic!()
        };
        assert_eq!((retrying.reads, got), (depth, resources));
    }
}

#[test]
fn options_have_values_that_can_be() {
    let mut talk = Talk::at(Stage::Idle);
    let mut set = |choice| talk.host.manager.set_option(CLIENT, talk.id, choice);
    assert_eq!(set(Choice::AckTimeout(31)), Ok(()));
    assert_eq!(set(Choice::AckTimeout(32)), Err(Refused::Parameter));
    assert_eq!(set(Choice::TypeOfService(255)), Ok(()));
}

#[test]
fn numbers_are_those_of_linux() {
    for (space, number, name) in
        [(PortSpace::Tcp, 0x0106, "TCP"), (PortSpace::Udp, 0x0111, "UDP"), (PortSpace::Ib, 0x013f, "IB")]
    {
        assert_eq!((PortSpace::from_number(number), space.name()), (Some(space), name));
        assert_eq!(space.service(0xffff), u64::from(number) << 16 | 0xffff);
    }
    assert_eq!(PortSpace::from_number(0x0107), None);
    for (refused, errno) in [
        (Refused::NoSuchId, 2),
        (Refused::State, 22),
        (Refused::Parameter, 22),
        (Refused::PrivateData, 22),
        (Refused::AddressInUse, 98),
        (Refused::AddressNotAvailable, 99),
        (Refused::TooMany, 12),
    ] {
        assert_eq!(refused.errno(), errno);
    }
}
