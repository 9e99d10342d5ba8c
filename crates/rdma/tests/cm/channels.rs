//! Channels, their identifiers, and what remains when they are gone.

use super::hosts::{CLIENT, Host, Random, config, parameters};
use super::peer::{Kind, STAGES, Stage, Talk};
use packet::roce::cm::{self, Message, Req};
use rdma::cm::{Client, Limits, PortSpace, Refused, Target, Transport};
use std::collections::VecDeque;
use std::time::Duration;

const NOW: Duration = Duration::ZERO;
const OTHER: Client = Client(2);
const UNKNOWN: u32 = 77;

fn host() -> Host {
    Host::new("10.0.0.1")
}

fn provoke(host: &mut Host, id: u32) {
    let to = "10.0.0.2:1".parse().unwrap();
    host.manager.resolve_addr(CLIENT, id, None, to, |_, _| false).unwrap();
}

fn on(host: &mut Host, channel: u32) -> u32 {
    host.manager.create_id(CLIENT, channel, PortSpace::Tcp, Transport::Reliable).unwrap()
}

#[test]
fn a_port_space_has_its_transports() {
    for (space, transport, result) in [
        (PortSpace::Tcp, Transport::Reliable, Ok(())),
        (PortSpace::Tcp, Transport::Unreliable, Ok(())),
        (PortSpace::Tcp, Transport::Datagram, Err(Refused::Parameter)),
        (PortSpace::Udp, Transport::Reliable, Err(Refused::Parameter)),
        (PortSpace::Udp, Transport::Unreliable, Err(Refused::Parameter)),
        (PortSpace::Udp, Transport::Datagram, Ok(())),
        (PortSpace::Ib, Transport::Reliable, Ok(())),
        (PortSpace::Ib, Transport::Unreliable, Ok(())),
        (PortSpace::Ib, Transport::Datagram, Ok(())),
    ] {
        let mut a = host();
        let made = a.manager.create_id(CLIENT, a.channel, space, transport);
        assert_eq!(made.map(drop), result, "{space:?} {transport:?}");
    }
}

#[test]
fn there_are_as_many_as_allowed() {
    let mut a = Host::limited("10.0.0.1", Limits { channels: 3, ids: 2, ..config().limits });
    let channels = [(); 3].map(|()| a.manager.create_channel(CLIENT));
    let [Ok(second), Ok(third), Err(Refused::TooMany)] = channels else { panic!("{channels:?}") };
    assert!(second != third && second != a.channel);
    let (first, second) = (a.id(Transport::Reliable), a.id(Transport::Reliable));
    assert_ne!(first, second);
    let mut create = || a.manager.create_id(CLIENT, a.channel, PortSpace::Tcp, Transport::Reliable);
    assert_eq!(create(), Err(Refused::TooMany));
    assert_eq!((a.manager.len(), a.manager.is_empty()), (2, false));
    a.manager.destroy_id(NOW, CLIENT, first).unwrap();
    assert_eq!(a.manager.len(), 1);
    a.manager.destroy_channel(NOW, CLIENT, third).unwrap();
    assert!(a.manager.create_channel(CLIENT).is_ok());
    a.manager.destroy_id(NOW, CLIENT, second).unwrap();
    assert!(a.manager.is_empty());
}

#[test]
fn what_is_not_there_or_anothers_is_refused() {
    let mut a = host();
    let (now, to) = (NOW, "10.0.0.2:1".parse().unwrap());
    let id = a.id(Transport::Reliable);
    let others = a.manager.create_channel(OTHER).unwrap();
    for (client, id) in [(OTHER, id), (CLIENT, id + 1), (Client(3), id)] {
        let manager = &mut a.manager;
        let results = [
            manager.bind_addr(client, id, "10.0.0.1:5".parse().unwrap()).map(drop),
            manager.resolve_addr(client, id, None, to, |_, _| true),
            manager.resolve_route(client, id),
            manager.listen(client, id, 0),
            manager.connect(now, client, id, &parameters(1, b"")),
            manager.establish(client, id),
            manager.accept(now, client, id, &parameters(1, b"")),
            manager.reject(client, id, 0, b""),
            manager.notify(client, id),
            manager.disconnect(now, client, id),
            manager.destroy_id(now, client, id),
            manager.transition(client, id, Target::Init).map(drop),
            manager.set_option(client, id, rdma::cm::Choice::TypeOfService(1)),
            manager.migrate_id(client, id, a.channel),
            manager.migrate_id(client, id, others),
        ];
        assert_eq!(results, [Err(Refused::NoSuchId); 15]);
    }
    for (client, channel) in [(OTHER, a.channel), (CLIENT, others), (CLIENT, UNKNOWN)] {
        let made = a.manager.create_id(client, channel, PortSpace::Tcp, Transport::Reliable);
        assert_eq!(made, Err(Refused::NoSuchId));
        assert_eq!(a.manager.destroy_channel(NOW, client, channel), Err(Refused::NoSuchId));
    }
    assert_eq!(a.manager.migrate_id(CLIENT, id, UNKNOWN), Err(Refused::NoSuchId));
    a.no_event();
    assert_eq!(a.manager.len(), 1);
}

#[test]
fn a_channel_goes_with_what_is_on_it() {
    let mut a = host();
    let second = a.manager.create_channel(CLIENT).unwrap();
    let (stays, goes) = (on(&mut a, second), a.id(Transport::Reliable));
    provoke(&mut a, goes);
    provoke(&mut a, stays);
    a.manager.destroy_channel(NOW, CLIENT, a.channel).unwrap();
    assert_eq!((a.event().id, a.manager.len()), (stays, 1));
    a.no_event();
    let on_first = a.manager.create_id(CLIENT, a.channel, PortSpace::Tcp, Transport::Reliable);
    assert_eq!(on_first, Err(Refused::NoSuchId));
    on(&mut a, second);
}

#[test]
fn a_client_goes_with_all_of_its_own() {
    let mut a = host();
    let others = a.manager.create_channel(OTHER).unwrap();
    let second = a.manager.create_channel(CLIENT).unwrap();
    a.id(Transport::Reliable);
    on(&mut a, second);
    let stays = a.manager.create_id(OTHER, others, PortSpace::Tcp, Transport::Reliable).unwrap();
    a.manager.remove_client(NOW, CLIENT);
    let left: Vec<_> = a.manager.describe().map(|(client, it)| (client, it.id)).collect();
    assert_eq!(left, [(OTHER, stays)]);
    for channel in [a.channel, second] {
        assert_eq!(a.manager.destroy_channel(NOW, CLIENT, channel), Err(Refused::NoSuchId));
    }
}

#[test]
fn events_of_an_identifier_go_with_it() {
    let mut a = host();
    let [first, second, third] = [(); 3].map(|()| a.id(Transport::Reliable));
    [first, second, third].into_iter().for_each(|id| provoke(&mut a, id));
    a.manager.destroy_id(NOW, CLIENT, second).unwrap();
    a.take_events();
    assert_eq!(a.events.iter().map(|event| event.id).collect::<Vec<_>>(), [first, third]);
}

#[test]
fn events_move_with_their_identifier() {
    let mut a = host();
    let second = a.manager.create_channel(CLIENT).unwrap();
    let (moves, stays) = (a.id(Transport::Reliable), a.id(Transport::Reliable));
    provoke(&mut a, moves);
    provoke(&mut a, stays);
    a.manager.migrate_id(CLIENT, moves, second).unwrap();
    provoke(&mut a, moves);
    a.take_events();
    let came: Vec<_> = a.events.iter().map(|event| (event.id, event.channel)).collect();
    assert_eq!(came, [(moves, second), (stays, a.channel), (moves, second)]);
}

/// A full channel is tried once; its events wait in order, and those of other channels do not.
#[test]
fn a_full_channel_holds_no_other_up() {
    let mut a = host();
    let second = a.manager.create_channel(CLIENT).unwrap();
    let (slow, fast) = (a.id(Transport::Reliable), on(&mut a, second));
    for _ in 0..2 {
        provoke(&mut a, slow);
        provoke(&mut a, fast);
    }
    let mut asked = Vec::new();
    a.manager.deliver(|event| {
        asked.push(event.id);
        event.channel == second
    });
    assert_eq!(asked, [slow, fast, fast]);
    a.take_events();
    assert_eq!(a.events.iter().map(|event| event.id).collect::<Vec<_>>(), [slow, slow]);
}

#[test]
fn people_are_shown_what_there_is() {
    for (stage, queue_pair) in [
        (Stage::Idle, None),
        (Stage::ReqReceived, None),
        (Stage::ReqSent, Some(0x17)),
        (Stage::RepSent, Some(0x17)),
    ] {
        let talk = Talk::at(stage);
        let (client, it) = talk.host.manager.describe().find(|(_, it)| it.id == talk.id).unwrap();
        assert_eq!((client, it.space, it.queue_pair), (CLIENT, PortSpace::Tcp, queue_pair), "{stage:?}");
        let peer = it.peer.map(|peer| peer.ip());
        assert_eq!((it.local.is_some(), peer), (stage != Stage::Idle, it.local.map(|_| talk.from)));
    }
    assert_eq!(Talk::at(Stage::Idle).host.manager.describe().count(), 3);
}

/// A name is never 0, and never another identifier's.
#[test]
fn names_are_ones_own() {
    let mut numbers: VecDeque<u64> = [0, 5, 0, 1 << 32, 5, 1 << 32 | 6, 0].into();
    let random: Random = Box::new(move || numbers.pop_front().unwrap_or(8));
    let mut a = Host::with("10.0.0.1", config(), |_| random);
    // The second identifier takes a new PSN and a free name.
    let ids = [(); 2].map(|()| a.id(Transport::Reliable));
    let names = ids.map(|id| {
        let to = "10.0.0.2:1".parse().unwrap();
        a.manager.resolve_addr(CLIENT, id, None, to, |_, _| true).unwrap();
        a.manager.resolve_route(CLIENT, id).unwrap();
        a.manager.connect(NOW, CLIENT, id, &parameters(1, b"")).unwrap();
        let sent = a.sent().remove(0);
        let Message::Req(Req { local, .. }) = cm::parse(&sent.mad).unwrap().message else { panic!() };
        local
    });
    assert_eq!(names, [5, 6]);
}

/// Whatever existed, nothing of it is kept in the end.
#[test]
fn nothing_is_left() {
    for stage in STAGES {
        let mut talk = Talk::at(stage);
        if stage == Stage::Passive {
            // A second conversation takes over the queue pair.
            talk.tell(Kind::Dreq);
            let req = Message::Req(Req { local: 5, ..talk.req() });
            talk.hear(talk.from, talk.to, 5, req);
        }
        talk.host.manager.remove_client(talk.now, CLIENT);
        talk.said();
        while let Some(next) = talk.host.manager.poll(talk.now) {
            talk.now = next;
            talk.said();
        }
        talk.said();
        let left = format!("{:?}", talk.host.manager);
        for nothing in [
            "random: Random, channels: {}",
            "endpoints: {}",
            "by_name: {}, by_peer: {}, by_queue_pair: {}, ports: {}, listeners: {}, timers: {}, requests: 0, \
             events: [], datagrams: [], pending: []",
        ] {
            assert!(left.contains(nothing), "{stage:?}: {left}");
        }
    }
}
