//! The tuple space finds what a list finds.

use super::*;
use packet::Mac;
use proptest::prelude::*;
use std::collections::BTreeSet;

const PORTS: [VifId; 2] = [VifId(1), VifId(2)];

/// Generates keys with values of few bits, so that flows overlap and packets match them.
fn key() -> impl Strategy<Value = Key> {
    (0..4_u16, 0..4_u128, 0..4_u16, 0..3_u8, 0..3_u8).prop_map(|(eth_type, ip_dst, l4_dst, ip_ttl, mac)| {
        Key { eth_src: Mac([0, 0, 0, 0, 0, mac]), eth_type, ip_dst, l4_dst, ip_ttl, ..Key::default() }
    })
}

fn flow(id: u64, port: VifId, key: &Key, mask: &Key) -> Arc<Flow> {
    let matching = Match::new(key, mask);
    Arc::new(Flow { id: FlowId(id), counter: id as u32, port, matching, actions: vec![Action::Drop] })
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64, usize, Key, Key),
    Remove(u64, usize),
    Flush(usize),
    Look(usize, Key),
}

impl Step {
    fn change(&self) -> Option<Change> {
        Some(match self {
            Self::Add(id, port, key, mask) => Change::Add(flow(*id, PORTS[*port], key, mask)),
            Self::Remove(id, port) => Change::Remove { port: PORTS[*port], id: FlowId(*id) },
            Self::Flush(port) => Change::Flush { port: PORTS[*port] },
            Self::Look(..) => return None,
        })
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // The numbers are in several chunks, so that chunks are emptied and filled again.
    let id = prop_oneof![0..20_u64, 60..70_u64, 120..130_u64];
    let step = prop_oneof![
        8 => (id.clone(), 0..2_usize, key(), key()).prop_map(|(id, port, key, mask)| Step::Add(id, port, key, mask)),
        3 => (id, 0..2_usize).prop_map(|(id, port)| Step::Remove(id, port)),
        1 => (0..2_usize).prop_map(Step::Flush),
        12 => (0..2_usize, key()).prop_map(|(port, key)| Step::Look(port, key)),
    ];
    prop::collection::vec(step, 1..200)
}

fn apply_to_list(list: &mut Vec<Arc<Flow>>, change: &Change) {
    match change {
        Change::Add(flow) => {
            list.retain(|other| (other.port, other.id) != (flow.port, flow.id));
            list.push(flow.clone());
        }
        Change::Remove { port, id } => list.retain(|other| (other.port, other.id) != (*port, *id)),
        Change::Flush { port } => list.retain(|other| other.port != *port),
    }
}

/// Checks that a version of the flows finds the same flows as this list, for packets with these fields.
fn compare(space: &Ovs, list: &[Arc<Flow>], port: VifId, key: &Key) -> Result<(), TestCaseError> {
    let of_port = || list.iter().filter(|flow| flow.port == port);
    let matching = of_port().filter(|flow| flow.matching.matches(key));
    let wanted = matching.min_by_key(|flow| flow.id).map(|flow| &**flow);
    prop_assert_eq!(space.find(port, key), wanted);
    let free = Key { ip_dst: u128::MAX, ..Key::default() };
    let touching = of_port().filter(|flow| flow.matching.may_match(key, &free)).min_by_key(|flow| flow.id);
    let of_all = touching.filter(|flow| !flow.matching.looks_at(&free)).map(|flow| &**flow);
    prop_assert_eq!(space.find_of_all(port, key, &free), of_all);
    let mask = of_port().fold(Key::default(), |all, flow| all.united(flow.matching.mask()));
    prop_assert_eq!(space.mask(port), mask);
    let masks: BTreeSet<_> = of_port().map(|flow| flow.matching.mask()).collect();
    prop_assert_eq!(space.count(port), (of_port().count(), masks.len()));
    Ok(())
}

proptest! {
    /// A tuple space finds the same flows as a list. Earlier versions, which workers may still use, do, too.
    #[test]
    fn a_tuple_space_finds_what_a_list_finds(steps in steps()) {
        const EACH: usize = 16;
        let mut space = Ovs::default();
        let mut list: Vec<Arc<Flow>> = Vec::new();
        let mut versions = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            if at % EACH == 0 {
                versions.push((space.clone(), list.clone()));
            }
            if let Some(change) = step.change() {
                let before = list.clone();
                apply_to_list(&mut list, &change);
                let removed = before.iter().any(|flow| !list.iter().any(|other| Arc::ptr_eq(flow, other)));
                prop_assert_eq!(space.apply(&[change], |_| true, &mut Touched::none()), removed);
            }
            if let Step::Look(port, key) = step {
                compare(&space, &list, PORTS[*port], key)?;
            }
        }
        for step in &steps {
            let Step::Look(port, key) = step else { continue };
            versions.iter().try_for_each(|(space, list)| compare(space, list, PORTS[*port], key))?;
        }
    }

    /// Whenever the result of a look-up changes, one of the cells on which it depends changes.
    #[test]
    fn a_changed_result_has_a_changed_cell(steps in steps(), looked in prop::collection::vec(key(), 1..20)) {
        let mut space = Ovs::default();
        let results = |space: &Ovs| -> Vec<(VifId, Option<Flow>)> {
            let each = PORTS.iter().flat_map(|port| looked.iter().map(|key| (*port, *key)));
            each.map(|(port, key)| (port, space.find(port, &key).cloned())).collect()
        };
        for change in steps.iter().filter_map(Step::change) {
            let before = results(&space);
            let mut touched = Touched::none();
            space.apply(&[change], |_| true, &mut touched);
            for ((port, was), (_, is)) in before.iter().zip(results(&space)) {
                if *was != is {
                    let cell = was.as_ref().map_or_else(|| Cell::ovs_misses(*port), |flow| Cell::ovs_flow(flow.id));
                    prop_assert!(touched.has(cell), "{:?} became {:?}", was, is);
                }
            }
        }
    }
}

#[test]
fn a_new_flow_leaves_alone_what_has_one() {
    let mut space = Ovs::default();
    let [one, two] = [1, 2].map(|ip_dst| Key { ip_dst, ..Key::default() });
    let mask = Key { ip_dst: u128::MAX, ..Key::default() };
    space.apply(&[Change::Add(flow(1, PORTS[0], &one, &mask))], |_| true, &mut Touched::none());
    let mut touched = Touched::none();
    space.apply(&[Change::Add(flow(2, PORTS[0], &two, &mask))], |_| true, &mut touched);
    assert!(!touched.has(Cell::ovs_flow(FlowId(1))) && touched.has(Cell::ovs_misses(PORTS[0])));
    assert!(!touched.has(Cell::ovs_misses(PORTS[1])));
    let mut touched = Touched::none();
    assert!(space.apply(&[Change::Remove { port: PORTS[0], id: FlowId(2) }], |_| true, &mut touched));
    assert!(!touched.has(Cell::ovs_flow(FlowId(1))) && touched.has(Cell::ovs_flow(FlowId(2))));
}

#[test]
fn a_flow_that_does_something_else_from_now_on_leaves_others_alone() {
    let mut space = Ovs::default();
    let [one, two] = [1, 2].map(|ip_dst| Key { ip_dst, ..Key::default() });
    let mask = Key { ip_dst: u128::MAX, ..Key::default() };
    // Two flows have the same key.
    let flows = [(1, &one), (2, &one), (3, &two)].map(|(id, key)| flow(id, PORTS[0], key, &mask));
    space.apply(&flows.clone().map(Change::Add), |_| true, &mut Touched::none());
    for (at, seen) in [(0, 1), (1, 1), (2, 3)] {
        let to = VifId(7 + at as u16);
        let changed = Arc::new(Flow { actions: vec![Action::Output(to)], ..(*flows[at]).clone() });
        let mut touched = Touched::none();
        assert!(space.apply(&[Change::Add(changed.clone())], |_| true, &mut touched));
        let others = flows.iter().filter(|flow| flow.id != changed.id);
        assert!(touched.has(Cell::ovs_flow(changed.id)) && !touched.has(Cell::ovs_misses(PORTS[0])));
        assert!(others.into_iter().all(|flow| !touched.has(Cell::ovs_flow(flow.id))));
        let found = space.find(PORTS[0], changed.matching.key()).unwrap();
        assert_eq!((found.id, found.id == changed.id), (FlowId(seen), *found == *changed));
        assert_eq!(space.count(PORTS[0]), (3, 1));
        assert!(space.ports[&PORTS[0]].outputs.contains_key(&to));
    }
    // The second of two is found once the first is gone.
    space.apply(&[Change::Remove { port: PORTS[0], id: FlowId(1) }], |_| true, &mut Touched::none());
    assert_eq!(space.find(PORTS[0], &one).unwrap().actions, [Action::Output(VifId(8))]);
}

#[test]
fn ports_that_take_no_flows_get_none_and_lose_theirs() {
    let mut space = Ovs::default();
    let add = || Change::Add(flow(1, PORTS[0], &Key::default(), &Key::default()));
    space.apply(&[add()], |_| false, &mut Touched::none());
    assert_eq!(space.count(PORTS[0]), (0, 0));
    space.apply(&[add()], |_| true, &mut Touched::none());
    assert_eq!(space.count(PORTS[0]), (1, 1));
    let mut touched = Touched::none();
    space.retain(|port| port != PORTS[0], &mut touched);
    assert_eq!(space.count(PORTS[0]), (0, 0));
    assert!(touched.has(Cell::ovs_flow(FlowId(1))));
}

#[test]
fn packets_are_told_apart_by_addresses_and_ports_where_something_reads_them() {
    let ruled = Vif { rules: Some(model::Vrf(1)), ..Vif::new(VifId(7), "ruled", model::VifKind::Vhost) };
    let plain = Vif::new(PORTS[0], "plain", model::VifKind::Vhost);
    let vif = |id| [&plain, &ruled].into_iter().find(|vif| vif.id == id);
    let mut ovs = Ovs::default();
    let is_coarse = |ovs: &Ovs| ovs.is_coarse(&plain, vif);
    let (mut touched, mac) = (Touched::none(), Key { eth_src: Mac([255; 6]), ..Key::default() });
    let flow = |id, mask: &Key, actions| {
        let matching = Match::new(&Key::default(), mask);
        Change::Add(Arc::new(Flow { id: FlowId(id), counter: 0, port: PORTS[0], matching, actions }))
    };
    let outer = || {
        let bytes = model::text::parse(
            "eth 02:aa:00:00:00:01 > 02:bb:00:00:00:02 / ip4 192.0.2.1 > 192.0.2.2 / udp 0 > 4789 nosum / vxlan 5",
        );
        Action::Encap(model::ovs::Outer::new(&bytes.unwrap()).unwrap())
    };
    let to = |port| vec![Action::Output(PORTS[1]), Action::Output(port)];
    assert!(is_coarse(&ovs) && !ovs.is_coarse(&ruled, vif));
    ovs.apply(&[flow(1, &mac, to(VifId(9)))], |_| true, &mut touched);
    assert!(is_coarse(&ovs), "of the MAC address alone");
    let reads = [
        flow(2, &Key { ip_dst: 1, ..mac }, to(PORTS[1])),
        flow(2, &Key { ip_src: 1, ..mac }, to(PORTS[1])),
        flow(2, &Key { l4_src: 1, ..mac }, vec![]),
        flow(2, &Key { l4_dst: 1, ..mac }, vec![]),
        flow(2, &mac, to(ruled.id)),
        flow(2, &mac, vec![outer(), outer(), Action::Output(PORTS[1])]),
    ];
    for read in reads {
        ovs.apply(std::slice::from_ref(&read), |_| true, &mut touched);
        assert!(!is_coarse(&ovs), "{read:?}");
        // A flow that does not read them replaces it.
        ovs.apply(&[flow(2, &mac, to(PORTS[1]))], |_| true, &mut touched);
        assert!(is_coarse(&ovs), "after {read:?}");
    }
}
