//! Malformed messages cost their routes, the session, or nothing (RFC 4271, 6; RFC 7606).

use super::net::AS;
use super::raw::{CAPABILITIES, Raw, attribute, message, open, update};
use crate::State;

fn reach(nlri: &[u8]) -> Vec<u8> {
    let next_hop = [0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 10, 255, 0, 2, 0];
    attribute(0x80, 14, &[&next_hop[..], nlri].concat())
}

/// 10.1.0.0/16 with label 1001 and distinguisher 64512:1.
const NETWORK: [u8; 14] = [104, 0, 0x3e, 0x91, 0, 0, 0xfc, 0, 0, 0, 0, 1, 10, 1];

fn origin() -> Vec<u8> {
    attribute(0x40, 1, &[0])
}

fn path() -> Vec<u8> {
    attribute(0x40, 2, &[2, 1, 0, 0, 0xfd, 0xe9])
}

fn target() -> Vec<u8> {
    attribute(0xc0, 16, &[0, 2, 0xfc, 0, 0, 0, 0, 100])
}

/// Learns a route, and then sends it again with these attributes.
fn after(attributes: &[Vec<u8>]) -> Raw {
    let mut raw = Raw::new(&CAPABILITIES);
    raw.send(&update(&[origin(), path(), target(), reach(&NETWORK)]));
    assert_eq!(raw.table.routes.len(), 1);
    raw.send(&update(attributes));
    raw
}

#[test]
fn a_malformed_attribute_withdraws_the_routes() {
    let network = || reach(&NETWORK);
    let cases = [
        ("ORIGIN 3", vec![attribute(0x40, 1, &[3]), path(), target(), network()]),
        ("a long ORIGIN", vec![attribute(0x40, 1, &[0, 0]), path(), target(), network()]),
        ("no ORIGIN", vec![path(), target(), network()]),
        ("no AS_PATH", vec![origin(), target(), network()]),
        ("a segment without AS", vec![origin(), attribute(0x40, 2, &[2, 0]), target(), network()]),
        (
            "a segment that ends early",
            vec![origin(), attribute(0x40, 2, &[2, 2, 0, 0, 0, 1]), target(), network()],
        ),
        (
            "a confederation's segment",
            vec![origin(), attribute(0x40, 2, &[3, 1, 0, 0, 0, 1]), target(), network()],
        ),
        ("a short MED", vec![origin(), path(), attribute(0x80, 4, &[1]), target(), network()]),
        ("a short LOCAL_PREF", vec![origin(), path(), attribute(0x40, 5, &[1]), target(), network()]),
        ("a short ORIGINATOR_ID", vec![origin(), path(), attribute(0x80, 9, &[1]), target(), network()]),
        (
            "a cluster of 3 octets",
            vec![origin(), path(), attribute(0x80, 10, &[1, 2, 3]), target(), network()],
        ),
        ("a community of 7 octets", vec![origin(), path(), attribute(0xc0, 16, &[0; 7]), network()]),
        ("an optional ORIGIN", vec![attribute(0xc0, 1, &[0]), path(), target(), network()]),
        ("a transitive MED", vec![origin(), path(), attribute(0xc0, 4, &[0; 4]), target(), network()]),
        ("attributes that end early", vec![origin(), path(), target(), network(), vec![0xc0, 32, 12, 0]]),
    ];
    for (what, attributes) in cases {
        let raw = after(&attributes);
        assert_eq!(raw.status().state, State::Established, "{what}: {:?}", raw.status().last);
        assert!(raw.table.routes.is_empty(), "{what}");
        assert_eq!(raw.status().counts.malformed, 1, "{what}");
    }
}

#[test]
fn what_names_routes_must_be_right_or_the_session_ends() {
    let rest = || vec![origin(), path(), target()];
    let with = |more: Vec<u8>| [rest(), vec![more]].concat();
    let short = attribute(0x80, 14, &[0, 1, 128, 12, 0]);
    let odd = attribute(0x80, 14, &[0, 1, 128, 3, 1, 2, 3, 0]);
    let cases = [
        ("a next hop that ends early", with(short), [3, 9]),
        ("a next hop of 3 octets", with(odd), [3, 9]),
        ("a route that ends early", with(reach(&NETWORK[..13])), [3, 10]),
        ("routes twice", [rest(), vec![reach(&NETWORK), reach(&NETWORK)]].concat(), [3, 1]),
        ("attributes that end early, and no routes", with(vec![0xc0, 32, 12, 0]), [3, 1]),
        ("a short withdrawal", with(attribute(0x80, 15, &[0, 1])), [3, 9]),
        ("an unknown well-known attribute", with(attribute(0x40, 99, &[])), [3, 2]),
    ];
    for (what, attributes, [code, subcode]) in cases {
        let mut raw = after(&attributes);
        assert_eq!(raw.status().state, State::Idle, "{what}");
        assert_eq!(raw.last_words()[..2], [code, subcode], "{what}");
        assert_eq!(raw.status().routes, 0, "{what}");
    }
}

#[test]
fn unknown_things_are_left_out() {
    let network = || reach(&NETWORK);
    // A repeated attribute, an unknown optional one, a route with a broken distinguisher, EVPN types 1 and 99.
    let broken: Vec<u8> = [&[104, 0, 0x3e, 0x91, 0, 9][..], &NETWORK[6..]].concat();
    let evpn = attribute(0x80, 14, &[0, 25, 70, 4, 10, 255, 0, 2, 0, 1, 2, 0, 0, 99, 1, 7]);
    let raw = after(&[origin(), path(), target(), path(), attribute(0xc0, 99, &[1]), network()]);
    assert_eq!(raw.table.routes.len(), 1);
    let raw = after(&[origin(), path(), target(), reach(&[&broken[..], &NETWORK].concat())]);
    assert_eq!((raw.table.routes.len(), raw.status().counts.unknown), (1, 1));
    // Two labels.
    let stack: Vec<u8> = [&[128, 0, 0x3e, 0x90][..], &NETWORK[1..]].concat();
    let raw = after(&[origin(), path(), target(), reach(&stack)]);
    assert_eq!((raw.table.routes.len(), raw.status().counts.unknown), (1, 1));
    let raw = after(&[origin(), path(), target(), evpn]);
    assert_eq!((raw.table.routes.len(), raw.status().counts.unknown), (1, 2));
    // A family that is not known, IPv6 multicast, and two that were not agreed on: plain IPv6, and route targets.
    let multicast = attribute(0x80, 14, &[0, 2, 2, 0, 0]);
    let unicast = attribute(0x80, 14, &[0, 2, 1, 4, 10, 255, 0, 2, 0, 0]);
    let targets = attribute(0x80, 14, &[0, 1, 132, 4, 10, 255, 0, 2, 0, 0]);
    for foreign in [multicast, unicast, targets] {
        let raw = after(&[origin(), path(), target(), foreign]);
        assert_eq!((raw.table.routes.len(), raw.status().counts.foreign), (1, 1));
    }
}

#[test]
fn routes_that_are_not_for_this_host_are_counted_and_replace_what_was_there() {
    let network = || reach(&NETWORK);
    let looped = attribute(0x40, 2, &[2, 1, 0, 0, 0xfc, 0]);
    let own = attribute(
        0x80,
        14,
        &[&[0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 10, 255, 0, 1, 0][..], &NETWORK].concat(),
    );
    let other = attribute(0xc0, 16, &[0, 2, 0xfc, 0, 0, 0, 0, 101]);
    let vxlan = attribute(0xc0, 16, &[0, 2, 0xfc, 0, 0, 0, 0, 100, 3, 12, 0, 0, 0, 0, 0, 8]);
    let low: Vec<u8> = [&[104, 0, 0, 0x31][..], &NETWORK[4..]].concat();
    let loopback = attribute(
        0x80,
        14,
        &[&[0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 127, 0, 0, 1, 0][..], &NETWORK].concat(),
    );
    let cases = [
        (vec![origin(), looped, target(), network()], "looped"),
        (vec![origin(), path(), attribute(0x80, 9, &[10, 255, 0, 1]), target(), network()], "looped"),
        (
            vec![origin(), path(), attribute(0x80, 10, &[1, 1, 1, 1, 10, 255, 0, 1]), target(), network()],
            "looped",
        ),
        (vec![origin(), path(), target(), own], "own"),
        (vec![origin(), path(), other, network()], "unwanted"),
        (vec![origin(), path(), network()], "unwanted"),
        (vec![origin(), path(), vxlan, network()], "encapsulation"),
        (vec![origin(), path(), target(), reach(&low)], "unusable"),
        (vec![origin(), path(), target(), loopback], "unusable"),
    ];
    for (attributes, counted) in cases {
        let raw = after(&attributes);
        let counts = raw.status().counts;
        let count = match counted {
            "looped" => counts.looped,
            "own" => counts.own,
            "unwanted" => counts.unwanted,
            "encapsulation" => counts.encapsulation,
            _ => counts.unusable,
        };
        assert_eq!((raw.table.routes.len(), count), (0, 1), "{counted}");
    }
}

#[test]
fn headers_and_opens_are_checked() {
    let mut marker = message(4, &[]);
    marker[3] = 0;
    let mut short = message(4, &[]);
    short[17] = 18;
    let mut long = message(2, &[0; 4]);
    long[16..18].copy_from_slice(&4097_u16.to_be_bytes());
    let mut version = open(AS as u16, &CAPABILITIES);
    version[19] = 3;
    let mut hold = open(AS as u16, &CAPABILITIES);
    hold[23] = 2;
    let mut no_hold = open(AS as u16, &CAPABILITIES);
    no_hold[22..24].fill(0);
    let mut id = open(AS as u16, &CAPABILITIES);
    id[24..28].fill(0);
    let mut same_id = open(AS as u16, &CAPABILITIES);
    same_id[27] = 1;
    let mut parameters = open(AS as u16, &CAPABILITIES);
    parameters[29] = 1;
    let mut cut = open(AS as u16, &CAPABILITIES);
    cut[30] += 1;
    for (what, bytes, words) in [
        ("a wrong marker", marker, vec![1, 1]),
        ("a short length", short, vec![1, 2, 0, 18]),
        ("a long length", long, vec![1, 2, 0x10, 1]),
        ("an unknown type", message(9, &[]), vec![1, 3, 9]),
        ("version 3", version, vec![2, 1, 0, 4]),
        ("a hold time of 2", hold, vec![2, 6, 0, 2]),
        ("no hold time", no_hold, vec![2, 6, 0, 0]),
        ("no identifier", id, vec![2, 3, 0, 0, 0, 0]),
        ("the own identifier", same_id, vec![2, 3]),
        ("an unknown parameter", parameters, vec![2, 4, 1]),
        ("a parameter that ends early", cut, vec![2, 0]),
        ("a different AS", open(65001, &CAPABILITIES[..4]), vec![2, 2]),
        ("no family in common", open(AS as u16, &[&[1, 4, 0, 1, 0, 2]]), [vec![2, 7], missing()].concat()),
        ("UPDATE before OPEN", message(2, &[0; 4]), vec![5, 1]),
        ("KEEPALIVE before OPEN", message(4, &[]), vec![5, 1]),
    ] {
        let mut raw = Raw::connected();
        raw.send(&bytes);
        assert_eq!(raw.last_words(), words, "{what}");
        assert_eq!(raw.status().state, State::Idle, "{what}");
    }
}

/// Returns the families that the speaker wants.
fn missing() -> Vec<u8> {
    let families: [[u8; 3]; 6] = [[1, 0, 128], [2, 0, 128], [25, 0, 70], [1, 0, 132], [1, 0, 1], [2, 0, 1]];
    families.iter().flat_map(|family| [&[1, 4, 0][..], family].concat()).collect()
}

#[test]
fn a_second_open_and_a_short_refresh_end_the_session() {
    let mut raw = Raw::new(&CAPABILITIES);
    raw.send(&open(AS as u16, &CAPABILITIES));
    assert_eq!(raw.last_words(), [5, 3]);
    let mut raw = Raw::new(&CAPABILITIES);
    raw.send(&message(5, &[0, 1, 0]));
    assert_eq!(raw.last_words(), [1, 2, 0, 22]);
}
