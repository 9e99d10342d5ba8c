//! Any order of announcements, withdrawals and sweeps by several sources ends in the table of a naive model.

#![allow(clippy::unwrap_used, missing_docs)]

use ipnet::IpNet;
use model::{NexthopId, Vrf};
use proptest::prelude::*;
use rib::{Error, Nexthops, Path, PathSet, Place, Rib, SourceId};
use std::collections::BTreeMap;

/// Preferences of the sources; two are alike.
const PREFERENCES: [u8; 3] = [20, 10, 20];

#[derive(Clone, Debug)]
enum Step {
    Update(usize, u16, Vec<(u8, Option<u8>)>),
    Begin(usize),
    /// Sweeps, so many at a time.
    End(usize, usize),
    Drop(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let routes = proptest::collection::vec((0..12_u8, proptest::option::weighted(0.7, 0..6_u8)), 1..6);
    let update = (0..3_usize, 0..3_u16, routes).prop_map(|(of, vrf, routes)| Step::Update(of, vrf, routes));
    let step = prop_oneof![
        8 => update,
        2 => (0..3_usize).prop_map(Step::Begin),
        2 => (0..3_usize, 1..4_usize).prop_map(|(of, most)| Step::End(of, most)),
        1 => (0..3_u16).prop_map(Step::Drop),
    ];
    proptest::collection::vec(step, 1..60)
}

fn prefix(n: u8) -> IpNet {
    let text = if n.is_multiple_of(2) { format!("10.{n}.0.0/16") } else { format!("fd00:{n}::/32") };
    text.parse().unwrap()
}

fn paths(n: u8) -> PathSet {
    let via = |n: u8| Path::Via([192, 0, 2, n].into());
    match n {
        0 => PathSet::new([Path::Discard]),
        1 | 2 => PathSet::new([via(n)]),
        // The same paths with other weights.
        3 => PathSet::new([via(3), via(9)]),
        4 => PathSet::new([via(9), via(3), via(9)]),
        _ => PathSet::new([via(5), via(9)]),
    }
    .unwrap()
}

#[test]
fn a_set_has_each_path_as_often_as_its_weight() {
    let via = |n: u8| Path::Via([192, 0, 2, n].into());
    let set = |paths: &[Path]| PathSet::new(paths.iter().copied());
    assert_eq!(set(&[via(2), via(1), via(2)]).unwrap().paths(), [via(1), via(2), via(2)]);
    assert_eq!(set(&[via(1); 3]), set(&[via(1)]), "a path alone has no weight");
    assert_eq!(set(&[]), None);
    let most = [&[via(1); 63][..], &[via(2)]].concat();
    assert!(set(&most).is_some() && set(&[&most[..], &[via(2)]].concat()).is_none());
}

/// Nexthops in use, each with the number of its routes, and the number of the next one.
#[derive(Default)]
struct InUse(BTreeMap<PathSet, (NexthopId, usize)>, u32);

impl Nexthops for InUse {
    fn take(&mut self, paths: &PathSet) -> NexthopId {
        self.1 += 1;
        let (id, routes) = self.0.entry(paths.clone()).or_insert((NexthopId(self.1), 0));
        *routes += 1;
        *id
    }

    fn put_back(&mut self, nexthop: NexthopId) {
        let (_, (_, routes)) = self.0.iter_mut().find(|(_, (id, _))| *id == nexthop).expect("put back twice");
        *routes -= 1;
        self.0.retain(|_, (_, routes)| *routes > 0);
    }
}

/// By place and source: the paths, and whether they are fresh.
type Naive = BTreeMap<(Place, usize), (PathSet, bool)>;

fn best(naive: &Naive) -> BTreeMap<Place, (PathSet, usize)> {
    let mut best: BTreeMap<Place, (PathSet, usize)> = BTreeMap::new();
    for ((place, source), (paths, _)) in naive {
        let wins =
            |(_, other): &(PathSet, usize)| (PREFERENCES[*source], source) < (PREFERENCES[*other], other);
        if best.get(place).is_none_or(wins) {
            best.insert(*place, (paths.clone(), *source));
        }
    }
    best
}

fn sources(rib: &mut Rib) -> Vec<SourceId> {
    let add = |(n, preference)| rib.source(&format!("s{n}"), preference, 1000).unwrap();
    PREFERENCES.into_iter().enumerate().map(add).collect()
}

fn step(rib: &mut Rib, sources: &[SourceId], naive: &mut Naive, in_use: &mut InUse, step: &Step) {
    match step {
        Step::Update(of, vrf, routes) => {
            let sets: Vec<_> = routes.iter().map(|(n, to)| (prefix(*n), to.map(paths))).collect();
            let all = sets.iter().map(|(prefix, to)| (*prefix, to.as_ref()));
            rib.update(sources[*of], Vrf(*vrf), all, in_use).unwrap();
            for (prefix, to) in sets {
                let key = ((Vrf(*vrf), prefix), *of);
                match to {
                    Some(to) => drop(naive.insert(key, (to, true))),
                    None => drop(naive.remove(&key)),
                }
            }
        }
        Step::Begin(of) => {
            rib.begin(sources[*of]);
            naive.iter_mut().filter(|((_, source), _)| source == of).for_each(|(_, route)| route.1 = false);
        }
        Step::End(of, most) => {
            let mut after = None;
            loop {
                let stale = rib.stale(sources[*of], after, *most);
                let Some(last) = stale.last() else { break };
                after = Some(*last);
                assert_eq!(rib.sweep(sources[*of], &stale, in_use), stale.len());
            }
            rib.swept(sources[*of]);
            naive.retain(|(_, source), (_, is_fresh)| source != of || *is_fresh);
        }
        Step::Drop(gone) => {
            rib.retain(|vrf| vrf.0 != *gone, in_use);
            naive.retain(|((vrf, _), _), _| vrf.0 != *gone);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_table_is_that_of_a_naive_model(steps in steps()) {
        let (mut rib, mut naive, mut in_use) = (Rib::default(), Naive::new(), InUse::default());
        let sources = sources(&mut rib);
        let mut forwarded = BTreeMap::new();
        for one in steps {
            let before = rib.clone();
            step(&mut rib, &sources, &mut naive, &mut in_use, &one);
            for (place, nexthop) in before.changes_to(&rib) {
                match nexthop {
                    Some(nexthop) => drop(forwarded.insert(place, nexthop)),
                    None => prop_assert!(forwarded.remove(&place).is_some()),
                }
            }
            let wanted = best(&naive);
            let found: BTreeMap<_, _> = rib.iter().map(|(place, nexthop, source)| (place, (nexthop, source.name.clone()))).collect();
            let wanted: BTreeMap<_, _> = wanted.into_iter()
                .map(|(place, (paths, source))| (place, (in_use.0[&paths].0, format!("s{source}").into()))).collect();
            prop_assert_eq!(&found, &wanted, "after {:?}", one);
            prop_assert!(forwarded.iter().eq(found.iter().map(|(place, (nexthop, _))| (place, nexthop)).collect::<Vec<_>>()));
            let mut used = BTreeMap::<_, usize>::new();
            naive.values().for_each(|(paths, _)| *used.entry(paths.clone()).or_default() += 1);
            let taken: BTreeMap<_, _> = in_use.0.iter().map(|(paths, (_, routes))| (paths.clone(), *routes)).collect();
            prop_assert_eq!(used, taken, "what no route has is put back");
            for (n, source) in rib.sources().iter().enumerate() {
                prop_assert_eq!(source.routes, naive.keys().filter(|(_, of)| *of == n).count());
            }
        }
    }
}

#[test]
fn a_source_has_no_more_routes_than_it_may() {
    let (mut rib, mut in_use) = (Rib::default(), InUse::default());
    let of = rib.source("bgp", 20, 2).unwrap();
    let to = paths(1);
    let mut send = |rib: &mut Rib, numbers: &[u8], to: Option<&PathSet>| {
        let routes: Vec<_> = numbers.iter().map(|n| (prefix(*n), to)).collect();
        rib.update(of, Vrf(1), routes.into_iter(), &mut in_use)
    };
    assert!(matches!(send(&mut rib, &[1, 2, 3], Some(&to)), Err(Error::Full { limit: 2, wanted: 3, .. })));
    assert!(rib.is_empty(), "nothing was done");
    send(&mut rib, &[1, 2], Some(&to)).unwrap();
    assert!(send(&mut rib, &[3], Some(&to)).is_err());
    send(&mut rib, &[2], Some(&paths(2))).unwrap();
    send(&mut rib, &[1], None).unwrap();
    send(&mut rib, &[3], Some(&to)).unwrap();
    assert_eq!((rib.len(), rib.sources()[0].routes), (2, 2));
    assert_eq!(rib.source("bgp", 20, 3).unwrap(), of, "found again, with another limit");
    send(&mut rib, &[1], Some(&to)).unwrap();
}

#[test]
fn sessions_that_never_end_keep_their_routes_apart() {
    let (mut rib, mut in_use) = (Rib::default(), InUse::default());
    let of = rib.source("bgp", 20, 2).unwrap();
    let to = paths(1);
    rib.update(of, Vrf(1), [(prefix(1), Some(&to))].into_iter(), &mut in_use).unwrap();
    for _ in 0..70_000 {
        rib.begin(of);
        assert_eq!(rib.stale(of, None, 10).len(), 1);
    }
}
