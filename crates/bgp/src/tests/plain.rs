//! Plain IPv4 and IPv6 routes: octets, and a naive reader of them that ends with what is announced.

use super::net::{AS, mpls, vpn};
use super::raw::{CAPABILITIES, PLAIN, Raw, attribute, message, messages, plain, update};
use crate::{Announcement, LEAVING, Label, Nlri, State};
use ipnet::IpNet;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Plain IPv4 with IPv6 next hops.
const NEXT_HOPS6: &[u8] = &[5, 6, 0, 1, 0, 1, 0, 2];
/// Capabilities of a router of AS 65001: both families, ROUTE-REFRESH, AS in four octets.
pub(super) const EXTERNAL: [&[u8]; 4] = [PLAIN[0], PLAIN[1], &[2, 0], &[65, 4, 0, 0, 0xfd, 0xe9]];
const ADDRESS6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
const OWN6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

fn nlri(text: &str) -> Nlri {
    Nlri::Unicast { prefix: text.parse().unwrap() }
}

fn by(next_hop: &str, preference: u32) -> Announcement {
    let next_hop = next_hop.parse().unwrap();
    Announcement { next_hop, label: Label::None, targets: Vec::new(), preference, ..mpls(0, 0, &[]) }
}

/// Opens a session with a peer of AS 65001 that speaks both families and more.
fn external(more: &[&[u8]]) -> Raw {
    let mut raw = Raw::of(65001, &[&EXTERNAL, more].concat());
    raw.output();
    raw
}

/// Returns what a session sends that has one message to send.
fn sent(withdrawn: &[u8], attributes: &[u8], nlri: &[u8]) -> Vec<(u8, Vec<u8>)> {
    messages(&plain(withdrawn, attributes, nlri))
}

const PREFIX4: [u8; 5] = [32, 203, 0, 113, 5];
const NEXT_HOP4: [u8; 7] = [0x40, 3, 4, 203, 0, 113, 254];
const ORIGIN: [u8; 4] = [0x40, 1, 1, 0];
/// An AS path of the own AS.
const PATH: [u8; 9] = [0x40, 2, 6, 2, 1, 0, 0, 0xfc, 0];

#[test]
fn a_router_of_another_as_gets_octets_of_the_standards() {
    let mut raw = external(&[]);
    raw.speaker.announce(nlri("203.0.113.5/32"), by("203.0.113.254", 100));
    let attributes = [&NEXT_HOP4[..], &ORIGIN, &PATH].concat();
    assert_eq!(raw.output(), sent(&[], &attributes, &PREFIX4));
    raw.speaker.withdraw(&nlri("203.0.113.5/32"));
    assert_eq!(raw.output(), sent(&PREFIX4, &[], &[]));
    raw.speaker.announce(nlri("2001:db8::5/128"), by("2001:db8::ffff", 100));
    let prefix = [&[128][..], &ADDRESS6].concat();
    let reach = attribute(0x80, 14, &[&[0, 2, 1, 16][..], &OWN6, &[0], &prefix].concat());
    assert_eq!(raw.output(), sent(&[], &[&reach[..], &ORIGIN, &PATH].concat(), &[]));
    raw.speaker.withdraw(&nlri("2001:db8::5/128"));
    let unreach = attribute(0x80, 15, &[&[0, 2, 1][..], &prefix].concat());
    assert_eq!(raw.output(), sent(&[], &unreach, &[]));
}

#[test]
fn a_route_about_to_end_has_the_own_as_three_times_and_the_community() {
    let mut raw = external(&[]);
    raw.speaker.announce(nlri("203.0.113.5/32"), by("203.0.113.254", LEAVING));
    let path = [&[0x40, 2, 14, 2, 3][..], &[0, 0, 0xfc, 0].repeat(3)].concat();
    let community = [0xc0, 8, 4, 0xff, 0xff, 0, 0];
    let attributes = [&NEXT_HOP4[..], &ORIGIN, &path, &community].concat();
    assert_eq!(raw.output(), sent(&[], &attributes, &PREFIX4));
}

#[test]
fn a_peer_of_the_own_as_gets_local_pref_and_an_empty_path() {
    let mut raw = Raw::new(&[&CAPABILITIES[..], &PLAIN].concat());
    raw.output();
    raw.speaker.announce(nlri("203.0.113.5/32"), by("203.0.113.254", 100));
    let rest = [0x40, 2, 0, 0x40, 5, 4, 0, 0, 0, 100];
    let attributes = [&NEXT_HOP4[..], &ORIGIN, &rest].concat();
    assert_eq!(raw.output(), sent(&[], &attributes, &PREFIX4));
}

#[test]
fn ipv6_next_hops_of_ipv4_go_to_whom_they_mean_something() {
    let mut raw = external(&[NEXT_HOPS6]);
    raw.speaker.announce(nlri("203.0.113.5/32"), by("2001:db8::ffff", 100));
    let reach = attribute(0x80, 14, &[&[0, 1, 1, 16][..], &OWN6, &[0], &PREFIX4].concat());
    assert_eq!(raw.output(), sent(&[], &[&reach[..], &ORIGIN, &PATH].concat(), &[]));
    let mut raw = external(&[]);
    raw.speaker.announce(nlri("203.0.113.5/32"), by("203.0.113.254", 100));
    raw.output();
    raw.speaker.announce(nlri("203.0.113.5/32"), by("2001:db8::ffff", 100));
    assert_eq!(raw.output(), sent(&PREFIX4, &[], &[]));
}

#[test]
fn ends_of_plain_routes_are_marked_both_ways() {
    let mut raw = Raw::of(65001, &[&EXTERNAL[..], &[&[64, 2, 0, 120]]].concat());
    let ends = [plain(&[], &[], &[]), plain(&[], &attribute(0x80, 15, &[0, 2, 1]), &[])];
    let updates: Vec<_> = raw.output().into_iter().filter(|(kind, _)| *kind == 2).collect();
    assert_eq!(updates, messages(&ends.concat()));
    let is_synchronized = |raw: &mut Raw| {
        std::iter::from_fn(|| raw.speaker.next_event()).any(|event| event == crate::Event::Synchronized)
    };
    raw.send(&ends[0]);
    assert!(!is_synchronized(&mut raw));
    raw.send(&ends[1]);
    assert!(is_synchronized(&mut raw));
}

#[test]
fn what_a_peer_sends_is_counted_and_not_used() {
    let mut raw = external(&[]);
    let target = attribute(0xc0, 16, &[0, 2, 0xfc, 0, 0, 0, 0, 100, 3, 12, 0, 0, 0, 0, 0, 13]);
    let usual = [&NEXT_HOP4[..], &ORIGIN, &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9], &target].concat();
    raw.send(&plain(&[], &usual, &[0, 24, 10, 1, 1]));
    let reach = attribute(0x80, 14, &[&[0, 2, 1, 16][..], &OWN6, &[0, 128], &ADDRESS6].concat());
    raw.send(&update(&[reach, usual]));
    assert_eq!((raw.status().counts.unused, raw.status().routes), (3, 0));
    assert!(raw.table.routes.is_empty());
    // Routes that do not fill their room end the session.
    raw.send(&plain(&[], &[], &[24, 10]));
    assert_eq!(raw.last_words()[..2], [3, 10]);
    // Who does not speak the family sends them in vain.
    let mut raw = Raw::new(&CAPABILITIES);
    raw.send(&plain(&[], &NEXT_HOP4, &[24, 10]));
    assert_eq!((raw.status().counts.foreign, raw.status().state), (1, State::Established));
}

#[test]
fn other_imports_do_not_end_a_session_that_has_none() {
    let mut raw = Raw::of(65001, &[PLAIN[0], EXTERNAL[3]]);
    let now = raw.now;
    raw.speaker.set_imports(&[super::net::import(7, &[100, 200])], now);
    assert_eq!(raw.status().state, State::Established);
}

/// Everything that matters of a route that a peer got: next hop, AS path, LOCAL_PREF, whether it is about to end.
type Row = (IpAddr, Vec<u32>, Option<u32>, bool);

/// A naive peer: it reads UPDATE messages octet by octet.
#[derive(Default)]
struct Reader {
    table: BTreeMap<IpNet, Row>,
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn address(bytes: &[u8]) -> IpAddr {
    match <[u8; 4]>::try_from(bytes) {
        Ok(bytes) => Ipv4Addr::from(bytes).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).into(),
    }
}

/// Reads prefixes of addresses of so many bytes.
fn prefixes(mut bytes: &[u8], size: usize) -> Vec<IpNet> {
    let mut all = Vec::new();
    while let [bits, rest @ ..] = bytes {
        let (its, behind) = rest.split_at(usize::from(*bits).div_ceil(8));
        let padded: Vec<u8> = its.iter().copied().chain(std::iter::repeat(0)).take(size).collect();
        all.push(IpNet::new(address(&padded), *bits).unwrap());
        bytes = behind;
    }
    all
}

impl Reader {
    fn read(&mut self, body: &[u8]) {
        let (withdrawn, rest) = body[2..].split_at(number(&body[..2]));
        let (mut attributes, plain) = rest[2..].split_at(number(&rest[..2]));
        let (mut gone, mut new) = (prefixes(withdrawn, 4), prefixes(plain, 4));
        let mut row: Row = (Ipv4Addr::UNSPECIFIED.into(), Vec::new(), None, false);
        while let [flags, code, rest @ ..] = attributes {
            let (length, rest) = rest.split_at(if flags & 0x10 != 0 { 2 } else { 1 });
            let (value, behind) = rest.split_at(number(length));
            attributes = behind;
            let size = |afi: u8| if afi == 1 { 4 } else { 16 };
            match (code, value) {
                (2, [2, count, numbers @ ..]) => {
                    row.1 = numbers.chunks(4).map(|bytes| number(bytes) as u32).collect();
                    assert_eq!(row.1.len(), usize::from(*count));
                }
                (3, next_hop) => row.0 = address(next_hop),
                (5, preference) => row.2 = Some(number(preference) as u32),
                (8, [0xff, 0xff, 0, 0]) => row.3 = true,
                (14, [0, afi, 1, length, rest @ ..]) => {
                    let (next_hop, rest) = rest.split_at(usize::from(*length));
                    row.0 = address(next_hop);
                    new.extend(prefixes(&rest[1..], size(*afi)));
                }
                (15, [0, afi, 1, rest @ ..]) => gone.extend(prefixes(rest, size(*afi))),
                _ => {}
            }
        }
        gone.iter().for_each(|prefix| drop(self.table.remove(prefix)));
        new.into_iter().for_each(|prefix| drop(self.table.insert(prefix, row.clone())));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Announce(usize, bool, u32),
    Withdraw(usize),
    /// One of a network: it must not be seen.
    Vpn,
    Refresh,
    Reconnect,
    /// The peer takes what there is to send.
    Read,
}

const PREFIXES: [&str; 5] = ["203.0.113.5/32", "203.0.113.6/32", "0.0.0.0/0", "2001:db8::5/128", "::/0"];

fn steps() -> impl Strategy<Value = Step> {
    let preference = prop::sample::select(vec![100, 200, LEAVING]);
    prop_oneof![
        8 => (0..PREFIXES.len(), any::<bool>(), preference).prop_map(|(at, v6, preference)| Step::Announce(at, v6, preference)),
        4 => (0..PREFIXES.len()).prop_map(Step::Withdraw),
        1 => Just(Step::Vpn),
        1 => Just(Step::Refresh),
        1 => Just(Step::Reconnect),
        6 => Just(Step::Read),
    ]
}

/// Returns the AS and the capabilities of a peer that speaks plain families and another.
fn capabilities(is_external: bool, takes_v6: bool) -> (u16, Vec<&'static [u8]>) {
    let vpnv4 = CAPABILITIES[0];
    let (asn, mut all) = match is_external {
        true => (65001, [&EXTERNAL[..], &[vpnv4]].concat()),
        false => (AS as u16, [&CAPABILITIES[..], &PLAIN].concat()),
    };
    all.extend(takes_v6.then_some(NEXT_HOPS6));
    (asn, all)
}

proptest! {
    #[test]
    fn any_order_ends_with_what_is_announced(
        steps in prop::collection::vec(steps(), 1..60),
        is_external: bool,
        takes_v6: bool,
    ) {
        let (asn, capabilities) = capabilities(is_external, takes_v6);
        let mut raw = Raw::of(asn, &capabilities);
        let (mut reader, mut model) = (Reader::default(), BTreeMap::new());
        for step in steps.into_iter().chain([Step::Read]) {
            match step {
                Step::Announce(at, v6, preference) => {
                    let v6 = v6 || PREFIXES[at].contains("::");
                    let next_hop = if v6 { "2001:db8::ffff" } else { "203.0.113.254" };
                    raw.speaker.announce(nlri(PREFIXES[at]), by(next_hop, preference));
                    model.insert(PREFIXES[at], (v6, preference));
                }
                Step::Withdraw(at) => {
                    raw.speaker.withdraw(&nlri(PREFIXES[at]));
                    model.remove(PREFIXES[at]);
                }
                Step::Vpn => raw.speaker.announce(vpn(1, "203.0.113.0/24"), mpls(0, 2005, &[100])),
                Step::Refresh => raw.send(&message(5, &[0, 1, 0, 1])),
                Step::Reconnect => {
                    raw.again(asn, &capabilities);
                    reader = Reader::default();
                }
                Step::Read => {
                    for (_, body) in raw.output().iter().filter(|(kind, _)| *kind == 2) {
                        reader.read(body);
                    }
                    let row = |(prefix, (v6, preference)): (&&str, &(bool, u32))| {
                        let prefix: IpNet = prefix.parse().unwrap();
                        let next_hop = if *v6 { "2001:db8::ffff" } else { "203.0.113.254" };
                        let times = if *preference == LEAVING { 3 } else { 1 };
                        let path = if is_external { vec![AS; times] } else { Vec::new() };
                        let its = (!is_external).then_some(*preference);
                        let is_sent = takes_v6 || !v6 || prefix.addr().is_ipv6();
                        let row = (next_hop.parse().unwrap(), path, its, *preference == LEAVING);
                        is_sent.then_some((prefix, row))
                    };
                    let expected: BTreeMap<IpNet, Row> = model.iter().filter_map(row).collect();
                    prop_assert_eq!(&reader.table, &expected);
                }
            }
        }
    }
}
