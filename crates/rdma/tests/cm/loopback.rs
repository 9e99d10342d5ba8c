//! A guest that connects to itself through loopback addresses.

use super::hosts::{CLIENT, Host, ip, parameters};
use rdma::cm::{Event, EventKind, GRACE, IpHeader, Outgoing, Refused, Target, Transition, Transport};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const NOW: Duration = Duration::ZERO;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Carries a host's messages to itself; returns the address used.
fn carry(host: &mut Host) -> Option<IpAddr> {
    let mut by = None;
    while let Some(Outgoing { source, destination, mad }) = host.manager.next_datagram() {
        assert_eq!(source, destination);
        by = Some(source);
        host.manager.receive(NOW, source, destination, &mad);
    }
    by
}

fn resolve(host: &mut Host, source: Option<&str>, to: &str, transport: Transport) -> (u32, Event) {
    let id = host.id(transport);
    host.manager.resolve_addr(CLIENT, id, source.map(at), at(to), |_, _| true).unwrap();
    (id, host.event())
}

/// Connects a client to a listener, if it gets there. Returns the address used, and the addresses of both ends as seen
/// by client and server.
fn connected(listens: &str, source: Option<&str>, to: &str) -> Option<(IpAddr, [(IpAddr, IpAddr); 2])> {
    let mut a = Host::new("10.0.0.1");
    let listener = a.listen(listens, Transport::Reliable);
    let (id, resolved) = resolve(&mut a, source, to, Transport::Reliable);
    assert_eq!(resolved.kind, EventKind::AddrResolved);
    a.manager.resolve_route(CLIENT, id).unwrap();
    assert_eq!(a.event().kind, EventKind::RouteResolved);
    a.manager.connect(NOW, CLIENT, id, &parameters(17, b"me")).unwrap();
    let by = carry(&mut a).unwrap();
    a.take_events();
    if a.events.is_empty() {
        a.manager.poll(GRACE);
        carry(&mut a);
        assert_eq!(a.event().kind, EventKind::Rejected);
        return None;
    }
    let request = a.event();
    assert_eq!((request.kind, request.listener), (EventKind::ConnectRequest, Some(listener)));
    a.manager.accept(NOW, CLIENT, request.id, &parameters(18, b"myself")).unwrap();
    carry(&mut a);
    assert_eq!(a.event().kind, EventKind::ConnectResponse);
    for end in [id, request.id] {
        let ready = a.manager.transition(CLIENT, end, Target::ReadyToReceive).unwrap();
        let Transition::ReadyToReceive { destination, .. } = ready else { panic!() };
        assert_eq!(IpAddr::V6(destination).to_canonical(), by, "queue pairs know nothing of loopback");
    }
    a.manager.establish(CLIENT, id).unwrap();
    carry(&mut a);
    assert_eq!(a.event().kind, EventKind::Established);
    a.manager.disconnect(NOW, CLIENT, id).unwrap();
    carry(&mut a);
    a.take_events();
    let ended: Vec<_> = a.events.drain(..).map(|event| (event.kind, event.id)).collect();
    assert_eq!(ended, [(EventKind::Disconnected, request.id), (EventKind::Disconnected, id)]);
    let ends = [resolved, request].map(|event| {
        let route = event.route.unwrap();
        assert_eq!(route.own, Some(by));
        (route.local.ip(), route.peer.ip())
    });
    Some((by, ends))
}

#[test]
fn a_guest_connects_with_itself() {
    for (listens, source, to, by, local, peer) in [
        ("127.0.0.1:5", None, "127.0.0.1:5", "10.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:5", None, "0.0.0.0:5", "10.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0:5", None, "127.0.0.1:5", "10.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0:5", Some("127.0.0.1:6"), "127.0.0.1:5", "10.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("[::]:5", None, "127.0.0.1:5", "10.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("[::]:5", None, "[::1]:5", "fd00::1", "::1", "::1"),
        ("[::1]:5", None, "[::1]:5", "fd00::1", "::1", "::1"),
        ("[::1]:5", Some("[fe80::1]:6"), "[::1]:5", "fe80::1", "fe80::1", "::1"),
    ] {
        let (by, client, server) = (ip(by), (ip(local), ip(peer)), (ip(peer), ip(local)));
        assert_eq!(connected(listens, source, to), Some((by, [client, server])), "{listens} {to}");
    }
    for (listens, to) in
        [("127.0.0.1:5", "127.0.0.2:5"), ("10.0.0.1:5", "127.0.0.1:5"), ("0.0.0.0:5", "[::1]:5")]
    {
        assert_eq!(connected(listens, None, to), None, "{listens} {to}");
    }
}

#[test]
fn without_an_address_of_its_version_any_other_will_do() {
    let mut a = Host::new("10.0.0.1");
    a.manager.set_gids(vec!["fe80::1".parse().unwrap()]);
    let (_, resolved) = resolve(&mut a, None, "127.0.0.1:5", Transport::Reliable);
    assert_eq!(resolved.route.unwrap().own, Some(ip("fe80::1")));
}

#[test]
fn loopback_leads_nowhere_else() {
    let mut a = Host::new("10.0.0.1");
    for source in ["127.0.0.1:0", "127.0.0.1:7"] {
        assert_eq!(
            resolve(&mut a, Some(source), "10.0.0.2:5", Transport::Reliable).1.kind,
            EventKind::AddrError
        );
    }
    let id = a.id(Transport::Reliable);
    a.manager.bind_addr(CLIENT, id, at("127.0.0.1:5")).unwrap();
    let other = a.id(Transport::Reliable);
    assert_eq!(a.manager.bind_addr(CLIENT, other, at("0.0.0.0:5")), Err(Refused::AddressInUse));
    assert_eq!(a.manager.bind_addr(CLIENT, other, at("10.0.0.1:5")), Ok(at("10.0.0.1:5")));
}

#[test]
fn datagrams_find_their_queue_pair() {
    let mut a = Host::new("10.0.0.1");
    a.listen("127.0.0.1:5", Transport::Datagram);
    let (id, _) = resolve(&mut a, None, "127.0.0.1:5", Transport::Datagram);
    a.manager.resolve_route(CLIENT, id).unwrap();
    a.event();
    a.manager.connect(NOW, CLIENT, id, &parameters(17, b"")).unwrap();
    carry(&mut a);
    let request = a.event();
    assert_eq!((request.kind, request.route.unwrap().own), (EventKind::ConnectRequest, Some(ip("10.0.0.1"))));
    a.manager.accept(NOW, CLIENT, request.id, &parameters(99, b"")).unwrap();
    carry(&mut a);
    let found = a.event();
    assert_eq!((found.kind, found.datagram.unwrap().queue_pair), (EventKind::Established, 99));
}

/// Nobody else reaches a listener on loopback.
#[test]
fn others_may_not_say_that_they_are_the_guest() {
    let loopback = IpHeader { source_port: 1, source: ip("127.0.0.1"), destination: ip("127.0.0.1") };
    assert!(loopback.fits(ip("10.0.0.1"), ip("10.0.0.1")));
    assert!(!loopback.fits(ip("10.0.0.2"), ip("10.0.0.1")));
    let half = IpHeader { source: ip("10.0.0.2"), ..loopback };
    assert!(!half.fits(ip("10.0.0.2"), ip("10.0.0.1")) && !half.fits(ip("10.0.0.1"), ip("10.0.0.1")));
}
