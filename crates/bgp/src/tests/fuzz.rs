//! A peer that sends anything: nothing panics, memory stays bounded, and a session that is up hears only what is right.

use super::net::import;
use super::raw::{CAPABILITIES, PLAIN, Raw, attribute, message, open, plain, update};
use crate::State;
use std::time::Duration;

/// Acts as a peer: one octet says how, with the octets behind it.
fn act(raw: &mut Raw, kind: u8, bytes: &[u8]) {
    let next_hop = |family: &[u8], length: u8| {
        let address = [0, 0, 0, 0, 0, 0, 0, 0, 10, 255, 0, 2];
        [family, &[length], &address[12 - usize::from(length)..], &[0], bytes].concat()
    };
    let usual = || {
        let target = attribute(0xc0, 16, &[0, 2, 0xfc, 0, 0, 0, 0, 100, 3, 12, 0, 0, 0, 0, 0, 13]);
        [attribute(0x40, 1, &[0]), attribute(0x40, 2, &[]), target].concat()
    };
    match kind % 13 {
        0 => raw.send(bytes),
        1 => raw.send(&message(2, bytes)),
        2 => raw.send(&update(&[bytes.to_vec()])),
        3 => raw.send(&update(&[usual(), attribute(0x80, 14, &next_hop(&[0, 1, 128], 12))])),
        4 => raw.send(&update(&[usual(), attribute(0x80, 14, &next_hop(&[0, 25, 70], 4))])),
        5 => raw.send(&update(&[attribute(0x80, 15, &[&[0, 25, 70], bytes].concat())])),
        6 => raw.send(&message(bytes.first().copied().unwrap_or(4), bytes.get(1..).unwrap_or_default())),
        7 => {
            raw.now += Duration::from_secs(bytes.len() as u64);
            raw.speaker.tick(raw.now);
        }
        8 => {
            let targets: Vec<u32> = bytes.iter().map(|number| u32::from(*number)).collect();
            raw.speaker.set_imports(&[import(7, &targets)], raw.now);
        }
        9 => raw.send(&update(&[usual(), attribute(0x80, 14, &next_hop(&[0, 2, 1], 4))])),
        10 => raw.send(&plain(&[], &[attribute(0x40, 3, &[10, 255, 0, 2]), usual()].concat(), bytes)),
        11 => raw.send(&plain(bytes, &[], &[])),
        _ => reconnect(raw, bytes.first().is_some_and(|first| first & 1 != 0)),
    }
}

/// Offers to send several paths of one route, of all families.
const PATHS: &[u8] = &[69, 12, 0, 1, 128, 3, 0, 2, 128, 2, 0, 25, 70, 3];

fn reconnect(raw: &mut Raw, sends_paths: bool) {
    // Another one of the range calls as well, and says nothing.
    let _ = raw.speaker.accepted(super::net::address(2), raw.now);
    if let Some(conn) = raw.speaker.accepted(super::net::address(1), raw.now) {
        raw.conn = conn;
        let paths: &[&[u8]] = if sends_paths { &[PATHS] } else { &[] };
        raw.send(&open(super::net::AS as u16, &[&CAPABILITIES[..], &PLAIN, paths].concat()));
        raw.send(&message(4, &[]));
    }
}

#[test]
fn a_peer_may_send_anything() {
    bolero::check!().for_each(|input: &[u8]| {
        let mut raw = Raw::new(&[&CAPABILITIES[..], &PLAIN].concat());
        // Any next hop is on the link of a network.
        let addresses = vec!["203.0.113.254/0".parse().unwrap(), "2001:db8::ffff/0".parse().unwrap()];
        let link = Some(crate::Link { addresses, all: true });
        let imports =
            [import(7, &[100]), crate::Import { vrf: 9, routes: Vec::new(), macs: Vec::new(), link }];
        raw.speaker.set_imports(&imports, raw.now);
        let named = crate::PeerConfig { passive: true, ..super::net::peer(1, super::net::AS) };
        raw.speaker.set_all_peers(vec![named], vec![super::ranges::range("10.255.0.0/24", 1)], raw.now);
        let mut rest = input;
        while let [kind, length, behind @ ..] = rest {
            let (bytes, behind) = behind.split_at(behind.len().min(usize::from(*length)));
            act(&mut raw, *kind, bytes);
            rest = behind;
            assert!(raw.output().iter().all(|(kind, _)| (1..=5).contains(kind)));
            while raw.speaker.next_event().is_some() {}
        }
        let status = raw.status();
        assert_eq!(status.routes, raw.speaker.routes_kept());
        assert!(status.routes <= input.len());
        // Whatever was learned goes with the peer.
        raw.speaker.set_peers(Vec::new(), raw.now);
        raw.send(&[]);
        assert_eq!(raw.table, Default::default());
        assert_eq!(raw.speaker.routes_kept(), 0);
    });
}

#[test]
fn a_connection_may_begin_with_anything() {
    bolero::check!().for_each(|input: &[u8]| {
        let mut raw = Raw::connected();
        raw.send(input);
        assert!(raw.status().state < State::Established || input.len() > 40);
        let mut raw = Raw::connected();
        raw.send(&message(1, input));
        assert_eq!(
            raw.status().state == State::OpenConfirm,
            input.len() > 9 && raw.status().router_id.is_some()
        );
    });
}
