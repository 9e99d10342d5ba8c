//! Multicast groups for datagrams.

use super::hosts::{CLIENT, Host, ip, parameters};
use rdma::cm::{
    Choice, Client, DatagramDetails, EventKind, Group, MULTICAST_QUEUE_PAIR, Refused, Transport,
    UDP_QUEUE_KEY, status,
};
use std::net::SocketAddr;
use std::time::Duration;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn bound(host: &mut Host, address: &str, transport: Transport) -> u32 {
    let id = host.id(transport);
    host.manager.bind_addr(CLIENT, id, at(address)).unwrap();
    id
}

#[test]
fn a_group_has_its_address_for_a_gid() {
    for (local, group, gid) in [
        ("10.0.0.1:5", "239.1.2.3:7", "::ffff:239.1.2.3"),
        ("10.0.0.1:5", "[::ffff:239.1.2.3]:7", "::ffff:239.1.2.3"),
        ("[fd00::1]:5", "[ff0e::1]:7", "ff0e::1"),
        ("[fe80::1]:5", "[ff02::1]:0", "ff02::1"),
    ] {
        let mut a = Host::new("10.0.0.1");
        let id = bound(&mut a, local, Transport::Datagram);
        a.manager.join_multicast(CLIENT, id, at(group), 9).unwrap();
        let event = a.event();
        assert_eq!((event.kind, event.id, event.status), (EventKind::MulticastJoin, id, 0));
        assert_eq!(event.group, Some(Group { join: 9, gid: gid.parse().unwrap() }));
        let whom = DatagramDetails { queue_pair: MULTICAST_QUEUE_PAIR, queue_key: UDP_QUEUE_KEY };
        assert_eq!(event.datagram, Some(whom));
        assert!(a.sent().is_empty(), "nobody is asked");
    }
}

#[test]
fn a_group_is_resolved_as_a_destination() {
    let mut a = Host::new("10.0.0.1");
    for (group, from) in [("239.1.2.3:7", "10.0.0.1"), ("[ff0e::1]:7", "fd00::1"), ("[ff02::1]:7", "fd00::1")]
    {
        let id = a.id(Transport::Datagram);
        a.manager.resolve_addr(CLIENT, id, None, at(group), |_, _| true).unwrap();
        let route = a.event().route.unwrap();
        assert_eq!((route.local.ip(), route.peer, route.own), (ip(from), at(group), None));
        a.manager.join_multicast(CLIENT, id, at(group), 0).unwrap();
        assert_eq!(a.event().kind, EventKind::MulticastJoin);
        a.manager.resolve_route(CLIENT, id).unwrap();
        assert_eq!(a.event().kind, EventKind::RouteResolved);
        // There is nobody to query for a queue pair.
        let asked = a.manager.connect(Duration::ZERO, CLIENT, id, &parameters(17, b""));
        assert_eq!(asked, Err(Refused::Parameter));
        assert!(a.sent().is_empty());
    }
    // A link-local address will do.
    a.manager.set_gids(vec!["fe80::1".parse().unwrap()]);
    let id = a.id(Transport::Datagram);
    a.manager.resolve_addr(CLIENT, id, None, at("[ff0e::1]:7"), |_, _| true).unwrap();
    assert_eq!(a.event().route.unwrap().local.ip(), ip("fe80::1"));
}

#[test]
fn who_may_not_join_is_told_so() {
    let mut a = Host::new("10.0.0.1");
    let group = at("239.1.2.3:7");
    let join = |a: &mut Host, id, group| a.manager.join_multicast(CLIENT, id, group, 0);
    let new = a.id(Transport::Datagram);
    assert_eq!(join(&mut a, new, group), Err(Refused::State));
    a.manager.set_option(CLIENT, new, Choice::ReuseAddress(true)).unwrap();
    for address in ["0.0.0.0:0", "127.0.0.1:0"] {
        let everywhere = bound(&mut a, address, Transport::Datagram);
        assert_eq!(join(&mut a, everywhere, group), Err(Refused::State), "{address}");
    }
    let connects = bound(&mut a, "10.0.0.1:0", Transport::Reliable);
    assert_eq!(join(&mut a, connects, group), Err(Refused::State));
    let id = bound(&mut a, "10.0.0.1:0", Transport::Datagram);
    for nobody in ["10.0.0.2:1", "255.255.255.255:1", "0.0.0.0:1", "[fd00::1]:1", "[::]:1"] {
        assert_eq!(join(&mut a, id, at(nobody)), Err(Refused::Parameter), "{nobody}");
    }
    assert_eq!(a.manager.join_multicast(Client(9), id, group, 0), Err(Refused::NoSuchId));
    a.no_event();
    join(&mut a, id, at("[ff0e::1]:7")).unwrap();
    let event = a.event();
    assert_eq!((event.kind, event.status), (EventKind::MulticastError, status::UNREACHABLE));
    // Requests whose events are not taken do not pile up.
    (0..8).for_each(|_| join(&mut a, id, group).unwrap());
    assert_eq!(join(&mut a, id, group), Err(Refused::TooMany));
}
