//! Unasked announcements: addresses that are new on this host, and groups.

use super::harness::{Host, Output};
use super::world::{PROVIDER, WIRE, neighbours, tables};
use crate::announcer::Announcer;
use mem::Accepts;
use model::{Change, FloatingAddress, NeighbourScope, Vif, VifId, Vrf};
use std::collections::BTreeMap;

/// A host whose housekeeper makes unasked announcements.
struct Telling {
    host: Host,
    announcer: Announcer,
}

impl Telling {
    fn new() -> Self {
        let host = Host::new(&tables(), &neighbours(), Accepts::default(), 333);
        Self { host, announcer: Announcer::default() }
    }

    /// Returns the announcements of the next second while these interfaces are up, and the unknown
    /// neighbours.
    fn second(&mut self, up: &[u16]) -> (Output, Vec<NeighbourScope>) {
        self.host.advance(1);
        let snapshot = self.host.shared.snapshot();
        let view = snapshot.view(self.host.shared.flows(), self.host.core.now.seconds);
        let told = self.announcer.tell(&view, up.iter().map(|id| VifId(*id)).collect());
        let missing = told.iter().filter_map(|unasked| unasked.missing).map(|(scope, _)| scope).collect();
        told.iter().for_each(|unasked| self.host.core.send_all(&unasked.frame, &unasked.to));
        (self.host.run(VifId(1), []), missing)
    }

    /// Returns the addresses announced to an interface in the next second, with their MACs.
    fn heard(&mut self, by: VifId, up: &[u16]) -> Vec<(String, String)> {
        let (mut output, _) = self.second(up);
        let frames = output.remove(&by).unwrap_or_default();
        frames.iter().filter_map(|(frame, _)| announced(&model::text::show(frame))).collect()
    }
}

fn announced(text: &str) -> Option<(String, String)> {
    let words: Vec<_> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "at")?;
    Some((words[at - 1].to_owned(), words[at + 1].to_owned()))
}

fn at(addr: &str, mac: &str) -> (String, String) {
    (addr.to_owned(), mac.to_owned())
}

const ONE: &str = "02:00:00:00:00:01";
/// The MAC of the wire to which the provider network is attached.
const GATEWAY: &str = "02:aa:00:00:00:02";

#[test]
fn an_address_whose_guest_came_is_announced_thrice() {
    let mut telling = Telling::new();
    assert!(telling.second(&[2]).0.contains_key(&VifId(1)), "of guest 2");
    for _ in 0..10 {
        telling.second(&[2]);
    }
    let both = [at("10.1.1.1", ONE), at("fd00:1::1", ONE)];
    for _ in 0..3 {
        assert_eq!(telling.heard(VifId(2), &[1, 2]), both, "local peers hear of it");
    }
    assert!(telling.heard(VifId(2), &[1, 2]).is_empty());
    telling.second(&[2]);
    assert_eq!(telling.heard(VifId(2), &[1, 2]), both, "its link comes up again");
    let (output, _) = telling.second(&[1, 2]);
    assert!(!output.contains_key(&VifId(1)), "it is not told of itself");
    assert!(output.contains_key(&WIRE), "the flood tunnel's other end is");
}

#[test]
fn an_address_at_another_mac_is_announced() {
    let mut telling = Telling::new();
    for _ in 0..5 {
        telling.second(&[1, 2]);
    }
    let snapshot = telling.host.shared.snapshot();
    let other = "02:00:00:00:00:aa";
    let moved = Vif { mac: Some(other.parse().unwrap()), ..snapshot.vif(VifId(1)).unwrap().clone() };
    telling.host.shared.apply(&[Change::PutVif(moved)]).unwrap();
    assert_eq!(telling.heard(VifId(2), &[1, 2]), [at("10.1.1.1", other), at("fd00:1::1", other)]);
}

#[test]
fn a_floating_address_is_announced_where_it_floats() {
    let mut telling = Telling::new();
    let floating = at("203.0.113.7", GATEWAY);
    assert!(telling.heard(PROVIDER, &[2]).is_empty(), "its guest is not here");
    assert_eq!(telling.heard(PROVIDER, &[1, 2]), std::slice::from_ref(&floating));
    for _ in 0..5 {
        telling.second(&[1, 2]);
    }
    let other = FloatingAddress {
        inside_vrf: Vrf(1),
        inside: "10.1.1.2".parse().unwrap(),
        outside_vrf: Vrf(3),
        outside: "203.0.113.8".parse().unwrap(),
    };
    telling.host.shared.apply(&[Change::PutFloating(other)]).unwrap();
    let (output, _) = telling.second(&[1, 2]);
    let told = model::text::show(&output[&PROVIDER][0].0);
    let expected = format!(
        "eth {GATEWAY} > ff:ff:ff:ff:ff:ff vlan 7 / arp request 203.0.113.8 at {GATEWAY} for 203.0.113.8"
    );
    assert!(told.starts_with(&expected), "{told}");
    // A different host announces an address that floats over a tunnel.
    let (inside, outside) = ("10.9.0.7".parse().unwrap(), "203.0.113.9".parse().unwrap());
    telling.host.shared.apply(&[Change::PutFloating(FloatingAddress { inside, outside, ..other })]).unwrap();
    assert_eq!(telling.heard(PROVIDER, &[1, 2]), [at("203.0.113.8", GATEWAY)]);
}

#[test]
fn an_announcement_waits_for_the_way_through_tunnels() {
    let mut telling = Telling::new();
    telling.host = Host::new(&tables(), &[], Accepts::default(), 333);
    let mut missing = 0;
    for _ in 0..20 {
        missing += telling.second(&[1]).1.len();
    }
    assert_eq!(missing, 2 * 10, "each of its two addresses is tried for some time");
    telling.second(&[]);
    telling.second(&[1]);
    let found = neighbours().remove(3);
    telling.host.shared.neighbour(
        &telling.host.shared.snapshot(),
        &found,
        WIRE,
        telling.host.core.now.seconds,
    );
    let sent: usize = (0..5).map(|_| telling.second(&[1]).0.get(&WIRE).map_or(0, Vec::len)).sum();
    assert_eq!(sent, 2 * 3, "thrice all the same");
}

#[test]
fn many_are_announced_by_and_by() {
    let mut telling = Telling::new();
    let snapshot = telling.host.shared.snapshot();
    let addresses = (1..=200).map(|n| std::net::Ipv4Addr::new(10, 1, 7, n).into()).collect();
    let rich = Vif { addresses, ..snapshot.vif(VifId(1)).unwrap().clone() };
    telling.host.shared.apply(&[Change::PutVif(rich)]).unwrap();
    let mut heard: BTreeMap<(String, String), usize> = BTreeMap::new();
    for _ in 0..20 {
        let now = telling.heard(VifId(2), &[1, 2]);
        assert!(now.len() <= 64, "{}", now.len());
        now.into_iter().for_each(|one| *heard.entry(one).or_default() += 1);
    }
    assert_eq!(heard.len(), 200);
    assert!(heard.values().all(|times| *times == 3), "{heard:?}");
}

const RECORD_LEN: usize = 20;

/// Finds reports of one group each among the packets that left an interface. Returns whether they are tagged,
/// and the number of groups.
fn reports(output: &Output, vif: VifId) -> Vec<(bool, u8)> {
    let frames = output.get(&vif).into_iter().flatten().map(|(frame, _)| frame);
    let reports = frames.filter(|frame| frame[..6] == [0x33, 0x33, 0, 0, 0, 0x16]);
    reports.map(|frame| (frame[12] == 0x81, frame[frame.len() - RECORD_LEN - 1])).collect()
}

#[test]
fn groups_that_are_answered_for_are_reported() {
    let mut telling = Telling::new();
    let snapshot = telling.host.shared.snapshot();
    let mut outside = snapshot.network(Vrf(3)).unwrap().clone();
    outside.gateways.push("fd00:3::ffff/64".parse().unwrap());
    // This one is for guests alone.
    outside.gateways.push("fd00:ec2::254/128".parse().unwrap());
    outside.services.metadata = true;
    telling.host.shared.apply(&[Change::PutNetwork(outside)]).unwrap();
    let up = [WIRE.0, PROVIDER.0];
    for _ in 0..3 {
        let (output, _) = telling.second(&up);
        assert_eq!(reports(&output, WIRE), [(false, 1)], "of the underlay");
        assert_eq!(reports(&output, PROVIDER), [(true, 1)], "of the network");
    }
    let seconds = (0..120).filter(|_| telling.second(&up).0.contains_key(&WIRE)).count();
    assert_eq!(seconds, 2, "then from time to time");
    assert!(telling.second(&[]).0.is_empty());
    assert_eq!(reports(&telling.second(&[WIRE.0]).0, WIRE).len(), 1, "and when the wire is back");
}
