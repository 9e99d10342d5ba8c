//! Plain routes of routers, by which a network leaves.

use super::net::{AS, address, import, peer};
use super::plain::EXTERNAL;
use super::raw::{Raw, attribute, message, open, plain, update};
use crate::{Conn, Import, Link, Path, PeerConfig, Verdict};
use ipnet::IpNet;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

const NETWORK: u32 = 9;

/// Imports of a network whose own addresses are these. The routers of the tests are on its link.
fn link(all: bool, addresses: &[&str]) -> Vec<Import> {
    let addresses =
        addresses.iter().chain(&["10.255.0.254/24"]).map(|address| address.parse().unwrap()).collect();
    let link = Some(Link { addresses, all });
    vec![import(7, &[100]), Import { vrf: NETWORK, routes: Vec::new(), macs: Vec::new(), link }]
}

const OWN: [&str; 2] = ["203.0.113.254/24", "2001:db8::ffff/64"];

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn nlri(prefix: IpNet) -> Vec<u8> {
    let bits = prefix.prefix_len();
    [&[bits][..], &octets(prefix.addr())[..usize::from(bits.div_ceil(8))]].concat()
}

/// Returns an UPDATE by which a router says that it leads to a prefix. `path`: its AS path.
fn says(prefix: &str, next_hop: &str, path: &[u8]) -> Vec<u8> {
    let (prefix, next_hop): (IpNet, IpAddr) = (prefix.parse().unwrap(), next_hop.parse().unwrap());
    let path = path.iter().flat_map(|number| [0, 0, 0xfd, *number]).collect::<Vec<_>>();
    let path = attribute(0x40, 2, &[&[2, (path.len() / 4) as u8][..], &path].concat());
    let usual = [attribute(0x40, 1, &[0]), path].concat();
    if prefix.addr().is_ipv4() && next_hop.is_ipv4() {
        let next_hop = attribute(0x40, 3, &octets(next_hop));
        return plain(&[], &[usual, next_hop].concat(), &nlri(prefix));
    }
    let afi = if prefix.addr().is_ipv4() { 1 } else { 2 };
    let next_hop = octets(next_hop);
    let reach = [&[0, afi, 1, next_hop.len() as u8][..], &next_hop, &[0], &nlri(prefix)].concat();
    update(&[usual, attribute(0x80, 14, &reach)])
}

fn withdraws(prefix: &str) -> Vec<u8> {
    let prefix: IpNet = prefix.parse().unwrap();
    match prefix {
        IpNet::V4(_) => plain(&nlri(prefix), &[], &[]),
        IpNet::V6(_) => update(&[attribute(0x80, 15, &[&[0, 2, 1][..], &nlri(prefix)].concat())]),
    }
}

/// Opens a session with a router of AS 65001, for these imports.
fn router(imports: &[Import]) -> Raw {
    let mut raw = Raw::of(65001, &EXTERNAL);
    let now = raw.now;
    raw.speaker.set_imports(imports, now);
    raw.output();
    raw
}

fn ways(raw: &Raw, prefix: &str) -> Vec<String> {
    let paths = raw.table.routes.get(&(NETWORK, prefix.parse().unwrap())).cloned().unwrap_or_default();
    let via = |path: &Path| match path {
        Path::Via(router) => router.to_string(),
        Path::Tunnel { .. } => "tunnel".to_owned(),
    };
    paths.iter().map(via).collect()
}

#[test]
fn a_network_takes_default_routes_of_routers_on_its_link() {
    let mut raw = router(&link(false, &OWN));
    for (prefix, next_hop) in [
        ("0.0.0.0/0", "203.0.113.1"),
        ("::/0", "2001:db8::1"),
        ("198.51.100.0/24", "203.0.113.1"),
        ("2001:db8:1::/48", "2001:db8::1"),
    ] {
        raw.send(&says(prefix, next_hop, &[233]));
    }
    assert_eq!(ways(&raw, "0.0.0.0/0"), ["203.0.113.1"]);
    assert_eq!(ways(&raw, "::/0"), ["2001:db8::1"]);
    assert_eq!((raw.table.routes.len(), raw.status().routes, raw.status().counts.unused), (2, 2, 2));
    let [explained] = &raw.speaker.explain(NETWORK, "::/0".parse().unwrap())[..] else { panic!() };
    assert_eq!((explained.family.name(), explained.verdict), ("ipv6-unicast", Verdict::Used));
    raw.send(&[withdraws("0.0.0.0/0"), withdraws("::/0"), withdraws("198.51.100.0/24")].concat());
    assert_eq!((raw.table.routes.len(), raw.status().routes), (0, 0));
}

#[test]
fn networks_take_the_routes_of_their_own_routers() {
    let mut imports = link(true, &OWN);
    let more = |vrf, own: &[&str]| {
        let addresses = own.iter().map(|address| address.parse().unwrap()).collect();
        Import { vrf, routes: Vec::new(), macs: Vec::new(), link: Some(Link { addresses, all: true }) }
    };
    // One has the same subnet and another router, one has the router's address itself.
    imports.extend([more(10, &["203.0.113.253/24"]), more(11, &["203.0.113.1/24", "10.255.0.253/24"])]);
    let mut raw = router(&imports);
    raw.send(&says("0.0.0.0/0", "203.0.113.1", &[233]));
    assert_eq!(ways(&raw, "0.0.0.0/0"), ["203.0.113.1"]);
    assert_eq!((raw.table.routes.len(), raw.status().counts.own), (1, 0));
}

#[test]
fn ipv4_goes_by_routers_of_ipv6_too() {
    let mut raw = router(&link(true, &OWN));
    raw.send(&says("198.51.100.0/24", "2001:db8::1", &[233]));
    raw.send(&says("2001:db8:1::/48", "2001:db8::1", &[233]));
    assert_eq!(ways(&raw, "198.51.100.0/24"), ["2001:db8::1"]);
    assert_eq!(ways(&raw, "2001:db8:1::/48"), ["2001:db8::1"]);
}

#[test]
fn routes_that_lead_nowhere_are_counted() {
    let mut raw = router(&link(false, &OWN));
    let send = |raw: &mut Raw, next_hop: &str, path: &[u8]| {
        // It replaces one that could be used.
        raw.send(&says("0.0.0.0/0", "203.0.113.1", &[233]));
        raw.send(&says("0.0.0.0/0", next_hop, path));
        assert!(raw.table.routes.is_empty(), "{next_hop}");
        raw.status().counts
    };
    assert_eq!(send(&mut raw, "203.0.114.1", &[233]).unusable, 1, "not on the link");
    assert_eq!(send(&mut raw, "0.0.0.0", &[233]).unusable, 2, "none");
    assert_eq!(send(&mut raw, "203.0.113.254", &[233]).own, 1, "own");
    raw.send(&says("0.0.0.0/0", "203.0.113.1", &[233]));
    let own = attribute(0x40, 2, &[&[2, 2][..], &65001_u32.to_be_bytes(), &AS.to_be_bytes()].concat());
    let next_hop = attribute(0x40, 3, &[203, 0, 113, 1]);
    raw.send(&plain(&[], &[attribute(0x40, 1, &[0]), own.clone(), next_hop].concat(), &[0]));
    assert_eq!((raw.status().counts.looped, raw.status().routes), (1, 0), "through the own AS");
    // Without a next hop, or with one of another length.
    for (number, wrong) in [(1, Vec::new()), (2, attribute(0x40, 3, &[203, 0, 113]))] {
        raw.send(&says("0.0.0.0/0", "203.0.113.1", &[233]));
        raw.send(&plain(&[], &[attribute(0x40, 1, &[0]), attribute(0x40, 2, &[]), wrong].concat(), &[0]));
        assert_eq!((raw.status().counts.malformed, raw.status().routes), (number, 0));
    }
    // Targets are not asked for.
    raw.send(&plain(&[], &[], &[33, 1, 2, 3, 4, 5]));
    assert_eq!(raw.status().counts.unknown, 1, "a prefix that is too long");
}

#[test]
fn more_imports_ask_routers_for_their_routes_again() {
    let mut raw = router(&[import(7, &[100])]);
    let mut then = |imports: &[Import], asks: usize| {
        let now = raw.now;
        raw.speaker.set_imports(imports, now);
        let asked = raw.output().iter().filter(|(kind, _)| *kind == 5).count();
        assert_eq!(asked, asks, "{imports:?}");
        raw.send(&says("198.51.100.0/24", "203.0.113.1", &[233]));
        ways(&raw, "198.51.100.0/24").len()
    };
    assert_eq!(then(&link(false, &OWN), 2), 0);
    assert_eq!(then(&link(true, &OWN), 2), 1);
    assert_eq!(then(&link(true, &OWN), 0), 1);
    assert_eq!(then(&link(false, &OWN), 2), 0);
    // Other targets are no matter of routers.
    assert_eq!(then(&[import(7, &[100, 101])], 0), 0);
}

#[test]
fn routes_stay_with_a_router_that_forwards_on_while_its_session_is_down() {
    // It names IPv4 alone.
    let restarts: &[u8] = &[64, 6, 0, 120, 0, 1, 1, 0x80];
    let lost = |more: &[&[u8]], cut: bool| {
        let mut raw = Raw::of(65001, &[&EXTERNAL, more].concat());
        let now = raw.now;
        raw.speaker.set_imports(&link(false, &OWN), now);
        raw.send(&[says("0.0.0.0/0", "203.0.113.1", &[233]), says("::/0", "2001:db8::1", &[233])].concat());
        assert_eq!(raw.table.routes.len(), 2);
        if cut {
            raw.speaker.path_down(address(1), now);
        } else {
            raw.speaker.closed(raw.conn, now);
        }
        raw.send(&[]);
        raw
    };
    assert!(lost(&[], false).table.routes.is_empty());
    assert!(lost(&[restarts], true).table.routes.is_empty());
    let mut raw = lost(&[restarts], false);
    assert_eq!((ways(&raw, "0.0.0.0/0").len(), ways(&raw, "::/0").len()), (1, 0));
    raw.now += Duration::from_secs(121);
    raw.speaker.tick(raw.now);
    raw.send(&[]);
    assert!(raw.table.routes.is_empty());
    // It is back, and says whether it has forwarded on.
    for (flags, stay) in [(0x80, 1), (0, 0)] {
        let mut raw = lost(&[restarts], false);
        let back: &[u8] = &[64, 6, 0, 120, 0, 1, 1, flags];
        raw.conn = raw.speaker.accepted(address(1), raw.now).unwrap();
        raw.send(&[open(65001_u16, &[&EXTERNAL, &[back][..]].concat()), message(4, &[])].concat());
        assert_eq!(ways(&raw, "0.0.0.0/0").len(), stay);
    }
}

#[test]
fn a_router_that_sends_too_many_loses_its_session() {
    let mut raw = router(&link(true, &OWN));
    let few =
        PeerConfig { passive: true, families: crate::Family::ALL.into(), max_routes: 2, ..peer(1, 65001) };
    raw.speaker.set_peers(vec![few], raw.now);
    for prefix in ["198.51.100.0/24", "198.51.101.0/24", "198.51.102.0/24"] {
        raw.send(&says(prefix, "203.0.113.1", &[233]));
    }
    assert_eq!(raw.last_words()[..2], [6, 1]);
}

const PREFIXES: [&str; 4] = ["0.0.0.0/0", "::/0", "198.51.100.0/24", "2001:db8:1::/48"];
const HOPS: [&str; 6] =
    ["203.0.113.1", "203.0.113.2", "203.0.114.1", "203.0.113.254", "2001:db8::1", "2001:db8::2"];
const ADDRESSES: [&[&str]; 3] = [&OWN, &["203.0.114.254/24"], &["203.0.113.1/24", "2001:db8::ffff/64"]];

#[derive(Clone, Debug)]
enum Step {
    /// By a router: a prefix, a next hop, the length of the AS path.
    Say(usize, usize, usize, usize),
    Withdraw(usize, usize),
    Import(bool, usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let prefix = 0..PREFIXES.len();
    prop_oneof![
        8 => (0..2_usize, prefix.clone(), 0..HOPS.len(), 1..3_usize)
            .prop_map(|(router, prefix, hop, length)| Step::Say(router, prefix, hop, length)),
        3 => (0..2_usize, prefix).prop_map(|(router, prefix)| Step::Withdraw(router, prefix)),
        1 => (any::<bool>(), 0..ADDRESSES.len()).prop_map(|(all, at)| Step::Import(all, at)),
    ]
}

/// The knowledge of a naive model: by router and prefix, the next hop and the length of the AS path.
type Said = BTreeMap<(usize, usize), (usize, usize)>;

/// Works out the next hops to a prefix.
fn expected(said: &Said, prefix: usize, (all, at): (bool, usize)) -> Vec<String> {
    let is_taken = all || PREFIXES[prefix].ends_with("/0");
    let own: Vec<IpNet> = ADDRESSES[at].iter().map(|own| own.parse().unwrap()).collect();
    let reaches = |hop: usize| {
        let hop: IpAddr = HOPS[hop].parse().unwrap();
        own.iter().any(|own| own.contains(&hop)) && own.iter().all(|own| own.addr() != hop)
    };
    let known = said.iter().filter(|((_, its), (hop, _))| *its == prefix && is_taken && reaches(*hop));
    let least = known.clone().map(|(_, (_, length))| *length).min();
    let best: BTreeSet<IpAddr> = known
        .filter(|(_, (_, length))| Some(*length) == least)
        .map(|(_, (hop, _))| HOPS[*hop].parse().unwrap())
        .collect();
    best.iter().map(ToString::to_string).collect()
}

fn text(router: usize, prefix: usize, hop: usize, length: usize) -> Vec<u8> {
    says(PREFIXES[prefix], HOPS[hop], &[233 + router as u8, 250][..length])
}

proptest! {
    #[test]
    fn any_order_ends_in_the_ways_of_a_naive_model(steps in prop::collection::vec(steps(), 1..60)) {
        let mut raw = router(&link(false, ADDRESSES[0]));
        let passive = |node| PeerConfig { passive: true, families: crate::Family::ALL.into(), ..peer(node, 65000 + node as u32) };
        let now = raw.now;
        raw.speaker.set_peers(vec![passive(1), passive(2)], now);
        let mut conns: Vec<Conn> = vec![raw.conn];
        raw.conn = raw.speaker.accepted(address(2), now).unwrap();
        conns.push(raw.conn);
        let mut opening = open(65002, &[EXTERNAL[0], EXTERNAL[1], EXTERNAL[2], &[65, 4, 0, 0, 0xfd, 0xea]]);
        opening[27] = 3;
        raw.send(&[opening, message(4, &[])].concat());
        let (mut said, mut imports) = (Said::new(), (false, 0));
        for step in steps {
            match step {
                Step::Say(router, prefix, hop, length) => {
                    // An IPv6 prefix has no IPv4 next hop.
                    if PREFIXES[prefix].contains(':') && !HOPS[hop].contains(':') {
                        continue;
                    }
                    raw.conn = conns[router];
                    raw.send(&text(router, prefix, hop, length));
                    said.insert((router, prefix), (hop, length));
                }
                Step::Withdraw(router, prefix) => {
                    raw.conn = conns[router];
                    raw.send(&withdraws(PREFIXES[prefix]));
                    said.remove(&(router, prefix));
                }
                Step::Import(all, at) => {
                    imports = (all, at);
                    let now = raw.now;
                    raw.speaker.set_imports(&link(all, ADDRESSES[at]), now);
                    // Routers answer what they are asked.
                    for ((router, prefix), (hop, length)) in &said {
                        raw.conn = conns[*router];
                        raw.send(&text(*router, *prefix, *hop, *length));
                    }
                    raw.send(&[]);
                }
            }
            for (at, prefix) in PREFIXES.iter().enumerate() {
                prop_assert_eq!(ways(&raw, prefix), expected(&said, at, imports));
            }
            let routes: usize = raw.speaker.peers().iter().map(|peer| peer.routes).sum();
            prop_assert_eq!(routes, raw.speaker.routes_kept());
        }
    }
}
