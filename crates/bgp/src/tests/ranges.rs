//! Peers of a range of addresses, which nobody names one by one.

use super::net::{AS, Net, address, config, import, mpls, peer, vpn};
use crate::{Event, PeerConfig, RangeConfig, Speaker, State};
use std::time::Duration;

const RANGE: &str = "10.255.0.0/24";

pub(super) fn range(prefix: &str, max_peers: usize) -> RangeConfig {
    RangeConfig {
        range: prefix.parse().unwrap(),
        max_peers,
        peer: PeerConfig { passive: true, ..peer(0, AS) },
    }
}

/// Makes nodes of which the first takes calls of a range from the others.
fn called(nodes: usize, ranges: Vec<RangeConfig>) -> Net {
    let mut net = Net::new(&vec![AS; nodes]);
    let now = net.now;
    net.speaker(0).set_imports(&[import(7, &[100])], now);
    net.speaker(0).set_all_peers(Vec::new(), ranges, now);
    for node in 1..nodes {
        net.speaker(node).set_peers(vec![peer(0, AS)], now);
        net.speaker(node).announce(vpn(1, &format!("10.1.1.{node}/32")), mpls(node, 1001, &[100]));
        // One after the other: who has no session yet makes room for the next one.
        net.settle(5);
    }
    net
}

/// Returns the last octets of the first node's peers that are up.
fn up(net: &Net) -> Vec<usize> {
    let peers = net.nodes[0].speaker.peers();
    let up = peers.iter().filter(|peer| peer.state == State::Established);
    (1..net.nodes.len()).filter(|node| up.clone().any(|peer| peer.address == address(*node))).collect()
}

#[test]
fn so_many_peers_of_a_range_as_it_has_places_may_call() {
    let mut net = called(4, vec![range(RANGE, 2)]);
    assert_eq!(up(&net), [1, 2]);
    assert_eq!(net.nodes[0].table.routes.len(), 2);
    let status = net.nodes[0].speaker.ranges()[0];
    assert_eq!((status.range.to_string().as_str(), status.max_peers), (RANGE, 2));
    assert!(status.refused > 0);
    assert!(net.nodes[0].speaker.peers().iter().all(|peer| peer.range == Some(status.range)));
    // Who leaves is forgotten, and makes room.
    let now = net.now;
    net.speaker(1).set_peers(Vec::new(), now);
    net.settle(300);
    assert_eq!(up(&net), [2, 3]);
    assert_eq!(net.nodes[0].speaker.peers().len(), 2);
    assert_eq!(net.nodes[0].speaker.routes_kept(), 2);
    // The speaker itself called nobody.
    assert!(!net.nodes[0].events.iter().any(|event| matches!(event, Event::Connect { .. })));
}

#[test]
fn a_peer_of_a_range_that_restarts_keeps_its_place_and_its_routes() {
    let mut net = called(3, vec![range(RANGE, 1)]);
    assert_eq!(up(&net), [1]);
    net.cut.insert((0, 1));
    net.reset(0, 1);
    net.settle(100);
    assert!(up(&net).is_empty());
    assert_eq!(net.nodes[0].table.routes.len(), 1);
    net.cut.clear();
    net.settle(70);
    assert_eq!(up(&net), [1]);
    // It does not come back.
    net.cut.insert((0, 1));
    net.reset(0, 1);
    net.settle(200);
    assert_eq!(up(&net), [2]);
    assert_eq!(net.nodes[0].speaker.peers().len(), 1);
}

#[test]
fn a_longer_range_that_comes_later_takes_its_peers() {
    let mut net = called(2, vec![range(RANGE, 9)]);
    let now = net.now;
    let longer = range("10.255.0.2/32", 1);
    net.speaker(0).set_all_peers(Vec::new(), vec![range(RANGE, 9), longer.clone()], now);
    net.settle(1);
    let peer = net.nodes[0].speaker.peers().remove(0);
    assert_eq!((peer.range, peer.counts.sessions), (Some(longer.range), 1));
}

#[test]
fn connections_without_a_session_hold_no_place_for_others() {
    let mut net = called(1, vec![range(RANGE, 2)]);
    let now = net.now;
    for caller in 1..20 {
        assert!(net.speaker(0).accepted(address(caller), now).is_some());
    }
    assert_eq!(net.nodes[0].speaker.peers().len(), 2);
    assert_eq!(net.nodes[0].speaker.ranges()[0].refused, 0);
    assert!(net.speaker(0).accepted("192.0.2.1".parse().unwrap(), now).is_none());
    net.settle(200);
    assert!(net.nodes[0].speaker.peers().is_empty());
}

#[test]
fn the_longest_range_counts_and_a_named_peer_before_it() {
    let inner = range("10.255.0.2/32", 1);
    let other = RangeConfig { peer: PeerConfig { max_routes: 7, ..inner.peer.clone() }, ..inner };
    let mut net = called(3, vec![range(RANGE, 9), other.clone()]);
    let of = |net: &Net| -> Vec<_> {
        let peers = net.nodes[0].speaker.peers();
        peers.iter().map(|peer| peer.range.map(|range| range.to_string())).collect()
    };
    let (wide, narrow) = (|| Some(RANGE.to_owned()), || Some("10.255.0.2/32".to_owned()));
    assert_eq!(of(&net), [narrow(), wide()]);
    // It is the same peer, so its session goes on.
    let now = net.now;
    let named = PeerConfig { address: address(1), ..other.peer(address(1)) };
    let ranges = vec![range(RANGE, 9), other.clone()];
    net.speaker(0).set_all_peers(vec![named.clone()], ranges, now);
    net.settle(1);
    assert_eq!(of(&net), [None, wide()]);
    assert_eq!(up(&net), [1, 2]);
    assert_eq!(net.nodes[0].speaker.peers()[0].counts.sessions, 1);
    // The peers of a range that goes leave.
    let now = net.now;
    net.speaker(0).set_all_peers(vec![named], vec![other], now);
    net.settle(1);
    assert_eq!(of(&net), [None]);
    assert_eq!(net.nodes[0].table.routes.len(), 1);
}

#[test]
fn who_may_call_is_waited_for_after_a_replacement() {
    let now = Duration::ZERO;
    let mut speaker = Speaker::new(config(0, AS), 1, now);
    speaker.set_all_peers(Vec::new(), vec![range(RANGE, 2)], now);
    assert_eq!(speaker.next_event(), None);
    assert_eq!(speaker.deadline(), Some(Duration::from_secs(120)));
    speaker.tick(Duration::from_secs(120));
    assert_eq!(speaker.next_event(), Some(Event::Synchronized));
    assert_eq!((speaker.next_event(), speaker.deadline()), (None, None));
}
