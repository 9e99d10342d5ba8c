//! Octets: what other speakers send, and what is sent to them.

use super::net::{address, import, mpls, path, target, vpn, vxlan};
use super::raw::{CAPABILITIES, Raw, attribute, message, update};
use crate::{Announcement, Encapsulation, Import, LEAVING, MacPath, Mobility, Nlri, Path, Tunnel};
use ipnet::IpNet;
use packet::Mac;

/// Returns ORIGIN, an empty AS_PATH, LOCAL_PREF 100.
fn usual() -> Vec<u8> {
    [attribute(0x40, 1, &[0]), attribute(0x40, 2, &[]), attribute(0x40, 5, &[0, 0, 0, 100])].concat()
}

/// Returns a route target 64512:100, and more communities.
fn communities(more: &[[u8; 8]]) -> Vec<u8> {
    let target = [0, 2, 0xfc, 0, 0, 0, 0, 100];
    attribute(0xc0, 16, &[&target[..], &more.concat()].concat())
}

const MPLS_UDP: [u8; 8] = [3, 0x0c, 0, 0, 0, 0, 0, 13];
const VXLAN: [u8; 8] = [3, 0x0c, 0, 0, 0, 0, 0, 8];
const ROUTER_MAC: [u8; 8] = [6, 3, 2, 0xaa, 0, 0, 0, 0x12];
const RD: [u8; 8] = [0, 0, 0xfc, 0, 0, 0, 0, 1];

/// Returns MP_REACH_NLRI of VPNv4 from 10.255.0.2.
fn vpnv4(nlri: &[u8]) -> Vec<u8> {
    let next_hop = [0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 10, 255, 0, 2, 0];
    attribute(0x80, 14, &[&next_hop[..], nlri].concat())
}

fn evpn(nlri: &[u8]) -> Vec<u8> {
    attribute(0x80, 14, &[&[0, 25, 70, 4, 10, 255, 0, 2, 0][..], nlri].concat())
}

/// Returns 10.1.1.0/24, label 1001.
fn network() -> Vec<u8> {
    [&[112, 0, 0x3e, 0x91][..], &RD, &[10, 1, 1]].concat()
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn labels_of_vpn_families_are_shifted() {
    let mut raw = Raw::new(&CAPABILITIES);
    raw.send(&update(&[usual(), communities(&[MPLS_UDP]), vpnv4(&network())]));
    assert_eq!(raw.table.routes[&(7, prefix("10.1.1.0/24"))], [path(1, 1001)]);
    // Without a community it is the peer's usual encapsulation.
    raw.send(&update(&[usual(), communities(&[]), vpnv4(&network())]));
    assert_eq!(raw.table.routes[&(7, prefix("10.1.1.0/24"))], [path(1, 1001)]);
    // 11 is MPLS over GRE too; of two, the host's preference counts.
    let gre = [3, 0x0c, 0, 0, 0, 0, 0, 11];
    raw.send(&update(&[usual(), communities(&[gre]), vpnv4(&network())]));
    let used = |raw: &Raw| raw.table.routes[&(7, prefix("10.1.1.0/24"))][0].tunnel().unwrap().encapsulation;
    assert_eq!(used(&raw), Encapsulation::MplsGre);
    raw.send(&update(&[usual(), communities(&[gre, MPLS_UDP]), vpnv4(&network())]));
    assert_eq!(used(&raw), Encapsulation::MplsUdp);
    // A withdrawal names no label that means anything.
    let withdrawn = [&[0, 1, 128, 112, 0x80, 0, 0][..], &RD, &[10, 1, 1]].concat();
    raw.send(&update(&[attribute(0x80, 15, &withdrawn)]));
    assert!(raw.table.routes.is_empty());
}

#[test]
fn labels_of_evpn_are_read_by_encapsulation() {
    let mut raw = Raw::new(&CAPABILITIES);
    let mac = |label: &[u8]| {
        let fixed = [&RD[..], &[0; 14], &[48, 2, 0, 0, 0, 1, 1, 32, 10, 1, 1, 5], label].concat();
        evpn(&[&[2, fixed.len() as u8][..], &fixed].concat())
    };
    let key = (7, Mac([2, 0, 0, 0, 1, 1]));
    let tunnel = |encapsulation, label| Tunnel { remote: address(1), encapsulation, label };
    // 2004 by MPLS.
    raw.send(&update(&[usual(), communities(&[MPLS_UDP]), mac(&[0, 0x7d, 0x41])]));
    let mobility = Mobility::default();
    let expected = MacPath { tunnel: tunnel(Encapsulation::MplsUdp, 2004), mobility };
    assert_eq!(raw.table.macs[&key], expected);
    assert_eq!(raw.table.neighbours[&(7, "10.1.1.5".parse().unwrap())], key.1);
    assert!(raw.table.routes.is_empty());
    // VNI 5001, routed by 5002 in a network that does not have the MAC address.
    let now = raw.now;
    let routes_alone = Import { vrf: 8, routes: vec![target(100)], macs: Vec::new(), link: None };
    raw.speaker.set_imports(&[import(7, &[100]), routes_alone], now);
    let moved = [6, 0, 0, 0, 0, 0, 0, 3];
    let labels = [0, 0x13, 0x89, 0, 0x13, 0x8a];
    raw.send(&update(&[usual(), communities(&[VXLAN, ROUTER_MAC, moved]), mac(&labels)]));
    let mobility = Mobility { sticky: false, sequence: 3 };
    let expected = MacPath { tunnel: tunnel(Encapsulation::Vxlan, 5001), mobility };
    assert_eq!(raw.table.macs[&key], expected);
    let router_mac = Some(Mac([2, 0xaa, 0, 0, 0, 0x12]));
    let expected = Path::Tunnel { tunnel: tunnel(Encapsulation::Vxlan, 5002), router_mac };
    assert_eq!(raw.table.routes, [((8, prefix("10.1.1.5/32")), vec![expected])].into());
}

#[test]
fn mac_addresses_are_listed_page_by_page() {
    let mut raw = Raw::new(&CAPABILITIES);
    let mac = |last: u8, address: &[u8]| {
        let size = address.len() as u8 * 8;
        let fixed = [&RD[..], &[0; 14], &[48, 2, 0, 0, 0, 1, last, size], address, &[0, 0x13, 0x89]].concat();
        evpn(&[&[2, fixed.len() as u8][..], &fixed].concat())
    };
    for (last, address) in [(1, &[][..]), (1, &[10, 1, 1, 5]), (2, &[]), (1, &[10, 1, 1, 4])] {
        raw.send(&update(&[usual(), communities(&[VXLAN]), mac(last, address)]));
    }
    let [first, second] = [1, 2].map(|last| Mac([2, 0, 0, 0, 1, last]));
    let page = |after, most| {
        let macs = raw.speaker.macs(7, after, most);
        macs.iter()
            .map(|known| (known.mac, known.addresses.len(), known.path.tunnel.label))
            .collect::<Vec<_>>()
    };
    assert_eq!(page(None, 9), [(first, 2, 5001), (second, 0, 5001)]);
    assert_eq!((page(None, 1), page(Some(first), 1)), (vec![(first, 2, 5001)], vec![(second, 0, 5001)]));
    assert_eq!(page(Some(second), 1), []);
    assert_eq!(raw.speaker.macs(8, None, 9), []);
}

#[test]
fn what_is_about_to_end_is_the_worst_and_says_so() {
    let mut raw = Raw::new(&CAPABILITIES);
    let leaves = attribute(0xc0, 8, &[0, 1, 0, 2, 0xff, 0xff, 0, 0]);
    raw.send(&update(&[usual(), leaves, communities(&[MPLS_UDP]), vpnv4(&network())]));
    assert_eq!(raw.speaker.explain(7, prefix("10.1.1.0/24"))[0].preference, LEAVING);
    raw.send(&update(&[
        usual(),
        attribute(0xc0, 8, &[0, 1, 0]),
        communities(&[MPLS_UDP]),
        vpnv4(&network()),
    ]));
    assert!(raw.table.routes.is_empty(), "malformed");
    raw.output();
    raw.speaker
        .announce(vpn(1, "10.9.0.0/16"), Announcement { preference: LEAVING, ..mpls(0, 2005, &[100]) });
    let [(2, body)] = &raw.output()[..] else { panic!("one UPDATE") };
    let has = |attribute: &[u8]| body.windows(attribute.len()).any(|part| part == attribute);
    assert!(has(&[0x40, 5, 4, 0, 0, 0, 0]) && has(&[0xc0, 8, 4, 0xff, 0xff, 0, 0]), "{body:x?}");
}

#[test]
fn floods_take_their_label_from_the_tunnel_attribute() {
    let mut raw = Raw::new(&CAPABILITIES);
    let flood = evpn(&[&[3, 17][..], &RD, &[0, 0, 0, 0, 32, 10, 255, 0, 2]].concat());
    let pmsi = attribute(0xc0, 22, &[0, 6, 0, 0x13, 0x89, 10, 255, 0, 2]);
    raw.send(&update(&[usual(), communities(&[VXLAN]), pmsi, flood.clone()]));
    let tunnel = Tunnel { remote: address(1), encapsulation: Encapsulation::Vxlan, label: 5001 };
    assert_eq!(raw.table.floods[&7], [tunnel]);
    // By multicast (type 3): not for this host.
    let pmsi = attribute(0xc0, 22, &[0, 3, 0, 0x13, 0x89, 239, 0, 0, 1]);
    raw.send(&update(&[usual(), communities(&[VXLAN]), pmsi, flood]));
    assert!(raw.table.floods.is_empty());
    assert_eq!(raw.status().counts.unusable, 1);
}

#[test]
fn prefixes_of_evpn_need_a_router_mac_and_no_gateway() {
    let mut raw = Raw::new(&CAPABILITIES);
    let five = |gateway: u8| {
        let fixed = [&RD[..], &[0; 14], &[24, 10, 1, 3, 0, 0, 0, 0, gateway, 0, 0x13, 0x8b]].concat();
        evpn(&[&[5, 34][..], &fixed].concat())
    };
    raw.send(&update(&[usual(), communities(&[VXLAN, ROUTER_MAC]), five(0)]));
    assert_eq!(raw.table.routes[&(7, prefix("10.1.3.0/24"))][0].tunnel().unwrap().label, 5003);
    raw.send(&update(&[usual(), communities(&[VXLAN, ROUTER_MAC]), five(9)]));
    assert!(raw.table.routes.is_empty());
    raw.send(&update(&[usual(), communities(&[VXLAN]), five(0)]));
    assert!(raw.table.routes.is_empty());
    assert_eq!(raw.status().counts.unusable, 2);
}

#[test]
fn vpnv6_over_an_ipv4_core() {
    let mut raw = Raw::new(&CAPABILITIES);
    let mut next_hop = vec![0, 2, 128, 24, 0, 0, 0, 0, 0, 0, 0, 0];
    next_hop.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 255, 0, 2, 0]);
    let nlri = [&[152, 0, 0x3e, 0xb1][..], &RD, &[0xfd, 1, 0, 1, 0, 0, 0, 0]].concat();
    raw.send(&update(&[usual(), communities(&[]), attribute(0x80, 14, &[next_hop, nlri].concat())]));
    assert_eq!(raw.table.routes[&(7, prefix("fd01:1::/64"))], [path(1, 1003)]);
}

#[test]
fn announcements_have_the_octets_of_the_standards() {
    let mut raw = Raw::new(&CAPABILITIES);
    raw.output();
    raw.speaker.announce(vpn(1, "10.9.0.0/16"), mpls(0, 2005, &[100]));
    let rd = [0, 1, 192, 0, 2, 1, 0, 1];
    let reach = [
        &[0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 10, 255, 0, 1, 0][..],
        &[104, 0, 0x7d, 0x51],
        &rd,
        &[10, 9],
    ];
    let rest = [&[0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 5, 4, 0, 0, 0, 100, 0xc0, 16, 16][..]];
    let target = [0, 2, 0xfc, 0, 0, 0, 0, 100];
    let expected =
        [attribute(0x80, 14, &reach.concat()), rest.concat(), [target, MPLS_UDP].concat()].concat();
    let body = [&[0, 0][..], &(expected.len() as u16).to_be_bytes(), &expected].concat();
    assert_eq!(raw.output(), [(2, body)]);
    // Withdrawn.
    raw.speaker.withdraw(&vpn(1, "10.9.0.0/16"));
    let unreach = [&[0, 1, 128, 104, 0x80, 0, 0][..], &rd, &[10, 9]].concat();
    let expected = attribute(0x80, 15, &unreach);
    let body = [&[0, 0][..], &(expected.len() as u16).to_be_bytes(), &expected].concat();
    assert_eq!(raw.output(), [(2, body)]);
}

#[test]
fn floods_and_macs_have_the_octets_of_the_standards() {
    let mut raw = Raw::new(&CAPABILITIES);
    raw.output();
    let rd = super::net::rd(2);
    raw.speaker.announce(Nlri::Flood { rd, originator: address(0) }, vxlan(0, 5001, &[100]));
    let body = raw.output().remove(0).1;
    let route = [&[3, 17][..], &rd.0, &[0, 0, 0, 0, 32, 10, 255, 0, 1]].concat();
    assert!(contains(&body, &route) && contains(&body, &[0xc0, 22, 9, 0, 6, 0, 0x13, 0x89, 10, 255, 0, 1]));
    assert!(contains(&body, &VXLAN) && contains(&body, &[6, 3, 2, 0xaa, 0, 0, 0, 0]));
    let mac = Mac([2, 0, 0, 0, 1, 1]);
    let mut announcement = vxlan(0, 5001, &[100]);
    announcement.routed = Some(5002);
    announcement.mobility = Some(Mobility { sticky: true, sequence: 9 });
    raw.speaker.announce(Nlri::Mac { rd, mac, address: Some("10.1.1.5".parse().unwrap()) }, announcement);
    let body = raw.output().remove(0).1;
    let fixed = [&rd.0[..], &[0; 14], &[48, 2, 0, 0, 0, 1, 1, 32, 10, 1, 1, 5, 0, 0x13, 0x89, 0, 0x13, 0x8a]];
    assert!(contains(&body, &[&[2, 40][..], &fixed.concat()].concat()));
    assert!(contains(&body, &[6, 0, 1, 0, 0, 0, 0, 9]));
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[test]
fn open_names_what_the_speaker_can() {
    let mut raw = Raw::connected();
    let (kind, body) = raw.output().remove(0);
    assert_eq!((kind, &body[..10]), (1, &[4, 0xfc, 0, 0, 90, 10, 255, 0, 1, body[9]][..]));
    for capability in [
        &[1, 4, 0, 1, 0, 128][..],
        &[1, 4, 0, 2, 0, 128],
        &[1, 4, 0, 25, 0, 70],
        &[1, 4, 0, 1, 0, 132],
        &[2, 0],
        &[6, 0],
        &[70, 0],
        &[65, 4, 0, 0, 0xfc, 0],
        &[1, 4, 0, 1, 0, 1],
        &[1, 4, 0, 2, 0, 1],
        // IPv6 next hops of VPN-IPv4 and of plain IPv4.
        &[5, 12, 0, 1, 0, 128, 0, 2, 0, 1, 0, 1, 0, 2],
        // The N bit, 120 seconds; six families whose forwarding was not kept.
        &[64, 26, 0x40, 120],
    ] {
        assert!(contains(&body, capability), "{capability:?} in {body:?}");
    }
}

#[test]
fn lengths_of_optional_parameters_may_be_extended() {
    let mut raw = Raw::connected();
    let capabilities = CAPABILITIES.concat();
    let length = capabilities.len() as u8;
    let fixed = [4, 0xfc, 0, 0, 90, 10, 255, 0, 2, 255, 255, 0, length + 3, 2, 0, length];
    raw.send(&message(1, &[&fixed[..], &capabilities].concat()));
    raw.send(&message(4, &[]));
    assert_eq!(raw.status().state, crate::State::Established, "{:?}", raw.status().last);
}

#[test]
fn a_peer_without_graceful_restart_ends_its_routes_by_silence() {
    let mut raw = Raw::new(&CAPABILITIES);
    let synchronized = |raw: &mut Raw| {
        std::iter::from_fn(|| raw.speaker.next_event()).any(|event| event == crate::Event::Synchronized)
    };
    raw.now += std::time::Duration::from_secs(29);
    raw.send(&update(&[usual(), communities(&[MPLS_UDP]), vpnv4(&network())]));
    raw.now += std::time::Duration::from_secs(1);
    raw.send(&message(4, &[]));
    assert!(!synchronized(&mut raw));
    raw.now += std::time::Duration::from_secs(29);
    raw.send(&message(4, &[]));
    assert!(synchronized(&mut raw));
}

#[test]
fn marks_of_a_refresh_sweep_what_is_not_sent_again() {
    let mut raw = Raw::new(&[&CAPABILITIES[..], &[&[70, 0]]].concat());
    let other = [&[112, 0, 0x3e, 0x91][..], &RD, &[10, 1, 2]].concat();
    raw.send(&update(&[usual(), communities(&[MPLS_UDP]), vpnv4(&[network(), other].concat())]));
    raw.send(&update(&[attribute(0x80, 15, &[0, 1, 128])]));
    raw.output();
    // The peer begins, sends one of two, and ends. A second end means nothing.
    raw.send(&message(5, &[0, 1, 1, 128]));
    raw.send(&update(&[usual(), communities(&[MPLS_UDP]), vpnv4(&network())]));
    assert_eq!(raw.table.routes.len(), 2);
    assert!(!raw.speaker.explain(7, prefix("10.1.2.0/24"))[0].stale);
    raw.send(&message(5, &[0, 1, 2, 128]));
    assert_eq!(raw.table.routes.into_keys().collect::<Vec<_>>(), [(7, prefix("10.1.1.0/24"))]);
    raw.table = Default::default();
    raw.send(&message(5, &[0, 1, 2, 128]));
    assert!(raw.table.routes.is_empty());
    // The peer asks: what it gets is marked.
    raw.speaker.announce(vpn(1, "10.9.0.0/16"), mpls(0, 2005, &[100]));
    raw.output();
    raw.send(&message(5, &[0, 1, 0, 128]));
    let kinds: Vec<_> = raw.output().into_iter().map(|(kind, body)| (kind, body.get(2).copied())).collect();
    assert_eq!((kinds[0], kinds[1].0, kinds[2]), ((5, Some(1)), 2, (5, Some(2))));
}
