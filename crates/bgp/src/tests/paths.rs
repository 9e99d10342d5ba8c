//! A peer that sends several paths of one route (RFC 7911).

use super::net::{AS, address, path, peer};
use super::raw::{CAPABILITIES, Raw, attribute, message, open, update};
use crate::{MacPath, Path, PeerConfig, Verdict};
use ipnet::IpNet;
use packet::Mac;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Offers to send several paths of VPNv4 and EVPN, and to receive those of VPNv6.
const OFFER: &[u8] = &[69, 12, 0, 1, 128, 2, 0, 25, 70, 3, 0, 2, 128, 1];
const PREFIX: &str = "10.1.0.0/16";

fn capabilities() -> Vec<&'static [u8]> {
    [&CAPABILITIES[..], &[OFFER]].concat()
}

/// Returns the number of a path, and PREFIX with label 1001.
fn vpnv4(id: u32, rd: u8) -> Vec<u8> {
    [&id.to_be_bytes()[..], &[104, 0, 0x3e, 0x91, 0, 0, 0xfc, 0, 0, 0, 0, rd, 10, 1]].concat()
}

/// Returns an UPDATE of one path to a host, with MPLS over UDP.
fn announcement((node, preference): (u8, u8), family: [u8; 3], nlri: &[u8]) -> Vec<u8> {
    let host = [10, 255, 0, node + 1];
    let next_hop = if family[1] == 25 { host.to_vec() } else { [&[0; 8][..], &host].concat() };
    let reach = [&family[..], &[next_hop.len() as u8], &next_hop, &[0], nlri].concat();
    update(&[
        attribute(0x40, 1, &[0]),
        attribute(0x40, 2, &[]),
        attribute(0x40, 5, &[0, 0, 0, preference]),
        attribute(0xc0, 16, &[0, 2, 0xfc, 0, 0, 0, 0, 100, 3, 12, 0, 0, 0, 0, 0, 13]),
        attribute(0x80, 14, &reach),
    ])
}

fn announce(raw: &mut Raw, id: u32, rd: u8, node: u8, preference: u8) {
    raw.send(&announcement((node, preference), [0, 1, 128], &vpnv4(id, rd)));
}

fn withdraw(raw: &mut Raw, id: u32, rd: u8) {
    raw.send(&update(&[attribute(0x80, 15, &[&[0, 1, 128][..], &vpnv4(id, rd)].concat())]));
}

fn prefix() -> IpNet {
    PREFIX.parse().unwrap()
}

/// Returns the hosts to which packets go.
fn nodes(raw: &Raw) -> Vec<Path> {
    raw.table.routes.get(&(7, prefix())).cloned().unwrap_or_default()
}

fn paths(nodes: &[usize]) -> Vec<Path> {
    nodes.iter().map(|node| path(*node, 1001)).collect()
}

#[test]
fn paths_of_one_route_share_the_traffic() {
    let mut raw = Raw::new(&capabilities());
    announce(&mut raw, 1, 1, 2, 100);
    announce(&mut raw, 2, 1, 3, 100);
    announce(&mut raw, 3, 1, 4, 90);
    assert_eq!((nodes(&raw), raw.status().routes), (paths(&[2, 3]), 3));
    let verdicts: Vec<_> = raw.speaker.explain(7, prefix()).into_iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts[..2], [Verdict::Used, Verdict::Used]);
    assert!(matches!(verdicts[2], Verdict::Worse(_)));
    // The same number again replaces its path alone.
    announce(&mut raw, 2, 1, 5, 100);
    assert_eq!((nodes(&raw), raw.status().routes), (paths(&[2, 5]), 3));
    withdraw(&mut raw, 1, 1);
    withdraw(&mut raw, 9, 1);
    assert_eq!((nodes(&raw), raw.status().routes), (paths(&[5]), 2));
    withdraw(&mut raw, 2, 1);
    assert_eq!(nodes(&raw), paths(&[4]));
}

#[test]
fn a_family_that_is_not_offered_has_no_numbers() {
    let mut raw = Raw::new(&capabilities());
    let v6 = [&[128, 0, 0x3e, 0x91, 0, 0, 0xfc, 0, 0, 0, 0, 1][..], &[0xfd, 0, 0, 1, 0]].concat();
    let next_hop = [&[0, 2, 128, 24][..], &[0; 18], &[0xff, 0xff, 10, 255, 0, 3, 0], &v6].concat();
    let usual = [attribute(0x40, 1, &[0]), attribute(0x40, 2, &[])].concat();
    let target = attribute(0xc0, 16, &[0, 2, 0xfc, 0, 0, 0, 0, 100]);
    raw.send(&update(&[usual, target, attribute(0x80, 14, &next_hop)]));
    assert_eq!(raw.table.routes[&(7, "fd00:1::/40".parse().unwrap())], paths(&[2]));
}

#[test]
fn a_mac_address_has_one_place_and_floods_go_to_all() {
    let mut raw = Raw::new(&capabilities());
    let mac = [2, 0, 0, 0, 0, 1];
    for (id, node) in [(1_u32, 3), (2, 2)] {
        let route = [&[2, 33, 0, 0, 0xfc, 0, 0, 0, 0, 1][..], &[0; 14], &[48], &mac, &[0, 0, 0x3e, 0x91]];
        raw.send(&announcement((node, 100), [0, 25, 70], &[&id.to_be_bytes()[..], &route.concat()].concat()));
    }
    let place = |raw: &Raw| raw.table.macs.get(&(7, Mac(mac))).map(|path: &MacPath| path.tunnel.remote);
    assert_eq!((place(&raw), raw.status().routes), (Some(address(2)), 2));
    raw.send(&update(&[attribute(
        0x80,
        15,
        &[&[0, 25, 70, 0, 0, 0, 2][..], &[2, 33], &withdrawn_mac(mac)].concat(),
    )]));
    assert_eq!(place(&raw), Some(address(3)));
}

fn withdrawn_mac(mac: [u8; 6]) -> Vec<u8> {
    [&[0, 0, 0xfc, 0, 0, 0, 0, 1][..], &[0; 14], &[48], &mac, &[0, 0, 0, 0]].concat()
}

#[test]
fn of_two_peers_the_paths_of_one_count() {
    let mut raw = Raw::new(&capabilities());
    let passive = |node| PeerConfig { passive: true, ..peer(node, AS) };
    raw.speaker.set_peers(
        vec![PeerConfig { families: crate::Family::ALL.into(), ..passive(1) }, passive(2)],
        raw.now,
    );
    for (id, node) in [(1, 2), (2, 3)] {
        announce(&mut raw, id, 1, node, 100);
    }
    raw.conn = raw.speaker.accepted(address(2), raw.now).unwrap();
    let mut opening = open(AS as u16, &capabilities());
    // Higher than the identifier of the first peer.
    opening[27] = 3;
    raw.send(&[opening, message(4, &[])].concat());
    for (id, node) in [(7, 3), (8, 2), (9, 4)] {
        announce(&mut raw, id, 1, node, 100);
    }
    assert_eq!(nodes(&raw), paths(&[2, 3]), "those of the lower identifier");
    announce(&mut raw, 9, 1, 4, 110);
    assert_eq!(nodes(&raw), paths(&[4]), "a better one of the other");
}

#[test]
fn a_number_without_a_route_ends_the_session() {
    for cut in 1..18 {
        let mut raw = Raw::new(&capabilities());
        raw.send(&announcement((2, 100), [0, 1, 128], &vpnv4(1, 1)[..18 - cut]));
        assert_eq!(raw.last_words(), [3, 10], "{cut}");
    }
}

proptest! {
    #[test]
    fn any_order_of_paths_ends_in_the_best_of_each_route(
        steps in prop::collection::vec((0..4_u32, 1..3_u8, 1..5_u8, 100..103_u8, any::<bool>()), 1..60),
    ) {
        let mut raw = Raw::new(&capabilities());
        let mut model = BTreeMap::new();
        for (id, rd, node, preference, announces) in steps {
            if announces {
                announce(&mut raw, id, rd, node, preference);
                model.insert((rd, id), (preference, usize::from(node)));
            } else {
                withdraw(&mut raw, id, rd);
                model.remove(&(rd, id));
            }
            let most = model.values().map(|(preference, _)| *preference).max();
            let mut best: Vec<_> =
                model.values().filter(|(its, _)| Some(*its) == most).map(|(_, node)| *node).collect();
            best.sort_unstable();
            best.dedup();
            prop_assert_eq!(nodes(&raw), paths(&best));
            prop_assert_eq!(raw.status().routes, model.len());
        }
    }
}
