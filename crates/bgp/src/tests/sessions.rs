//! Sessions: how they come up, end, and what becomes of the routes.

use super::net::{AS, Net, address, config, import, mpls, path, peer, vpn};
use crate::{Down, Event, Notification, Speaker, State};
use ipnet::IpNet;
use std::net::IpAddr;
use std::time::Duration;

fn prefix() -> IpNet {
    "10.1.1.1/32".parse().unwrap()
}

/// Makes a pair in which node 0 has learned a route of node 1.
fn learned() -> Net {
    let mut net = Net::pair();
    let now = net.now;
    net.speaker(0).set_imports(&[import(7, &[100])], now);
    net.speaker(1).announce(vpn(1, "10.1.1.1/32"), mpls(1, 1001, &[100]));
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes[&(7, prefix())], [path(1, 1001)]);
    net
}

fn has_it(net: &Net) -> bool {
    net.nodes[0].table.routes.contains_key(&(7, prefix()))
}

fn last(net: &Net, node: usize) -> Option<Down> {
    let mut downs = net.nodes[node].events.iter().filter_map(|event| match event {
        Event::PeerDown { why, .. } => Some(why.clone()),
        _ => None,
    });
    downs.next_back()
}

#[test]
fn collisions_leave_one_connection() {
    // Both open at the same time, as at the first tick of both.
    let net = Net::pair();
    for node in &net.nodes {
        let ups = node.events.iter().filter(|event| matches!(event, Event::PeerUp { .. })).count();
        assert_eq!(ups, 1, "{:?}", node.events);
        assert_eq!(node.speaker.peers()[0].hold_time, 90);
        assert_eq!(node.speaker.peers()[0].families.len(), 6);
    }
}

#[test]
fn one_side_may_be_passive() {
    let mut net = Net::new(&[AS, 65001]);
    let now = net.now;
    net.speaker(0).set_peers(vec![crate::PeerConfig { passive: true, ..peer(1, 65001) }], now);
    net.speaker(1).set_peers(vec![peer(0, AS)], now);
    net.settle(5);
    assert!(net.is_up(0) && net.is_up(1));
    assert!(!net.nodes[0].events.iter().any(|event| matches!(event, Event::Connect { .. })));
}

#[test]
fn sessions_last_and_an_idle_peer_is_not_lost() {
    let mut net = learned();
    net.settle(3600);
    assert!(net.is_up(0) && has_it(&net));
    assert_eq!(net.nodes[0].speaker.peers()[0].counts.sessions, 1);
    // Keepalives alone go on, one every 22 to 30 seconds.
    let sent = net.nodes[0].speaker.peers()[0].counts.sent;
    assert!((120..200).contains(&sent), "{sent}");
}

#[test]
fn a_silent_peer_is_lost_after_the_hold_time_and_its_routes_after_the_restart_time() {
    let mut net = learned();
    net.cut.insert((0, 1));
    net.settle(91);
    assert!(matches!(last(&net, 0), Some(Down::Sent(Notification { code: 4, .. }))), "{:?}", last(&net, 0));
    assert!(has_it(&net));
    assert!(net.nodes[0].speaker.explain(7, prefix())[0].stale);
    net.settle(121);
    assert!(!has_it(&net));
    assert_eq!(net.nodes[0].speaker.peers()[0].routes, 0);
    net.cut.clear();
    net.settle(20);
    assert!(net.is_up(0) && has_it(&net));
}

#[test]
fn a_broken_path_ends_the_session_at_once_and_keeps_the_routes() {
    let mut net = learned();
    net.cut.insert((0, 1));
    let now = net.now;
    net.speaker(0).path_down(super::net::address(1), now);
    net.pump();
    assert!(!net.is_up(0) && has_it(&net));
    assert_eq!(last(&net, 0).unwrap().to_string(), "BFD down (6/10)");
    net.cut.clear();
    net.settle(20);
    assert!(net.is_up(0) && has_it(&net));
    // Nobody is there who could be cut off.
    net.speaker(0).path_down("203.0.113.1".parse().unwrap(), now);
    assert!(net.is_up(0));
}

#[test]
fn what_a_returning_peer_does_not_send_again_is_swept() {
    let mut net = learned();
    net.speaker(1).announce(vpn(1, "10.1.1.2/32"), mpls(1, 1001, &[100]));
    net.settle(1);
    net.reset(0, 1);
    // While they are apart, one of the two goes.
    net.speaker(1).withdraw(&vpn(1, "10.1.1.1/32"));
    net.pump();
    assert_eq!(net.nodes[0].table.routes.len(), 2);
    net.settle(20);
    assert!(net.is_up(0) && !has_it(&net));
    assert_eq!(net.nodes[0].table.routes.len(), 1);
    assert_eq!(net.nodes[0].speaker.peers()[0].stale_until, None);
}

#[test]
fn a_shutdown_removes_routes_only_where_the_peer_does_not_come_back_gracefully() {
    // Both sides have the N bit: what ends gracefully is kept (RFC 8538).
    let mut net = learned();
    let now = net.now;
    net.speaker(1).stop("maintenance", now);
    net.settle(1);
    assert_eq!(last(&net, 0).unwrap().to_string(), "the peer said: shut down (6/2): maintenance");
    assert!(has_it(&net));
    // A removed peer's routes are gone at once.
    let now = net.now;
    net.speaker(0).set_peers(Vec::new(), now);
    net.pump();
    assert!(!has_it(&net));
}

#[test]
fn without_restart_time_nothing_is_kept() {
    let mut net = learned();
    let now = net.now;
    net.speaker(0).set_peers(vec![crate::PeerConfig { restart_time: 0, ..peer(1, AS) }], now);
    net.settle(20);
    assert!(net.is_up(0) && has_it(&net));
    net.reset(0, 1);
    net.pump();
    assert!(!has_it(&net));
}

#[test]
fn a_peer_with_too_many_routes_is_left_and_called_again_a_minute_later() {
    let mut net = learned();
    let now = net.now;
    net.speaker(0).set_peers(vec![crate::PeerConfig { max_routes: 3, ..peer(1, AS) }], now);
    for host in 1..=3 {
        net.speaker(1).announce(vpn(1, &format!("10.1.1.{host}/32")), mpls(1, 1001, &[100]));
    }
    net.settle(1);
    assert_eq!(net.nodes[0].table.routes.len(), 3);
    net.speaker(1).announce(vpn(1, "10.1.1.4/32"), mpls(1, 1001, &[100]));
    net.settle(1);
    let Some(Down::Sent(why)) = last(&net, 0) else { panic!() };
    assert_eq!((why.code, why.subcode, &why.data[..]), (6, 1, &[0, 1, 128, 0, 0, 0, 3][..]));
    assert_eq!(net.nodes[0].table.routes.len(), 0);
    let sessions = |net: &Net| net.nodes[0].speaker.peers()[0].counts.sessions;
    assert_eq!(sessions(&net), 1);
}

#[test]
fn a_peer_that_takes_no_bytes_is_left_and_costs_bounded_memory() {
    let mut net = Net::pair();
    for host in 0..20_000_u32 {
        let [_, _, a, b] = host.to_be_bytes();
        let mut announcement = mpls(0, 1001, &[100]);
        announcement.preference = host;
        net.speaker(0).announce(vpn(1, &format!("10.1.{a}.{b}/32")), announcement);
    }
    // It is heard, but does not read.
    let (now, conns) = (net.now, [1, 2, 3].map(crate::Conn));
    let waiting: usize = conns.iter().map(|conn| net.speaker(0).output(*conn, now).len()).sum();
    assert!((64 << 10..80 << 10).contains(&waiting), "{waiting}");
    net.cut.insert((0, 1));
    let mut later = now;
    for _ in 0..400 {
        later += Duration::from_secs(1);
        for conn in conns {
            let mut keepalive = vec![0xff; 16];
            keepalive.extend([0, 19, 4]);
            net.speaker(0).received(conn, &keepalive, later);
        }
        net.speaker(0).tick(later);
    }
    let downs = std::iter::from_fn(|| net.speaker(0).next_event());
    let downs: Vec<_> = downs.filter(|event| matches!(event, Event::PeerDown { .. })).collect();
    assert_eq!(downs, [Event::PeerDown { peer: address(1), why: Down::Stuck }]);
}

#[test]
fn quarrels_are_named_and_wait_long() {
    // The peer has a different AS than node 0 was told.
    let mut net = Net::new(&[AS, 65001]);
    let now = net.now;
    net.speaker(0).set_peers(vec![peer(1, 65002)], now);
    net.speaker(1).set_peers(vec![crate::PeerConfig { passive: true, ..peer(0, AS) }], now);
    net.settle(40);
    let status = &net.nodes[0].speaker.peers()[0];
    assert_eq!(status.last.as_ref().unwrap().to_string(), "the peer has a different AS (2/2)");
    let calls =
        |net: &Net| net.nodes[0].events.iter().filter(|it| matches!(it, Event::Connect { .. })).count();
    assert_eq!(calls(&net), 1);
    net.settle(30);
    assert_eq!(calls(&net), 2);
}

#[test]
fn a_restarted_peer_replaces_its_old_connection() {
    let mut net = learned();
    // Node 1 crashes without a word; its successor connects.
    let now = net.now;
    let mut new = Speaker::new(config(1, AS), 9, now);
    new.set_peers(vec![peer(0, AS)], now);
    new.announce(vpn(1, "10.1.1.1/32"), mpls(1, 1002, &[100]));
    net.forget(0, 1);
    net.nodes[1].speaker = new;
    net.settle(1);
    assert_eq!(last(&net, 0), Some(Down::Reconnected));
    assert!(net.is_up(0));
    assert_eq!(net.nodes[0].table.routes[&(7, prefix())], [path(1, 1002)]);
}

#[test]
fn strangers_are_not_accepted() {
    let mut net = Net::pair();
    let now = net.now;
    let stranger: IpAddr = "192.0.2.9".parse().unwrap();
    assert_eq!(net.speaker(0).accepted(stranger, now), None);
    // A second connection of a peer whose session is up says OPEN in vain, unless it has restarted.
    let mapped = match address(1) {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        IpAddr::V6(_) => unreachable!(),
    };
    let conn = net.speaker(0).accepted(mapped, now).unwrap();
    assert!(!net.speaker(0).output(conn, now).is_empty());
    net.speaker(0).received(conn, &[0; 19], now);
    assert!(net.is_up(0));
}

#[test]
fn synchronization_is_told_once() {
    let count = |net: &Net, node: usize| {
        net.nodes[node].events.iter().filter(|event| **event == Event::Synchronized).count()
    };
    let mut net = Net::pair();
    assert_eq!((count(&net, 0), count(&net, 1)), (1, 1));
    net.reset(0, 1);
    net.settle(200);
    assert_eq!((count(&net, 0), count(&net, 1)), (1, 1));
    // A peer that does not come up is waited for as long as routes are kept.
    let mut net = Net::new(&[AS, AS]);
    let now = net.now;
    net.cut.insert((0, 1));
    net.speaker(0).set_peers(vec![peer(1, AS)], now);
    net.settle(119);
    assert_eq!(count(&net, 0), 0);
    net.settle(2);
    assert_eq!(count(&net, 0), 1);
    assert_eq!(net.nodes[0].speaker.peers()[0].state, State::Idle);
}

#[test]
fn peers_are_not_dead_while_nobody_reads() {
    // Node 0 does nothing for a long time, as a thread that has to wait. What came meanwhile is then read.
    let mut net = learned();
    net.now += Duration::from_secs(95);
    let now = net.now;
    net.speaker(0).tick(now);
    assert!(net.is_up(0));
    let mut keepalive = vec![0xff; 16];
    keepalive.extend([0, 19, 4]);
    for conn in [1, 2, 3] {
        net.speaker(0).received(crate::Conn(conn), &keepalive, now);
    }
    net.speaker(0).tick(now + Duration::from_secs(2));
    assert!(net.is_up(0));
    // Silence is noticed a second later.
    net.speaker(0).tick(now + Duration::from_secs(91));
    net.speaker(0).tick(now + Duration::from_secs(93));
    assert!(!net.is_up(0));
}
