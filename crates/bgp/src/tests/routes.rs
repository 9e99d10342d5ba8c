//! Routes from one speaker to another: what arrives, and what is chosen.

use super::net::{AS, Net, address, import, mpls, path, peer, rd, target, vpn, vxlan};
use crate::{
    Announcement, Candidate, Encapsulation, Import, Label, Mobility, Nlri, Path, RouteTarget, Tunnel, Verdict,
};
use ipnet::IpNet;
use packet::Mac;

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

const MAC: Mac = Mac([2, 0, 0, 0, 1, 1]);

/// Makes nodes of these systems: the others are peers of 0.
fn star(systems: &[u32]) -> Net {
    let mut net = Net::new(systems);
    let now = net.now;
    let peers = systems.iter().enumerate().skip(1).map(|(node, system)| peer(node, *system));
    net.speaker(0).set_peers(peers.collect(), now);
    for node in 1..systems.len() {
        net.speaker(node).set_peers(vec![peer(0, systems[0])], now);
    }
    net.speaker(0).set_imports(&[import(7, &[100])], now);
    net.settle(5);
    assert!(net.is_up(0));
    net
}

#[test]
fn every_kind_of_route_arrives_and_goes() {
    let mut net = Net::pair();
    net.piece = 7;
    let now = net.now;
    // The second one has no MAC addresses, and so routes to them.
    let routes_alone = Import { vrf: 8, routes: vec![target(100)], macs: Vec::new(), link: None };
    net.speaker(0).set_imports(&[import(7, &[100]), routes_alone], now);
    let v4: std::net::IpAddr = "10.1.1.5".parse().unwrap();
    let v6: std::net::IpAddr = "fd00::5".parse().unwrap();
    let mut host = vxlan(1, 5001, &[100]);
    host.routed = Some(5002);
    host.mobility = Some(Mobility { sticky: false, sequence: 4 });
    let routes = [
        (vpn(1, "10.2.0.0/16"), mpls(1, 1001, &[100])),
        (vpn(1, "0.0.0.0/0"), mpls(1, 1001, &[100])),
        (vpn(1, "fd02::/64"), mpls(1, 1001, &[100])),
        (vpn(1, "::/0"), mpls(1, 1001, &[100])),
        (Nlri::Prefix { rd: rd(1), prefix: prefix("10.3.0.0/16") }, vxlan(1, 6001, &[100])),
        (Nlri::Prefix { rd: rd(1), prefix: prefix("fd03::/64") }, vxlan(1, 6001, &[100])),
        (Nlri::Prefix { rd: rd(1), prefix: prefix("10.4.0.0/16") }, mpls(1, 1002, &[100])),
        (Nlri::Mac { rd: rd(1), mac: MAC, address: None }, host.clone()),
        (Nlri::Mac { rd: rd(1), mac: MAC, address: Some(v4) }, host.clone()),
        (Nlri::Mac { rd: rd(1), mac: MAC, address: Some(v6) }, host),
        (Nlri::Flood { rd: rd(1), originator: address(1) }, vxlan(1, 5001, &[100])),
    ];
    for (nlri, announcement) in &routes {
        net.speaker(1).announce(*nlri, announcement.clone());
    }
    net.settle(1);
    let table = &net.nodes[0].table;
    let router_mac = Some(Mac([2, 0xaa, 0, 0, 0, 1]));
    let by_vxlan = |label| Tunnel { remote: address(1), encapsulation: Encapsulation::Vxlan, label };
    let routed = |label| vec![Path::Tunnel { tunnel: by_vxlan(label), router_mac }];
    let expected = [
        ("0.0.0.0/0", vec![path(1, 1001)]),
        ("10.1.1.5/32", routed(5002)),
        ("10.2.0.0/16", vec![path(1, 1001)]),
        ("10.3.0.0/16", routed(6001)),
        ("10.4.0.0/16", vec![path(1, 1002)]),
        ("::/0", vec![path(1, 1001)]),
        ("fd00::5/128", routed(5002)),
        ("fd02::/64", vec![path(1, 1001)]),
        ("fd03::/64", routed(6001)),
    ];
    let bridged = ["10.1.1.5/32", "fd00::5/128"];
    let in_7 = expected.iter().filter(|(text, _)| !bridged.contains(text)).map(|one| (7, one));
    let all = in_7.chain(expected.iter().map(|one| (8, one)));
    let expected = all.map(|(vrf, (text, paths))| ((vrf, prefix(text)), paths.clone()));
    assert_eq!(table.routes, expected.collect());
    assert_eq!(table.macs[&(7, MAC)].tunnel, by_vxlan(5001));
    assert_eq!(table.macs[&(7, MAC)].mobility.sequence, 4);
    assert_eq!(table.neighbours, [((7, v4), MAC), ((7, v6), MAC)].into());
    assert_eq!(table.floods, [(7, vec![by_vxlan(5001)])].into());
    for (nlri, _) in &routes {
        net.speaker(1).withdraw(nlri);
    }
    net.settle(1);
    assert_eq!(net.nodes[0].table, Default::default());
    assert_eq!(net.nodes[0].speaker.peers()[0].routes, 0);
}

#[test]
fn thousands_of_routes_share_messages() {
    let mut net = Net::new(&[AS, AS]);
    let now = net.now;
    net.speaker(0).set_peers(vec![peer(1, AS)], now);
    net.speaker(1).set_peers(vec![peer(0, AS)], now);
    net.speaker(0).set_imports(&[import(7, &[100])], now);
    for host in 0..20_000_u32 {
        let [_, _, a, b] = host.to_be_bytes();
        net.speaker(1).announce(vpn(1, &format!("10.1.{a}.{b}/32")), mpls(1, 1001, &[100]));
    }
    net.settle(5);
    assert_eq!(net.nodes[0].table.routes.len(), 20_000);
    let counts = net.nodes[1].speaker.peers()[0].counts;
    // Five batches of 4096, one message each, and ends of six families; 16 octets a route.
    assert!(counts.updates_sent < 20, "{counts:?}");
    assert!(net.nodes[1].bytes_sent < 20_000 * 17, "{}", net.nodes[1].bytes_sent);
}

#[test]
fn a_label_may_change_without_a_withdrawal() {
    let mut net = star(&[AS; 3]);
    net.speaker(1).announce(vpn(1, "10.1.0.0/16"), mpls(1, 1001, &[100]));
    net.settle(1);
    net.speaker(1).announce(vpn(1, "10.1.0.0/16"), mpls(1, 1002, &[100]));
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&(7, prefix("10.1.0.0/16"))], [path(1, 1002)]);
}

#[test]
fn several_distinguishers_share_the_traffic_unless_one_is_preferred() {
    let mut net = star(&[AS; 3]);
    let place = (7, prefix("10.1.0.0/16"));
    net.speaker(1).announce(vpn(1, "10.1.0.0/16"), mpls(1, 1001, &[100]));
    net.speaker(2).announce(vpn(2, "10.1.0.0/16"), mpls(2, 1001, &[100]));
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&place], [path(1, 1001), path(2, 1001)]);
    let mut better = mpls(2, 1001, &[100]);
    better.preference = 200;
    net.speaker(2).announce(vpn(2, "10.1.0.0/16"), better);
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&place], [path(2, 1001)]);
    let explained = net.nodes[0].speaker.explain(7, place.1);
    let verdicts: Vec<_> =
        explained.iter().map(|Candidate { peer, verdict, .. }| (*peer, *verdict)).collect();
    let worse = Verdict::Worse("another has a higher LOCAL_PREF");
    assert_eq!(verdicts, [(address(2), Verdict::Used), (address(1), worse)]);
    assert_eq!(net.nodes[0].speaker.routes(7, None, 9), [(place.1, vec![path(2, 1001)])]);
    assert!(net.nodes[0].speaker.routes(7, Some(place.1), 9).is_empty());
    net.speaker(2).withdraw(&vpn(2, "10.1.0.0/16"));
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&place], [path(1, 1001)]);
}

#[test]
fn of_one_route_from_two_peers_the_best_is_used() {
    // One is of the same AS, two hops nearer than what comes from outside.
    let mut net = star(&[AS, AS, 65001]);
    let place = (7, prefix("10.1.0.0/16"));
    for node in [1, 2] {
        net.speaker(node).announce(vpn(1, "10.1.0.0/16"), mpls(node, 1001, &[100]));
    }
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&place], [path(1, 1001)]);
    net.speaker(1).withdraw(&vpn(1, "10.1.0.0/16"));
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&place], [path(2, 1001)]);
    assert_eq!(net.nodes[0].speaker.explain(7, place.1)[0].as_path, 1);
}

#[test]
fn networks_import_what_they_want_and_ask_again_when_they_want_more() {
    let mut net = star(&[AS; 3]);
    net.speaker(1).announce(vpn(1, "10.1.0.0/16"), mpls(1, 1001, &[100]));
    net.speaker(1).announce(vpn(2, "10.2.0.0/16"), mpls(1, 1002, &[200, 300]));
    net.settle(1);
    assert_eq!(net.nodes[0].speaker.peers()[0].routes, 1);
    // Hub and spoke: two networks, with one target in common.
    let now = net.now;
    net.speaker(0).set_imports(&[import(7, &[100, 200]), import(8, &[200])], now);
    net.settle(1);
    let places: Vec<_> = net.nodes[0].table.routes.keys().copied().collect();
    assert_eq!(places, [(7, prefix("10.1.0.0/16")), (7, prefix("10.2.0.0/16")), (8, prefix("10.2.0.0/16"))]);
    let now = net.now;
    net.speaker(0).set_imports(&[import(8, &[200])], now);
    net.settle(1);
    let places: Vec<_> = net.nodes[0].table.routes.keys().copied().collect();
    assert_eq!(places, [(8, prefix("10.2.0.0/16"))]);
    assert_eq!(net.nodes[0].speaker.peers()[0].routes, 1);
    // Routes by one target, MAC addresses by another.
    let now = net.now;
    let routes: Vec<RouteTarget> = vec![target(300)];
    net.speaker(0).set_imports(&[Import { vrf: 9, routes, macs: vec![target(400)], link: None }], now);
    let mut host = vxlan(1, 5001, &[300]);
    host.routed = Some(5002);
    net.speaker(1)
        .announce(Nlri::Mac { rd: rd(1), mac: MAC, address: Some("10.3.0.1".parse().unwrap()) }, host);
    net.settle(1);
    let places: Vec<_> = net.nodes[0].table.routes.keys().copied().collect();
    assert_eq!(places, [(9, prefix("10.2.0.0/16")), (9, prefix("10.3.0.1/32"))]);
    assert!(net.nodes[0].table.macs.is_empty());
}

#[test]
fn a_mac_address_is_where_it_moved_last() {
    let mut net = star(&[AS; 3]);
    let nlri = |node: u16| Nlri::Mac { rd: rd(node), mac: MAC, address: None };
    let place = |net: &Net| net.nodes[0].table.macs[&(7, MAC)].tunnel.remote;
    net.speaker(1).announce(nlri(1), vxlan(1, 5001, &[100]));
    net.speaker(2).announce(nlri(2), vxlan(2, 5001, &[100]));
    net.settle(1);
    assert_eq!(place(&net), address(1));
    let moved = |node, sequence| {
        let mut announcement = vxlan(node, 5001, &[100]);
        announcement.mobility = Some(Mobility { sticky: false, sequence });
        announcement
    };
    net.speaker(2).announce(nlri(2), moved(2, 1));
    net.settle(1);
    assert_eq!(place(&net), address(2));
    assert_eq!(net.speaker(0).next_sequence(7, MAC), Some(Mobility { sticky: false, sequence: 2 }));
    net.speaker(1).announce(nlri(1), moved(1, 2));
    net.settle(1);
    assert_eq!(place(&net), address(1));
    assert_eq!(net.speaker(0).next_sequence(7, Mac([2; 6])), None);
}

#[test]
fn routes_to_a_remote_that_is_down_give_way_to_worse_ones() {
    let mut net = star(&[AS; 4]);
    let preferred = |node| Announcement { preference: 200, ..mpls(node, 1000, &[100]) };
    net.speaker(1).announce(vpn(1, "10.1.0.0/16"), preferred(1));
    net.speaker(2).announce(vpn(2, "10.1.0.0/16"), preferred(2));
    net.speaker(3).announce(vpn(3, "10.1.0.0/16"), mpls(3, 1000, &[100]));
    net.settle(1);
    let of = prefix("10.1.0.0/16");
    let set = |net: &mut Net, node: usize, is_down| {
        net.speaker(0).set_down(&[(address(node), is_down)]);
        net.pump();
        net.nodes[0].table.routes[&(7, of)].clone()
    };
    assert_eq!(set(&mut net, 1, true), [path(1, 1000), path(2, 1000)], "the tables choose among equal ones");
    assert_eq!(set(&mut net, 2, true), [path(3, 1000)]);
    let said: Vec<_> = net.speaker(0).explain(7, of).iter().map(|one| (one.down, one.verdict)).collect();
    let down = (true, Verdict::Worse("its remote is down by BFD, or the kernel has no route to it"));
    assert_eq!(said, [(false, Verdict::Used), down, down]);
    assert_eq!(set(&mut net, 3, true), [path(1, 1000), path(2, 1000)], "as before: all are down");
    assert_eq!(set(&mut net, 3, false), [path(3, 1000)]);
    assert_eq!(set(&mut net, 2, false), [path(1, 1000), path(2, 1000)]);
    // One that is down before it is named.
    net.speaker(2).withdraw(&vpn(2, "10.1.0.0/16"));
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&(7, of)], [path(3, 1000)]);
}

#[test]
fn of_many_equal_paths_those_that_are_up_are_kept() {
    let mut net = star(&[AS; 2]);
    let hosts = 1..=crate::route::MAX_PATHS as u16 + 1;
    for host in hosts.clone() {
        net.speaker(1).announce(vpn(host, "10.1.0.0/16"), mpls(usize::from(host), 1000, &[100]));
    }
    net.settle(1);
    let down: Vec<_> = hosts.map(|host| (address(usize::from(host)), host > 1)).collect();
    net.speaker(0).set_down(&down);
    net.pump();
    let up = down.iter().find(|(_, is_down)| !is_down).unwrap().0;
    let last = down.iter().map(|(remote, _)| *remote).max().unwrap();
    assert_eq!(net.nodes[0].table.routes[&(7, prefix("10.1.0.0/16"))].len(), 1, "{up}");
    net.speaker(0).set_down(&[(up, true), (last, false)]);
    net.pump();
    let paths = &net.nodes[0].table.routes[&(7, prefix("10.1.0.0/16"))];
    assert_eq!(paths.iter().map(|path| path.tunnel().unwrap().remote).collect::<Vec<_>>(), [last]);
}

#[test]
fn a_mac_address_at_a_remote_that_is_down_is_where_it_was_before() {
    let mut net = star(&[AS; 3]);
    let nlri = |node: u16| Nlri::Mac { rd: rd(node), mac: MAC, address: None };
    let mobility = Some(Mobility { sticky: false, sequence: 5 });
    net.speaker(1).announce(nlri(1), vxlan(1, 5001, &[100]));
    net.speaker(2).announce(nlri(2), Announcement { mobility, ..vxlan(2, 5001, &[100]) });
    net.settle(1);
    net.speaker(0).set_down(&[(address(2), true)]);
    net.pump();
    assert_eq!(net.nodes[0].table.macs[&(7, MAC)].tunnel.remote, address(1));
    let next = net.speaker(0).next_sequence(7, MAC).unwrap().sequence;
    assert_eq!(next, 6, "hosts that do not know that it is down must believe this one");
}

#[test]
fn route_refresh_sends_everything_again() {
    let mut net = star(&[AS; 3]);
    net.speaker(0).announce(vpn(9, "10.9.0.0/16"), mpls(0, 1009, &[100]));
    net.settle(1);
    let before = net.nodes[0].speaker.peers()[0].counts.updates_sent;
    // A new import makes node 1 ask.
    let now = net.now;
    net.speaker(1).set_imports(&[import(7, &[100])], now);
    net.settle(1);
    assert!(net.nodes[1].table.routes.contains_key(&(7, prefix("10.9.0.0/16"))));
    assert_eq!(net.nodes[0].speaker.peers()[0].counts.updates_sent, before + 1);
}

#[test]
fn as_numbers_of_four_octets() {
    let (a, b) = (4_200_000_001, 4_200_000_002);
    let mut net = star(&[a, b, AS]);
    net.speaker(1).announce(vpn(1, "10.1.0.0/16"), mpls(1, 1001, &[100]));
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes.len(), 1);
    assert_eq!(net.nodes[0].speaker.explain(7, prefix("10.1.0.0/16"))[0].as_path, 1);
}

#[test]
fn labels_keep_their_values() {
    let mut net = star(&[AS; 3]);
    for (at, label) in [16, 0xf_ffff].into_iter().enumerate() {
        net.speaker(1).announce(vpn(1, &format!("10.{at}.0.0/16")), mpls(1, label, &[100]));
    }
    let mut highest = vxlan(1, 0, &[100]);
    highest.label = Label::Vni(0xff_ffff);
    net.speaker(1).announce(Nlri::Prefix { rd: rd(1), prefix: prefix("10.2.0.0/16") }, highest);
    net.settle(1);
    let labels: Vec<_> =
        net.nodes[0].table.routes.values().map(|paths| paths[0].tunnel().unwrap().label).collect();
    assert_eq!(labels, [16, 0xf_ffff, 0xff_ffff]);
}

#[test]
fn floods_go_once_to_a_host() {
    let mut net = star(&[AS; 3]);
    for (number, vni) in [(1, 5001), (2, 5002)] {
        net.speaker(1)
            .announce(Nlri::Flood { rd: rd(number), originator: address(1) }, vxlan(1, vni, &[100]));
    }
    net.speaker(2).announce(Nlri::Flood { rd: rd(3), originator: address(2) }, vxlan(2, 5003, &[100]));
    net.settle(1);
    let labels: Vec<_> =
        net.nodes[0].table.floods[&7].iter().map(|tunnel| (tunnel.remote, tunnel.label)).collect();
    assert_eq!(labels, [(address(1), 5001), (address(2), 5003)]);
}

#[test]
fn prefixes_of_a_network_are_listed_page_by_page() {
    let mut net = star(&[AS; 3]);
    let now = net.now;
    net.speaker(0).set_imports(&[import(7, &[100]), import(8, &[200])], now);
    for number in 0..6_u16 {
        for of in 0..3 {
            let targets = [100 + 100 * u32::from(number % 2)];
            net.speaker(1).announce(vpn(of, &format!("10.{number}.0.0/16")), mpls(1, 1001, &targets));
        }
    }
    net.settle(1);
    let page = |after, most| {
        let routes = net.nodes[0].speaker.routes(8, after, most);
        routes.into_iter().map(|(prefix, paths)| (prefix.to_string(), paths.len())).collect::<Vec<_>>()
    };
    let all = [("10.1.0.0/16".to_owned(), 1), ("10.3.0.0/16".to_owned(), 1), ("10.5.0.0/16".to_owned(), 1)];
    assert_eq!(page(None, 9), all);
    assert_eq!(page(None, 2), all[..2]);
    assert_eq!(page(Some(prefix("10.3.0.0/16")), 2), all[2..]);
    assert!(page(Some(prefix("10.5.0.0/16")), 2).is_empty());
}

#[test]
fn a_crowd_at_one_prefix_or_address_is_bounded() {
    let mut net = star(&[AS; 3]);
    let routes = |number: u16| {
        let mac = Mac([2, 0, 0, 0, (number >> 8) as u8, number as u8]);
        let [a, b] = number.to_be_bytes();
        let address = std::net::IpAddr::from([10, 1, a, b]);
        [
            vpn(number, "0.0.0.0/0"),
            Nlri::Mac { rd: rd(1), mac: MAC, address: Some(address) },
            Nlri::Mac { rd: rd(1), mac, address: Some("10.9.9.9".parse().unwrap()) },
        ]
    };
    for number in 0..4500 {
        for nlri in routes(number) {
            let announcement = mpls(1, 1001, &[100]);
            net.speaker(1).announce(nlri, announcement);
        }
    }
    net.settle(2);
    let status = net.nodes[0].speaker.peers().remove(0);
    assert_eq!((status.routes, status.counts.crowded), (3 * 4096, 3 * (4500 - 4096)));
    assert_eq!(net.nodes[0].speaker.explain(7, prefix("0.0.0.0/0")).len(), 256);
}
