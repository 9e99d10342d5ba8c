//! The addresses and ports that identifiers get and share, and the source from which a destination is reached.

use super::hosts::{CLIENT, Host, ip};
use super::peer::{Kind, Talk, gid};
use packet::roce::cm::{Message, Req};
use rdma::cm::{Choice, EventKind, Limits, PortSpace, Refused, Transport, status};
use std::collections::BTreeSet;
use std::net::SocketAddr;

fn host() -> Host {
    Host::new("10.0.0.1")
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[derive(Clone, Copy, Default)]
struct Options {
    reuse: bool,
    only_ipv6: bool,
}

fn bind(host: &mut Host, address: &str, options: Options) -> (u32, Result<SocketAddr, Refused>) {
    let id = host.id(Transport::Reliable);
    host.manager.set_option(CLIENT, id, Choice::ReuseAddress(options.reuse)).unwrap();
    host.manager.set_option(CLIENT, id, Choice::OnlyIpv6(options.only_ipv6)).unwrap();
    (id, host.manager.bind_addr(CLIENT, id, at(address)))
}

const PLAIN: Options = Options { reuse: false, only_ipv6: false };
const REUSE: Options = Options { reuse: true, only_ipv6: false };

#[test]
fn a_port_is_one_identifiers_where_their_addresses_meet() {
    // The IPv6 address for all includes all of IPv4, unless it is limited to IPv6.
    for (first, only_ipv6, second, is_free) in [
        ("10.0.0.1:5", false, "10.0.0.1:5", false),
        ("10.0.0.1:5", false, "0.0.0.0:5", false),
        ("10.0.0.1:5", false, "[fd00::1]:5", true),
        ("10.0.0.1:5", false, "[::]:5", false),
        ("10.0.0.1:5", false, "10.0.0.1:6", true),
        ("0.0.0.0:5", false, "0.0.0.0:5", false),
        ("0.0.0.0:5", false, "[fd00::1]:5", true),
        ("0.0.0.0:5", false, "[::]:5", false),
        ("[::]:5", true, "10.0.0.1:5", true),
        ("[::]:5", true, "0.0.0.0:5", true),
        ("[::]:5", true, "[fd00::1]:5", false),
        ("[::]:5", true, "[::]:5", false),
        ("[fd00::1]:5", false, "[fd00::1]:5", false),
        ("[fd00::1]:5", false, "[fe80::1]:5", true),
    ] {
        let expected = |address: &str| if is_free { Ok(at(address)) } else { Err(Refused::AddressInUse) };
        let options = Options { only_ipv6, ..PLAIN };
        let mut a = host();
        assert_eq!(bind(&mut a, first, options).1, Ok(at(first)));
        assert_eq!(bind(&mut a, second, PLAIN).1, expected(second), "{first}, {second}");
        // The result is the same in the other order.
        let mut a = host();
        assert_eq!(bind(&mut a, second, PLAIN).1, Ok(at(second)));
        assert_eq!(bind(&mut a, first, options).1, expected(first), "{second}, {first}");
    }
}

#[test]
fn a_port_is_shared_by_who_both_allow_it_until_one_listens() {
    for (first, second, listens, is_free) in [
        (REUSE, REUSE, false, true),
        (REUSE, REUSE, true, false),
        (REUSE, PLAIN, false, false),
        (PLAIN, REUSE, false, false),
        (PLAIN, PLAIN, false, false),
    ] {
        let mut a = host();
        let (id, bound) = bind(&mut a, "10.0.0.1:5", first);
        bound.unwrap();
        if listens {
            a.manager.listen(CLIENT, id, 0).unwrap();
        }
        assert_eq!(bind(&mut a, "10.0.0.1:5", second).1.is_ok(), is_free);
    }
    // Another space has its own ports.
    let mut a = host();
    bind(&mut a, "10.0.0.1:5", PLAIN).1.unwrap();
    let datagram = a.id(Transport::Datagram);
    assert!(a.manager.bind_addr(CLIENT, datagram, at("10.0.0.1:5")).is_ok());
}

#[test]
fn every_port_is_given_once() {
    let limits = Limits { ids: 40_000, ..Limits::default() };
    let mut a = Host::limited("10.0.0.1", limits);
    let free = [32768, 50_000, 60_999];
    for port in (32768..61000).filter(|port| !free.contains(port)) {
        bind(&mut a, &format!("10.0.0.1:{port}"), PLAIN).1.unwrap();
    }
    let mut given = || bind(&mut a, "10.0.0.1:0", PLAIN).1.map(|local| local.port());
    assert_eq!([(); 3].map(|()| given().unwrap()).into_iter().collect::<BTreeSet<_>>(), free.into());
    assert_eq!(given(), Err(Refused::AddressInUse));
}

#[test]
fn ports_are_given_where_nobody_foresees_them() {
    let first = |seed| bind(&mut Host::seeded("10.0.0.1", seed), "0.0.0.0:0", PLAIN).1.unwrap().port();
    assert!((0..20).map(first).collect::<BTreeSet<_>>().len() > 15);
}

#[test]
fn an_address_is_the_guests() {
    for (address, got) in [
        ("10.0.0.1:5", Ok("10.0.0.1:5")),
        ("[::ffff:10.0.0.1]:5", Ok("10.0.0.1:5")),
        ("0.0.0.0:5", Ok("0.0.0.0:5")),
        ("[::]:5", Ok("[::]:5")),
        ("[fe80::1]:5", Ok("[fe80::1]:5")),
        ("127.0.0.1:5", Ok("127.0.0.1:5")),
        ("[::1]:5", Ok("[::1]:5")),
        ("10.0.0.2:5", Err(Refused::AddressNotAvailable)),
        ("[fd00::2]:5", Err(Refused::AddressNotAvailable)),
    ] {
        assert_eq!(bind(&mut host(), address, PLAIN).1, got.map(at), "{address}");
    }
    let mut a = host();
    a.manager.set_gids(vec![gid(ip("10.0.0.2"))]);
    assert_eq!(bind(&mut a, "10.0.0.1:5", PLAIN).1, Err(Refused::AddressNotAvailable));
    assert_eq!(bind(&mut a, "10.0.0.2:5", PLAIN).1, Ok(at("10.0.0.2:5")));
}

/// Returns the source for a destination, with this bound address or this given source; or the error.
fn source(bound: Option<&str>, source: Option<&str>, to: &str) -> Result<Option<SocketAddr>, Refused> {
    let (mut a, mut asked) = (host(), None);
    let id = a.id(Transport::Reliable);
    if let Some(bound) = bound {
        a.manager.bind_addr(CLIENT, id, at(bound)).unwrap();
    }
    let reaches = |from, to| {
        asked = Some((from, to));
        true
    };
    a.manager.resolve_addr(CLIENT, id, source.map(at), at(to), reaches)?;
    let event = a.event();
    let Some(route) = event.route else {
        assert_eq!((event.kind, event.status), (EventKind::AddrError, status::UNREACHABLE));
        assert_eq!((event.status, asked), (-113, None));
        return Ok(None);
    };
    assert_eq!((event.kind, asked), (EventKind::AddrResolved, Some((route.local.ip(), route.peer.ip()))));
    Ok(Some(route.local))
}

#[test]
fn the_source_is_of_the_kind_of_the_destination() {
    // The first of the guest's addresses is link-local.
    for (to, from) in [
        ("10.0.0.2:1", "10.0.0.1"),
        ("[::ffff:10.0.0.2]:1", "10.0.0.1"),
        ("[fd00::2]:1", "fd00::1"),
        ("[2001:db8::2]:1", "fd00::1"),
        ("[fe80::2]:1", "fe80::1"),
        ("10.0.0.1:1", "10.0.0.1"),
        ("[fd00::1]:1", "fd00::1"),
        ("[fe80::1]:1", "fe80::1"),
    ] {
        let local = source(None, None, to).unwrap().unwrap();
        assert_eq!(local.ip(), ip(from), "{to}");
        assert!((32768..61000).contains(&local.port()));
    }
    // If the guest has several addresses, the source is the one that is the destination.
    let mut a = host();
    a.manager.set_gids(["10.0.0.1", "10.0.0.7", "10.0.0.9"].map(|own| gid(ip(own))).to_vec());
    for (to, from) in [("10.0.0.7:1", "10.0.0.7"), ("10.0.0.8:1", "10.0.0.1"), ("10.0.0.9:1", "10.0.0.9")] {
        let id = a.id(Transport::Reliable);
        a.manager.resolve_addr(CLIENT, id, None, at(to), |_, _| true).unwrap();
        assert_eq!(a.event().route.unwrap().local.ip(), ip(from));
    }
    let id = a.id(Transport::Reliable);
    a.manager.resolve_addr(CLIENT, id, None, at("[fd00::2]:1"), |_, _| true).unwrap();
    assert_eq!(a.event().kind, EventKind::AddrError);
}

#[test]
fn the_source_is_the_one_bound_or_given() {
    let both = [Some("10.0.0.1:5"), Some("0.0.0.0:5"), Some("[::]:5")];
    for local in both {
        assert_eq!(source(local, None, "10.0.0.2:1"), Ok(Some(at("10.0.0.1:5"))));
        assert_eq!(source(None, local, "10.0.0.2:1"), Ok(Some(at("10.0.0.1:5"))));
    }
    // An address that is already bound takes precedence.
    assert_eq!(source(Some("10.0.0.1:5"), Some("10.0.0.9:6"), "10.0.0.2:1"), Ok(Some(at("10.0.0.1:5"))));
    assert_eq!(source(None, Some("10.0.0.9:6"), "10.0.0.2:1"), Err(Refused::AddressNotAvailable));
    // A source of the other IP version does not reach it.
    assert_eq!(source(None, Some("[fd00::1]:5"), "10.0.0.2:1"), Ok(None));
    assert_eq!(source(Some("10.0.0.1:5"), None, "[fd00::2]:1"), Ok(None));
    // A connection has one peer, so a group can't be its destination.
    for nowhere in ["224.0.0.1:1", "[ff02::1]:1"] {
        assert_eq!(source(None, None, nowhere), Err(Refused::Parameter), "{nowhere}");
    }
    // A bound address stays when the guest's addresses change.
    let mut a = host();
    let (id, bound) = bind(&mut a, "10.0.0.1:5", PLAIN);
    a.manager.set_gids(Vec::new());
    a.manager.resolve_addr(CLIENT, id, None, at("10.0.0.2:1"), |_, _| true).unwrap();
    assert_eq!(a.event().route.unwrap().local, bound.unwrap());
}

#[test]
fn a_source_that_is_given_must_be_free() {
    let mut a = host();
    bind(&mut a, "10.0.0.1:5", PLAIN).1.unwrap();
    let id = a.id(Transport::Reliable);
    let mut resolve =
        |source| a.manager.resolve_addr(CLIENT, id, Some(at(source)), at("10.0.0.2:1"), |_, _| true);
    assert_eq!(resolve("10.0.0.1:5"), Err(Refused::AddressInUse));
    assert_eq!(resolve("10.0.0.1:6"), Ok(()));
}

#[test]
fn eight_events_may_wait_before_more_is_asked_for() {
    let mut a = host();
    let id = a.id(Transport::Reliable);
    let resolve = |a: &mut Host| a.manager.resolve_addr(CLIENT, id, None, at("10.0.0.2:1"), |_, _| false);
    for _ in 0..8 {
        assert_eq!(resolve(&mut a), Ok(()));
    }
    assert_eq!(resolve(&mut a), Err(Refused::TooMany));
    let mut taken = 0;
    a.manager.deliver(|_| {
        taken += 1;
        taken < 3
    });
    assert_eq!([(); 3].map(|()| resolve(&mut a)), [Ok(()), Ok(()), Err(Refused::TooMany)]);
}

/// Returns whether a request to an address reaches a program that listens on this one.
fn asked(listens: &str, only_ipv6: bool, from: &str, to: &str) -> bool {
    let mut talk = Talk::new(Host::new("10.0.0.2"));
    let (id, bound) = bind(&mut talk.host, listens, Options { only_ipv6, ..PLAIN });
    let port = bound.unwrap().port();
    talk.host.manager.listen(CLIENT, id, 0).unwrap();
    (talk.from, talk.to) = (ip(from), ip(to));
    let req = Req { service: PortSpace::Tcp.service(port), ..talk.req() };
    let heard = talk.hear(talk.from, talk.to, 1, Message::Req(req));
    assert!(["", "ConnectRequest:0"].contains(&heard.as_str()), "{heard}");
    !heard.is_empty()
}

#[test]
fn a_listener_is_asked_at_its_address() {
    for (listens, only_ipv6, from, to, is_asked) in [
        ("10.0.0.2:5", false, "10.0.0.1", "10.0.0.2", true),
        ("10.0.0.2:5", false, "10.0.0.1", "10.0.0.3", false),
        ("0.0.0.0:5", false, "10.0.0.1", "10.0.0.3", true),
        ("0.0.0.0:5", false, "fd00::1", "fd00::2", false),
        ("[::]:5", false, "10.0.0.1", "10.0.0.2", true),
        ("[::]:5", false, "fd00::1", "fd00::2", true),
        ("[::]:5", true, "10.0.0.1", "10.0.0.2", false),
        ("[::]:5", true, "fd00::1", "fd00::2", true),
        ("[fd00::2]:5", false, "fd00::1", "fd00::3", false),
    ] {
        assert_eq!(asked(listens, only_ipv6, from, to), is_asked, "{listens} {only_ipv6} {to}");
    }
}

/// A port of space IB is for connections or for datagrams.
#[test]
fn a_listener_is_asked_for_what_it_serves() {
    let service = PortSpace::Ib.service(5);
    for transport in [Transport::Reliable, Transport::Datagram] {
        let mut talk = Talk::new(Host::new("10.0.0.2"));
        let manager = &mut talk.host.manager;
        let id = manager.create_id(CLIENT, talk.host.channel, PortSpace::Ib, transport).unwrap();
        manager.bind_addr(CLIENT, id, at("0.0.0.0:5")).unwrap();
        manager.listen(CLIENT, id, 0).unwrap();
        let req = Message::Req(Req { service, ..talk.req() });
        let Message::SidrReq { request, partition, private, .. } = talk.message(Kind::SidrReq) else {
            panic!()
        };
        let question = Message::SidrReq { request, partition, service, private };
        let [right, wrong] = if transport == Transport::Reliable { [req, question] } else { [question, req] };
        assert_eq!(talk.hear(talk.from, talk.to, 1, wrong), "");
        assert_eq!(talk.hear(talk.from, talk.to, 1, right), "ConnectRequest:0");
    }
}

/// An identifier without an address listens everywhere.
#[test]
fn a_listener_without_an_address_gets_a_port() {
    let mut a = host();
    let id = a.id(Transport::Reliable);
    a.manager.listen(CLIENT, id, 0).unwrap();
    let (_, it) = a.manager.describe().next().unwrap();
    let local = it.local.unwrap();
    assert_eq!((it.state, local.ip()), ("listen", ip("::")));
    assert!((32768..61000).contains(&local.port()));
}
