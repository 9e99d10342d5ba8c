//! Link bandwidths: octets, and shares of flows.

use super::net::path;
use super::raw::{CAPABILITIES, Raw, attribute, update};
use crate::bandwidth::{Bandwidth, places};
use crate::{MAX_PATHS, Path};
use ipnet::IpNet;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A link bandwidth, or anything else in its place: octets after the type.
type Said = (u8, [u8; 4]);

fn community((kind, number): Said) -> Vec<u8> {
    [&[kind, 4, 0xfc, 0][..], &number].concat()
}

/// Announces 10.1.0.0/16 with label 1001 under a distinguisher.
fn announce(raw: &mut Raw, rd: u8, node: u8, preference: u8, said: &[Said]) {
    let reach = [&[0, 1, 128, 12][..], &[0; 8], &[10, 255, 0, node + 1, 0], &nlri(rd)].concat();
    let communities: Vec<u8> = said.iter().copied().flat_map(community).collect();
    let named = [&[0, 2, 0xfc, 0, 0, 0, 0, 100, 3, 12, 0, 0, 0, 0, 0, 13][..], &communities].concat();
    raw.send(&update(&[
        attribute(0x40, 1, &[0]),
        attribute(0x40, 2, &[]),
        attribute(0x40, 5, &[0, 0, 0, preference]),
        attribute(0xc0, 16, &named),
        attribute(0x80, 14, &reach),
    ]));
}

fn withdraw(raw: &mut Raw, rd: u8) {
    raw.send(&update(&[attribute(0x80, 15, &[&[0, 1, 128][..], &nlri(rd)].concat())]));
}

fn nlri(rd: u8) -> Vec<u8> {
    [&[104, 0, 0x3e, 0x91, 0, 0, 0xfc, 0, 0, 0, 0, rd, 10, 1][..]].concat()
}

fn prefix() -> IpNet {
    "10.1.0.0/16".parse().unwrap()
}

/// Returns the weights of hosts.
fn weights(raw: &Raw) -> Vec<(usize, usize)> {
    let paths = raw.table.routes.get(&(7, prefix())).cloned().unwrap_or_default();
    let of = |node: usize| paths.iter().filter(|one: &&Path| **one == path(node, 1001)).count();
    (0..9).map(|node| (node, of(node))).filter(|(_, weight)| *weight > 0).collect()
}

const fn bytes(rate: f32) -> Said {
    (0x40, rate.to_be_bytes())
}

#[test]
fn flows_are_shared_by_bandwidth_if_all_paths_have_one() {
    let mut raw = Raw::new(&CAPABILITIES);
    announce(&mut raw, 1, 2, 100, &[bytes(4e9)]);
    assert_eq!(weights(&raw), [(2, 1)]);
    // Under other distinguishers, and transitive.
    announce(&mut raw, 2, 3, 100, &[(0x00, 1e9_f32.to_be_bytes())]);
    announce(&mut raw, 3, 4, 90, &[]);
    assert_eq!(weights(&raw), [(2, 4), (3, 1)]);
    let explained: Vec<_> =
        raw.speaker.explain(7, prefix()).iter().map(|one| (one.bandwidth, one.weight)).collect();
    let bandwidth = |rate: f32| Bandwidth::read(rate.to_be_bytes());
    assert_eq!(explained, [(bandwidth(4e9), 4), (bandwidth(1e9), 1), (None, 0)]);
    // The highest counts of one path, and the first in one route.
    announce(&mut raw, 4, 3, 100, &[bytes(8e9), bytes(1.0)]);
    assert_eq!(weights(&raw), [(2, 1), (3, 2)]);
    announce(&mut raw, 4, 5, 100, &[]);
    assert_eq!(weights(&raw), [(2, 1), (3, 1), (5, 1)], "one without");
    withdraw(&mut raw, 4);
    assert_eq!(weights(&raw), [(2, 4), (3, 1)]);
}

#[test]
fn numbers_that_are_no_bandwidths_are_ignored() {
    let wrong =
        [0.0, -0.0, -1e9, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, f32::from_bits(1)];
    for rate in wrong {
        let mut raw = Raw::new(&CAPABILITIES);
        announce(&mut raw, 1, 2, 100, &[bytes(rate)]);
        announce(&mut raw, 2, 3, 100, &[bytes(1e9)]);
        assert_eq!(weights(&raw), [(2, 1), (3, 1)], "{rate}");
        announce(&mut raw, 1, 2, 100, &[bytes(rate), bytes(2e9)]);
        assert_eq!(weights(&raw), [(2, 2), (3, 1)], "{rate}");
    }
}

#[test]
fn few_places_are_enough_for_simple_proportions() {
    let of = |rates: &[f32]| {
        let all: Vec<_> = rates.iter().map(|rate| Bandwidth::read(rate.to_be_bytes()).unwrap()).collect();
        places(&all)
    };
    assert_eq!(of(&[1.25e9; 4]), [1; 4]);
    assert_eq!(of(&[1.25e10, 3.125e9]), [4, 1]);
    assert_eq!(of(&[1e9, 2e9, 3e9]), [1, 2, 3]);
    assert_eq!(of(&[f32::MAX, f32::MIN_POSITIVE]), [63, 1]);
    assert_eq!(of(&[1.0; MAX_PATHS]), [1; MAX_PATHS]);
}

fn rate() -> impl Strategy<Value = [u8; 4]> {
    let usual =
        prop::sample::select(vec![1e9_f32, 1.25e9, 3.125e9, 1.25e10, 5e10, f32::MAX, f32::MIN_POSITIVE]);
    prop_oneof![3 => usual.prop_map(f32::to_be_bytes), 1 => any::<[u8; 4]>()]
}

proptest! {
    #[test]
    fn shares_are_as_near_as_places_allow(rates in prop::collection::vec(1e8_f32..1e12, 1..=MAX_PATHS)) {
        let all: Vec<_> = rates.iter().map(|rate| Bandwidth::read(rate.to_be_bytes()).unwrap()).collect();
        let places = places(&all);
        let total: usize = places.iter().sum();
        prop_assert!(places.len() == rates.len() && total <= MAX_PATHS && places.iter().all(|one| *one > 0));
        let sum: f64 = rates.iter().map(|rate| f64::from(*rate)).sum();
        let shares = || rates.iter().map(|rate| f64::from(*rate) / sum);
        let place = 1.0 / MAX_PATHS as f64;
        // A path of less than a place has a whole one, which others lack.
        let lacking: f64 = shares().map(|share| (place - share).max(0.0)).sum();
        for (share, places) in shares().zip(&places) {
            let error = (*places as f64 / total as f64 - share).abs();
            prop_assert!(error <= place + lacking, "{share} {places} of {total}");
        }
    }

    #[test]
    fn any_order_of_bandwidths_ends_in_the_shares_of_a_naive_model(
        steps in prop::collection::vec(
            (1..6_u8, 1..5_u8, 100..102_u8, prop::option::weighted(0.8, (any::<bool>(), rate())), any::<bool>()),
            1..40,
        ),
    ) {
        let mut raw = Raw::new(&CAPABILITIES);
        let mut model = BTreeMap::new();
        for (rd, node, preference, said, announces) in steps {
            if announces {
                let said = said.map(|(transitive, rate)| (if transitive { 0 } else { 0x40 }, rate));
                announce(&mut raw, rd, node, preference, said.as_slice());
                let rate = said.map(|(_, rate)| f32::from_be_bytes(rate));
                model.insert(rd, (preference, usize::from(node), rate.filter(|rate| rate.is_normal() && *rate > 0.0)));
            } else {
                withdraw(&mut raw, rd);
                model.remove(&rd);
            }
            let most = model.values().map(|(preference, ..)| *preference).max();
            let mut best: BTreeMap<usize, Option<f32>> = BTreeMap::new();
            for (_, node, rate) in model.values().filter(|(preference, ..)| Some(*preference) == most) {
                let known = best.entry(*node).or_default();
                *known = [*known, *rate].into_iter().flatten().reduce(f32::max);
            }
            let rates: Option<Vec<f32>> = best.values().copied().collect();
            let shares = match rates {
                Some(rates) if rates.len() > 1 => {
                    places(&rates.iter().filter_map(|rate| Bandwidth::read(rate.to_be_bytes())).collect::<Vec<_>>())
                }
                _ => vec![1; best.len()],
            };
            prop_assert_eq!(weights(&raw), best.into_keys().zip(shares).collect::<Vec<_>>());
        }
    }
}
